"""What block and scalar networks share: checked arguments, and the flow of a batch of flat weights."""

import math
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from .._checks import LARGEST_SIZE, as_float, require_size
from ._masks import MaskLike, as_array, check_values, warn_about
from ._queue import Exact, Outcome, run_queue
from ._rkc import BUDGET, CONVERGED, DIVERGED, Field, Limits
from ._trajectory import follow

_NAMES = {CONVERGED: "converged", BUDGET: "budget", DIVERGED: "diverged"}
Result = TypeVar("Result")


def default_batch(size: int) -> int:
    """Choose how many runs of ``size`` weights to compute together: what fits a cache, or fills a GPU.

    On a CPU a large network fills the cache alone, and a single run is spared the price of lockstep.
    """
    if jax.default_backend() == "cpu":
        return 1 if size > 2**13 else int(min(1024, 2 ** round(math.log2(2**16 / size))))
    return int(min(4096, max(64, 2 ** round(math.log2(2**23.5 / size)))))


def check_masks(masks: MaskLike, runs: int, languages: int) -> Bool[Array, "runs languages languages"]:
    """Give the masks of all runs, from one or from one each, and warn of those that cannot teach all."""
    masks = as_array("masks", masks)
    if masks.ndim == 2:
        masks = jnp.broadcast_to(jnp.asarray(masks)[None], (runs, *masks.shape))
    if masks.shape != (runs, languages, languages):
        raise ValueError(
            f"`masks` must have shape {(runs, languages, languages)} (runs, outputs, inputs) to match the "
            f"networks, got {masks.shape}."
        )
    check_values(np.asarray(masks), "masks")
    masks = jnp.asarray(masks).astype(bool)
    warn_about(np.asarray(masks))
    return masks


def check_limits(
    runs: int,
    tolerance: float,
    rtol: float,
    max_evaluations: int | Int[np.ndarray, " runs"],
    max_time: float | None,
    times: Float[Array | np.ndarray, " times"] | None,
    batch_size: int | None,
) -> None:
    """Raise for limits that no run could respect."""
    for name, value in {"tolerance": tolerance, "rtol": rtol}.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"`{name}` must be positive and finite, got {value}.")
    if np.shape(max_evaluations) not in ((), (runs,)):
        raise ValueError(
            f"`max_evaluations` must be one number or one per run, ({runs},), got shape "
            f"{np.shape(max_evaluations)}."
        )
    budget = np.asarray(max_evaluations)
    if budget.dtype.kind not in "iu" or np.any((budget < 1) | (budget > LARGEST_SIZE)):
        raise ValueError(f"`max_evaluations` must be integers in [1, {LARGEST_SIZE}], got {max_evaluations}.")
    if max_time is not None and not max_time > 0:
        raise ValueError(f"`max_time` must be positive, got {max_time}.")
    if batch_size is not None:
        require_size("batch_size", batch_size)
    if times is not None:
        grid = np.asarray(as_float("times", times))
        if grid.ndim != 1 or not grid.size or not np.isfinite(grid).all() or grid[0] < 0 or grid[-1] <= 0:
            raise ValueError(f"`times` must be nonnegative, finite and end after 0, got {grid}.")
        if (np.diff(grid) <= 0).any():
            raise ValueError(f"`times` must increase, got {grid}.")
        if max_time is not None and grid[-1] > max_time:
            raise ValueError(f"`times` end at {grid[-1]}, after `max_time` = {max_time}.")


def flow(
    field: Field,
    exact: Exact,
    start: Float[Array, "runs size"],
    masks: Bool[Array, "runs languages languages"],
    *,
    tolerance: float,
    max_evaluations: int | Int[np.ndarray, " runs"],
    max_time: float | None,
    times: Float[Array | np.ndarray, " times"] | None,
    rtol: float,
    batch: int,
    is_stiff: bool,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Outcome, Float[Array, "runs times size"] | None]:
    """Follow every run to its end, first through ``times`` by Diffrax; also give the weights there.

    Along ``times`` the tolerance is at least 1e-6, or 1e-8 for small stiff systems, by an implicit method.
    """
    runs, dtype = start.shape[0], start.dtype
    spread = jnp.sqrt(jnp.mean(start**2, axis=1))
    if not bool((spread > 0).all()):
        raise ValueError(
            "All weights of a network are zero: a stationary point that gradient flow never leaves."
        )
    budget = np.broadcast_to(np.asarray(max_evaluations), (runs,)).astype(np.int32)
    end_time = jnp.full(runs, math.inf if max_time is None else max_time, dtype)
    states, spent, elapsed = None, jnp.zeros(runs, jnp.int32), jnp.zeros(runs, dtype)
    if times is not None:
        fine = min(rtol, 1e-8 if is_stiff else 1e-6)
        path = follow(
            field, start, masks, jnp.asarray(times, dtype), atol=fine * spread, rtol=fine,
            max_evaluations=int(budget.max()), is_stiff=is_stiff,
        )  # fmt: skip
        start, states, spent, elapsed = path.end, path.states, path.evaluations, path.time
        budget = np.where(np.asarray(path.is_complete), np.maximum(budget - np.asarray(spent), 1), 1)
    limits = Limits(
        atol=rtol * spread,
        rtol=jnp.asarray(rtol, dtype),
        tolerance=jnp.asarray(tolerance, dtype),
        evaluations=jnp.asarray(budget, jnp.int32),
        time=end_time - elapsed,
    )
    found = run_queue(field, exact, start, masks, limits, batch=batch, progress=progress)
    return Outcome(
        y=found.y,
        time=found.time + elapsed,
        loss=found.loss,
        evaluations=found.evaluations + spent,
        status=found.status,
    ), states


def status_names(status: Int[Array, " runs"]) -> Shaped[np.ndarray, " runs"]:
    """How each run ended, in words."""
    return np.array([_NAMES[int(code)] for code in np.asarray(status)])


def only(run: Result) -> Result:
    """The one run of a batch of one, without its axis."""
    return jax.tree.map(lambda leaf: str(leaf[0]) if leaf.dtype.kind == "U" else leaf[0], run)
