"""Hazelden et al. (2025): an operator perspective on dynamic collapse in recurrent networks."""
