"""Run studies one after another, share the workers among them, and keep the report current."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from ._executors import Executor
from ._outcome import Outcome, finish, skip
from ._plan import Plan
from ._progress import Progress
from ._report import write_report
from ._sweep import Sweep, Task, open_sweep


@dataclasses.dataclass(frozen=True)
class Shard:
    """A disjoint share of a plan: every ``count``-th point, beginning with number ``index`` (from 1)."""

    index: int
    count: int

    def __post_init__(self):
        if not 1 <= self.index <= self.count:
            raise ValueError(f"A shard i/n has 1 <= i <= n, got {self.index}/{self.count}.")

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Read ``i/n``."""
        index, slash, count = text.partition("/")
        if not (slash and index.isdecimal() and count.isdecimal()):
            raise ValueError(f"`shard` must read i/n, for example 1/8, got {text!r}.")
        return cls(int(index), int(count))


def cheapest_first(plans: Sequence[Plan]) -> list[Plan]:
    """Order plans by the time their studies expect; those that do not say come last."""
    return sorted(plans, key=lambda plan: plan.study.expected.get(plan.preset, float("inf")))


def reproduce(
    plans: Sequence[Plan],
    out: Path,
    executor: Executor,
    progress: Progress,
    *,
    shard: Shard | None = None,
    retry_failed: bool = False,
) -> tuple[list[Outcome], list[Sweep]]:
    """Compute, draw and judge every plan; the report is rewritten after each.

    Returns
    -------
    The outcomes of the studies that are finished, and the sweeps that still wait for other shards.
    """
    outcomes: list[Outcome] = []
    sweeps: list[Sweep] = []
    for plan in plans:
        missing = plan.study.missing()
        if missing:
            outcomes.append(skip(plan, out, missing))
            progress.note(f"{plan.study.source}: {outcomes[-1].summary}")
        else:
            sweeps.append(open_sweep(plan, out, retry_failed=retry_failed))
    for note in (note for sweep in sweeps for note in sweep.notes):
        progress.note(note)
    if shard is not None:
        _keep_share(sweeps, shard)

    waiting: list[Sweep] = []

    def conclude(sweep: Sweep) -> None:
        if not sweep.is_complete:
            sweep.stored, _ = sweep.store.survey(sweep.points)
        if not sweep.is_complete:
            waiting.append(sweep)
            progress.end(sweep, f"{len(sweep.points) - len(sweep.stored)} points left to other shards")
            return
        noted = len(sweep.notes)
        outcome = finish(sweep)
        for note in sweep.notes[noted:]:
            progress.note(note)
        outcomes.append(outcome)
        progress.end(sweep, outcome.summary)
        for parameters, message in outcome.failures[:3]:
            progress.note(f"  failed: {parameters}: {message}")
        write_report(out)

    pending = {id(sweep): len(sweep.left) for sweep in sweeps}

    def settle(sweep: Sweep) -> None:
        pending[id(sweep)] -= 1
        if pending[id(sweep)] == 0:
            conclude(sweep)

    def tasks() -> Iterator[Task]:
        for sweep in sweeps:
            is_first = True
            for point in sweep.left:
                task = sweep.task(point)
                if task is None:
                    settle(sweep)
                    continue
                if is_first:
                    progress.start(sweep)
                    is_first = False
                yield task

    for sweep in sweeps:
        if not sweep.left:
            conclude(sweep)
    with contextlib.closing(executor.execute(tasks(), progress.note)) as results:
        for task, record in results:
            task.sweep.put(task.point, record)
            progress.advance(task.sweep)
            settle(task.sweep)
    write_report(out)
    return outcomes, waiting


def _keep_share(sweeps: Sequence[Sweep], shard: Shard) -> None:
    """Leave to each sweep its part of the share, counted over the points of all studies."""
    number = 0
    for sweep in sweeps:
        mine = set()
        for point in sweep.points:
            if number % shard.count == shard.index - 1:
                mine.add(point.digest)
            number += 1
        sweep.left = [point for point in sweep.left if point.digest in mine]
