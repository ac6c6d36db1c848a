"""What the linear theory asks of its arguments; checked before anything is computed."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..._checks import is_concrete

Scalar = float | int | Float[Array, ""]


def require_gain(g: Scalar | Float[Array, "..."]) -> None:
    """Raise unless 0 <= g < 1: at g >= 1 the linear network is unstable and the theory means nothing."""
    if not is_concrete(g):
        return
    smallest, largest = float(np.min(g)), float(np.max(g))
    if not smallest >= 0:
        raise ValueError(f"`g` must be at least 0 (it is a standard deviation), got {smallest}.")
    if not largest < 1:
        raise ValueError(
            f"`g` must be below 1, got {largest}: the linear network is unstable there. "
            "Train a nonlinear network for stronger initial weights."
        )


def require_finite(**values: object) -> None:
    """Raise if a named value is NaN or infinite."""
    for name, value in values.items():
        if not is_concrete(value):
            continue
        array = np.asarray(value)
        count = int(np.sum(~np.isfinite(array)))
        if count == 0:
            continue
        got = f"{count} of {array.size} entries that are not" if array.ndim else value
        raise ValueError(f"`{name}` must be finite, got {got}.")


def require_fraction(fraction: float) -> None:
    """Raise unless 0 < fraction < 1."""
    if not 0 < fraction < 1:
        raise ValueError(f"`fraction` must be between 0 and 1, both excluded, got {fraction}.")


def require_times(taus: Float[Array, "..."], name: str = "taus") -> None:
    """Raise if a learning time is negative or NaN; infinity stands for convergence."""
    if is_concrete(taus) and not np.all(np.asarray(taus) >= 0):
        raise ValueError(f"`{name}` must be learning times of at least 0, got {np.asarray(taus)}.")


def spectral_abscissa(matrix: Float[Array, "n n"]) -> float:
    """Largest real part of the eigenvalues (on the host)."""
    return float(np.max(np.linalg.eigvals(np.asarray(matrix)).real)) if matrix.shape[0] else 0.0


def _is_contracting(matrix: np.ndarray) -> bool:
    """Whether squaring drives the matrix below norm 1, which proves that its spectral radius is below 1.

    A few products instead of the eigenvalues, which cost about a hundred times as much at N = 1024.
    """
    power = matrix
    for _ in range(8):
        norm = np.linalg.norm(power)
        if norm < 1:
            return True
        if not norm < 1e100:
            return False
        power = power @ power
    return False


def require_network(w0: Float[Array, "n n"], m: Float[Array, " n"], w: Float[Array, " n"]) -> None:
    """Raise unless (W_0, m, w) is a stable linear network that can learn; m and w may have any norm."""
    n = w0.shape[0] if w0.ndim else 0
    if n == 0 or not (w0.shape == (n, n) and m.shape == w.shape == (n,)):
        raise ValueError(
            "`w0` must be (N, N), `m` and `w` (N,), with at least one neuron, got shapes "
            f"{w0.shape}, {m.shape} and {w.shape}."
        )
    require_finite(w0=w0, m=m, w=w)
    for name, vector in (("m", m), ("w", w)):
        if is_concrete(vector) and not np.any(np.asarray(vector)):
            raise ValueError(f"`{name}` is zero: the readout is 0 for any weights and cannot be trained.")
    if not is_concrete(w0):
        return
    matrix = np.asarray(w0, dtype=np.float64)
    if _is_contracting(matrix):
        return
    largest = spectral_abscissa(jnp.asarray(w0))
    if largest >= 1:
        raise ValueError(
            f"`w0` must have eigenvalues with real part below 1, got {largest:.6g}: the linear network is "
            "unstable and has no fixed point to read out. Scale `w0` down."
        )


def checked_target(
    w0: Float[Array, "n n"], m: Float[Array, " n"], w: Float[Array, " n"], target: Scalar
) -> Float[Array, ""]:
    """Check a network with its target; give the target in the precision of the network, as the flows are."""
    require_finite(target=target)
    require_network(w0, m, w)
    return jnp.asarray(target, jnp.result_type(w0, m, w))


def require_ratio(target: Scalar, why: str) -> None:
    """Raise if a target of 0 makes a ratio to the initial loss meaningless."""
    if is_concrete(target) and float(target) == 0:
        raise ValueError(f"`target` must not be 0: {why}")
