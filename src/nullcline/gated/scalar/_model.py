r"""The note's section 3, one scalar per language and layer: :math:`\tfrac12\|(u s v^\top - J)\odot M\|^2`."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from ..._checks import is_concrete, require_size
from .._connectivity import components
from .._masks import MaskLike, as_mask, warn_if_full


class Network(eqx.Module):
    """Scalar network: its map is ``s * outer(u, v)``. Batches carry their axes in front.

    Attributes
    ----------
    u, v
        One weight per output and per input, (n,).
    s
        The shared weight, a scalar.
    """

    u: Float[Array, "*batch languages"]
    s: Float[Array, "*batch"]
    v: Float[Array, "*batch languages"]

    def __init__(
        self,
        u: Shaped[Array | np.ndarray, "..."],
        s: float | Shaped[Array | np.ndarray, "..."],
        v: Shaped[Array | np.ndarray, "..."],
    ):
        u, v = jnp.asarray(u), jnp.asarray(v)
        s = jnp.asarray(s, u.dtype)
        if not all(jnp.issubdtype(array.dtype, jnp.floating) for array in (u, v)) or u.dtype != v.dtype:
            raise ValueError(f"`u` and `v` must be floating-point of one kind, got {u.dtype} and {v.dtype}.")
        if u.ndim < 1 or u.shape[-1] < 1 or v.shape != u.shape:
            raise ValueError(f"`u` and `v` must share a shape (languages,), got {u.shape} and {v.shape}.")
        if s.shape != u.shape[:-1]:
            raise ValueError(f"`s` must have shape {u.shape[:-1]} to match `u`, got {s.shape}.")
        self.u, self.s, self.v = u, s, v

    @property
    def n_languages(self) -> int:
        """Number of languages ``n``."""
        return self.u.shape[-1]


def initialize(
    n_languages: int, scale: float | Float[Array, ""] = 0.1, *, is_positive: bool = False, key: PRNGKeyArray
) -> Network:
    """Draw Gaussian weights times ``scale``; their absolute values with ``is_positive``.

    The same key at another scale is the same draw rescaled. Positive weights stay positive.
    """
    require_size("n_languages", n_languages)
    if is_concrete(scale) and not (np.isfinite(scale) and scale > 0):
        raise ValueError(f"`scale` must be positive and finite, got {scale}.")
    z = jr.normal(key, (2 * n_languages + 1,))
    z = (jnp.abs(z) if is_positive else z) * scale
    return Network(u=z[:n_languages], s=z[-1], v=z[n_languages:-1])


def residuals(simple: Network) -> Float[Array, "outputs inputs"]:
    """Give ``s u vᵀ - J``, trained entries or not."""
    return simple.s * simple.u[:, None] * simple.v[None, :] - 1


def train_loss(simple: Network, mask: MaskLike) -> Float[Array, ""]:
    r"""Mean over the trained entries of :math:`E^2/2`, as eq. (1) of the note with one word."""
    mask = as_mask(mask, simple.n_languages)
    return jnp.sum(jnp.where(mask, residuals(simple) ** 2, 0)) / (2 * jnp.sum(mask).astype(simple.u.dtype))


def test_loss(simple: Network, mask: MaskLike) -> Float[Array, ""]:
    r"""Mean over the untrained entries of :math:`E^2/2`; NaN, with a warning, when every entry is trained."""
    mask = as_mask(mask, simple.n_languages)
    warn_if_full(mask)
    return jnp.sum(jnp.where(mask, 0, residuals(simple) ** 2)) / (2 * jnp.sum(~mask).astype(simple.u.dtype))


def gradient(simple: Network, mask: MaskLike) -> Network:
    r"""Gradient of :math:`\tfrac12\|E\|^2`: :math:`(sEv,\; u^\top E v,\; sE^\top u)`.

    Erratum: the note's small-weight flow of ``u`` loses the factor ``s``.
    """
    mask = as_mask(mask, simple.n_languages)
    error = jnp.where(mask, residuals(simple), 0)

    def dot(a, b):
        return jnp.matmul(a, b, precision="highest")

    forward, backward = dot(error, simple.v), dot(error.T, simple.u)
    return Network(u=simple.s * forward, s=dot(simple.u, forward), v=simple.s * backward)


def conserved(simple: Network, mask: MaskLike) -> tuple[Array, Array, Float[Array, " components"]]:
    r"""Quantities that the flow conserves.

    :math:`\|u\|^2 - s^2`, :math:`\|v\|^2 - s^2`, and :math:`\sum_{i\in c} u_i^2 - \sum_{j\in c} v_j^2` for
    each connected component ``c`` of the mask (padded with zeros to 2n components).
    """
    outputs, inputs = components(as_mask(mask, simple.n_languages))
    count = 2 * simple.n_languages

    def sums(x, label):
        return jax.ops.segment_sum(x**2, label, num_segments=count)

    square = simple.s**2
    return (
        jnp.sum(simple.u**2) - square,
        jnp.sum(simple.v**2) - square,
        sums(simple.u, outputs) - sums(simple.v, inputs),
    )
