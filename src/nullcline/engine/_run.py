"""Run one study from Python: a dataset back."""

import contextlib
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ._executors import Executor
from ._plan import make_plan
from ._progress import progress_on_stderr
from ._study import Study, Value
from ._sweep import dataset, open_sweep

if TYPE_CHECKING:
    import xarray as xr


class FailedPointsWarning(UserWarning):
    """Some points of a sweep failed; they are NaN in the dataset."""


def run(
    study: Study,
    *,
    preset: str = "quick",
    out: str | Path = "results",
    overrides: Mapping[str, Value | tuple[Value, ...]] | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    timeout: float | None = None,
    retry_failed: bool = False,
    is_quiet: bool = False,
) -> "xr.Dataset":
    """Compute what is not stored yet of a study, and give the whole of it.

    Every finished point is on disk before the next one is counted: interrupt it at any moment, and the same
    call goes on where it stopped.

    Parameters
    ----------
    study
        An instance of a :class:`Study` subclass.
    preset
        Which of its grids.
    out
        Folder of the results; the points of this study go to ``out/document/figure/points``.
    overrides
        Values that replace those of the preset, by axis: ``{"lam": (-3.0, 0.0, 3.0)}``.
    workers
        Processes on this machine. Without them points are computed here, one after another.
    scheduler
        Address of a Dask scheduler, instead of ``workers``.
    timeout
        Seconds after which a point is given up and stored as a failure.
    retry_failed
        Whether to compute failed points again.
    is_quiet
        Whether to show no progress.

    Returns
    -------
    The dataset over the whole grid: its axes are the first dimensions of every variable. Failed points are
    NaN, counted in ``attrs["failed"]``, and a :class:`FailedPointsWarning` names the first; when all fail,
    ``RuntimeError``.
    """
    executor = Executor(workers, scheduler, timeout)
    plan = make_plan(study, preset, overrides)
    missing = study.missing()
    if missing:
        raise ValueError(f"Study {study.source} cannot run yet: {missing}")
    sweep = open_sweep(plan, Path(out), retry_failed=retry_failed)
    with progress_on_stderr(is_quiet) as progress:
        for note in sweep.notes:
            progress.note(note)
        if sweep.left:
            progress.start(sweep)
        tasks = (task for point in sweep.left if (task := sweep.task(point)))
        with contextlib.closing(executor.execute(tasks, progress.note)) as results:
            for task, record in results:
                sweep.put(task.point, record)
                progress.advance(sweep)
        progress.end(sweep, "")
    failures = sweep.failures
    if failures:
        first = failures[0]
        text = (
            f"{study.source}: {len(failures)} of {len(sweep.points)} points failed; the first, "
            f"{first.parameters}: {first.message}"
        )
        if len(failures) == len(sweep.points):
            raise RuntimeError(text)
        warnings.warn(text, FailedPointsWarning, stacklevel=2)
    return dataset(sweep)
