"""What a study asks for: its points, each with the digest that names it in the store."""

import dataclasses
import hashlib
import inspect
import json
import re
from collections.abc import Mapping
from typing import Any

from ._study import Grid, Study, Value

# Part of every digest: raise it when files of an older layout must not be reused.
FORMAT = 1


def canonical(value: object) -> str:
    """JSON with one spelling per value; floats keep every bit."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


@dataclasses.dataclass(frozen=True)
class Point:
    """One unit of work: the arguments of ``compute`` and the digest that names the result."""

    parameters: Mapping[str, Any]
    digest: str
    position: tuple[int, ...]
    """Index along each distributed axis."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """A study with the grid that was asked for."""

    study: Study
    preset: str
    grid: Grid
    overrides: Mapping[str, tuple[Value, ...]]

    @property
    def distributed(self) -> tuple[str, ...]:
        """The axes that give each point one value."""
        return tuple(name for name in self.grid if name not in self.study.vectorized)

    @property
    def label(self) -> str:
        """The preset, with a mark when some axis was overridden."""
        if not self.overrides:
            return self.preset
        mark = hashlib.sha256(canonical({k: list(v) for k, v in self.overrides.items()}).encode()).hexdigest()
        return f"{self.preset}+{mark[:8]}"

    def points(self) -> list[Point]:
        """Every point, in the order of the grid."""
        index = {name: {value: i for i, value in enumerate(self.grid[name])} for name in self.distributed}
        return [
            Point(
                parameters,
                digest(self.study, parameters),
                tuple(index[name][parameters[name]] for name in self.distributed),
            )
            for parameters in self.grid.points(self.study.vectorized)
        ]


def identity(study: Study, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that decides the result of a point."""
    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in parameters.items()}
    this = {"format": FORMAT, "study": study.source, "version": study.version, "parameters": plain}
    supplied = study.supplied()
    return {**this, "supplied": supplied} if supplied else this


def digest(study: Study, parameters: Mapping[str, Any]) -> str:
    """Name of a point in the store: it changes with the study, its version and every parameter."""
    return hashlib.sha256(canonical(identity(study, parameters)).encode()).hexdigest()[:32]


def make_plan(
    study: Study, preset: str = "quick", overrides: Mapping[str, Value | tuple[Value, ...]] | None = None
) -> Plan:
    """Check a study and lay out the grid of ``preset``, with some axes replaced by ``overrides``."""
    _check(study)
    if preset not in study.presets:
        raise ValueError(
            f"Study {study.source} has no preset {preset!r}; it has {', '.join(map(repr, study.presets))}."
        )
    grid = study.presets[preset]
    missing = [name for name in study.vectorized if name not in grid]
    if missing:
        raise ValueError(
            f"Study {study.source}: `vectorized` names {missing}, not axes of {preset!r}: {grid}."
        )
    try:
        inspect.signature(study.compute).bind(**grid)
    except TypeError as error:
        raise ValueError(
            f"Study {study.source}: `compute` does not take the axes {list(grid)}: {error}."
        ) from None
    replaced: Mapping[str, tuple[Value, ...]] = {}
    if overrides:
        unknown = sorted(set(overrides) - set(grid))
        if unknown:
            raise ValueError(
                f"Study {study.source} has no parameter {', '.join(map(repr, unknown))}; "
                f"it has {', '.join(map(repr, grid))}."
            )
        grid = grid.replace(**overrides)
        replaced = {name: grid[name] for name in sorted(overrides)}
    return Plan(study, preset, grid, replaced)


def _check(study: Study) -> None:
    if not isinstance(study, Study):
        raise TypeError(f"`study` must be an instance of a Study subclass, got {study!r}.")
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", getattr(study, "source", "")):
        raise ValueError(
            f"{type(study).__name__}.source must read 'document/figure' (letters, digits, '.', '_', '-'), "
            f"got {getattr(study, 'source', None)!r}."
        )
    if vars(study):
        raise ValueError(
            f"Study {study.source} keeps state in {sorted(vars(study))}. Stored points are named by their "
            "parameters, so everything that changes the result must be an axis of the grid."
        )
