"""Exact gradient flow of a linear RNN: at any width, and in the limit of infinite width."""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ._checks import (
    Scalar,
    common_dtype,
    is_traced,
    require_finite,
    require_fraction,
    require_network,
    require_times,
)
from ._measure import checked_quadrature, infinite_width_network
from ._problem import Full, Reduced, krylov
from ._solve import Point, Solution, at_sigma, at_tau, end, solve, solve_twice

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


def check_rank(rank: int) -> None:
    """Raise unless there is at least one basis vector."""
    if rank < 1:
        raise ValueError(f"`rank` must be at least 1, got {rank}; 12 is enough for most networks.")


def reduced_flow(
    w0: Array, m: Array, w: Array, target: Array, rank: int
) -> tuple[Solution, Array, Array, Array]:
    """Flow in a Krylov basis of twice the rank, with both bases and the change upon doubling."""
    problem, left, right = krylov(w0, m, w, 2 * rank)
    solution, gap = _solve_checked(problem, target)
    return solution, gap, left, right


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
    check_rank(rank)
    require_finite(target=target)
    require_times(taus)
    require_network(w0, m, w)
    dtype = common_dtype(w0, m, w)
    target, taus = jnp.asarray(target, dtype), taus.astype(dtype)
    if method == "krylov":
        solution, gap, left, right = reduced_flow(w0, m, w, target, rank)
    else:
        left = right = jnp.eye(w0.shape[0], dtype=dtype)
        initial = w @ jnp.linalg.solve(left - w0, m)
        solution, gap = _solve_full(Full(w0, m, w, initial), target), None
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
        _status(solution, gap),
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
    require_finite(target=target)
    require_times(taus)
    target = jnp.asarray(target, float)
    taus = taus.astype(target.dtype)
    _, _, shuffled = checked_quadrature(g, nodes)
    w0, m, w = infinite_width_network(g, nodes)
    solution, gap, left, right = reduced_flow(w0, m, w, target, nodes)
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
        _status(solution, gap),
    )


def _solution(
    w0: Array | None, m: Array | None, w: Array | None, target: Scalar | None, g: Scalar | None, size: int
) -> Solution:
    """The flow of a network, or of the infinite one when ``g`` is given instead."""
    if target is None:
        raise ValueError("`target` is missing: give the value that the readout is trained to reach.")
    require_finite(target=target)
    check_rank(size)
    if g is not None:
        if not (w0 is None and m is None and w is None):
            raise ValueError("Give a network (`w0`, `m`, `w`) or `g` for infinite width, not both.")
        w0, m, w = infinite_width_network(g, size)
        return reduced_flow(w0, m, w, jnp.asarray(target, float), size)[0]
    if w0 is None or m is None or w is None:
        raise ValueError("Give a network (`w0`, `m` and `w`), or `g` for infinite width.")
    require_network(w0, m, w)
    return reduced_flow(w0, m, w, jnp.asarray(target, common_dtype(w0, m, w)), size)[0]


@jax.jit
def _at_sigma(solution: Solution, sigma: Array) -> Point:
    return at_sigma(solution, sigma)


def _check_threshold(fraction: float, relative_to: str, target: Scalar | None) -> None:
    require_fraction(fraction)
    if relative_to not in ("initial", "target"):
        raise ValueError(f'`relative_to` must be "initial" or "target", got {relative_to!r}.')
    if relative_to == "target" and target is not None and not is_traced(target) and float(target) == 0:
        raise ValueError("`target` must not be 0 when the loss is measured by it; use the initial loss.")


def _threshold(solution: Solution, fraction: float, relative_to: str, target: Scalar | None) -> Array:
    """Progress at which the loss has fallen to the fraction; 0 if it starts below."""
    dtype = solution.error.dtype
    sigma = -jnp.log(jnp.asarray(fraction, dtype)) / 2
    if relative_to == "target" and target is not None:
        sigma = sigma + jnp.log(jnp.abs(solution.error / jnp.asarray(target, dtype)))
    return jnp.maximum(sigma, 0.0)


class Learning(eqx.Module):
    """How long one network learns and how much it changes, from one flow.

    Attributes
    ----------
    time
        Learning time to the fraction of the loss, as :func:`learning_time` gives it.
    gradient
        Norm of the gradient, averaged over that time; NaN if the time is 0.
    change_norm
        Frobenius norm of the converged change.
    critical_step
        Largest stable learning rate at convergence.
    core, left, right
        The converged change is ``left @ core @ right.T``.
    status
        Whether to trust all this.
    """

    time: Float[Array, ""]
    gradient: Float[Array, ""]
    change_norm: Float[Array, ""]
    critical_step: Float[Array, ""]
    core: Float[Array, "rank rank"]
    left: Float[Array, "n rank"]
    right: Float[Array, "n rank"]
    status: FlowStatus

    @property
    def change(self) -> Float[Array, "n n"]:
        """The converged weight change, N × N; formed when asked for."""
        return self.left @ self.core @ self.right.T


def learning(
    w0: Float[Array, "n n"],
    m: Float[Array, " n"],
    w: Float[Array, " n"],
    target: Scalar,
    fraction: float = 0.05,
    *,
    relative_to: Literal["initial", "target"] = "initial",
    rank: int = 12,
) -> Learning:
    """Learning time, average gradient, converged change and critical step of a network, from one flow.

    The quantities of schuessler2020, Fig. 4, without the expansion; the arguments are those of
    :func:`learning_time`.
    """
    _check_threshold(fraction, relative_to, target)
    check_rank(rank)
    require_finite(target=target)
    require_network(w0, m, w)
    target = jnp.asarray(target, common_dtype(w0, m, w))
    solution, gap, left, right = reduced_flow(w0, m, w, target, rank)
    there = _at_sigma(solution, _threshold(solution, fraction, relative_to, target))
    change = end(solution).change
    return Learning(
        there.tau,
        there.path / there.tau,
        jnp.linalg.norm(change),
        stable_step(solution),
        change,
        left,
        right,
        _status(solution, gap),
    )


def learning_time(
    w0: Float[Array, "n n"] | None = None,
    m: Float[Array, " n"] | None = None,
    w: Float[Array, " n"] | None = None,
    target: Scalar | None = None,
    fraction: float = 0.05,
    *,
    g: Scalar | None = None,
    relative_to: Literal["initial", "target"] = "initial",
    rank: int = 12,
) -> Float[Array, ""]:
    r"""Learning time at which the loss has fallen to a fraction of its initial value, exactly.

    ``learning_time(w0, m, w, target)`` for a network, ``learning_time(target=target, g=g)`` at infinite
    width. The loss falls as :math:`e^{-2\sigma}` in the progress variable, so that the time is
    :math:`\tau(\sigma)` at :math:`\sigma = \ln(1/\text{fraction})/2`: schuessler2020, Fig. 4(a), without the
    expansion.

    Parameters
    ----------
    w0, m, w, target
        The network and its target, as in :func:`exact_flow`.
    fraction
        Share of the loss to reach, in (0, 1).
    g
        Strength of the initial weights at infinite width, instead of a network.
    relative_to
        ``"initial"``: the network's own initial loss. ``"target"``: :math:`\hat z^2/2`, the loss of a network
        that starts at 0; the time is 0 for one that starts below.
    rank
        Size of the basis, or number of nodes, as in :func:`exact_flow` and :func:`infinite_width_flow`.
    """
    _check_threshold(fraction, relative_to, target)
    solution = _solution(w0, m, w, target, g, rank)
    return _at_sigma(solution, _threshold(solution, fraction, relative_to, target)).tau


def critical_step(
    w0: Float[Array, "n n"] | None = None,
    m: Float[Array, " n"] | None = None,
    w: Float[Array, " n"] | None = None,
    target: Scalar | None = None,
    *,
    g: Scalar | None = None,
    rank: int = 12,
) -> Float[Array, ""]:
    r"""Largest learning rate at which gradient descent is stable at the solution of the flow.

    :math:`\eta_\mathrm{crit} = 2/(|p|^2|q|^2)` at convergence; above it the end of training oscillates or
    fails (schuessler2020, Fig. S4). ``critical_step(w0, m, w, target)`` for a network,
    ``critical_step(target=target, g=g)`` at infinite width. Descent with a finite step ends at a flatter
    solution than the flow, so that the value is slightly on the safe side.
    """
    solution = _solution(w0, m, w, target, g, rank)
    return stable_step(solution)


@jax.jit
def stable_step(solution: Solution) -> Float[Array, ""]:
    """Largest stable learning rate at the end of a flow."""
    p, q = solution.problem.vectors(end(solution).change)
    return 2 / ((p @ p) * (q @ q))
