"""Exact learning dynamics of bottlenecked and wide linear networks: figures 1 and 2 of domine2025."""
