"""Exact gradient flow of a linear RNN: at any width, and in the limit of infinite width."""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..._checks import require_size
from ._checks import Scalar, checked_target, require_times
from ._measure import checked_quadrature, infinite_width_network
from ._problem import Full, Reduced, krylov
from ._solve import Point, Solution, at_tau, solve, solve_twice

_TRUNCATION = 1e-8


class FlowStatus(eqx.Module):
    """Whether a flow can be trusted; every flag is False when all is well.

    Attributes
    ----------
    incomplete
        The solver gave up before convergence, or met a value that is not finite.
    krylov_truncated
        The result changes by more than 1e-8 (relative) when the basis is doubled: give a larger ``rank``
        (``nodes`` at infinite width).
    single_precision
        Computed in float32: differences below 1e-6 are noise.
    """

    incomplete: Bool[Array, "*batch"]
    krylov_truncated: Bool[Array, "*batch"]
    single_precision: bool = eqx.field(static=True)

    @property
    def is_trusted(self) -> Bool[Array, "*batch"]:
        """Whether no flag is set."""
        return ~(self.incomplete | self.krylov_truncated | self.single_precision)

    @property
    def flags(self) -> tuple[str, ...]:
        """Names of the flags that are set (anywhere, if the flow is a batch)."""
        names = ("incomplete", "krylov_truncated", "single_precision")
        return tuple(name for name in names if np.any(getattr(self, name)))


class Flow(eqx.Module):
    """Learning of one network, at the times asked for.

    Attributes
    ----------
    taus
        Learning times.
    readout
        Readout z.
    error
        Target minus readout, to full relative accuracy also after convergence.
    path
        Length of the path of the weights so far, the integral of the norm of the gradient.
    core, left, right
        The change is ``left @ core @ right.T``.
    singular_values
        Singular values of the change, largest first.
    status
        Whether to trust all this.
    """

    taus: Float[Array, " times"]
    readout: Float[Array, " times"]
    error: Float[Array, " times"]
    path: Float[Array, " times"]
    core: Float[Array, "times rank rank"]
    left: Float[Array, "n rank"]
    right: Float[Array, "n rank"]
    singular_values: Float[Array, "times modes"]
    status: FlowStatus

    @property
    def change(self) -> Float[Array, "times n n"]:
        """The weight change, N × N at each time; formed when asked for."""
        return self.left @ self.core @ self.right.T

    @property
    def loss(self) -> Float[Array, " times"]:
        """The loss, half of the squared error."""
        return self.error**2 / 2


class InfiniteWidthFlow(eqx.Module):
    """Learning of an infinitely wide network, at the times asked for; the fields are those of ``Flow``.

    ``shuffled_readout`` is the readout once the entries of the initial weights are shuffled, with the change
    kept; ``core`` has the singular values of the change.
    """

    taus: Float[Array, " times"]
    readout: Float[Array, " times"]
    error: Float[Array, " times"]
    path: Float[Array, " times"]
    core: Float[Array, "times rank rank"]
    singular_values: Float[Array, "times modes"]
    shuffled_readout: Float[Array, " times"]
    status: FlowStatus

    @property
    def loss(self) -> Float[Array, " times"]:
        """The loss, half of the squared error."""
        return self.error**2 / 2


@jax.jit
def _solve_checked(problem: Reduced, target: Array) -> tuple[Solution, Array]:
    return solve_twice(problem, target)


@jax.jit
def _solve_full(problem: Full, target: Array) -> Solution:
    return solve(problem, target)


@jax.jit
def _sample(solution: Solution, taus: Array) -> tuple[Point, Array]:
    """The flow at each time, with the singular values of its change."""
    points = jax.vmap(at_tau, in_axes=(None, 0))(solution, taus)
    return points, jnp.linalg.svd(points.change, compute_uv=False)


def is_truncated(gap: Float[Array, ""]) -> Bool[Array, ""]:
    """Whether a change upon doubling the basis is too large; in float32 one below rounding says nothing."""
    return ~(gap <= (_TRUNCATION if gap.dtype == jnp.float64 else 1e-3))


def _status(solution: Solution, gap: Array | None) -> FlowStatus:
    truncated = jnp.zeros((), bool) if gap is None else is_truncated(gap)
    return FlowStatus(~solution.is_complete, truncated, solution.error.dtype != jnp.float64)


def reduced_flow(
    w0: Array, m: Array, w: Array, target: Array, rank: int
) -> tuple[Solution, Array, Array, FlowStatus]:
    """Flow of a checked network in a Krylov basis of twice the rank, with both bases and the status."""
    require_size("rank", rank)
    problem, left, right = krylov(w0, m, w, 2 * rank)
    solution, gap = _solve_checked(problem, target)
    return solution, left, right, _status(solution, gap)


def exact_flow(
    w0: Float[Array, "n n"],
    m: Float[Array, " n"],
    w: Float[Array, " n"],
    target: Scalar,
    taus: Float[Array, " times"],
    method: Literal["krylov", "full"] = "krylov",
    *,
    rank: int = 12,
) -> Flow:
    r"""Gradient flow of a linear RNN on the simple task, exact at this size and for these weights.

    Solves :math:`dW/d\tau = (\hat z - z)\,G^Tw\,m^TG^T`, :math:`G = (I-W)^{-1}`, :math:`z = w^TGm` from
    :math:`W_0`: schuessler2020, Eqs. (5) and (6), without their expansion.

    Parameters
    ----------
    w0, m, w
        Initial weights (eigenvalues with real part below 1), input and readout vector; of any norm.
    target
        The target :math:`\hat z`, of either sign.
    taus
        Learning times (learning rate × number of steps), in any order; ``inf`` is convergence.
    method
        ``"krylov"``: a flow of a small matrix in a basis adapted to the network, one factorization of
        :math:`I - W_0`. ``"full"``: the N × N flow, some hundred factorizations; the check of the other.
    rank
        Number r of basis vectors on each side. The flow is computed with r and with 2r, and that with 2r is
        returned; ``status.krylov_truncated`` says whether the two differ.
    """
    if method not in ("krylov", "full"):
        raise ValueError(f'`method` must be "krylov" or "full", got {method!r}.')
    require_times(taus)
    target = checked_target(w0, m, w, target)
    if method == "krylov":
        solution, left, right, status = reduced_flow(w0, m, w, target, rank)
    else:
        left = right = jnp.eye(w0.shape[0], dtype=target.dtype)
        solution = _solve_full(Full(w0, m, w, w @ jnp.linalg.solve(left - w0, m)), target)
        status = _status(solution, None)
    taus = taus.astype(target.dtype)
    points, values = _sample(solution, taus)
    return Flow(
        taus,
        target - points.error,
        points.error,
        points.path,
        points.change,
        left,
        right,
        values[:, : w0.shape[0]],
        status,
    )


def infinite_width_flow(
    target: Scalar, g: Scalar, taus: Float[Array, " times"], *, nodes: int = 12
) -> InfiniteWidthFlow:
    r"""Gradient flow of an infinitely wide linear RNN on the simple task, for any g < 1 and any time.

    The flow of :func:`exact_flow` for :func:`infinite_width_network`: to all orders what schuessler2020,
    Eqs. (14), (15) and (91), expand to third.

    Parameters
    ----------
    target
        The target :math:`\hat z`, of either sign.
    g
        Strength of the initial weights, 0 <= g < 1; a number.
    taus
        Learning times, in any order; ``inf`` is convergence.
    nodes
        Nodes of the quadrature of the spectrum of the initial weights; checked against a half of them.
    """
    require_times(taus)
    _, _, shuffled = checked_quadrature(g, nodes)
    w0, m, w = infinite_width_network(g, nodes)
    target = checked_target(w0, m, w, target)
    taus = taus.astype(target.dtype)
    solution, left, right, status = reduced_flow(w0, m, w, target, nodes)
    points, values = _sample(solution, taus)
    change = left @ points.change @ right.T
    # Shuffling replaces the singular values s of (I - W_0)^-1, in this basis, by the numbers r.
    r = jnp.asarray(np.concatenate([shuffled, shuffled]), target.dtype)
    identity = jnp.eye(r.shape[0], dtype=r.dtype)
    shuffled_readout = jax.vmap(lambda d: w @ jnp.linalg.solve(identity - r[:, None] * d, r * m))(change)
    return InfiniteWidthFlow(
        taus,
        target - points.error,
        points.error,
        points.path,
        change,
        values,
        shuffled_readout,
        status,
    )
