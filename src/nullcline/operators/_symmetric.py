"""Eigenvalues of symmetric matrices, without their vectors where the processor is at hand.

XLA's ``eigvalsh`` computes the vectors as well, and its product F^T F both halves of a symmetric matrix: on a
CPU, for arrays that can be looked at, LAPACK and BLAS are called directly, in less than half the time.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array

from .._checks import is_concrete


def is_on_host(array: Any) -> bool:
    """Whether the numbers are there now, in the memory of the CPU."""
    if isinstance(array, np.ndarray):
        return True
    return is_concrete(array) and all(device.platform == "cpu" for device in array.devices())


def gram_of_smaller_side(factor: Array) -> Array | np.ndarray:
    """The matrix F F^T or F^T F, whichever is smaller: the same nonzero eigenvalues."""
    values = np.asarray(factor) if is_on_host(factor) else factor
    return values @ values.T if values.shape[0] <= values.shape[1] else values.T @ values


def eigenvalues(matrix: Array | np.ndarray) -> Array | np.ndarray:
    """All eigenvalues, ascending; NaN for a matrix that is not finite."""
    if not is_on_host(matrix):
        return jnp.linalg.eigvalsh(matrix)
    values = np.asarray(matrix)
    if not np.all(np.isfinite(values)):
        return np.full(len(values), np.nan, values.dtype)
    return scipy.linalg.eigh(values, eigvals_only=True, check_finite=False)


def descending(values: Array | np.ndarray, size: int) -> Array:
    """Largest first, and as many as a positive semi-definite matrix of side ``size`` has, from ascending."""
    if isinstance(values, jax.Array):
        padded = jnp.concatenate([jnp.zeros(size - len(values), values.dtype), values])
        return jnp.clip(padded[::-1], 0, None)
    padded = np.zeros(size, values.dtype)
    padded[: len(values)] = values[::-1]
    return jnp.asarray(np.maximum(padded, 0))
