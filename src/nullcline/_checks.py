"""What entry points ask of their arguments, before they compute.

Values are inspected only where they can be: inside a traced function (``jit``, ``vmap``, ``grad``) shapes are
still checked, and what depends on values shows in the result instead (NaN and a ``status``).
"""

from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float

LARGEST_SIZE = int(np.iinfo(np.int32).max)
"""JAX counts in 32 bits."""


def is_concrete(*values: object) -> bool:
    """Whether every value can be inspected, i.e. none of them is traced or holds anything traced."""
    return not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(values))


def is_integer(value: object) -> TypeGuard[int]:
    """Whether ``value`` is a Python or NumPy integer; booleans and floats are not."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def as_float(name: str, value: object) -> Array:
    """``value`` as a floating-point array; integers and lists become floats of the default precision.

    NumPy arrays and numbers stay concrete inside ``jit``, where ``jnp.asarray`` would hide their values.
    """
    try:
        leaves = jax.tree.leaves(value)
        if leaves and all(isinstance(leaf, np.ndarray | np.generic | int | float) for leaf in leaves):
            plain = np.asarray(value)
            # In NumPy, since JAX wraps or refuses integers beyond 32 bits where float64 is not enabled. Those
            # beyond 64 bits are objects to NumPy.
            if plain.dtype.kind in "iu" or (
                plain.dtype == object and all(isinstance(entry, int) for entry in plain.flat)
            ):
                plain = plain.astype(float)
            with jax.ensure_compile_time_eval():
                array = jnp.asarray(plain)
        else:
            array = value if isinstance(value, jax.Array) else jnp.asarray(value)
    # Whatever an object raises that will not become an array: ragged lists, None, tensors with a gradient.
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        kind = type(value).__name__
        raise ValueError(f"`{name}` must be an array of numbers, got a {kind}: {error}") from None
    if jnp.issubdtype(array.dtype, jnp.floating):
        if jnp.finfo(array.dtype).bits < 32:
            raise ValueError(f"`{name}` must be float32 or float64, got {array.dtype}: use `.astype(float)`.")
        return array
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise ValueError(f"`{name}` must be real, got {array.dtype}: take `.real`.")
    if not (jnp.issubdtype(array.dtype, jnp.integer) or array.dtype == bool):
        raise ValueError(f"`{name}` must be an array of numbers, got {array.dtype}.")
    return array.astype(jnp.result_type(float))


def coarser(*dtypes: np.dtype) -> np.dtype:
    """The least precise of several floating-point types: what came from it carries its rounding errors."""
    return min(dtypes, key=lambda dtype: jnp.finfo(dtype).bits)


def require_key(key: object) -> None:
    """Raise unless ``key`` is one random key."""
    if not isinstance(key, jax.Array | np.ndarray):
        got = repr(key) if key is None or isinstance(key, int) else f"a {type(key).__name__}"
        raise ValueError(f"`key` must be a random key, `jax.random.key(seed)`, got {got}.")
    is_typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    # Keys of the old kind, `jax.random.PRNGKey(seed)`, are vectors of as many integers as JAX is set to use.
    is_old = key.dtype == np.uint32 and key.shape == jax.eval_shape(jax.random.PRNGKey, 0).shape
    if not (key.ndim == 0 if is_typed else is_old):
        raise ValueError(
            f"`key` must be one random key, `jax.random.key(seed)`, got {key.dtype} of shape {key.shape}; "
            "for several keys use `jax.vmap`."
        )


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


def require_scalar(name: str, value: Any) -> Any:
    """``value``, if it is one real number, of Python, NumPy or JAX or a scalar of another library.

    Large integers become floats, since those of JAX end at 32 bits, and so does what JAX would not take.
    """
    try:
        array = value if isinstance(value, jax.Array) else np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged lists, tensors with a gradient
        raise ValueError(f"`{name}` must be one number, got a {type(value).__name__}: {error}") from None
    if array.ndim != 0:
        raise ValueError(f"`{name}` must be one number, got shape {array.shape}. Use `jax.vmap` for several.")
    # Integers beyond 64 bits are objects to NumPy.
    is_real = isinstance(value, int) or any(
        jnp.issubdtype(array.dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_)
    )
    if not is_real:
        raise ValueError(f"`{name}` must be one number, real and of Python, NumPy or JAX, got {value!r}.")
    if not isinstance(value, jax.Array | int | float | np.number | np.ndarray) or array.dtype.itemsize > 8:
        value = float(array)
    if is_integer(value) and abs(value) > LARGEST_SIZE:
        try:
            return float(value)
        except OverflowError:
            raise ValueError(f"`{name}` is beyond the range of floating-point numbers.") from None
    return value


def require_positive(name: str, value: Any) -> Any:
    """``value`` as ``require_scalar`` gives it, positive and finite where it can be inspected."""
    value = require_scalar(name, value)
    if is_concrete(value) and not (np.isfinite(value) and value > 0):
        raise ValueError(f"`{name}` must be positive and finite, got {value}.")
    return value


def require_nonnegative(name: str, value: Any) -> Any:
    """``value`` as ``require_scalar`` gives it, nonnegative and finite where it can be inspected."""
    value = require_scalar(name, value)
    if is_concrete(value) and not (np.isfinite(value) and value >= 0):
        raise ValueError(f"`{name}` must be at least 0 and finite, got {value}.")
    return value


def require_integer(name: str, value: int, low: int, high: int = LARGEST_SIZE, what: str = "") -> int:
    """``value`` as Python's integer, if it is one from ``low`` to ``high``, which is called ``what``."""
    if not is_integer(value) or not low <= value <= high:
        is_open = high >= LARGEST_SIZE and not (is_integer(value) and value > high)
        allowed = f"of at least {low}" if is_open else f"from {low} to {high}"
        raise ValueError(f"`{name}` must be an integer {allowed}{what and ', ' + what}, got {value!r}.")
    return int(value)


def require_size(name: str, value: int) -> int:
    """``value`` as Python's integer, if it is a positive one."""
    return require_integer(name, value, 1)


def require_sizes(**sizes: int) -> None:
    """Raise unless every named value is a positive integer."""
    for name, value in sizes.items():
        require_size(name, value)


def are_sorted(times: Float[Array, " time"]) -> Bool[Array, ""]:
    """What ``require_times`` asks for, of times that cannot be inspected."""
    # Not the smallest one: a minimum may miss NaN (see ``measures.largest``).
    return jnp.all(jnp.isfinite(times) & (times >= 0)) & jnp.all(times[1:] >= times[:-1])


def require_times(times: object, like: Array | None = None) -> Float[Array, " time"]:
    """``times`` as an array, at least as precise as ``like``: one axis, finite, nonnegative, sorted."""
    array = as_float("times", times)
    if like is not None:
        array = array.astype(max(array.dtype, like.dtype, key=lambda dtype: jnp.finfo(dtype).bits))
    if array.ndim != 1 or array.shape[0] == 0:
        raise ValueError(f"`times` must have one axis and at least one entry, got shape {array.shape}.")
    if is_concrete(array):
        values = np.asarray(array)
        if not np.isfinite(values).all():
            raise ValueError("`times` must be finite; for t → ∞ use a large time.")
        if values.min() < 0:
            raise ValueError(f"`times` must be at least 0, got {values.min()}.")
        if (np.diff(values) < 0).any():
            raise ValueError("`times` must be sorted in increasing order; use `jnp.sort(times)`.")
    return array
