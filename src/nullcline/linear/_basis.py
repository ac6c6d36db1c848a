r"""The weights in the basis of the task: eigenvectors of the matrix that drives the flow.

With :math:`Q = [W_1^\top; W_2]` the state :math:`M = QQ^\top` of λ-balanced weights obeys
:math:`\dot M = FM + MF - M^2`, :math:`F = [[-\lambda/2, \Sigma^\top], [\Sigma, \lambda/2]]` (domine2025,
equation 6 and Lemma A.1). Each singular pair of Σ gives the eigenvalues ±l,
:math:`l = \sqrt{s^2 + \lambda^2/4}`; inputs
outside the task have −λ/2 and outputs outside it +λ/2 (erratum to domine2025, equation 8).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# Of singular vectors, by rounding. Modes that nearly are equal mix more, but late: to call all of it rounding
# would cost its digits at all times. Single precision has none to spare.
_LARGEST_ANGLE = 5e-13


class Basis(NamedTuple):
    """Weights at time zero, row by row in the eigenbasis, and what the rows do in time.

    Rows ``up`` are the k growing halves of the pairs, then the rows outside the task (whose sign follows λ);
    rows ``down`` are the k decaying halves.
    """

    v: Float[Array, "n_in rows1"]
    u: Float[Array, "n_out rows2"]
    w1: Float[Array, "k hidden"]  # both layers on the k pairs
    w2: Float[Array, "k hidden"]
    up: Float[Array, "ups hidden"]
    down: Float[Array, "k hidden"]
    a: Float[Array, ""]  # |λ|/2: the part of the exponent that all growing rows share
    delta: Float[Array, " ups"]  # l − a ≥ 0, zero outside the task
    size: Float[Array, " ups"]  # |eigenvalue| of each row up
    grows: Array  # whether the eigenvalue of each row up is +size: an eigenvalue of 0 has derivatives as well
    c: Float[Array, " k"]  # input and output part of the growing eigenvector of each pair
    z: Float[Array, " k"]
    blur: Float[Array, " rows"]  # rounding that the singular vectors leave in each row up and down


def task_basis(
    w1t: Float[Array, "n_in hidden"],
    w2: Float[Array, "n_out hidden"],
    svd: tuple[Float[Array, "n_out k"], Float[Array, " k"], Float[Array, "k n_in"]],
    lam: Float[Array, ""],
    tolerance: Float[Array, ""],
) -> Basis:
    """Rotate the weights into the eigenbasis of the flow; rows below the tolerance become exact zeros.

    Only the thin SVD of the target is used, which has derivatives for rectangular targets too: what lies
    outside the task stays in the original coordinates.
    """
    u, s, vt = svd
    n_out, n_in, v = u.shape[0], vt.shape[1], vt.T
    s = _resolved(s, max(n_in, n_out))
    # Not `abs`, whose derivative at λ = 0 is 0: the branch λ ≥ 0 is taken throughout.
    a = jnp.where(lam >= 0, lam, -lam) / 2
    # Guarded twice, so that derivatives are finite at s = λ = 0 as well. Any vector is an eigenvector there:
    # those that λ → 0 from above has in the limit have derivatives with respect to it.
    is_zero = (s == 0) & (lam == 0)
    rate = jnp.where(is_zero, a, jnp.sqrt(jnp.where(is_zero, 1, a**2 + s**2)))
    safe = jnp.where(is_zero, 1, rate)
    delta = jnp.where(is_zero, 0, s**2 / (safe + a))
    big = jnp.where(is_zero, 1, jnp.sqrt((safe + a) / (2 * safe)))
    small = jnp.where(is_zero, 0, s / jnp.sqrt(2 * safe * (safe + a)))
    c, z = jnp.where(lam >= 0, small, big), jnp.where(lam >= 0, big, small)

    p1, p2, k = v.T @ w1t, u.T @ w2, len(s)
    up, down = c[:, None] * p1 + z[:, None] * p2, z[:, None] * p1 - c[:, None] * p2
    size, grows = rate, jnp.ones(k, bool)
    if n_in != n_out:
        if n_in > n_out:
            outside, is_up = w1t - v @ p1, lam < 0
            v = jnp.concatenate([v, jnp.eye(n_in, dtype=v.dtype) - v @ v.T], axis=1)
        else:
            outside, is_up = w2 - u @ p2, lam >= 0
            u = jnp.concatenate([u, jnp.eye(n_out, dtype=u.dtype) - u @ u.T], axis=1)
        rows = outside.shape[0]
        up = jnp.concatenate([up, outside])
        delta = jnp.concatenate([delta, jnp.zeros(rows, delta.dtype)])
        size = jnp.concatenate([size, jnp.full(rows, a)])
        grows = jnp.concatenate([grows, jnp.full(rows, is_up)])

    norm = jnp.sqrt(jnp.sum(jax.lax.stop_gradient(w1t) ** 2) + jnp.sum(jax.lax.stop_gradient(w2) ** 2))
    blur1, blur2 = (_blur(s, p, w, n_in + n_out) for p, w in ((p1, w1t), (p2, w2)))
    blur_outside = jnp.full(len(up) - k, blur1[-1] if n_in > n_out else blur2[-1])
    blur1, blur2 = blur1[:-1], blur2[:-1]
    blur = jnp.concatenate([c * blur1 + z * blur2, blur_outside, z * blur1 + c * blur2])
    blur = jnp.where(tolerance > 0, jax.lax.stop_gradient(blur), 0)
    floor = rounding_floor(n_in + n_out, tolerance, norm) + 8 * blur
    up, down = (
        jnp.where((jnp.max(jnp.abs(rows), axis=1) <= least)[:, None], 0, rows)
        for rows, least in ((up, floor[: len(up)]), (down, floor[len(up) :]))
    )
    return Basis(v, u, p1, p2, up, down, a, delta, size, grows, c, z, blur)


def _resolved(s: Float[Array, " k"], size: int) -> Float[Array, " k"]:
    """Singular values that rounding cannot tell from zero, or from the one before, are equal to it.

    Modes that are equal then stay so at any time: an error of 1e-16 in their rates would part them at 1e12.
    """
    unit = size * jnp.finfo(s.dtype).eps * jax.lax.stop_gradient(s[0])
    s = jnp.where(s <= unit, 0, s)
    first = jnp.where(s[:-1] - s[1:] > 4 * unit, jnp.arange(1, len(s)), 0)
    first = jax.lax.cummax(jnp.concatenate([jnp.zeros(1, first.dtype), first]))
    return s + jax.lax.stop_gradient(s[first] - s)


def _blur(s: Float[Array, " k"], p: Float[Array, "k hidden"], w: Float[Array, "n hidden"], size: int):
    """Rounding that the singular vectors leave in a layer, on the k modes and, at last, outside the task.

    It turns those of two modes into each other by its size over the gap of their singular values (over the
    singular value for directions outside the task), and mixes their weights. Modes that are equal may mix as
    they like.
    """
    s, p, w = jax.lax.stop_gradient((s, p, w))
    levels = jnp.append(s / jnp.where(s[0] > 0, s[0], 1), 0)
    gap = jnp.abs(levels[:, None] - levels[None, :])
    rounding = size**0.5 * jnp.finfo(s.dtype).eps
    angle = jnp.where(gap > 0, jnp.minimum(rounding / jnp.where(gap > 0, gap, 1), _LARGEST_ANGLE), 0)
    squares = jnp.sum(p**2, axis=1)
    outside = jnp.maximum(jnp.sum(w**2) - jnp.sum(squares), 0)
    return jnp.sqrt(angle**2 @ jnp.append(squares, outside))


def rounding_floor(size: int, tolerance, norm):
    """Rows of the rotated weights below this are rounding noise of zeros."""
    return 4 * size * tolerance * norm


def decay_integral(rate: Float[Array, " *rows"], time: Float[Array, " *rows"]) -> Float[Array, " *rows"]:
    r"""The integral :math:`g = (1 - e^{-2lt})/(2l)` for :math:`l, t \ge 0`; t where l = 0."""
    x = 2 * rate * time
    is_small = x < 1e-3
    series = time * (1 - x / 2 * (1 - x / 3 * (1 - x / 4 * (1 - x / 5))))
    return jnp.where(is_small, series, -jnp.expm1(-x) / jnp.where(is_small, 1, 2 * rate))
