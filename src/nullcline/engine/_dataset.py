"""Put the records of a sweep together as one labelled dataset."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ._plan import Plan, Point
from ._record import Variables

if TYPE_CHECKING:
    import xarray as xr


@dataclasses.dataclass(frozen=True)
class _Dimension:
    """A dimension that a study adds to those of its grid: its length over all points and its coordinate."""

    name: str
    length: int
    coordinate: np.ndarray | None
    is_union: bool
    """Whether points differ in their coordinates: each is then placed by its own."""

    def place(self, variables: Variables, length: int) -> np.ndarray:
        """Where the entries of one point go."""
        if self.coordinate is None or not self.is_union:
            return np.arange(length)
        return np.searchsorted(self.coordinate, variables[self.name][1])


def combine(
    plan: Plan, records: Sequence[tuple[Point, Variables]], attributes: Mapping[str, Any]
) -> "xr.Dataset":
    """One dataset over the whole grid.

    A variable has the axes of the grid first, in their order, then its own dimensions. Where a point failed,
    or has fewer values along its own dimension than another, floats are NaN and text is empty; integers and
    booleans become floats there.
    """
    import xarray as xr

    own = _own_dimensions(plan, [variables for _, variables in records])
    coordinates = {name: ((name,), np.asarray(values)) for name, values in plan.grid.items()}
    coordinates |= {d.name: ((d.name,), d.coordinate) for d in own.values() if d.coordinate is not None}
    names = dict.fromkeys(name for _, variables in records for name in variables)
    data = {name: _whole(plan, own, name, records) for name in names if name not in coordinates}
    return xr.Dataset(data, coords=coordinates, attrs=dict(attributes))


def _whole(
    plan: Plan, own: Mapping[str, _Dimension], name: str, records: Sequence[tuple[Point, Variables]]
) -> tuple[list[str], np.ndarray]:
    """Give one variable over the whole grid, with its dimensions."""
    outer = tuple(len(plan.grid[axis]) for axis in plan.distributed)
    parts = [(point, variables) for point, variables in records if name in variables]
    dimensions = parts[0][1][name][0]
    shape = tuple(own[d].length if d in own else len(plan.grid[d]) for d in dimensions)
    is_full = len(parts) == math.prod(outer) and all(v[name][1].shape == shape for _, v in parts)
    whole = _blank((*outer, *shape), {v[name][1].dtype for _, v in parts}, is_full)
    for point, variables in parts:
        found, array = variables[name]
        if found != dimensions:
            raise ValueError(f"`{name}` has dimensions {found} in one point and {dimensions} in another.")
        if array.shape == shape and not any(d in own and own[d].is_union for d in dimensions):
            whole[(*point.position, ...)] = array
        else:
            places = [
                own[d].place(variables, n) if d in own else np.arange(n)
                for d, n in zip(dimensions, array.shape, strict=True)
            ]
            whole[point.position][np.ix_(*places)] = array
    axes = (*plan.distributed, *dimensions)
    order = [axis for axis in plan.grid if axis in axes] + [axis for axis in axes if axis not in plan.grid]
    return order, whole.transpose([axes.index(axis) for axis in order])


def _own_dimensions(plan: Plan, records: Sequence[Variables]) -> dict[str, _Dimension]:
    lengths: dict[str, int] = {}
    coordinates: dict[str, list[np.ndarray]] = {}
    bare: set[str] = set()  # dimensions that some point leaves without coordinate
    for variables in records:
        for name, (dimensions, array) in variables.items():
            for dimension, length in zip(dimensions, array.shape, strict=True):
                if dimension not in plan.grid:
                    lengths[dimension] = max(length, lengths.get(dimension, 0))
                    if dimension not in variables:
                        bare.add(dimension)
            if dimensions == (name,) and name not in plan.grid:
                coordinates.setdefault(name, []).append(array)
    found = {}
    for name, length in lengths.items():
        values = coordinates.get(name)
        if values is None:
            found[name] = _Dimension(name, length, None, is_union=False)
            continue
        if name in bare:
            raise ValueError(f"Some points give coordinates along `{name}` and others do not; give them all.")
        if all(np.array_equal(v, values[0]) for v in values):
            found[name] = _Dimension(name, length, values[0], is_union=False)
            continue
        if any(np.unique(v).size < v.size for v in values):
            raise ValueError(
                f"Points differ in their coordinates along `{name}`, and some repeat one, so that the values "
                "there cannot be told apart; let coordinates differ within a point, or give none."
            )
        union = np.unique(np.concatenate(values))
        found[name] = _Dimension(name, union.size, union, is_union=True)
    return found


def _blank(shape: tuple[int, ...], dtypes: set[np.dtype], is_full: bool) -> np.ndarray:
    """An array to be filled: what stays blank is NaN, or empty text."""
    if any(dtype.kind in "UO" for dtype in dtypes):
        return np.full(shape, "", dtype=object)
    dtype = np.result_type(*dtypes)
    if is_full:
        return np.empty(shape, dtype)
    return np.full(shape, np.nan, dtype if dtype.kind == "f" else np.float64)
