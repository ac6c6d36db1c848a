"""A queue of gradient flows on one device: finished runs leave the batch and waiting ones enter.

Few compiled programs do the work: ``_advance`` spends a chunk of evaluations, ``_harvest`` confirms the
candidates, ``_record`` writes results, ``_enter`` lets new runs in, ``_gather`` shrinks the batch when nobody
waits. In between, the host looks at one small array of status numbers. The costly programs, the first two,
know the size of the batch but not the number of runs.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PyTree

from ._rkc import (
    CANDIDATE,
    CONVERGED,
    END,
    IDLE,
    INSIDE,
    POWER,
    RUNNING,
    Field,
    Limits,
    State,
    fresh,
    locate,
    phase,
    tick,
)

# Evaluations between two looks at a batch.
CHUNK = 128

Exact = Callable[[Float[Array, "batch size"], PyTree], Float[Array, " batch"]]


class Outcome(eqx.Module):
    """Where every run of a queue ended."""

    y: Float[Array, "runs size"]
    time: Float[Array, " runs"]
    loss: Float[Array, " runs"]
    evaluations: Int[Array, " runs"]
    status: Int[Array, " runs"]


def _take(tree: Any, index: Int[Array, " batch"]) -> Any:
    return jax.tree.map(lambda x: jnp.take(x, index, axis=0, mode="clip") if jnp.ndim(x) else x, tree)


@eqx.filter_jit
def _enter(
    state: State,
    y0: Float[Array, "runs size"],
    owner: Int[Array, " batch"],
    is_new: Bool[Array, " batch"],
) -> State:
    def choose(a: Array, b: Array) -> Array:
        return jnp.where(is_new.reshape(-1, *[1] * (a.ndim - 1)), a, b)

    return jax.tree.map(choose, fresh(_take(y0, owner)), state)


@eqx.filter_jit
def _advance(field: Field, state: State, args: PyTree, limits: Limits) -> State:
    if len(state.t) > 1:
        return lax.fori_loop(0, CHUNK, lambda _, s: tick(field, s, args, limits), state)
    # A single run needs no lockstep: each phase is a loop of its own, and nothing is spent beyond its end, so
    # that there is little reason to look at it.
    end = state.evaluations + 32 * CHUNK

    def is_going(s: State) -> Bool[Array, ""]:
        return jnp.all((s.status == RUNNING) & (s.evaluations < end))

    def step(s: State) -> State:
        for is_here, only in (
            (lambda s: phase(s) <= POWER, None),
            (lambda s: phase(s) == INSIDE, INSIDE),
            (lambda s: phase(s) == END, END),
        ):
            s = lax.while_loop(
                lambda s, is_here=is_here: is_going(s) & jnp.all(is_here(s)),
                lambda s, only=only: tick(field, s, args, limits, only=only),
                s,
            )
        return s

    return lax.while_loop(is_going, step, state)


@eqx.filter_jit
def _harvest(
    exact: Exact, state: State, args: PyTree, slots: Int[Array, " slots"], tolerance: Float[Array, ""]
) -> tuple[Outcome, State]:
    """Give the ends of the runs in ``slots``, and send unconfirmed candidates, which stay such, back."""
    some, mine = _take((state, args), slots)
    is_candidate = some.status == CANDIDATE
    found, time, loss, end = locate(exact, some, mine, tolerance)
    is_confirmed = is_candidate & (end < tolerance)

    def pick(a, b):
        return jnp.where(is_confirmed.reshape(-1, *[1] * (a.ndim - 1)), a, b)

    part = Outcome(
        y=pick(found, some.y),
        time=pick(time, some.t),
        loss=pick(loss, some.loss),
        evaluations=some.evaluations,
        status=jnp.where(is_confirmed, CONVERGED, some.status).astype(jnp.int32),
    )
    # The Gram loss said "below", the exact loss did not: take the step, and know the difference from now on.
    is_back = is_candidate & ~is_confirmed

    def back(a, b):
        return jnp.where(is_back.reshape(-1, *[1] * (a.ndim - 1)), a, b)

    def set_back(whole, part):
        return whole.at[slots].set(part, mode="drop")

    state = eqx.tree_at(
        lambda s: (s.y, s.f, s.t, s.shift, s.status),
        state,
        (
            set_back(state.y, back(some.last, some.y)),
            set_back(state.f, back(some.older, some.f)),
            set_back(state.t, back(some.t + some.h, some.t)),
            set_back(state.shift, back(end - some.loss, some.shift)),
            set_back(state.status, jnp.where(is_back, RUNNING, IDLE).astype(jnp.int32)),
        ),
    )
    return part, state


@jax.jit
def _record(
    outcome: Outcome, part: Outcome, slots: Int[Array, " slots"], owner: Int[Array, " batch"]
) -> Outcome:
    """Write the ends of runs to their rows; padding, with the size of the batch, has none."""
    is_over = (slots < owner.shape[0]) & (part.status != CANDIDATE)
    row = jnp.where(is_over, _take(owner, slots), outcome.time.shape[0])
    return jax.tree.map(lambda whole, rows: whole.at[row].set(rows, mode="drop"), outcome, part)


_begin, _gather = eqx.filter_jit(fresh), eqx.filter_jit(_take)


def run_queue(
    field: Field,
    exact: Exact,
    y0: Float[Array, "runs size"],
    args: PyTree,
    limits: Limits,
    *,
    batch: int,
    progress: Callable[[int, int], None] | None = None,
) -> Outcome:
    """Follow every flow until its loss is below the tolerance or its budget is spent.

    Parameters
    ----------
    field, exact
        Loss and gradient of a batch of states; and the loss alone, computed without cancellation, which
        confirms every stop.
    y0, args, limits
        Initial states, arguments and limits of all runs, one per row; they enter in this order.
    batch
        Number of runs computed together.
    progress
        Called with (finished, total) whenever runs finish.
    """
    runs = y0.shape[0]
    batch = min(batch, runs)
    nothing = jnp.zeros_like(y0)
    outcome = Outcome(
        y=nothing,
        time=jnp.zeros_like(limits.time),
        loss=jnp.zeros_like(limits.time),
        evaluations=jnp.zeros(runs, jnp.int32),
        status=jnp.full(runs, IDLE, jnp.int32),
    )
    owner, waiting, finished = np.arange(batch), batch, 0
    state, mine = _begin(y0[:batch]), _gather((args, limits), jnp.asarray(owner))
    while finished < runs:
        state = _advance(field, state, *mine)
        status = np.asarray(state.status)
        over = np.flatnonzero((status != RUNNING) & (status != IDLE))
        for part in np.array_split(over, -(-len(over) // max(1, batch // 8))) if len(over) else ():
            slots = np.full(max(1, batch // 8), batch)
            slots[: len(part)] = part
            ends, state = _harvest(exact, state, mine[0], jnp.asarray(slots), limits.tolerance)
            outcome = _record(outcome, ends, jnp.asarray(slots), jnp.asarray(owner))
        if len(over):
            status = np.array(state.status)
            finished += int(np.sum(status[over] == IDLE))
            if progress is not None:
                progress(finished, runs)
        free = np.flatnonzero(status == IDLE)
        entering = free[: runs - waiting]
        is_new = np.zeros(batch, bool)
        is_new[entering] = True
        owner[entering] = waiting + np.arange(len(entering))
        waiting += len(entering)
        if len(entering):
            state = _enter(state, y0, jnp.asarray(owner), jnp.asarray(is_new))
        left = np.flatnonzero((status == RUNNING) | is_new)
        if waiting == runs and batch >= 16 and 0 < len(left) <= batch // 8:
            batch //= 8
            index = np.resize(left, batch)
            owner, state = owner[index], _gather(state, jnp.asarray(index))
            # Padding repeats a run that is already there: it must not run, or be written, twice.
            idle = jnp.asarray(np.arange(batch) >= len(left))
            state = eqx.tree_at(lambda s: s.status, state, jnp.where(idle, IDLE, state.status))
        if len(entering) or batch < len(is_new):
            mine = _gather((args, limits), jnp.asarray(owner))
    return outcome
