"""How long a linear RNN learns, how much it changes, and the largest stable step, from its exact flow."""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._checks import Scalar, checked_target, require_fraction, require_ratio
from ._flow import FlowStatus, reduced_flow
from ._measure import infinite_width_network
from ._solve import Point, Solution, at_sigma, end


def _solution(
    w0: Array | None, m: Array | None, w: Array | None, target: Scalar | None, g: Scalar | None, size: int
) -> Solution:
    """The flow of a network, or of the infinite one when ``g`` is given instead."""
    if target is None:
        raise ValueError("`target` is missing: give the value that the readout is trained to reach.")
    if g is not None:
        if not (w0 is None and m is None and w is None):
            raise ValueError("Give a network (`w0`, `m`, `w`) or `g` for infinite width, not both.")
        w0, m, w = infinite_width_network(g, size)
    if w0 is None or m is None or w is None:
        raise ValueError("Give a network (`w0`, `m` and `w`), or `g` for infinite width.")
    return reduced_flow(w0, m, w, checked_target(w0, m, w, target), size)[0]


@jax.jit
def _at_sigma(solution: Solution, sigma: Array) -> Point:
    return at_sigma(solution, sigma)


def _check_threshold(
    fraction: float, relative_to: str, target: Scalar | None, g: Scalar | None = None
) -> None:
    require_fraction(fraction)
    if relative_to not in ("initial", "target"):
        raise ValueError(f'`relative_to` must be "initial" or "target", got {relative_to!r}.')
    if target is not None and relative_to == "target":
        require_ratio(target, "the loss is measured by it; use the initial loss.")
    if target is not None and g is not None:
        require_ratio(target, "at infinite width the readout starts at 0, and there is no loss to reduce.")


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
    target = checked_target(w0, m, w, target)
    solution, left, right, status = reduced_flow(w0, m, w, target, rank)
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
        status,
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
    _check_threshold(fraction, relative_to, target, g)
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
