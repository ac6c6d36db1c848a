"""Cases and comparisons that several test modules share."""

import os
from typing import NamedTuple

# What `conftest.py` sets for the sake of speed.
_OURS = ("XLA_FLAGS", "NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "JAX_COMPILATION_CACHE_DIR")


def environment_of_a_user() -> dict[str, str]:
    """Return the environment of a process that has all threads and no flags, as at a user's."""
    return {name: value for name, value in os.environ.items() if name not in _OURS}


class Architecture(NamedTuple):
    """Sizes of a two-layer network and the number of active hidden units (None: all)."""

    n_in: int
    n_hidden: int
    n_out: int
    rank: int | None = None

    def admits(self, lam: float) -> bool:
        """Whether weights balanced with this λ exist."""
        active = self.n_hidden if self.rank is None else self.rank
        return not ((lam > 0 and active > self.n_out) or (lam < 0 and active > self.n_in))


ARCHITECTURES = {
    "funnel": Architecture(4, 2, 2),
    "inverted": Architecture(2, 2, 4),
    "square": Architecture(3, 3, 3),
    "bottleneck": Architecture(4, 2, 3),
    "between": Architecture(2, 3, 4),
    "wide": Architecture(2, 7, 3),
    "projector": Architecture(3, 7, 3, 2),
}
