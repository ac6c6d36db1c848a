"""Keep batched LAPACK calls of one program apart."""

from .._order import after as after
