r"""The learning problem in a small basis: what the flow needs to know of a network.

The vectors :math:`p = G^Tw` and :math:`q = Gm`, :math:`G = (I - W)^{-1}`, stay in two spaces that grow by
turns, :math:`\{B^Tw, B^TBm, B^TBB^Tw, …\}` and :math:`\{Bm, BB^Tw, BB^TBm, …\}`. With orthonormal bases P and
Q of them :math:`\Delta W = P D Q^T`, and the N × N flow becomes a flow of the small matrix D.
"""

import abc
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import lu_factor, lu_solve
from jaxtyping import Array, Float

from ..._order import after


class AbstractProblem(eqx.Module):
    """A network whose weight change is ``left @ change @ right.T``."""

    initial_readout: eqx.AbstractVar[Float[Array, ""]]

    @abc.abstractmethod
    def vectors(self, change: Float[Array, "rows columns"]) -> tuple[Array, Array]:
        """The vectors p and q, in their bases, once the weights have changed."""

    @abc.abstractmethod
    def no_change(self) -> Float[Array, "rows columns"]:
        """A change of zero, of the right shape."""


class Reduced(AbstractProblem):
    r"""The problem in the bases P and Q: :math:`b = Q^TBP`, :math:`p_0 = P^TB^Tw`, :math:`q_0 = Q^TBm`."""

    b: Float[Array, "rank rank"]
    p0: Float[Array, " rank"]
    q0: Float[Array, " rank"]
    initial_readout: Float[Array, ""]

    def vectors(self, change: Float[Array, "rank rank"]) -> tuple[Array, Array]:
        r"""Solve :math:`(I - bD)q = q_0` and :math:`(I - b^TD^T)p = p_0`.

        The second inverse is :math:`I + b^T(I-bD)^{-T}D^T`: one factorization gives both.
        """
        inverse = jnp.linalg.inv(jnp.eye(self.q0.shape[0], dtype=self.b.dtype) - self.b @ change)
        p = self.p0 + self.b.T @ (inverse.T @ (change.T @ self.p0))
        return p, inverse @ self.q0

    def no_change(self) -> Float[Array, "rank rank"]:
        """A change of zero."""
        return jnp.zeros_like(self.b)


class Full(AbstractProblem):
    """The N × N problem itself; the check of every reduction."""

    w0: Float[Array, "n n"]
    m: Float[Array, " n"]
    w: Float[Array, " n"]
    initial_readout: Float[Array, ""]

    def vectors(self, change: Float[Array, "n n"]) -> tuple[Array, Array]:
        """Solve :math:`(I - W)q = m` and :math:`(I - W)^Tp = w`."""
        factors = lu_factor(jnp.eye(self.m.shape[0], dtype=self.w0.dtype) - self.w0 - change)
        q = lu_solve(factors, self.m)
        return lu_solve(factors, after(self.w, q), trans=1), q

    def no_change(self) -> Float[Array, "n n"]:
        """A change of zero."""
        return jnp.zeros_like(self.w0)


def _orthogonalized(vector: Float[Array, " n"], basis: Float[Array, "n rank"]) -> Float[Array, " n"]:
    """Unit vector orthogonal to ``basis``, or zero where ``vector`` lies in its span."""
    size = jnp.linalg.norm(vector)
    for _ in range(2):
        vector = vector - basis @ (basis.T @ vector)
    rest = jnp.linalg.norm(vector)
    is_new = rest > 1e3 * jnp.finfo(vector.dtype).eps * size
    return jnp.where(is_new, vector / jnp.where(is_new, rest, 1.0), 0.0)


@functools.partial(jax.jit, static_argnames="rank")
def krylov(
    w0: Float[Array, "n n"], m: Float[Array, " n"], w: Float[Array, " n"], rank: int
) -> tuple[Reduced, Float[Array, "n rank"], Float[Array, "n rank"]]:
    """Reduce a network to ``rank`` basis vectors on each side; give the problem and both bases.

    A basis that stops growing is padded with zero columns, while the other may go on.
    """
    factors = lu_factor(jnp.eye(m.shape[0], dtype=w0.dtype) - w0)
    bm = lu_solve(factors, m)
    bw = lu_solve(factors, after(w, bm), trans=1)
    empty = jnp.zeros((m.shape[0], rank), w0.dtype)
    left = empty.at[:, 0].set(_orthogonalized(bw, empty))
    right = empty.at[:, 0].set(_orthogonalized(bm, empty))

    def grow(k: Array, bases: tuple[Array, Array]) -> tuple[Array, Array]:
        left, right = bases
        to_right = lu_solve(factors, left[:, k - 1])
        to_left = lu_solve(factors, after(right[:, k - 1], to_right), trans=1)
        return (
            left.at[:, k].set(_orthogonalized(to_left, left)),
            right.at[:, k].set(_orthogonalized(to_right, right)),
        )

    left, right = jax.lax.fori_loop(1, rank, grow, (left, right))
    b = right.T @ lu_solve(factors, left)
    return Reduced(b, left.T @ bw, right.T @ bm, w @ bm), left, right


def cut(problem: Reduced, rank: int) -> Reduced:
    """The same problem with only the first ``rank`` basis vectors of each side; the shape stays."""
    keep = (jnp.arange(problem.p0.shape[0]) < rank).astype(problem.b.dtype)
    return Reduced(
        problem.b * jnp.outer(keep, keep), problem.p0 * keep, problem.q0 * keep, problem.initial_readout
    )
