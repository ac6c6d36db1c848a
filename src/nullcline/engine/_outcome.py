"""What came out of a study: its figure, its verdicts and its failures, on disk beside its data."""

import dataclasses
import io
import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ._compute import raised
from ._plan import Plan
from ._store import StoreError, write_whole
from ._study import Claim
from ._sweep import PROVENANCE, Sweep, dataset

if TYPE_CHECKING:
    import xarray as xr

Status = Literal["complete", "partial", "skipped", "broken"]
STYLE = Path(__file__).parent / "paper.mplstyle"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What the report shows of a study.

    ``complete``: every point is there and the claims were judged. ``partial``: some points failed, so no
    claim was. ``skipped``: the user must supply something first. ``broken``: the figure or the claims raised.
    """

    study: str
    title: str
    description: str
    preset: str
    parameters: Mapping[str, list[Any]]
    overrides: Mapping[str, list[Any]]
    status: Status
    message: str = ""
    points: int = 0
    failures: tuple[tuple[dict[str, Any], str], ...] = ()
    claims: tuple[Claim, ...] = ()
    provenance: Mapping[str, str] = dataclasses.field(default_factory=dict)
    wall_time: float = 0.0
    written: str = ""
    has_figure: bool = False

    @property
    def is_good(self) -> bool:
        """Whether nothing failed; a skipped study has not."""
        return self.status in ("complete", "skipped") and not self.count("fails")

    def count(self, verdict: str) -> int:
        """How many claims have a verdict."""
        return sum(claim.verdict == verdict for claim in self.claims)

    @property
    def summary(self) -> str:
        """One line for the terminal."""
        if self.status == "skipped":
            return f"skipped: {self.message}"
        if self.status == "broken":
            return self.message
        if self.status == "partial":
            return f"{len(self.failures)} of {self.points} points failed, claims not judged"
        words = (("holds", "holds", "hold"), ("refuted", "refuted", "refuted"), ("fails", "FAILS", "FAIL"))
        parts = [plural(n, one, many) for verdict, one, many in words if (n := self.count(verdict))]
        return f"{plural(len(self.claims), 'claim', 'claims')}: {', '.join(parts)}" if parts else "no claims"


def plural(count: int, one: str, many: str) -> str:
    """Count things in words."""
    return f"{count} {one if count == 1 else many}"


def _blank(plan: Plan, status: Status, **fields: Any) -> Outcome:
    study = plan.study
    return Outcome(
        study=study.source,
        title=study.title,
        description="\n".join((study.__doc__ or "").strip().splitlines()[1:]).strip(),
        preset=plan.label,
        parameters={name: list(values) for name, values in plan.grid.items()},
        overrides={name: list(values) for name, values in plan.overrides.items()},
        status=status,
        written=datetime.now(UTC).isoformat(timespec="seconds"),
        **fields,
    )


def skip(plan: Plan, out: Path, message: str) -> Outcome:
    """Note that a study was not run, and why; what came out of an earlier run stays."""
    folder = Path(out) / plan.study.document / plan.study.figure / plan.label
    earlier = _earlier(folder / "outcome.json")
    if earlier is None:
        outcome = _blank(plan, "skipped", message=message)
        _save(folder, outcome)
        return outcome
    return _blank(plan, "skipped", message=f"{message} The report keeps the result of {earlier.written}.")


def _earlier(path: Path) -> Outcome | None:
    """What an earlier run left, unless it was skipped as well."""
    try:
        found = load(path)
    except ValueError:
        return None
    return None if found.status == "skipped" else found


def finish(sweep: Sweep) -> Outcome:
    """Draw and judge a sweep whose points are all stored."""
    failures = tuple((failure.parameters, failure.message) for failure in sweep.failures)
    fields: dict[str, Any] = {"points": len(sweep.points), "failures": failures}
    message = ""
    step = "dataset"
    try:
        data = dataset(sweep)
        fields["provenance"] = {name: str(data.attrs[name]) for name in PROVENANCE}
        fields["wall_time"] = float(data.attrs["wall_time"])
        if len(failures) < len(sweep.points):
            step = "draw"
            draw(sweep, data)
            fields["has_figure"] = True
        if not failures:
            step = "claims"
            fields["claims"] = tuple(sweep.plan.study.claims(data))
    except StoreError:
        raise
    except Exception as error:
        function = getattr(sweep.plan.study, step, None)
        message = f"`{step}` raised {raised(error, function)}"
    status: Status = "partial" if failures else "broken" if message else "complete"
    outcome = _blank(sweep.plan, status, message=message, **fields)
    _save(sweep.folder, outcome)
    return outcome


def draw(sweep: Sweep, data: "xr.Dataset") -> None:
    """Draw the figure and store it as PNG and PDF."""
    import matplotlib.style

    with matplotlib.style.context(STYLE):
        figure = sweep.plan.study.draw(data)
        for kind, metadata in (("png", {"Software": None}), ("pdf", {"CreationDate": None})):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, metadata=metadata)
            write_whole(sweep.folder / f"figure.{kind}", buffer.getvalue())


def _save(folder: Path, outcome: Outcome) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot write to {folder}: {error.strerror or error}") from error
    fields = dataclasses.asdict(outcome)
    for claim in fields["claims"]:
        if not math.isfinite(claim["measured"]):
            claim["measured"] = str(claim["measured"])  # JSON has no NaN
    write_whole(folder / "outcome.json", json.dumps(fields, indent=1, ensure_ascii=False).encode())


def unreadable(path: Path, reason: str) -> Outcome:
    """Stand in for an outcome that cannot be read; its folder says what it was of."""
    document, figure, label = path.parent.parts[-3:]
    again = (
        f"`nullcline reproduce {document}/{figure}` with the same options writes it again from what is stored"
    )
    return Outcome(
        study=f"{document}/{figure}",
        title="an outcome that cannot be read",
        description="",
        preset=label,
        parameters={},
        overrides={},
        status="broken",
        message=f"{reason}; {again}.",
    )


def load(path: Path) -> Outcome:
    """Read an outcome back; ``ValueError`` when the file is not one."""
    try:
        fields = json.loads(path.read_text())
        fields["claims"] = tuple(Claim(**claim) for claim in fields["claims"])
        fields["failures"] = tuple((parameters, message) for parameters, message in fields["failures"])
        return Outcome(**fields)
    except (OSError, TypeError, AttributeError, KeyError, ValueError) as error:
        raise ValueError(f"{path} is no outcome of a study: {error}") from error
