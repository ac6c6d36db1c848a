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
    grows: Array  # whether the eigenvalue of each row up is positive
    c: Float[Array, " k"]  # input and output part of the growing eigenvector of each pair
    z: Float[Array, " k"]


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
    # The rounding floor of the SVD: a singular value below it is a zero of a rank-deficient task.
    s = jnp.where(s <= max(n_in, n_out) * jnp.finfo(s.dtype).eps * s[0], 0, s)
    # Not `abs`, whose derivative at λ = 0 is 0: the branch λ ≥ 0 is taken throughout.
    a = jnp.where(lam >= 0, lam, -lam) / 2
    # Guarded twice, so that derivatives are finite at s = λ = 0 as well.
    is_zero = (s == 0) & (lam == 0)
    rate = jnp.where(is_zero, 0, jnp.sqrt(jnp.where(is_zero, 1, a**2 + s**2)))
    safe = jnp.where(is_zero, 1, rate)
    delta = jnp.where(is_zero, 0, s**2 / (safe + a))
    half = jnp.sqrt(jnp.asarray(0.5, s.dtype))
    big = jnp.where(is_zero, half, jnp.sqrt((safe + a) / (2 * safe)))
    small = jnp.where(is_zero, half, s / jnp.sqrt(2 * safe * (safe + a)))
    c, z = jnp.where(lam >= 0, small, big), jnp.where(lam >= 0, big, small)

    p1, p2 = v.T @ w1t, u.T @ w2
    up, down = c[:, None] * p1 + z[:, None] * p2, z[:, None] * p1 - c[:, None] * p2
    size, grows = rate, rate > 0
    if n_in != n_out:
        if n_in > n_out:
            outside, sign = w1t - v @ p1, -lam
            v = jnp.concatenate([v, jnp.eye(n_in, dtype=v.dtype) - v @ v.T], axis=1)
        else:
            outside, sign = w2 - u @ p2, lam
            u = jnp.concatenate([u, jnp.eye(n_out, dtype=u.dtype) - u @ u.T], axis=1)
        rows = outside.shape[0]
        up = jnp.concatenate([up, outside])
        delta = jnp.concatenate([delta, jnp.zeros(rows, delta.dtype)])
        size = jnp.concatenate([size, jnp.full(rows, a)])
        grows = jnp.concatenate([grows, jnp.full(rows, sign > 0)])

    norm = jnp.sqrt(jnp.sum(jax.lax.stop_gradient(w1t) ** 2) + jnp.sum(jax.lax.stop_gradient(w2) ** 2))
    floor = rounding_floor(n_in + n_out, tolerance, norm)
    up, down = (
        jnp.where(jnp.max(jnp.abs(rows), axis=1, keepdims=True) <= floor, 0, rows) for rows in (up, down)
    )
    return Basis(v, u, p1, p2, up, down, a, delta, size, grows, c, z)


def rounding_floor(size: int, tolerance, norm):
    """Rows of the rotated weights below this are rounding noise of zeros."""
    return 4 * size * tolerance * norm


def decay_integral(rate: Float[Array, " *rows"], time: Float[Array, " *rows"]) -> Float[Array, " *rows"]:
    r"""The integral :math:`g = (1 - e^{-2lt})/(2l)` for :math:`l, t \ge 0`; t where l = 0."""
    x = 2 * rate * time
    is_small = x < 1e-3
    series = time * (1 - x / 2 * (1 - x / 3 * (1 - x / 4 * (1 - x / 5))))
    return jnp.where(is_small, series, -jnp.expm1(-x) / jnp.where(is_small, 1, 2 * rate))
