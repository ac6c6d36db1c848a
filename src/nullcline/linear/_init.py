"""Initial weights: λ-balanced by construction, aligned to a task, or Gaussian as in practice."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .._checks import (
    as_float,
    is_concrete,
    require_finite,
    require_key,
    require_nonnegative,
    require_scalar,
    require_size,
    require_sizes,
)
from .._order import after
from .._precision import full_precision
from ._balance_tables import check_scheme
from ._network import Network
from ._task import Task, require_task


def lambda_balanced(
    n_in: int,
    n_hidden: int,
    n_out: int,
    lam: float | Float[Array, ""] = 0.0,
    scale: float | Float[Array, ""] = 1.0,
    *,
    rank: int | None = None,
    strengths: Float[Array, " modes"] | None = None,
    key: PRNGKeyArray,
) -> Network:
    r"""Random λ-balanced weights, :math:`Q(W_2^\top W_2 - W_1W_1^\top) = \lambda Q`.

    :math:`W_1 = R S_1 V^\top`, :math:`W_2 = U S_2 R^\top` with orthonormal :math:`R` (Haar) and
    :math:`s_2^2 - s_1^2 = \lambda`, :math:`s_1 s_2 = a`; the strengths :math:`a` and :math:`U, V` come from
    the product of two Gaussian matrices of the weights' shapes with standard deviation ``scale``.

    Parameters
    ----------
    n_in, n_hidden, n_out
        Sizes of the network.
    lam
        Balance. Strictly balanced weights exist for λ > 0 iff ``n_hidden <= n_out``, for λ < 0 iff
        ``n_hidden <= n_in``, for λ = 0 always. Under ``jit`` an impossible traced λ gives NaN weights.
    scale
        Standard deviation of the Gaussian matrices; strengths grow with its square.
    rank
        Number of active hidden units r: :math:`D = \lambda\Pi` with a projector of rank r, and r takes the
        place of ``n_hidden`` in the conditions on λ. Default: all (strict balance).
    strengths
        The mode strengths :math:`a \ge 0` instead of random ones, ``min(n_in, rank, n_out)`` of them.
    key
        Random key.

    References
    ----------
    anguita2024, Theorem 4.1.1 and Algorithm 1 (with errata: which architectures admit which λ, the blocks of
    strength :math:`\sqrt{|\lambda|}`, and the cancellation in the smaller strength).
    """
    rank, lam, scale = _check_architecture(n_in, n_hidden, n_out, lam, scale, rank)
    if strengths is not None:
        strengths = _check_strengths(strengths, min(n_in, rank, n_out))
    require_key(key)
    return _require_no_overflow(_draw(n_in, n_hidden, n_out, rank, lam, scale, strengths, key), scale)


# One program each: run operation by operation, the first draw of a size would compile dozens of kernels.
@partial(jax.jit, static_argnums=(0, 1, 2, 3))
@full_precision
def _draw(n_in: int, n_hidden: int, n_out: int, rank: int, lam, scale, strengths, key) -> Network:
    strength_key, frame_key = jr.split(key)
    key1, key2 = jr.split(strength_key)
    g1, g2 = jr.normal(key1, (n_hidden, n_in)), jr.normal(key2, (n_out, n_hidden))
    u, a, vt = jnp.linalg.svd(g2 @ g1, full_matrices=True)
    a = jnp.asarray(scale, a.dtype) ** 2 * a[: min(n_in, rank, n_out)]
    if strengths is not None:
        a = strengths.astype(a.dtype)
    frame = _haar(after(jr.normal(frame_key, (n_hidden, rank)), u))
    return _assemble(u, a, vt, frame, lam, rank)


def aligned(
    task: Task,
    n_hidden: int,
    lam: float | Float[Array, ""] = 0.0,
    scale: float | Float[Array, ""] = 1.0,
    *,
    strengths: Float[Array, " modes"] | None = None,
    rank: int | None = None,
    key: PRNGKeyArray,
) -> Network:
    r"""λ-balanced weights aligned with the singular vectors of the task: each mode learns on its own.

    As ``lambda_balanced`` with :math:`U, V` from the SVD of the target :math:`\Sigma_{yx}/\kappa`. The
    ``strengths`` may be signed: a negative one gives :math:`s_1` the sign.

    References
    ----------
    anguita2024, Algorithm 2 (erratum: it drops the scale).
    """
    require_task("task", task)
    n_in, n_out = task.n_in, task.n_out
    rank, lam, scale = _check_architecture(n_in, n_hidden, n_out, lam, scale, rank)
    if strengths is not None:
        strengths = _check_strengths(strengths, min(n_in, rank, n_out), signed=True)
    require_key(key)
    target = task.target
    if is_concrete(target) and not np.isfinite(np.asarray(target)).all():
        raise ValueError("`task` must have a finite target Σyx/κ; its inputs have no variance, or overflow.")
    network = _draw_aligned(target, n_hidden, rank, lam, scale, strengths, key)
    return _require_no_overflow(network, scale)


@partial(jax.jit, static_argnums=(1, 2))
@full_precision
def _draw_aligned(target: Array, n_hidden: int, rank: int, lam, scale, strengths, key) -> Network:
    n_out, n_in = target.shape
    key1, key2, frame_key = jr.split(key, 3)
    if strengths is None:
        g1, g2 = jr.normal(key1, (n_hidden, n_in)), jr.normal(key2, (n_out, n_hidden))
        a = jnp.linalg.svd(g2 @ g1, compute_uv=False)[: min(n_in, rank, n_out)].astype(target.dtype)
        a = jnp.asarray(scale, target.dtype) ** 2 * a
    else:
        a = strengths.astype(target.dtype)
    u, _, vt = jnp.linalg.svd(after(target, a), full_matrices=True)
    frame = _haar(after(jr.normal(frame_key, (n_hidden, rank)).astype(target.dtype), u))
    return _assemble(u, a, vt, frame, lam, rank)


def gaussian(
    n_in: int,
    n_hidden: int,
    n_out: int,
    scheme: str = "lecun",
    *,
    alphas: tuple[float | Float[Array, ""], float | Float[Array, ""]] = (1.0, 1.0),
    key: PRNGKeyArray,
) -> Network:
    r"""Independent Gaussian weights, as in practice. They are *not* λ-balanced, however wide the network.

    Parameters
    ----------
    n_in, n_hidden, n_out
        Sizes of the network.
    scheme
        Variance of the two layers: ``"lecun"`` 1/fan_in, ``"he"`` 2/fan_in, ``"glorot"``
        2/(fan_in + fan_out), ``"scaled"`` :math:`\alpha_m^2`/fan_in.
    alphas
        :math:`(\alpha_1, \alpha_2)` of the scheme ``"scaled"``.
    key
        Random key.
    """
    require_sizes(n_in=n_in, n_hidden=n_hidden, n_out=n_out)
    check_scheme(scheme, alphas)
    require_key(key)
    first, second = np.sqrt(
        {
            "lecun": (1 / n_in, 1 / n_hidden),
            "he": (2 / n_in, 2 / n_hidden),
            "glorot": (2 / (n_in + n_hidden), 2 / (n_hidden + n_out)),
            "scaled": (1 / n_in, 1 / n_hidden),
        }[scheme]
    )
    key1, key2 = jr.split(key)
    w1 = alphas[0] * (first * jr.normal(key1, (n_hidden, n_in)))
    w2 = alphas[1] * (second * jr.normal(key2, (n_out, n_hidden)))
    return Network(w1, w2)


def balanced_strengths(
    a: Float[Array, " modes"], lam: Float[Array, ""]
) -> tuple[Float[Array, " modes"], Float[Array, " modes"]]:
    r"""Strengths of a mode in both layers: :math:`s_2^2 - s_1^2 = \lambda`, :math:`s_1s_2 = a`."""
    size = jnp.abs(a)
    # Not `abs`, whose derivative at λ = 0 is 0: the branch λ ≥ 0 is taken throughout.
    size_of_lam = jnp.where(lam >= 0, lam, -lam)
    # The larger strength has no cancellation; the smaller follows from the product, never from a difference.
    is_zero = (lam == 0) & (size == 0)
    root = jnp.hypot(jnp.where(is_zero, 1, lam), 2 * size)  # squares of tiny strengths would underflow
    square = jnp.where(is_zero, 0, (root + size_of_lam) / 2)
    big = jnp.sqrt(jnp.where(square > 0, square, 1))
    small = jnp.where(square > 0, size / big, 0)
    big = jnp.where(square > 0, big, 0)
    s1, s2 = jnp.where(lam >= 0, small, big), jnp.where(lam >= 0, big, small)
    return jnp.where(a < 0, -s1, s1), s2


def _assemble(u: Array, a: Array, vt: Array, frame: Array, lam, rank: int) -> Network:
    """Weights with strengths ``a`` on the leading modes and √|λ| on the active units beyond them."""
    n_out, n_in = u.shape[0], vt.shape[0]
    lam = as_float("lam", lam).astype(a.dtype)
    s1, s2 = balanced_strengths(jnp.pad(a, (0, rank - a.shape[0])), lam)
    # Each layer can carry as many modes as it has outer units.
    first, second = min(rank, n_in), min(rank, n_out)
    w1 = (frame[:, :first] * s1[None, :first]) @ vt[:first]
    w2 = (u[:, :second] * s2[None, :second]) @ frame[:, :second].T
    possible = ((lam <= 0) | (rank <= n_out)) & ((lam >= 0) | (rank <= n_in))
    nan = jnp.asarray(jnp.nan, a.dtype)
    return Network(jnp.where(possible, w1, nan), jnp.where(possible, w2, nan))


def _haar(gaussian: Float[Array, "hidden rank"]) -> Float[Array, "hidden rank"]:
    """Orthonormal columns, uniformly distributed: QR with the signs of the triangle's diagonal fixed."""
    q, r = jnp.linalg.qr(gaussian)
    return q * jnp.where(jnp.diagonal(r) < 0, -1, 1).astype(q.dtype)[None, :]


def _check_architecture(
    n_in: int, n_hidden: int, n_out: int, lam, scale, rank: int | None
) -> tuple[int, Any, Any]:
    """Rank, balance and scale, if weights of these sizes can have them."""
    require_sizes(n_in=n_in, n_hidden=n_hidden, n_out=n_out)
    scale = require_nonnegative("scale", scale)
    if rank is not None:
        require_size("rank", rank)
        if rank > n_hidden:
            raise ValueError(f"`rank` must be at most `n_hidden` = {n_hidden}, got {rank}.")
    lam = require_scalar("lam", lam)
    require_finite("lam", as_float("lam", lam))
    active = n_hidden if rank is None else rank
    if is_concrete(lam) and lam > 0 and active > n_out:
        raise ValueError(_impossible("λ > 0", lam, "n_out", n_out, active, rank, n_in, "λ < 0"))
    if is_concrete(lam) and lam < 0 and active > n_in:
        raise ValueError(_impossible("λ < 0", lam, "n_in", n_in, active, rank, n_out, "λ > 0"))
    return active, lam, scale


def _impossible(sign, lam, short, size, active, rank, other, opposite) -> str:
    units = f"`n_hidden` = {active}" if rank is None else f"`rank` = {active}"
    possible = f"{opposite} and λ = 0" if active <= other else "only λ = 0"
    layer = "W2ᵀW2 = λ + W1W1ᵀ" if short == "n_out" else "W1W1ᵀ = |λ| + W2ᵀW2"
    return (
        f"No weights are balanced with lam = {lam}: {sign} needs `{short}` = {size} to be at least the "
        f"number of active hidden units, {units}, because {layer} must have full rank there. "
        f"Possible: {possible}. For a wide network give `rank=` at most {size} (balance on a projector)."
    )


def _require_no_overflow(network: Network, scale) -> Network:
    if is_concrete(network.w1) and not np.isfinite(np.asarray(network.q)).all():
        raise ValueError(
            f"Weights with `scale` = {scale} and these `lam` and `strengths` overflow {network.w1.dtype}: "
            "make them smaller."
        )
    return network


def _check_strengths(strengths, modes: int, *, signed: bool = False) -> Array:
    strengths = as_float("strengths", strengths)
    if strengths.shape != (modes,):
        raise ValueError(
            f"`strengths` must hold one value for each of the min(n_in, rank, n_out) = {modes} modes, "
            f"got shape {strengths.shape}."
        )
    require_finite("strengths", strengths)
    if not signed and is_concrete(strengths) and (np.asarray(strengths) < 0).any():
        raise ValueError(
            f"`strengths` must be at least 0 (signs belong to U and V), got {np.asarray(strengths).min()}. "
            "Signed strengths are possible with `aligned`."
        )
    return strengths
