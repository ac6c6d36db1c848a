"""Schuessler et al. (2020): the interplay between randomness and structure during learning in RNNs."""
