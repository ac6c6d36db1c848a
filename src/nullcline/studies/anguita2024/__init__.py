"""λ-balanced two-layer linear networks: figures 3.1 to 3.6 and 4.2 to 4.8 of anguita2024."""
