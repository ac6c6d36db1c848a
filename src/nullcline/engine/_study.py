"""The vocabulary of a study: a grid of points, a pure computation, a figure and the claims it is judged by.

This module needs only NumPy, so that listing studies stays instant.
"""

import abc
import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

Value = bool | int | float | str
Verdict = Literal["holds", "fails", "refuted"]


def _plain(name: str, value: object) -> Value:
    """Give ``value`` as a plain Python scalar, so that digests and files do not depend on array types."""
    if getattr(value, "ndim", None) == 0:
        value = np.asarray(value).item()
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"Axis `{name}` holds {value}; values of an axis must be finite.")
    if not isinstance(value, bool | int | float | str):
        raise ValueError(
            f"Axis `{name}` holds {value!r}; values of an axis are booleans, integers, floats or strings."
        )
    return value


class Grid(Mapping[str, tuple[Value, ...]]):
    """The axes of a sweep, each a name with its values; a single value is an axis of length one."""

    def __init__(self, **axes: Value | Iterable[Value]):
        self._axes: dict[str, tuple[Value, ...]] = {}
        for name, values in axes.items():
            if isinstance(values, str) or not isinstance(values, Iterable) or getattr(values, "ndim", 1) == 0:
                values = (values,)
            plain = tuple(_plain(name, value) for value in values)
            if any(isinstance(value, float) for value in plain):
                # 1 and 1.0 are one point, and so are 0.0 and -0.0.
                plain = tuple(
                    float(value) + 0.0
                    if isinstance(value, int | float) and not isinstance(value, bool)
                    else value
                    for value in plain
                )
            if not plain:
                raise ValueError(f"Axis `{name}` has no values; give it at least one.")
            if len(set(plain)) < len(plain):
                raise ValueError(f"Axis `{name}` repeats a value: {list(plain)}.")
            if len({type(value) for value in plain}) > 1:
                raise ValueError(f"Axis `{name}` mixes types: {list(plain)}.")
            self._axes[name] = plain

    def __getitem__(self, name: str) -> tuple[Value, ...]:
        return self._axes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._axes)

    def __len__(self) -> int:
        return len(self._axes)

    def __repr__(self) -> str:
        return f"Grid({', '.join(f'{name}={list(values)}' for name, values in self.items())})"

    def replace(self, **axes: Value | Iterable[Value]) -> "Grid":
        """Copy with some axes replaced; every name must exist already, and keeps its type."""
        unknown = sorted(set(axes) - set(self))
        if unknown:
            raise ValueError(f"Unknown axis {unknown}; this grid has {list(self)}.")
        new = Grid(**axes)
        for name, values in new.items():
            kind, given = type(self[name][0]), type(values[0])
            if kind is float and given is int:
                new._axes[name] = tuple(float(value) for value in values)
            elif kind is not given:
                raise ValueError(
                    f"Axis `{name}` holds values of type {kind.__name__}, such as {self[name][0]!r}; "
                    f"got {list(values)}."
                )
        return Grid(**{**self, **new})

    def points(self, vectorized: tuple[str, ...] = ()) -> Iterator[dict[str, Any]]:
        """Every point of the grid: one value for a distributed axis, all values for a vectorized one."""
        distributed = [name for name in self if name not in vectorized]
        together = {name: self[name] for name in self if name in vectorized}
        for values in itertools.product(*(self[name] for name in distributed)):
            point = {**dict(zip(distributed, values, strict=True)), **together}
            yield {name: point[name] for name in self}


@dataclasses.dataclass(frozen=True)
class Claim:
    """A sentence of a document, what was measured, and the bound that decides it.

    Give ``at_least``, ``at_most`` or both. A claim inside its bounds *holds*; outside, it *fails*. With
    ``erratum`` the sentence of the document is known to be wrong: the bounds then state what the erratum
    says, and a measurement inside them makes the verdict *refuted*, with the erratum as the reason.
    """

    sentence: str
    measured: float
    at_least: float | None = None
    at_most: float | None = None
    source: str = ""
    erratum: str = ""
    note: str = ""

    def __post_init__(self):
        object.__setattr__(self, "measured", float(self.measured))
        if self.at_least is None and self.at_most is None:
            raise ValueError(f"Claim {self.sentence!r} has no bound; give `at_least`, `at_most` or both.")
        for side in ("at_least", "at_most"):
            bound = getattr(self, side)
            if bound is not None:
                object.__setattr__(self, side, float(bound))

    @property
    def is_within(self) -> bool:
        """Whether the measurement respects the bounds; NaN never does."""
        if math.isnan(self.measured):
            return False
        above = self.at_least is None or self.measured >= self.at_least
        below = self.at_most is None or self.measured <= self.at_most
        return above and below

    @property
    def verdict(self) -> Verdict:
        """Give the verdict: ``holds``, ``fails`` or ``refuted``."""
        if not self.is_within:
            return "fails"
        return "refuted" if self.erratum else "holds"


class Study(abc.ABC):
    """One figure of a document: what to compute, how to draw it, what it should show.

    Attributes
    ----------
    source
        ``document/figure``, for example ``"domine2025/fig2b"``; unique.
    presets
        Named grids; ``quick`` and ``paper`` at least.
    vectorized
        Axes that ``compute`` receives as arrays (all values at once); the others come one value at a time.
    version
        Raise it when the meaning of the output changes: stored points of another version are not reused.
    expected
        Expected wall time in seconds of each preset on two cores, compilation included.
    may_be_nan
        Variables in which NaN is an answer ("never reached") and not a failure.
    """

    source: ClassVar[str]
    presets: ClassVar[Mapping[str, Grid]]
    vectorized: ClassVar[tuple[str, ...]] = ()
    version: ClassVar[int] = 1
    expected: ClassVar[Mapping[str, float]] = {}
    may_be_nan: ClassVar[tuple[str, ...]] = ()

    @abc.abstractmethod
    def compute(self, *args: Any, **point: Any) -> "Mapping[str, Any] | xr.Dataset":
        """Compute one point; ``point`` comes by name, a vectorized axis as a NumPy array of all its values.

        Returns
        -------
        A dataset, or a mapping of names to results. A bare array has the vectorized axes as dimensions, in
        the order of the grid; ``(dimensions, array)`` names them, as xarray does. A result named like its
        own single dimension becomes the coordinate of it.
        """

    @abc.abstractmethod
    def draw(self, data: "xr.Dataset") -> "Figure":
        """Draw the figure from the whole dataset."""

    @abc.abstractmethod
    def claims(self, data: "xr.Dataset") -> Iterable[Claim]:
        """Judge the document's sentences by the whole dataset."""

    def missing(self) -> str:
        """Say what the user must supply before this study can run; empty when nothing is missing."""
        return ""

    def supplied(self) -> str:
        """Digest of what the user supplied: points computed from other data are other points."""
        return ""

    @property
    def document(self) -> str:
        """The part of ``source`` before the slash."""
        return self.source.partition("/")[0]

    @property
    def figure(self) -> str:
        """The part of ``source`` after the slash."""
        return self.source.partition("/")[2]

    @property
    def title(self) -> str:
        """First line of the docstring."""
        return (self.__doc__ or type(self).__name__).strip().splitlines()[0].rstrip(".")
