"""GRUs on the four tasks of Experiment 2: how states and updates of the tasks align while training goes on.

Which g: that of the code, which multiplies what PyTorch draws, U(±1/√N): the recurrent weights alone
(``scaled="recurrent"``, the text of E.3), or all weights and biases of the cell (``scaled="all"``, a program
of the document).
"""

import dataclasses
import functools
from typing import Any

import numpy as np

from .._lazy import eqx, jax, jnp, jr, lazily, xr
from ._memory import optimizer

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
    """Training runs of one setting, one per seed (the leading axis of every array).

    Matrices C and M (seed, record, task, task) and test losses (seed, record) on ``trials``, and the networks
    before and after.
    """

    records: np.ndarray
    cosine: np.ndarray
    interference: np.ndarray
    losses: np.ndarray
    trials: Any
    before: Any
    after: Any

    def flow(self, seed: int, stage: str) -> Any:
        """Flow of network number ``seed`` along the trials, ``"before"`` or ``"after"`` training."""
        return _flow(getattr(self, stage), seed, self.trials)


def matrices(course: Course, seed: Any) -> Any:
    """The matrices of the runs, as a dataset."""
    axes = ("seed", "iteration", "task", "other")
    return xr.Dataset(
        {"cosine": (axes, course.cosine), "interference": (axes, course.interference)},
        coords={"seed": seed, "iteration": course.records, "task": list(TASKS), "other": list(TASKS)},
    )


def _cell(task: Any, hidden: int, scaled: str, g: float, seed: int) -> Any:
    cell = recurrent.gru_cell(
        task.inputs, hidden, task.outputs, g=g, dtype=jnp.float32, key=jr.fold_in(jr.key(4), seed)
    )
    if scaled == "recurrent":
        return cell
    return eqx.tree_at(lambda c: (c.w_in, c.b_in, c.b), cell, (g * cell.w_in, g * cell.b_in, g * cell.b))


def _flow(cells: Any, seed: int, trials: Any) -> Any:
    """Linearise one of the networks along trials, in float64."""
    cell = jax.tree.map(lambda leaf: leaf[seed].astype(jnp.float64), cells)
    return operators.linearize(cell, trials.inputs)


# Figures S13, S14 and S15 show the same networks: those that were made by this process are found again.
@functools.lru_cache(maxsize=64)
def course(
    hidden: int, period: int, batch: int, angles: int, is_balanced: bool, steps: int, record: int,
    scaled: str, g: float, seeds: tuple[int, ...],
) -> Course:  # fmt: skip
    """Train one GRU per seed, together, and measure the alignment of their tasks at every record.

    Measured on ``angles`` trials a task. The run of a seed does not depend on which others are there.
    """
    if scaled not in ("recurrent", "all"):
        raise ValueError(f"`scaled` must be 'recurrent' or 'all', got {scaled!r}.")
    task = recurrent.FourTasks(period=period, context=period, angles=angles, is_balanced=is_balanced)
    trials, labels = task.grid(4 * angles), task.labels(4 * angles)
    cells = recurrent.stack([_cell(task, hidden, scaled, g, seed) for seed in seeds])

    def one(cells, seed):
        flow = _flow(cells, seed, trials)
        tasks = operators.interference(flow, labels, trials.targets, trials.mask)
        loss = np.mean((np.asarray(flow.outputs) - np.asarray(trials.targets)) ** 2)
        return np.asarray(tasks.state_cosine), np.asarray(tasks.interference), loss

    found = []

    def measure(cells):
        rows = [one(cells, seed) for seed in range(len(seeds))]
        found.append([np.stack(part) for part in zip(*rows, strict=True)])

    measure(cells)
    result = recurrent.train_many(
        cells, task, steps=steps, batch_size=batch, optimizer=optimizer(), snapshot_every=record,
        report=lambda checkpoint: measure(checkpoint.cell),
        key=jnp.stack([jr.fold_in(jr.key(5), seed) for seed in seeds]),
    )  # fmt: skip
    cosine, interference, losses = (np.stack(part, axis=1) for part in zip(*found, strict=True))
    records = np.concatenate([[0], result.snapshot_steps])
    return Course(records, cosine, interference, losses, trials, result.initial, result.final)
