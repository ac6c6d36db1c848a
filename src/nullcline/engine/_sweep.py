"""One study under way: what is stored, what is left, and the dataset when nothing is."""

import dataclasses
import hashlib
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ._dataset import combine
from ._plan import Plan, Point, canonical
from ._record import BrokenFileError, netcdf_image, read_variables, seal, unseal
from ._store import Store, Stored, write_whole
from ._study import Study

if TYPE_CHECKING:
    import xarray as xr

PROVENANCE = ("nullcline", "commit", "jax", "numpy", "python", "platform", "device", "dtype")


class Failure(NamedTuple):
    """A point that could not be computed."""

    parameters: dict[str, Any]
    message: str


class Task(NamedTuple):
    """A point on its way to an executor."""

    sweep: "Sweep"
    point: Point

    @property
    def study(self) -> Study:
        """The study that computes the point."""
        return self.sweep.plan.study


@dataclasses.dataclass
class Sweep:
    """The points of a plan and what is known of each."""

    plan: Plan
    store: Store
    points: list[Point]
    stored: dict[str, Stored]
    left: list[Point]
    notes: list[str]
    retried: frozenset[str] = frozenset()
    """Digests of the points whose failure is to be computed again."""
    computed: int = 0

    @property
    def folder(self) -> Path:
        """Where the dataset, the figure and the verdicts of this preset go."""
        return self.store.folder / self.plan.label

    @property
    def is_complete(self) -> bool:
        """Whether every point is stored, done or failed."""
        return len(self.stored) == len(self.points)

    @property
    def failures(self) -> list[Failure]:
        """The failed points, in the order of the grid."""
        return [
            Failure({name: point.parameters[name] for name in self.plan.distributed}, found.message)
            for point in self.points
            if (found := self.stored.get(point.digest)) and found.status != "done"
        ]

    def task(self, point: Point) -> Task | None:
        """Hand out a point that was left, unless another driver has stored it meanwhile."""
        try:
            found = self.store.look(point)
        except BrokenFileError:
            found = None
        if found is not None and (found.status == "done" or point.digest not in self.retried):
            self.stored[point.digest] = found
            return None
        return Task(self, point)

    def put(self, point: Point, record: bytes) -> Stored:
        """Store a record that came back."""
        found = self.store.put(point, record)
        self.stored[point.digest] = found
        self.computed += 1
        return found


def open_sweep(plan: Plan, out: Path, *, retry_failed: bool = False, is_dry: bool = False) -> Sweep:
    """Look at what is stored of a plan and decide what is left."""
    store = Store(Path(out) / plan.study.document / plan.study.figure, plan.study)
    points = plan.points()
    if not is_dry:
        store.prepare()
    stored, notes = store.survey(points, is_dry=is_dry)
    retried = frozenset(name for name, found in stored.items() if retry_failed and found.status != "done")
    stored = {name: found for name, found in stored.items() if name not in retried}
    left = [point for point in points if point.digest not in stored]
    return Sweep(plan, store, points, stored, left, notes, retried)


def dataset(sweep: Sweep) -> "xr.Dataset":
    """Give the dataset of a complete sweep, consolidated into one file by a single writer."""
    import xarray as xr

    members = _members(sweep.stored[point.digest].checksum for point in sweep.points)
    path = sweep.folder / "data.nc"
    with sweep.store.lock():
        blob = _read_consolidated(sweep, path, members)
        if blob is None:
            blob = _consolidate(sweep)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, blob)
    return xr.load_dataset(io.BytesIO(blob), engine="h5netcdf")


def _read_consolidated(sweep: Sweep, path: Path, members: str) -> bytes | None:
    try:
        blob = path.read_bytes()
        header, _ = unseal(blob)
    except FileNotFoundError:
        return None
    except BrokenFileError as error:
        sweep.notes.append(sweep.store.set_aside(path, str(error)) + ", made again from the points")
        return None
    return blob if header.get("members") == members else None


def _members(checksums: Iterable[str]) -> str:
    """One name for the content of all points."""
    return hashlib.sha256("".join(checksums).encode()).hexdigest()


def _consolidate(sweep: Sweep) -> bytes:
    plan = sweep.plan
    records, origins, checksums = [], [], []
    for point in sweep.points:
        path = sweep.store.path(point)
        header, checksum = unseal(path.read_bytes())
        checksums.append(checksum)
        origins.append(header["provenance"])
        if header["status"] == "done":
            records.append((point, read_variables(path, header["dimensions"])))
    attributes: dict[str, Any] = {
        "study": plan.study.source,
        "title": plan.study.title,
        "version": plan.study.version,
        "preset": plan.label,
        "parameters": canonical({name: list(values) for name, values in plan.grid.items()}),
        "points": len(sweep.points),
        "failed": len(sweep.points) - len(records),
        "wall_time": float(sum(found.seconds for found in sweep.stored.values())),
        **{name: _spread(origins, name) for name in PROVENANCE},
    }
    data = combine(plan, records, attributes)
    variables = {str(name): (tuple(map(str, v.dims)), v.values) for name, v in data.variables.items()}
    header = {"study": plan.study.source, "members": _members(checksums)}
    return seal(netcdf_image(variables, attributes), header)


def _spread(origins: Sequence[dict[str, Any]], name: str) -> str:
    """Every value that an attribute has among the points."""
    return ", ".join(sorted({str(attributes[name]) for attributes in origins if attributes.get(name)}))
