"""Show how far a run is: bars on a terminal, a line now and then elsewhere, all on standard error."""

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any, Protocol, TextIO

from ._sweep import Sweep

_EVERY = 10.0


def duration(seconds: float) -> str:
    """Give a time span the way people say it."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


class _Clock:
    """The pace of one sweep, from the points that this run computed."""

    def __init__(self, sweep: Sweep):
        self.sweep = sweep
        self.start = time.monotonic()
        self.points = 0
        mine = sum(point.digest not in sweep.stored for point in sweep.left)
        self.others = len(sweep.points) - len(sweep.stored) - mine
        """Points that are left to other shards."""

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.start

    @property
    def remaining(self) -> str:
        """What is left at the pace so far; nothing is promised before the first point is done."""
        left = len(self.sweep.points) - len(self.sweep.stored) - self.others
        if not self.points or not left:
            return ""
        return f"about {duration(self.elapsed / self.points * left)} left"


class Progress(Protocol):
    """What the driver tells about a run."""

    def start(self, sweep: Sweep) -> None:
        """Show that the first point of a sweep is on its way."""

    def advance(self, sweep: Sweep) -> None:
        """Show that a point of a sweep was stored."""

    def end(self, sweep: Sweep, verdict: str) -> None:
        """Show the end of a sweep and what came out."""

    def note(self, text: str) -> None:
        """Say something that the user should see."""


class QuietProgress:
    """Shows nothing."""

    def start(self, sweep: Sweep) -> None:
        """Do nothing."""

    def advance(self, sweep: Sweep) -> None:
        """Do nothing."""

    def end(self, sweep: Sweep, verdict: str) -> None:
        """Do nothing."""

    def note(self, text: str) -> None:
        """Do nothing."""


class PlainProgress:
    """One line per event, and every ten seconds within a sweep."""

    def __init__(self, stream: TextIO):
        self._stream = stream
        self._clocks: dict[str, _Clock] = {}
        self._last = time.monotonic()

    def start(self, sweep: Sweep) -> None:
        """Start the clock of a sweep."""
        self._clocks[sweep.plan.study.source] = _Clock(sweep)

    def advance(self, sweep: Sweep) -> None:
        """Print a line when the last one is ten seconds old."""
        clock = self._clocks[sweep.plan.study.source]
        clock.points += 1
        if time.monotonic() - self._last >= _EVERY:
            self._last = time.monotonic()
            self.note(_line(sweep, f"{duration(clock.elapsed)}, {clock.remaining}"))

    def end(self, sweep: Sweep, verdict: str) -> None:
        """Print the last line of a sweep."""
        clock = self._clocks.get(sweep.plan.study.source)
        spent = f"{duration(clock.elapsed)}  " if clock else "stored  "
        self.note(_line(sweep, spent + verdict))

    def note(self, text: str) -> None:
        """Print a line."""
        print(text, file=self._stream, flush=True)


class RichProgress:
    """A bar per sweep, on a terminal."""

    def __init__(self, bars: Any):
        self._bars = bars
        self._clocks: dict[str, _Clock] = {}
        self._tasks: dict[str, Any] = {}

    def start(self, sweep: Sweep) -> None:
        """Add a bar."""
        source = sweep.plan.study.source
        self._clocks[source] = _Clock(sweep)
        self._tasks[source] = self._bars.add_task(source, total=len(sweep.points), text="")
        self._bars.update(self._tasks[source], completed=len(sweep.stored))

    def advance(self, sweep: Sweep) -> None:
        """Move the bar."""
        source = sweep.plan.study.source
        clock = self._clocks[source]
        clock.points += 1
        self._bars.update(self._tasks[source], completed=len(sweep.stored), text=clock.remaining)

    def end(self, sweep: Sweep, verdict: str) -> None:
        """Say beside the bar what came out."""
        source = sweep.plan.study.source
        if source not in self._tasks:
            self.start(sweep)
            spent = "stored"
        else:
            spent = duration(self._clocks[source].elapsed)
        self._bars.update(
            self._tasks[source], completed=len(sweep.stored), text=f"{spent}  {verdict}".rstrip()
        )

    def note(self, text: str) -> None:
        """Print a line above the bars."""
        self._bars.console.print(text, markup=False, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def progress_on_stderr(is_quiet: bool = False) -> Iterator[Progress]:
    """Give the kind of progress that fits standard error."""
    if is_quiet:
        yield QuietProgress()
    elif not sys.stderr.isatty():
        yield PlainProgress(sys.stderr)
    else:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Bars

        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}", markup=False),
        )
        with Bars(*columns, console=Console(stderr=True)) as bars:
            yield RichProgress(bars)


def _line(sweep: Sweep, text: str) -> str:
    count = f"{len(sweep.stored)}/{len(sweep.points)}"
    return f"{sweep.plan.study.source:<32} {count:>11}  {text}".rstrip(" ,")
