"""Run a study from Python: a dataset back."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ._compute import provenance, record
from ._dataset import combine
from ._plan import make_plan
from ._record import read_variables
from ._store import Store
from ._study import Study, Value

if TYPE_CHECKING:
    import xarray as xr


def run(
    study: Study,
    *,
    preset: str = "quick",
    out: str | Path = "results",
    overrides: Mapping[str, Value | tuple[Value, ...]] | None = None,
) -> "xr.Dataset":
    """Compute what is not stored yet of a study and give the whole dataset."""
    plan = make_plan(study, preset, overrides)
    store = Store(Path(out) / study.document / study.figure, study)
    store.prepare()
    points = plan.points()
    stored, _ = store.survey(points)
    for point in points:
        if point.digest not in stored:
            stored[point.digest] = store.put(point, record(study, point.parameters))
    failures = [stored[p.digest].message for p in points if stored[p.digest].status != "done"]
    if failures:
        raise RuntimeError(f"{study.source}: {len(failures)} of {len(points)} points failed: {failures[0]}")
    records = [(p, read_variables(store.path(p).read_bytes())) for p in points]
    return combine(plan, records, {"study": study.source, "preset": plan.label, **provenance()})
