"""What every entry point asks of its arguments, before it computes.

Values are inspected only where they can be: inside a traced function (``jit``, ``vmap``, ``grad``) shapes are
still checked, and what depends on values shows in the result instead (NaN and a ``status``).
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float


def is_concrete(*values: object) -> bool:
    """Whether every value can be inspected, i.e. none of them is traced."""
    return not any(isinstance(value, Tracer) for value in values)


def as_float(value: object) -> Array:
    """``value`` as a floating-point array; integers and lists become floats of the default precision.

    NumPy arrays and numbers stay concrete inside ``jit``, where ``jnp.asarray`` would hide their values.
    """
    if isinstance(value, np.ndarray | np.generic | int | float):
        with jax.ensure_compile_time_eval():
            array = jnp.asarray(value)
    else:
        array = value if isinstance(value, jax.Array) else jnp.asarray(value)
    if jnp.issubdtype(array.dtype, jnp.floating):
        return array
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise ValueError(f"Weights, data and times must be real, got {array.dtype}: take `.real`.")
    return array.astype(jnp.result_type(float))


def require_matrix(name: str, value: Array, rows: str, columns: str) -> None:
    """Raise unless ``value`` is a matrix with at least one row and one column."""
    if value.ndim != 2 or 0 in value.shape:
        raise ValueError(
            f"`{name}` must be a matrix of shape ({rows}, {columns}) with no empty axis, "
            f"got shape {value.shape}."
        )


def require_finite(name: str, value: Array) -> None:
    """Raise if ``value`` can be inspected and has an entry that is not finite."""
    if is_concrete(value) and not np.isfinite(np.asarray(value)).all():
        if np.ndim(value) == 0:
            raise ValueError(f"`{name}` must be finite, got {float(value)}.")
        bad = int(np.size(value) - np.isfinite(np.asarray(value)).sum())
        raise ValueError(f"`{name}` must be finite, got {bad} entries that are NaN or infinite.")


def require_scalar(name: str, value: float | Array) -> None:
    """Raise unless ``value`` is one number."""
    if np.ndim(value) != 0:
        raise ValueError(
            f"`{name}` must be one number, got shape {np.shape(value)}. Use `jax.vmap` for several."
        )


def require_positive(name: str, value: float | Array) -> None:
    """Raise unless ``value`` is one number, positive and finite where it can be inspected."""
    require_scalar(name, value)
    if is_concrete(value) and not (np.isfinite(value) and value > 0):
        raise ValueError(f"`{name}` must be positive and finite, got {value}.")


def require_nonnegative(name: str, value: float | Array) -> None:
    """Raise unless ``value`` is one number, nonnegative and finite where it can be inspected."""
    require_scalar(name, value)
    if is_concrete(value) and not (np.isfinite(value) and value >= 0):
        raise ValueError(f"`{name}` must be at least 0 and finite, got {value}.")


def require_size(name: str, value: int) -> None:
    """Raise unless ``value`` is a positive integer."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"`{name}` must be an integer of at least 1, got {value!r}.")


def require_times(times: object) -> Float[Array, " time"]:
    """``times`` as an array, checked: one axis, finite, nonnegative, sorted."""
    array = as_float(times)
    if array.ndim != 1 or array.shape[0] == 0:
        raise ValueError(f"`times` must have one axis and at least one entry, got shape {array.shape}.")
    if is_concrete(array):
        values = np.asarray(array)
        if not np.isfinite(values).all():
            raise ValueError("`times` must be finite; for t → ∞ use a large time or `limit`.")
        if values.min() < 0:
            raise ValueError(f"`times` must be at least 0, got {values.min()}.")
        if (np.diff(values) < 0).any():
            raise ValueError("`times` must be sorted in increasing order; use `jnp.sort(times)`.")
    return array
