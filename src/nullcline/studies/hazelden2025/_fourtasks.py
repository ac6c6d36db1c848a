"""GRUs on the four tasks of Experiment 2: how states and updates of the tasks align while training goes on.

Which g: that of the code, which multiplies what PyTorch draws, U(±1/√N): the recurrent weights alone
(``scaled="recurrent"``, the text of E.3), or all weights and biases of the cell (``scaled="all"``, a program
of the document). At g = 1 the two agree.
"""

import dataclasses
import functools
from typing import Any

import numpy as np

from .._lazy import eqx, jax, jnp, jr, lazily, xr
from ._memory import dimension_of_chaos, optimizer

operators = lazily("nullcline.operators")
recurrent = lazily("nullcline.recurrent")

TASKS = ("MP", "MA", "DP", "DA")
FILTERS = {"Pro/Anti": ((0, 2), (1, 3)), "Mem/Del": ((0, 1), (2, 3))}
"""Pairs of tasks that share the sign of the response, and pairs that share the course of the stimulus."""


def score(matrix: np.ndarray, pairs: tuple[tuple[int, int], ...]) -> np.ndarray:
    """Mean of the selected off-diagonal entries, both orders; the last two axes are the tasks."""
    return np.mean([matrix[..., i, j] + matrix[..., j, i] for i, j in pairs], axis=0) / 2


@dataclasses.dataclass(frozen=True)
class Course:
    """One training run: matrices C and M (record, task, task), and test losses.

    ``dimensions`` are PCs of the states before and after training, ``chaos`` their Kaplan–Yorke dimensions.
    """

    records: np.ndarray
    cosine: np.ndarray
    interference: np.ndarray
    losses: np.ndarray
    dimensions: tuple[int, int]
    chaos: tuple[float, float]


def matrices(course: Course) -> Any:
    """The matrices of a run, as a dataset."""
    axes = ("iteration", "task", "other")
    return xr.Dataset(
        {"cosine": (axes, course.cosine), "interference": (axes, course.interference)},
        coords={"iteration": course.records, "task": list(TASKS), "other": list(TASKS)},
    )


def _cell(task: Any, hidden: int, scaled: str, g: float, seed: int) -> Any:
    cell = recurrent.gru_cell(
        task.inputs, hidden, task.outputs, g=g, dtype=jnp.float32, key=jr.fold_in(jr.key(4), seed)
    )
    if scaled == "recurrent":
        return cell
    return eqx.tree_at(lambda c: (c.w_in, c.b_in, c.b), cell, (g * cell.w_in, g * cell.b_in, g * cell.b))


def course(
    hidden: int, period: int, batch: int, angles: int, is_balanced: bool, steps: int, record: int,
    scaled: str, g: float, seed: int,
) -> Course:  # fmt: skip
    """Train one GRU and measure the alignment of its tasks at every record, on ``angles`` trials a task."""
    if scaled not in ("recurrent", "all"):
        raise ValueError(f"`scaled` must be 'recurrent' or 'all', got {scaled!r}.")
    scaled = "recurrent" if g == 1 else scaled
    return _course(hidden, period, batch, angles, is_balanced, steps, record, scaled, g, seed)


# Figures 4, S14 and S15 show the same networks: those that were made by this process are found again.
@functools.lru_cache(maxsize=64)
def _course(
    hidden: int, period: int, batch: int, angles: int, is_balanced: bool, steps: int, record: int,
    scaled: str, g: float, seed: int,
) -> Course:  # fmt: skip
    task = recurrent.FourTasks(period=period, context=period, angles=angles, is_balanced=is_balanced)
    cell = _cell(task, hidden, scaled, g, seed)
    trials, labels = task.grid(4 * angles), task.labels(4 * angles)
    found, flows = [], []

    def measure(cell):
        cell = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), cell)
        flow = operators.linearize(cell, trials.inputs)
        tasks = operators.interference(flow, labels, trials.targets, trials.mask)
        loss = np.mean((np.asarray(flow.outputs) - np.asarray(trials.targets)) ** 2)
        found.append((np.asarray(tasks.state_cosine), np.asarray(tasks.interference), loss))
        flows[1:] = [flow]  # the first and the latest

    measure(cell)
    result = recurrent.train(
        cell, task, steps=steps, batch_size=batch, optimizer=optimizer(), snapshot_every=record,
        report=lambda checkpoint: measure(checkpoint.cell), key=jr.fold_in(jr.key(5), seed),
    )  # fmt: skip
    cosine, interference, losses = (np.stack(part) for part in zip(*found, strict=True))
    records = np.concatenate([[0], result.snapshot_steps])
    before, after = flows[0], flows[-1]
    dimensions = operators.activity_dimension(before.states), operators.activity_dimension(after.states)
    chaos = dimension_of_chaos(before, 3), dimension_of_chaos(after, 3)
    return Course(records, cosine, interference, losses, dimensions, chaos)
