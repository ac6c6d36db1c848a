"""Measures that several rooms need: of similarity, of the largest entry and of the size of a spectrum."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ._checks import as_float, require_finite


def cosine(a: Float[Array, "*shape"], b: Float[Array, "*shape"]) -> Float[Array, ""]:
    r"""Cosine of the angle between two arrays, :math:`\langle a, b\rangle / (\|a\| \|b\|)`.

    The Frobenius cosine for matrices. Zero arrays have no direction: the result is NaN.
    """
    # Dividing by the largest entry first keeps tiny and huge arrays from under- and overflowing.
    a = a / jnp.max(jnp.abs(a))
    b = b / jnp.max(jnp.abs(b))
    return jnp.sum(a * b) / jnp.sqrt(jnp.sum(a * a) * jnp.sum(b * b))


def largest(values: Float[Array, "..."], axis: int | tuple[int, ...] | None = None) -> Float[Array, "..."]:
    r"""Largest absolute value, :math:`\max_i |x_i|`, over the given axes; NaN if one of them is NaN.

    ``jnp.max`` alone does not promise that: on CPU (JAX 0.10 and 0.11) it drops NaN from some thousand values
    on, and a difference that is not a number would count as small.
    """
    has_nan = jnp.any(jnp.isnan(values), axis=axis)
    return jnp.where(has_nan, jnp.nan, jnp.max(jnp.abs(values), axis=axis))


def effective_rank(
    values: Float[Array | np.ndarray, " modes"], *, fraction: float = 0.95, power: int = 1
) -> Int[Array, ""]:
    r"""Smallest number of leading values that hold ``fraction`` of the total of ``values**power``.

    Zero where there is nothing to hold: zeros alone, or (where a compiled program cannot refuse them) NaN.

    Parameters
    ----------
    values
        The whole spectrum, nonnegative, in any order. A truncated spectrum gives too small a rank.
    fraction
        Share of the total to reach, in (0, 1].
    power
        1 counts the values as they are, 2 their squares (variance from singular values).
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"`fraction` must be in (0, 1], got {fraction}.")
    if not power > 0:
        raise ValueError(f"`power` must be positive, got {power}.")
    values = as_float("values", values)
    if values.ndim != 1 or values.shape[0] == 0:
        raise ValueError(f"`values` must be a list of at least one value, got shape {values.shape}.")
    require_finite("values", values)
    # Powers of shares of the largest value neither overflow nor vanish together.
    top = jnp.max(jnp.abs(values))
    weights = jnp.sort(jnp.abs(values) / jnp.where(top > 0, top, 1))[::-1] ** power
    share = jnp.cumsum(weights) / jnp.sum(weights)
    # A rounding error must not ask for one more mode when the target is met exactly.
    rank = jnp.sum(share < fraction - 8 * jnp.finfo(share.dtype).eps) + 1
    return jnp.where(share[-1] > 0, rank, 0)


def participation_ratio(values: Float[Array | np.ndarray, " modes"]) -> Float[Array, ""]:
    r"""Participation ratio :math:`(\sum_j v_j)^2 / \sum_j v_j^2`, the number of modes that matter.

    Zeros alone have no modes: the result is NaN.
    """
    values = jnp.asarray(values)
    values = values / jnp.max(jnp.abs(values))
    return jnp.sum(values) ** 2 / jnp.sum(values**2)
