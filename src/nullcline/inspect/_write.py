"""From two files to a folder with a report, figures and numbers."""

import base64
import datetime
import html
import io
import json
import math
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nullcline
from nullcline.engine._outcome import STYLE
from nullcline.engine._progress import duration
from nullcline.engine._report import document
from nullcline.engine._store import write_whole

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

_FIGURES = {
    "weights": "Singular values of the change of each weight, relative to the largest (left; the legend has "
    "the number of modes that hold 95 % of the squared values), and of the recurrent weights (right).",
    "operators": "Spectrum of K over trials and times (left; dotted: effective rank, power 1), the largest "
    "singular values of P (middle) and those of P reduced to the time axis (right).",
    "dynamics": "Lyapunov exponents of single trials and their median (left), and the share of the variance "
    "of the activity in its first principal components (right; dotted: 95 %).",
}
FILES = {"report.html", "data.nc", "numbers.json"} | {
    f"{name}.{kind}" for name in _FIGURES for kind in ("png", "pdf")
}


def inspect(
    before: Path,
    after: Path,
    inputs: Path,
    out: Path,
    *,
    prefix: str | None = None,
    nonlinearity: str = "tanh",
    trials: int | None = None,
    is_time_first: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Path:
    """Compare two checkpoints and write a report; give its path.

    Parameters
    ----------
    before, after, prefix
        As in :func:`read_network`.
    inputs, is_time_first
        As in :func:`read_inputs`.
    out
        Folder of the report; new, empty, or of an earlier report.
    nonlinearity, trials, say
        As in :func:`compare`.
    """
    from ._checkpoint import read_inputs, read_network
    from ._figures import figures
    from ._measure import compare

    check_folder(out)
    old, new = read_network(before, prefix), read_network(after, prefix)
    x = read_inputs(inputs, old, is_time_first=is_time_first)
    data = compare(old, new, x, nonlinearity=nonlinearity, trials=trials, say=say)
    data.attrs |= {
        "inputs_file": str(inputs),
        "nullcline": nullcline.__version__,
        "written": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    say("figures and report")
    return write(data, figures(data), out)


def check_folder(out: Path) -> None:
    """Refuse a folder that holds anything but an earlier report, or that cannot be made or written to."""
    existing = next(path for path in (out.absolute(), *out.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise ValueError(f"--out: {existing} is a file; give a folder.")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ValueError(f"--out: {existing} cannot be written to; give another folder.")
    others = sorted(path.name for path in out.iterdir() if not _is_ours(path.name)) if out.is_dir() else []
    if others:
        few = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
        raise ValueError(f"--out: {out} holds other things ({few}); give a new or empty folder.")


def _is_ours(name: str) -> bool:
    # A writer that was killed leaves a part, named after its file.
    return re.sub(r"(\.[0-9a-f]{32})?\.part$", "", name) in FILES


def write(data: "xr.Dataset", figures: "dict[str, Figure]", out: Path) -> Path:
    """Write the report, the figures and the numbers; give the path of the report."""
    import matplotlib.style

    out.mkdir(parents=True, exist_ok=True)
    pictures = {}
    with matplotlib.style.context(STYLE):
        for name, figure in figures.items():
            for kind, metadata in (("png", {"Software": None}), ("pdf", {"CreationDate": None})):
                buffer = io.BytesIO()
                figure.savefig(buffer, format=kind, metadata=metadata)
                write_whole(out / f"{name}.{kind}", buffer.getvalue())
                if kind == "png":
                    pictures[name] = buffer.getvalue()
    with tempfile.TemporaryDirectory() as folder:
        spectra = Path(folder) / "data.nc"
        data.to_netcdf(spectra, engine="h5netcdf")
        write_whole(out / "data.nc", spectra.read_bytes())
    write_whole(out / "numbers.json", json.dumps(numbers(data), indent=1).encode())
    report = out / "report.html"
    write_whole(report, page(data, pictures).encode())
    return report


def numbers(data: "xr.Dataset") -> dict[str, Any]:
    """Every number of the report but the spectra, as plain values by name; what is not finite is null."""
    found: dict[str, Any] = _plain(dict(data.attrs))
    for name, variable in data.data_vars.items():
        if set(variable.dims) <= {"moment", "power"}:
            found[str(name)] = _plain(
                variable.to_series().unstack().to_dict()
                if len(variable.dims) == 2
                else variable.to_series().to_dict()
            )
    for name in ("change_rank", "change_numerical_rank", "full_rank", "change_size"):
        found[name] = _plain(data[name].to_series().to_dict())
    found["largest_exponent"] = _plain(data.exponents.isel(exponent=0).median("trial").to_series().to_dict())
    found["kaplan_yorke"] = _plain(data.kaplan_yorke.median("trial").to_series().to_dict())
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def page(data: "xr.Dataset", pictures: dict[str, bytes]) -> str:
    """Lay out the report as one self-contained page."""
    a = data.attrs
    layers = f"{a['layers']} layers of {a['hidden']} units" if a["layers"] > 1 else f"{a['hidden']} units"
    few = "" if a["trials"] == a["trials_given"] else f" (the first of {a['trials_given']})"
    summary = (
        f"{a['kind']} of {layers}, {a['inputs']} inputs, {a['trials']} trials{few} of {a['steps']} steps. "
        f"Before: {Path(a['before']).name}. After: {Path(a['after']).name}."
    )
    main = "".join(
        (
            _section(
                "In short", _table("Before and after training", ("Measure", "Before", "After"), _rows(data))
            ),
            _section("Weights", _change_table(data) + _figure("weights", pictures)),
            _section("Operators", _figure("operators", pictures) + _notes(data)),
            _section("Dynamics", _figure("dynamics", pictures)),
            _section("Numbers and provenance", _provenance(data)),
        )
    )
    return document("nullcline inspect", "What training did to this network", summary, main)


def _number(value: float, error: float = 0.0) -> str:
    if not math.isfinite(value):
        return "−∞" if value < 0 else "not known"
    text = f"{value:.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"
    return f"{text} ± {error:.0f}" if error >= 1 else f"{text} ± {error:.2g}" if error > 0 else text


def _rows(data: "xr.Dataset") -> list[tuple[str, ...]]:
    size = int(data.attrs["state_size"]) * int(data.attrs["steps"]) * int(data.attrs["trials"])

    def both(name: str, note: str, variable: Any) -> tuple[str, ...]:
        values = [_number(float(variable.sel(moment=moment))) for moment in ("before", "after")]
        return (f"{name}|{note}", *values)

    errors = data.propagator_rank_error
    share = [
        _number(float(data.propagator_rank.sel(moment=m)), float(errors.sel(moment=m)))
        for m in ("before", "after")
    ]
    rows = data.sizes["kernel_mode"]
    return [
        both(
            "Dimension of the activity",
            "principal components for 95 % of the variance",
            data.activity_components,
        ),
        both("Participation ratio of the activity", "", data.activity_participation),
        both(
            "Effective rank of K, power 1",
            f"of {rows} trials and times; eigenvalues",
            data.kernel_rank.sel(power=1),
        ),
        both("Effective rank of K, power 2", "squared eigenvalues", data.kernel_rank.sel(power=2)),
        (f"Effective rank of P|of {size} states; squared singular values", *share),
        both("Effective rank of P over time", f"of {data.attrs['steps']} steps", data.propagator_time_rank),
        both("Largest singular value of P", "", data.propagator_top.isel(top_mode=0)),
        both(
            "Largest Lyapunov exponent",
            "per step, median over trials",
            data.exponents.isel(exponent=0).median("trial"),
        ),
        both("Kaplan–Yorke dimension", "median over trials", data.kaplan_yorke.median("trial")),
    ]


def _change_table(data: "xr.Dataset") -> str:
    rows = []
    for name in data.parameter.values:
        size = _number(100 * float(data.change_size.sel(parameter=name))) + " %"
        if name in data.weight.values:
            own = data.sel(weight=name)
            rank, full = int(own.change_rank), int(own.full_rank)
            rows.append((name, size, f"{rank} of {full}", str(int(own.change_numerical_rank))))
        else:
            rows.append((name, size, "", ""))
    return _table(
        "Change of each parameter", ("Parameter", "Change relative to before", "Effective rank", "Rank"), rows
    )


def _table(caption: str, head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    cells = "".join(f'<th scope="col" role="columnheader">{html.escape(name)}</th>' for name in head)
    body = []
    for first, *rest in rows:
        name, _, note = first.partition("|")
        note = f'<span class="note">{html.escape(note)}</span>' if note else ""
        columns = "".join(
            f'<td role="cell" data-label="{html.escape(label)}" class="number">{html.escape(value)}</td>'
            for label, value in zip(head[1:], rest, strict=True)
        )
        body.append(
            f'<tr role="row"><th scope="row" role="rowheader">{html.escape(name)}{note}</th>{columns}</tr>'
        )
    return (
        f'<table role="table"><caption>{html.escape(caption)}</caption><thead role="rowgroup"><tr role="row">'
        f'{cells}</tr></thead><tbody role="rowgroup">{"".join(body)}</tbody></table>'
    )


def _section(title: str, content: str) -> str:
    anchor = title.lower().replace(" ", "-")
    return (
        f'<section class="study" id="{anchor}" aria-labelledby="{anchor}-title"><h2 id="{anchor}-title">'
        f"{html.escape(title)}</h2>\n{content}\n</section>\n"
    )


def _figure(name: str, pictures: dict[str, bytes]) -> str:
    picture = base64.b64encode(pictures[name]).decode()
    caption = html.escape(_FIGURES[name])
    return (
        f'<figure><a href="{name}.pdf"><img alt="{caption}" src="data:image/png;base64,{picture}"></a>'
        f'<figcaption class="soft">{caption} <a href="{name}.pdf">PDF of the {name}</a></figcaption></figure>'
    )


def _notes(data: "xr.Dataset") -> str:
    is_exact = data.attrs["kernel_method"] != "probes"
    k = "is exact" if is_exact else "is an estimate from random directions, since stacked layers share units"
    p = "is exact" if data.attrs["propagator_method"] == "dense" else "is estimated by random probes"
    late = int((~data.propagator_is_converged.astype(bool)).sum())
    bound = f" {late} of the largest singular values of P did not converge: lower bounds." if late else ""
    return (
        "<p>K is what the weights make of an error, P carries a change of one step to all later states; one "
        "step of gradient descent changes the states by −η P K P* Err. Effective ranks count the modes that "
        f"hold 95 % of the true total. The spectrum of K {k}; the effective rank of P {p}.{bound}</p>"
    )


def _provenance(data: "xr.Dataset") -> str:
    a = data.attrs
    rows = {
        "Before": a["before"],
        "After": a["after"],
        "Inputs": a["inputs_file"],
        "Computing time": duration(float(a["wall_time"])),
        "Written": a["written"],
        "Nullcline": a["nullcline"],
    }
    items = "".join(f"<dt>{name}</dt><dd>{html.escape(str(value))}</dd>" for name, value in rows.items())
    return (
        f'<dl>{items}</dl><p><a href="data.nc">All spectra (netCDF)</a>, '
        '<a href="numbers.json">the numbers (JSON)</a></p>'
    )
