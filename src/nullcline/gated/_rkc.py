r"""Second-order Runge–Kutta–Chebyshev steps (RKC2) for a batch of gradient flows, one evaluation at a time.

A stabilized explicit method: with ``s`` stages a step is stable up to :math:`h\rho \approx \tfrac23 s^2`, so
the stiff flow of large weights costs :math:`\sqrt{\rho}` instead of :math:`\rho`. Every run of the batch is a
small state machine that asks for one gradient per tick. Runs in different stages of steps of different
lengths therefore share the same batched gradient, and none waits for another.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PyTree, Shaped

MAX_STAGES = 48
POWER_STEPS = 10

# Steps that may be taken on one estimate of the stiffness if its relative change was small.
PATIENCE, STEADY = 16, 0.05

# What a run of the batch is doing. CANDIDATE: below the tolerance, waiting to be confirmed.
RUNNING, CANDIDATE, CONVERGED, BUDGET, DIVERGED, IDLE = range(6)

# What a running one needs an evaluation for: to begin, to estimate the stiffness, within a step, at its end.
FIRST, POWER, INSIDE, END = -1, 0, 1, 2

# Loss and gradient of a batch of flat states.
Field = Callable[
    [Float[Array, "batch size"], PyTree], tuple[Float[Array, " batch"], Float[Array, "batch size"]]
]


class _Tableau(NamedTuple):
    """Coefficients by number of stages (rows) and stage (columns)."""

    keep: np.ndarray  # weight of y
    last: np.ndarray  # weight of the stage before
    older: np.ndarray  # weight of the stage before that
    slope: np.ndarray  # weight of h f(stage before)
    start: np.ndarray  # weight of h f(y)
    first: np.ndarray  # weight of h f(y) in the first stage, by number of stages
    reach: np.ndarray  # largest stable h rho, by number of stages from 2


@functools.cache
def tableau() -> _Tableau:
    r"""Coefficients of RKC2 for 2 … 48 stages, from Chebyshev polynomials at :math:`w_0 = 1 + (2/13)/s^2`."""
    shape = (MAX_STAGES + 1, MAX_STAGES + 1)
    keep, last, older, slope, start = (np.zeros(shape) for _ in range(5))
    first, reach = np.zeros(MAX_STAGES + 1), np.zeros(MAX_STAGES + 1)
    for s in range(2, MAX_STAGES + 1):
        w0 = 1 + (2 / 13) / s**2
        t, dt, ddt = [1.0, w0], [0.0, 1.0], [0.0, 0.0]
        for _ in range(2, s + 1):
            ddt.append(4 * dt[-1] + 2 * w0 * ddt[-1] - ddt[-2])
            dt.append(2 * t[-1] + 2 * w0 * dt[-1] - dt[-2])
            t.append(2 * w0 * t[-1] - t[-2])
        w1 = dt[s] / ddt[s]
        b = [0.0, 1 / w0, *(ddt[j] / dt[j] ** 2 for j in range(2, s + 1))]
        b[0] = b[2]
        a = [1 - b[j] * t[j] for j in range(s + 1)]
        first[s] = b[1] * w1
        reach[s] = (w0 + 1) * ddt[s] / dt[s]
        for j in range(2, s + 1):
            mu, nu = 2 * b[j] * w0 / b[j - 1], -b[j] / b[j - 2]
            last[s, j], older[s, j], keep[s, j] = mu, nu, 1 - mu - nu
            slope[s, j] = 2 * b[j] * w1 / b[j - 1]
            start[s, j] = -a[j - 1] * slope[s, j]
    return _Tableau(keep, last, older, slope, start, first, reach[2:])


class Limits(eqx.Module):
    """What ends a run, one entry per run (``rtol`` and ``tolerance`` are shared)."""

    atol: Float[Array, " batch"]
    rtol: Float[Array, ""]
    tolerance: Float[Array, ""]
    evaluations: Int[Array, " batch"]
    time: Float[Array, " batch"]


class State(eqx.Module):
    """A batch of runs between two gradient evaluations.

    ``stage`` is -1 before the first evaluation, 0 while the stiffness is estimated, then the stage that was
    reached. ``y`` and ``f`` are the last accepted weights and their velocity, ``last`` and ``older`` the two
    latest stages, ``v`` the stiffest direction, ``wait`` the number of steps before it is looked at again
    (negative: of power steps still to do at the start), ``trend`` the cube root of the last error over its
    step. In a candidate, ``last`` and ``older`` are the weights and the velocity at the end of the step that
    crossed the tolerance.
    """

    y: Float[Array, "batch size"]
    f: Float[Array, "batch size"]
    last: Float[Array, "batch size"]
    older: Float[Array, "batch size"]
    v: Float[Array, "batch size"]
    t: Float[Array, " batch"]
    h: Float[Array, " batch"]
    rho: Float[Array, " batch"]
    norm: Float[Array, " batch"]
    loss: Float[Array, " batch"]
    shift: Float[Array, " batch"]
    stage: Int[Array, " batch"]
    stages: Int[Array, " batch"]
    trend: Float[Array, " batch"]
    wait: Int[Array, " batch"]
    evaluations: Int[Array, " batch"]
    status: Int[Array, " batch"]


def fresh(y: Float[Array, "batch size"]) -> State:
    """Runs that have not been evaluated yet."""
    batch, size = y.shape
    zero, count = jnp.zeros(batch, y.dtype), jnp.zeros(batch, jnp.int32)
    # One direction for all runs: a result must not depend on the company it was computed in.
    v = jr.normal(jr.key(0), (size,), y.dtype)
    v = jnp.broadcast_to((v / jnp.linalg.norm(v))[None], y.shape)
    norm = jnp.sqrt(jnp.sum(y**2, axis=1))
    empty = jnp.zeros_like(y)
    return State(
        y=y, f=empty, last=y, older=empty, v=v, t=zero, h=zero, rho=zero, norm=norm, loss=zero, shift=zero,
        trend=zero, stage=count - 1, stages=count + 2, wait=count + 1 - POWER_STEPS, evaluations=count,
        status=count,
    )  # fmt: skip


def _per_run(x: Shaped[Array, " batch"]) -> Shaped[Array, "batch 1"]:
    return x[:, None]


def phase(state: State) -> Int[Array, " batch"]:
    """What each run asks its next evaluation for: FIRST, POWER, INSIDE or END."""
    inside = jnp.where(state.stage == state.stages, END, INSIDE)
    return jnp.where(state.stage > 0, inside, jnp.sign(state.stage)).astype(jnp.int32)


def tick(field: Field, state: State, args: PyTree, limits: Limits, *, only: int | None = None) -> State:
    """Spend one gradient evaluation on every run of the batch.

    With ``only``, all runs are known to be running and in this phase, and what the others need is left out.
    """
    dtype = state.y.dtype
    epsilon, tiny = float(jnp.finfo(dtype).eps), float(jnp.finfo(dtype).tiny)
    coefficient = jax.tree.map(lambda c: jnp.asarray(c, dtype), tableau())
    y, f, last, older, h = state.y, state.f, state.last, state.older, state.h
    active = state.status == RUNNING

    def is_in(one: int) -> Bool[Array, " batch"]:
        return active & (phase(state) == one) if only is None else jnp.full(active.shape, only == one)

    is_first, is_power, is_middle, is_end = map(is_in, (FIRST, POWER, INSIDE, END))

    nudge = (1e-6 if dtype == jnp.float64 else epsilon**0.5) * state.norm
    point = jnp.where(_per_run(is_power), y + _per_run(nudge) * state.v, last)
    loss, slope = field(point, args)
    new = -slope
    evaluations = state.evaluations + active.astype(jnp.int32)

    # The end of a step: is the error small, and did the loss go down, as it must along the flow?
    estimate = 0.8 * (y - last) + 0.4 * _per_run(h) * (f + new)
    size = _per_run(limits.atol) + limits.rtol * jnp.maximum(jnp.abs(y), jnp.abs(last))
    error = jnp.sqrt(jnp.mean((estimate / size) ** 2, axis=1))
    norm_last = jnp.sqrt(jnp.sum(last**2, axis=1))
    is_finite = jnp.isfinite(error) & jnp.isfinite(loss)
    is_uphill = loss > 1.02 * state.loss + 8 * epsilon
    is_accepted = is_end & is_finite & (error <= 1) & ~is_uphill
    is_below = (loss + state.shift < limits.tolerance) & jnp.isfinite(loss)
    is_crossing = (is_accepted | is_first) & is_below
    is_committed = is_accepted & ~is_below
    # Predictive control: the error follows its trend, so that growing errors cost fewer rejected steps.
    root = jnp.maximum(error, 0.008) ** (1 / 3)
    growth = jnp.where(is_accepted & (state.trend > 0), root / (h * state.trend), 1)
    factor = jnp.clip(0.8 / (root * jnp.maximum(growth, 1)), 0.2, 4.0)
    factor = jnp.where(is_uphill, jnp.minimum(factor, 0.5), factor)
    factor = jnp.where(is_finite, factor, 0.1)
    t = state.t + jnp.where(is_committed, h, 0)

    # A power step for the stiffness. It changes slowly, and an accepted step may leave it to later ones.
    stretch = jnp.sqrt(jnp.sum(((new - f) / _per_run(nudge)) ** 2, axis=1))
    rho = jnp.where(is_power, stretch, state.rho)
    is_steady = jnp.abs(rho - state.rho) < STEADY * rho
    wait = jnp.where(state.wait < 0, state.wait + 1, jnp.where(is_steady, PATIENCE, 0))
    left = jnp.where(is_committed, jnp.maximum(state.wait - 1, 0), 0)
    wait = jnp.where(is_power, wait, jnp.where(is_end, left, state.wait))

    # The first stage of the next step.
    is_start = (is_power & (state.wait >= 0)) | (is_committed & (state.wait > 0))
    rho_safe = 1.15 * jnp.maximum(rho, tiny * 1e6)
    h_end = jnp.where(is_end & ~is_crossing, h * factor, h)
    h_start = jnp.where(h_end == 0, 0.1 * 1.15 / rho_safe, h_end)
    h_start = jnp.minimum(h_start, 0.95 * coefficient.reach[-1] / rho_safe)
    h_start = jnp.minimum(h_start, limits.time - t)
    needs_more = _per_run(rho_safe * h_start) > 0.95 * coefficient.reach[None, :-1]
    stages = jnp.where(is_start, 2 + jnp.sum(needs_more, axis=1, dtype=jnp.int32), state.stages)

    # Weights of the stage, one per run. Fused into the loops over all entries, their look-up would cost more
    # than the arithmetic: the barrier keeps it out of them.
    def at(table):
        return table[state.stages, jnp.minimum(state.stage + 1, MAX_STAGES)]

    weights = (
        at(coefficient.keep),
        at(coefficient.last),
        at(coefficient.older),
        h * at(coefficient.slope),
        h * at(coefficient.start),
        coefficient.first[stages] * h_start,
        1 / (nudge * jnp.maximum(rho, tiny)),
    )
    by_y, by_last, by_older, by_new, by_f, by_opening, by_turn = map(
        _per_run, lax.optimization_barrier(weights)
    )
    if only is None:
        flags = (is_middle, is_start, is_power, is_first, is_committed, is_crossing)
        is_middle, is_start, is_power, is_first, is_committed, is_crossing = lax.optimization_barrier(flags)

    def pick(condition, a, b):
        return jnp.where(_per_run(condition), a, b)

    middle = by_y * y + by_last * last + by_older * older + by_new * new + by_f * f
    y_next, f_next = pick(is_committed, last, y), pick(is_committed | is_first, new, f)
    opening = y_next + by_opening * f_next
    has_failed = (is_first & ~jnp.isfinite(loss)) | (is_power & ~jnp.isfinite(rho))
    has_failed |= is_end & ~is_finite & (h * state.rho < 1e-12)
    is_spent = active & ((evaluations >= limits.evaluations) | (is_committed & (t >= limits.time)))
    status = jnp.where(is_spent, BUDGET, state.status)
    status = jnp.where(is_crossing, CANDIDATE, status)
    status = jnp.where(has_failed, DIVERGED, status).astype(jnp.int32)
    stage = jnp.where(is_middle, state.stage + 1, jnp.where(is_end | is_first, 0, state.stage))
    return State(
        y=y_next,
        f=f_next,
        last=pick(is_middle, middle, pick(is_start, opening, last)),
        older=pick(is_middle, last, pick(is_start, y_next, pick(is_crossing, new, older))),
        v=pick(is_power, by_turn * (new - f), state.v),
        t=t,
        h=jnp.where(is_start, h_start, h_end),
        rho=rho,
        norm=jnp.where(is_committed, norm_last, state.norm),
        loss=jnp.where(is_first | is_committed | is_crossing, loss, state.loss),
        shift=state.shift,
        stage=jnp.where(is_start, 1, stage),
        stages=stages,
        trend=jnp.where(is_committed, root / h, state.trend),
        wait=wait,
        evaluations=evaluations,
        status=status,
    )


def locate(
    exact: Callable[[Float[Array, "batch size"], PyTree], Float[Array, " batch"]],
    state: State,
    args: PyTree,
    tolerance: Float[Array, ""],
) -> tuple[
    Float[Array, "batch size"], Float[Array, " batch"], Float[Array, " batch"], Float[Array, " batch"]
]:
    """Find where candidates cross the tolerance within their last step.

    Cubic Hermite interpolation of the step and safeguarded regula falsi on the logarithm of the loss, which
    is nearly linear there: what is recorded then does not depend on where a step happened to end.

    Returns
    -------
    Weights, time and loss at the crossing, and the loss at the end of the step: at or above the tolerance,
    the candidate is rejected.
    """
    h = _per_run(state.h)

    def at(theta: Float[Array, " batch"]) -> Float[Array, "batch size"]:
        x = _per_run(theta)
        start, end = (1 + 2 * x) * (1 - x) ** 2, x**2 * (3 - 2 * x)
        slopes = x * (1 - x) ** 2 * state.f - x**2 * (1 - x) * state.older
        return start * state.y + end * state.last + h * slopes

    level = jnp.log(tolerance)

    def value(theta):
        return jnp.log(jnp.maximum(exact(at(theta), args), jnp.finfo(h.dtype).tiny)) - level

    zero, one = jnp.zeros_like(state.h), jnp.ones_like(state.h)
    low, high = value(zero), value(one)

    def halve(_, bracket):
        a, b, fa, fb = bracket
        # Never outside the middle 98 % of the bracket, so that it always shrinks.
        c = jnp.clip(fa / jnp.where(fa == fb, 1, fa - fb), 0.01, 0.99)
        theta = a + c * (b - a)
        f = value(theta)
        is_above = f > 0
        # Illinois: the end that stays has its value halved.
        return (
            jnp.where(is_above, theta, a),
            jnp.where(is_above, b, theta),
            jnp.where(is_above, f, fa / 2),
            jnp.where(is_above, fb / 2, f),
        )

    _, theta, _, _ = lax.fori_loop(0, 12, halve, (zero, one, low, high))
    # A run that starts below the tolerance ends where it starts.
    theta = jnp.where(low <= 0, 0.0, theta)
    found = at(theta)
    return found, state.t + theta * state.h, exact(found, args), jnp.exp(high + level)
