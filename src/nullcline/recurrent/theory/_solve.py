r"""Gradient flow of a linear RNN in the progress variable, and its values at given learning times.

:math:`d\sigma = |p|^2|q|^2d\tau` makes the error explicit, :math:`e = (\hat z - z_0)e^{-\sigma}`, and the
flow of the change non-stiff:

.. math::
    \frac{d\Delta W}{d\sigma} = \frac{e\,pq^T}{|p|^2|q|^2}, \quad
    \frac{d\tau}{d\sigma} = \frac{1}{|p|^2|q|^2}, \quad \frac{d\ell}{d\sigma} = \frac{|e|}{|p||q|}

with :math:`\ell` the length of the path of the weights. This follows from schuessler2020, Eq. (6).
"""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ._problem import AbstractProblem, Reduced, cut

END = 30.0  # weights are converged: exp(-30) is 1e-13
_MAX_STEPS = 256
_NEWTON = 6


class Point(eqx.Module):
    """The state of the flow at one value of the progress variable."""

    sigma: Float[Array, "*many"]
    tau: Float[Array, "*many"]
    path: Float[Array, "*many"]
    error: Float[Array, "*many"]
    change: Float[Array, "*many rows columns"]


class Solution(eqx.Module):
    """The accepted steps of the flow of one problem."""

    problem: AbstractProblem
    error: Float[Array, ""]
    scales: tuple[Float[Array, ""], Float[Array, ""]]
    sigma: Float[Array, " steps"]
    state: tuple[Float[Array, "steps rows columns"], Float[Array, " steps"], Float[Array, " steps"]]
    last: tuple[Float[Array, "rows columns"], Float[Array, ""], Float[Array, ""]]
    is_complete: Bool[Array, ""]


def _scales(problem: AbstractProblem, error: Float[Array, ""]) -> tuple[Array, Array]:
    """Sizes of the change and of the learning time, from the initial vectors: the solver sees O(1)."""
    p, q = problem.vectors(problem.no_change())
    size = (p @ p) * (q @ q)
    return error / jnp.sqrt(size), 1 / size


def _field(sigma: Array, state: tuple[Array, Array, Array], args: tuple[AbstractProblem, Array, Array]):
    """Right-hand side, in the scaled variables."""
    problem, change_scale, tau_scale = args
    p, q = problem.vectors(change_scale * state[0])
    # Ratios to the initial size, kept apart so that their product cannot overflow early.
    size = (p @ p) * (q @ q) * tau_scale
    direction = jnp.outer(p, q) * jnp.sqrt(tau_scale)
    decay = jnp.exp(-sigma)
    return decay * direction / size, 1 / size, decay / jnp.sqrt(size)


def solve(problem: AbstractProblem, target: Float[Array, ""]) -> Solution:
    """Integrate from the initial weights to convergence, with an explicit method of order 8."""
    error = target - problem.initial_readout
    change_scale, tau_scale = _scales(problem, error)
    is_double = problem.initial_readout.dtype == jnp.float64
    zero = jnp.zeros_like(error)
    steps = diffrax.diffeqsolve(
        diffrax.ODETerm(_field),  # pyright: ignore[reportArgumentType]
        diffrax.Dopri8(),
        zero,
        zero + END,
        None,
        (problem.no_change(), zero, zero),
        args=(problem, change_scale, tau_scale),
        stepsize_controller=diffrax.PIDController(*((1e-11, 1e-14) if is_double else (1e-5, 1e-7))),
        saveat=diffrax.SaveAt(subs=[diffrax.SubSaveAt(t0=True, steps=True), diffrax.SubSaveAt(t1=True)]),
        max_steps=_MAX_STEPS,
        throw=False,
    )
    assert steps.ts is not None and steps.ys is not None
    last = jax.tree.map(lambda leaf: leaf[0], steps.ys[1])
    is_complete = (steps.result == diffrax.RESULTS.successful) & jnp.all(
        jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in last])
    )
    return Solution(problem, error, (change_scale, tau_scale), steps.ts[0], steps.ys[0], last, is_complete)


def _onto(solution: Solution, index: Array, sigma: Array) -> tuple[tuple[Array, Array, Array], Array]:
    """State at ``sigma`` by one step from the knot before it, and the rate dτ/dσ there, both scaled."""
    args = (solution.problem, *solution.scales)
    start = jax.tree.map(lambda leaf: leaf[index], solution.state)
    term, solver = diffrax.ODETerm(_field), diffrax.Dopri8()  # pyright: ignore[reportArgumentType]
    before = solution.sigma[index]
    memory = solver.init(term, before, sigma, start, args)
    state, *_ = solver.step(term, before, sigma, start, args, memory, made_jump=False)
    return state, _field(sigma, state, args)[1]


def _point(solution: Solution, state: tuple[Array, Array, Array], sigma: Array, tau: Array) -> Point:
    change_scale, _ = solution.scales
    change, _, path = state
    error = solution.error * jnp.exp(-sigma)
    return Point(sigma, tau, jnp.abs(change_scale) * path, error, change_scale * change)


def at_sigma(solution: Solution, sigma: Float[Array, ""]) -> Point:
    """The flow at a value of the progress variable, at most ``END``."""
    _, tau_scale = solution.scales
    index = jnp.searchsorted(solution.sigma, sigma, side="right") - 1
    state, _ = _onto(solution, index, sigma)
    return _point(solution, state, sigma, tau_scale * state[1])


def at_tau(solution: Solution, tau: Float[Array, ""]) -> Point:
    """The flow at a learning time: Newton's method on τ(σ), each iterate one step from the knot before.

    Beyond ``END`` the weights are frozen and τ goes on linearly in σ.
    """
    _, tau_scale = solution.scales
    scaled = tau / tau_scale
    knots, times = solution.sigma, solution.state[1]
    last_time = solution.last[1]
    inside = jnp.minimum(scaled, last_time)
    last_index = jnp.sum(jnp.isfinite(knots), dtype=jnp.int32) - 1
    index = jnp.clip(jnp.searchsorted(times, inside, side="right") - 1, 0, last_index - 1)
    low, high = knots[index], knots[index + 1]
    # Start from the chord; τ(σ) is smooth and monotone within a step.
    share = (inside - times[index]) / (times[index + 1] - times[index])
    guess = low + jnp.clip(share, 0.0, 1.0) * (high - low)

    def newton(_: Array, carry: tuple[Array, Any]) -> tuple[Array, Any]:
        sigma, _ = carry
        state, rate = _onto(solution, index, sigma)
        return jnp.clip(sigma + (inside - state[1]) / rate, low, high), (sigma, state)

    start = (guess, (guess, solution.last))
    _, (sigma, state) = jax.lax.fori_loop(0, _NEWTON, newton, start)
    is_frozen, is_endless = scaled >= last_time, jnp.isinf(scaled)
    end_rate = _field(jnp.asarray(END, tau.dtype), solution.last, (solution.problem, *solution.scales))[1]
    # Infinite time apart: its derivative would be inf / inf.
    excess = jnp.where(is_frozen & ~is_endless, scaled - last_time, 0.0) / end_rate
    sigma = jnp.where(is_frozen, END + excess, sigma)
    sigma = jnp.where(is_endless, jnp.inf, sigma)
    state = jax.tree.map(lambda end, here: jnp.where(is_frozen, end, here), solution.last, state)
    return _point(solution, state, sigma, tau)


def end(solution: Solution) -> Point:
    """The converged flow; its change and path are those of infinite time."""
    _, tau_scale = solution.scales
    sigma = jnp.asarray(END, solution.error.dtype)
    return _point(solution, solution.last, sigma, tau_scale * solution.last[1])


def solve_twice(problem: Reduced, target: Float[Array, ""]) -> tuple[Solution, Array]:
    """Solve a problem with all and with half of its basis vectors; tell by how much the results differ.

    The difference is relative, of the converged change or of the learning time, whichever is larger.
    """
    half = cut(problem, problem.p0.shape[0] // 2)
    both = jax.tree.map(lambda *leaves: jnp.stack(leaves), problem, half)
    solutions = jax.vmap(solve, in_axes=(0, None))(both, target)
    fine, rough = (jax.tree.map(lambda leaf, i=i: leaf[i], solutions) for i in (0, 1))
    ends = [end(solution) for solution in (fine, rough)]
    size = jnp.linalg.norm(ends[0].change)
    gap = jnp.linalg.norm(ends[0].change - ends[1].change) / jnp.where(size > 0, size, 1.0)
    return fine, jnp.maximum(gap, jnp.abs(ends[1].tau / ends[0].tau - 1))
