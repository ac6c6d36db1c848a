"""The command ``nullcline``: parses, calls, prints.

A command is a frozen dataclass: its fields are the options, their docstrings the help, and `run` does the
work and gives the exit status. Heavy libraries are imported when a command runs, never to print the help.
"""

import dataclasses
import difflib
import os
import shlex
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import tyro

if TYPE_CHECKING:
    from .engine import Plan, Study

GOOD, BAD, USAGE, INTERRUPTED = 0, 1, 2, 130

_COMMANDS: dict[str, type] = {}
_Command = TypeVar("_Command", bound=type)


class UsageError(Exception):
    """The user asked for something that does not exist; the message says what does."""


def command(cls: _Command) -> _Command:
    """Register a dataclass as the subcommand of its lower-case name."""
    _COMMANDS[cls.__name__.lower()] = cls
    return cls


@dataclasses.dataclass(frozen=True)
class Selection:
    """Which studies, and with which parameters."""

    names: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="NAME")] = ()
    """Documents (domine2025) or figures (domine2025/fig2b); all of them when none is named."""
    preset: str = "quick"
    """Named grid of each study: quick (minutes) or paper (the document's own sizes)."""
    out: Path = Path("results")
    """Folder of the results; what it holds already is not computed again."""
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="NAME=VALUE,…")] = ()
    """Replace the values of a parameter: --set lam=-3,0,3 (may be repeated)."""
    studies: Annotated[Path | None, tyro.conf.arg(metavar="FILE.py")] = None
    """Take the studies from this Python file of yours instead of those of nullcline."""
    data: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None
    """Folder of your own data, for the studies that need some."""

    def plans(self) -> "list[Plan]":
        """Give what was selected, cheapest first."""
        from . import engine

        if self.data is not None:
            if not self.data.is_dir():
                raise UsageError(f"--data: there is no folder {self.data}.")
            os.environ["NULLCLINE_DATA"] = str(self.data.resolve())
        chosen = select(_available(self.studies), self.names)
        plans = [
            engine.make_plan(study, self.preset, overrides(study, self.preset, self.set)) for study in chosen
        ]
        return engine.cheapest_first(plans)

    def words(self) -> list[str]:
        """Give the words that say the same on a command line."""
        words = [*self.names, "--preset", self.preset, "--out", str(self.out)]
        for text in self.set:
            words += ["--set", text]
        for option, path in (("--studies", self.studies), ("--data", self.data)):
            words += [option, str(path)] if path is not None else []
        return words


@command
@dataclasses.dataclass(frozen=True)
class List:
    """List the studies: document and figure, presets with their expected time, title."""

    names: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="NAME")] = ()
    """Documents or figures; all of them when none is named."""
    studies: Annotated[Path | None, tyro.conf.arg(metavar="FILE.py")] = None
    """Take the studies from this Python file of yours instead of those of nullcline."""

    def run(self) -> int:
        """Do it."""
        from .engine import duration

        chosen = select(_available(self.studies), self.names)
        if not chosen:
            print("no studies")
            return GOOD
        rows = []
        for study in chosen:
            presets = [
                f"{name} ({duration(study.expected[name])})" if name in study.expected else name
                for name in study.presets
            ]
            rows.append((study.source, ", ".join(presets), study.title))
        widths = [max(len(row[i]) for row in rows) for i in range(2)]
        for row in rows:
            print(f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]}")
        return GOOD


@command
@dataclasses.dataclass(frozen=True)
class Reproduce:
    """Compute studies, draw their figures, judge their claims and write the report.

    Stop it at any moment: the same command goes on where it stopped. Exit status: 0 when everything is done
    and every claim holds or is refuted as documented, 1 when a point failed, a claim fails or the run could
    not go on, 2 for bad usage.
    """

    selection: tyro.conf.OmitArgPrefixes[Selection] = dataclasses.field(default_factory=Selection)
    dry_run: tyro.conf.FlagCreatePairsOff[bool] = False
    """Only say what would be computed."""
    retry_failed: tyro.conf.FlagCreatePairsOff[bool] = False
    """Compute again the points that failed before."""
    workers: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Processes on this machine; without it, points are computed one after another."""
    scheduler: Annotated[str | None, tyro.conf.arg(metavar="ADDRESS")] = None
    """Address of a running Dask scheduler: tls://host:port, or tcp://127.0.0.1:port."""
    allow_plain_tcp: tyro.conf.FlagCreatePairsOff[bool] = False
    """Accept a tcp:// scheduler on another machine (whoever reaches its port can run code there)."""
    shard: Annotated[str | None, tyro.conf.arg(metavar="I/N")] = None
    """Compute a disjoint share i/n of the points: for job arrays, see `nullcline slurm`."""
    timeout: Annotated[float | None, tyro.conf.arg(metavar="SECONDS")] = None
    """Seconds after which a point is given up and counted as failed."""

    def run(self) -> int:
        """Do it."""
        from . import engine

        executor = engine.Executor(self.workers, self.scheduler, self.timeout, self.allow_plain_tcp)
        shard = engine.Shard.parse(self.shard) if self.shard is not None else None
        plans = self.selection.plans()
        if self.dry_run:
            return _dry_run(plans, self.selection.out)
        out = self.selection.out
        with engine.progress_on_stderr() as progress:
            outcomes, waiting = engine.reproduce(
                plans, out, executor, progress, shard=shard, retry_failed=self.retry_failed
            )
        shown = len(engine.outcomes_in(out))
        earlier = f"; {engine.plural(shown, 'study', 'studies')} in all" if shown > len(outcomes) else ""
        print(f"report: {out / 'report.html'} ({engine.tally(outcomes)}{earlier})")
        if waiting:
            left = sum(len(sweep.points) - len(sweep.stored) for sweep in waiting)
            print(f"{left} points are left to other shards; the last of them draws the figures")
        return GOOD if all(outcome.is_good for outcome in outcomes) else BAD


def _dry_run(plans: "Sequence[Plan]", out: Path) -> int:
    from .engine import duration, open_sweep, plural

    total = count = 0
    for plan in plans:
        missing = plan.study.missing()
        if missing:
            print(f"{plan.study.source}: skipped: {missing}")
            continue
        count += 1
        sweep = open_sweep(plan, out, is_dry=True)
        for note in sweep.notes:
            print(note)
        failed = f", {len(sweep.failures)} failed before" if sweep.failures else ""
        expected = plan.study.expected.get(plan.preset)
        time = f", about {duration(expected)} for all of it" if expected and not plan.overrides else ""
        print(
            f"{plan.study.source}: {len(sweep.left)} of {len(sweep.points)} points to compute{failed}{time}"
        )
        total += len(sweep.left)
    print(f"{plural(total, 'point', 'points')} to compute in {plural(count, 'study', 'studies')}")
    return GOOD


@command
@dataclasses.dataclass(frozen=True)
class Report:
    """Lay the figures, claims and failures of a results folder on one page again."""

    out: tyro.conf.Positional[Path] = Path("results")
    """Folder of the results."""

    def run(self) -> int:
        """Do it."""
        from . import engine

        outcomes = engine.outcomes_in(self.out)
        if not outcomes:
            raise UsageError(
                f"{self.out} holds no results; `nullcline reproduce --out {self.out}` makes some."
            )
        print(f"report: {engine.write_report(self.out)} ({engine.tally(outcomes)})")
        return GOOD if all(outcome.is_good for outcome in outcomes) else BAD


@command
@dataclasses.dataclass(frozen=True)
class Slurm:
    """Print an sbatch script that computes studies as a job array.

    Use it so: nullcline slurm domine2025 --preset paper --jobs 50 > sweep.sh && sbatch sweep.sh
    """

    selection: tyro.conf.OmitArgPrefixes[Selection] = dataclasses.field(default_factory=Selection)
    jobs: int = 10
    """Jobs of the array; each takes an equal share of the points."""
    time: str = "04:00:00"
    """Time limit of a job, as SLURM writes it."""
    memory: str = "8G"
    """Memory of a job."""
    partition: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Partition to use; without it, that of the cluster."""
    timeout: Annotated[float | None, tyro.conf.arg(metavar="SECONDS")] = None
    """Seconds after which a point is given up and counted as failed."""

    def run(self) -> int:
        """Do it."""
        from .engine import plural

        if self.jobs < 1:
            raise UsageError(f"--jobs must be at least 1, got {self.jobs}.")
        plans = []
        for plan in self.selection.plans():
            missing = plan.study.missing()
            if missing:
                print(f"{plan.study.source}: skipped: {missing}", file=sys.stderr)
            else:
                plans.append(plan)
        if not plans:
            raise UsageError("none of these studies can run yet.")
        points = sum(len(plan.points()) for plan in plans)
        jobs = min(self.jobs, points)
        words = ["nullcline", "reproduce", *self.selection.words()]
        limit = ["--timeout", f"{self.timeout:g}"] if self.timeout is not None else []
        lines = [
            "#!/bin/bash",
            "#SBATCH --job-name=nullcline",
            f"#SBATCH --array=1-{jobs}",
            "#SBATCH --ntasks=1",
            # A point is computed by one thread.
            "#SBATCH --cpus-per-task=1",
            f"#SBATCH --mem={self.memory}",
            f"#SBATCH --time={self.time}",
            "#SBATCH --output=nullcline-%A-%a.log",
            *([f"#SBATCH --partition={self.partition}"] if self.partition else []),
            f"# {plural(points, 'point', 'points')} in all. Submitted again, what is done is kept.",
            "# The last job to finish draws the figures and writes the report.",
            "set -euo pipefail",
            f'{shlex.join([*words, *limit])} --shard "${{SLURM_ARRAY_TASK_ID}}/{jobs}"',
        ]
        print("\n".join(lines))
        return GOOD


@command
@dataclasses.dataclass(frozen=True)
class Inspect:
    """Say what training did to a recurrent network: two checkpoints in, a report out.

    Takes RNNs, GRUs and LSTMs of PyTorch, as safetensors or as state dictionaries (only tensors are loaded).
    The report has the rank and spectra of the change of the weights, the spectra and effective ranks of K and
    P before and after, Lyapunov exponents and the dimension of the activity, with figures.
    """

    before: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="BEFORE")]
    """Checkpoint before training."""
    after: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="AFTER")]
    """Checkpoint after training."""
    inputs: Annotated[Path, tyro.conf.arg(metavar="FILE.npy")]
    """Inputs to run both networks on, (batch, time, inputs)."""
    out: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("inspection")
    """Folder of the report; new, empty, or of an earlier report."""
    prefix: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Which network, when a checkpoint holds several: what stands before weight_hh_l0 in its names."""
    nonlinearity: Literal["tanh", "relu"] = "tanh"
    """Of an RNN, whose weights do not tell."""
    trials: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Use the first N trials; by default as many as keep trials times steps within 3000."""
    time_first: tyro.conf.FlagCreatePairsOff[bool] = False
    """The inputs are (time, batch, inputs)."""

    def run(self) -> int:
        """Do it."""
        from .inspect import inspect

        report = inspect(
            self.before,
            self.after,
            self.inputs,
            self.out,
            prefix=self.prefix,
            nonlinearity=self.nonlinearity,
            trials=self.trials,
            is_time_first=self.time_first,
            say=lambda text: print(text, file=sys.stderr, flush=True),
        )
        print(f"report: {report}")
        return GOOD


@command
@dataclasses.dataclass(frozen=True)
class Cite:
    """Print the BibTeX of nullcline and of the documents whose studies you used."""

    names: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="NAME")] = ()
    """Documents (domine2025); all of them when none is named."""

    def run(self) -> int:
        """Do it."""
        from ._citations import citation, documents

        names = [name.partition("/")[0] for name in self.names]
        for name in names:
            if name not in documents():
                raise UsageError(_unknown("document", name, documents()))
        print(citation(*dict.fromkeys(names)))
        return GOOD


def _available(file: Path | None) -> "dict[str, Study]":
    """The studies of nullcline, or those of a file of the user."""
    from .studies import find, studies_in

    if file is None:
        return find()
    if not file.is_file():
        raise UsageError(f"--studies: there is no file {file}.")
    import importlib.util

    # Its own folder first, as when Python runs the file.
    sys.path.insert(0, str(file.resolve().parent))
    name = f"user_studies_{file.stem}"  # a file named json.py must not become the module json
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UsageError(f"--studies: {file} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    found = {study.source: study for study in studies_in(module)}
    if not found:
        raise UsageError(f"--studies: {file} defines no Study with a `source`.")
    return found


def select(available: "dict[str, Study]", names: Iterable[str]) -> "list[Study]":
    """Give the studies that ``names`` mean: a document means all its figures."""
    chosen: dict[str, Study] = {}
    for name in names:
        matches = {source: s for source, s in available.items() if name in (source, s.document)}
        if not matches:
            known = [*dict.fromkeys(study.document for study in available.values()), *available]
            raise UsageError(_unknown("study", name, known))
        chosen.update(matches)
    return list((chosen or available).values())


def _unknown(kind: str, name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=4, cutoff=0.4)
    hint = f"Did you mean {' or '.join(near)}?" if near else f"There are: {', '.join(known) or 'none'}."
    return f"unknown {kind} {name!r}. {hint}"


def overrides(study: "Study", preset: str, texts: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """Read ``name=value,value`` with the type that the axis has in the preset."""
    if preset not in study.presets:
        raise UsageError(_unknown(f"preset of {study.source}", preset, list(study.presets)))
    grid = study.presets[preset]
    found: dict[str, tuple[Any, ...]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not (name and equals and values):
            raise UsageError(f"--set must read name=value,value, got {text!r}.")
        if name not in grid:
            raise UsageError(f"{study.source}: " + _unknown("parameter", name, list(grid)))
        found[name] = tuple(_typed(name, value, type(grid[name][0])) for value in values.split(","))
    return found


def _typed(name: str, text: str, kind: type) -> bool | int | float | str:
    words = {"true": True, "false": False}
    try:
        return words[text.lower()] if kind is bool else kind(text)
    except (KeyError, ValueError):
        names = {bool: "true or false", int: "an integer", float: "a number"}
        raise UsageError(f"--set {name}: {text!r} is not {names[kind]}.") from None


def _parser() -> Any:
    """Give the type that tyro reads a command line into: one of the registered commands."""
    union: Any = None
    for name, cls in _COMMANDS.items():
        one = Annotated[cls, tyro.conf.subcommand(name=name)]
        union = one if union is None else union | one
    return union


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    from . import __doc__ as about
    from .engine import computing

    # Before anything imports JAX: float64, and one thread a point, so that bits do not depend on the machine.
    os.environ.update(computing())
    os.environ.setdefault("MPLBACKEND", "Agg")
    chosen: Any = tyro.cli(
        _parser(), prog="nullcline", description=(about or "").splitlines()[0], args=arguments
    )
    # A batch system ends a job with SIGTERM: stop as after Ctrl-C, without orphans.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    kept = (
        "; every finished point is stored, and the same command goes on from here"
        if isinstance(chosen, Reproduce)
        else ""
    )
    try:
        return chosen.run()
    except (UsageError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print(f"stopped{kept}", file=sys.stderr)
        return INTERRUPTED
    except _troubles() as error:
        print(f"error: {error}{kept}", file=sys.stderr)
        return BAD


def _troubles() -> tuple[type[Exception], ...]:
    from .engine import StoreError, WorkerError

    return StoreError, WorkerError


if __name__ == "__main__":
    sys.exit(main())
