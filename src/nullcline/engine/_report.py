"""One self-contained page: figures, claims, provenance, failures first. No outside requests."""

import base64
import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ._outcome import Outcome, load, plural, unreadable
from ._progress import duration
from ._store import write_whole

_STYLE = """
:root { color-scheme: light; --ink: #1a1a1a; --soft: #555555; --line: #d0d0d0; --paper: #ffffff;
  --good: #00634a; --bad: #a32600; --known: #00558a; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 60rem; padding: 1rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.3rem; } h3 { font-size: 1.05rem; }
h1, h2, h3 { line-height: 1.25; margin: 1.2em 0 0.4em; }
section.study { border-top: 1px solid var(--line); margin-top: 2.5rem; }
a { color: var(--known); } a:focus-visible { outline: 3px solid var(--known); outline-offset: 2px; }
img { display: block; max-width: 100%; height: auto; }
.soft { color: var(--soft); } .holds { color: var(--good); } .fails { color: var(--bad); }
.refuted { color: var(--known); }
.holds, .fails, .refuted { font-weight: 600; }
.alert { border: 2px solid var(--bad); padding: 0 1rem 0.5rem; }
table { border-collapse: collapse; width: 100%; font-size: 0.92rem; }
caption { text-align: left; color: var(--soft); padding-bottom: 0.3rem; }
th, td { text-align: left; vertical-align: top; padding: 0.35rem 0.6rem 0.35rem 0;
  border-bottom: 1px solid var(--line); }
td.number { white-space: nowrap; font-variant-numeric: tabular-nums; }
.note { display: block; color: var(--soft); font-size: 0.88rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0.1rem 1rem; font-size: 0.92rem; }
dt { color: var(--soft); } dd { margin: 0; min-width: 0; }
figure { margin: 0; }
ul.plain { padding-left: 1.2rem; }
@media (max-width: 40rem) {
  thead { position: absolute; left: 0; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  table, tbody, tr, td, th[scope=row] { display: block; border: 0; padding: 0.1rem 0; width: auto; }
  tr { border-bottom: 1px solid var(--line); padding: 0.6rem 0; }
  td::before { content: attr(data-label) ": "; color: var(--soft); }
  td.number { white-space: normal; }
  dl { grid-template-columns: 1fr; } dd { margin-bottom: 0.3rem; }
}
"""
_MARKS = {"holds": "✓ holds", "fails": "✗ fails", "refuted": "≠ refuted"}


def outcomes_in(out: Path) -> list[Outcome]:
    """Every outcome below a results folder, by study and preset; one that cannot be read is broken."""
    found = []
    for path in sorted(Path(out).glob("*/*/*/outcome.json")):
        try:
            found.append(load(path))
        except ValueError as error:
            found.append(unreadable(path, str(error)))
    return found


def tally(outcomes: Sequence[Outcome]) -> str:
    """Count studies and claims in one line."""
    n = {verdict: sum(o.count(verdict) for o in outcomes) for verdict in _MARKS}
    studies, claims = plural(len(outcomes), "study", "studies"), plural(sum(n.values()), "claim", "claims")
    text = f"{studies}, {claims}: {n['holds']} hold, {n['refuted']} refuted, {n['fails']} fail"
    for status in ("partial", "broken", "skipped"):
        count = sum(outcome.status == status for outcome in outcomes)
        text += f"; {count} {status}" if count else ""
    return text


def write_report(out: Path) -> Path:
    """Write ``report.html`` from the outcomes below ``out``; return its path."""
    out = Path(out)
    path = out / "report.html"
    write_whole(path, page(out, outcomes_in(out)).encode())
    return path


def page(out: Path, outcomes: Sequence[Outcome]) -> str:
    """Lay the outcomes on one page; figures are embedded, their files linked relative to ``out``."""
    trouble = [outcome for outcome in outcomes if not outcome.is_good]
    contents = "".join(
        f'<li><a href="#{_anchor(o)}">{_text(o.study)}</a> {_text(o.title)} '
        f'<span class="soft">({_text(o.preset)}; {_text(o.summary)})</span></li>'
        for o in outcomes
    )
    main = (
        _trouble(trouble)
        + f'<nav aria-label="Studies"><h2>Studies</h2><ul class="plain">{contents}</ul></nav>\n'
        + "".join(_section(out, outcome) for outcome in outcomes)
    )
    return document("nullcline report", "What was reproduced", f"{tally(outcomes)}.", main)


def document(title: str, heading: str, summary: str, main: str) -> str:
    """Lay ``main``, which is HTML, on a self-contained page; the other texts are plain."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # Belt and braces: even a study's title cannot make the page load something.
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        "style-src 'unsafe-inline'\">\n"
        '<link rel="icon" href="data:,">\n'
        f"<title>{_text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<header>\n"
        f"<h1>{_text(heading)}</h1>\n<p>{_text(summary)}</p>\n</header>\n<main>\n"
        f"{main}</main>\n</body>\n</html>\n"
    )


def _trouble(outcomes: Sequence[Outcome]) -> str:
    if not outcomes:
        return ""
    items = []
    for o in outcomes:
        link = f'<a href="#{_anchor(o)}">{_text(o.study)}</a> ({_text(o.preset)})'
        lines = [_text(o.message)] if o.message else []
        if o.failures:
            lines.append(f"{len(o.failures)} of {o.points} points failed; its claims were not judged.")
            lines += [f"{_text(_values(p))}: {_text(m)}" for p, m in o.failures[:5]]
            lines += [f"… and {len(o.failures) - 5} more"] if len(o.failures) > 5 else []
        lines += [f"claim fails: {_text(c.sentence)}" for c in o.claims if c.verdict == "fails"]
        items.append(f"<li>{link}<ul>{''.join(f'<li>{line}</li>' for line in lines)}</ul></li>")
    return (
        '<section class="alert" aria-labelledby="trouble"><h2 id="trouble">Failures</h2>'
        f'<ul class="plain">{"".join(items)}</ul></section>\n'
    )


def _section(out: Path, o: Outcome) -> str:
    folder = Path(o.study) / o.preset
    parts = [
        f'<section class="study" id="{_anchor(o)}" aria-labelledby="{_anchor(o)}-title">',
        f'<h2 id="{_anchor(o)}-title">{_text(o.study)}: {_text(o.title)}</h2>',
        f'<p class="soft">Preset {_text(o.preset)}. {_text(o.summary).capitalize()}.</p>',
    ]
    if o.status == "partial":
        parts.append(
            '<p class="fails">Partial: the figure lacks the failed points and the claims were not judged.</p>'
        )
    parts += [f"<p>{_text(paragraph)}</p>" for paragraph in o.description.split("\n\n") if paragraph]
    if o.has_figure:
        parts.append(_figure(out, folder, o))
    if o.claims:
        parts.append(_claims(o))
    if o.status != "skipped":
        parts.append(_provenance(o))
    return "\n".join(parts) + "\n</section>\n"


def _figure(out: Path, folder: Path, o: Outcome) -> str:
    try:
        picture = base64.b64encode((out / folder / "figure.png").read_bytes()).decode()
    except OSError as error:
        return (
            f'<p class="fails">{_text(str(folder))}/figure.png cannot be read ({error.strerror}); '
            "<code>nullcline reproduce</code> with the same options draws it again.</p>"
        )
    pdf, data = (html.escape(f"{folder.as_posix()}/{name}") for name in ("figure.pdf", "data.nc"))
    alt = _text(f"Figure of {o.study}: {o.title}. {o.summary}.")
    return (
        f'<figure><a href="{pdf}"><img alt="{alt}" src="data:image/png;base64,{picture}"></a>'
        f'<figcaption class="soft"><a href="{pdf}">PDF of {_text(o.study)}</a>, '
        f'<a href="{data}">data of {_text(o.study)} (netCDF)</a></figcaption></figure>'
    )


def _claims(o: Outcome) -> str:
    rows = []
    for claim in o.claims:
        notes = "".join(
            f'<span class="note">{label}{_text(text)}</span>'
            for label, text in (("Erratum: ", claim.erratum), ("", claim.note))
            if text
        )
        rows.append(
            f'<tr role="row"><th scope="row" role="rowheader">{_text(claim.sentence)}{notes}</th>'
            f'<td role="cell" data-label="Source">{_text(claim.source or o.study)}</td>'
            f'<td role="cell" data-label="Measured" class="number">{_number(claim.measured)}</td>'
            f'<td role="cell" data-label="Bound" class="number">{_bound(claim.at_least, claim.at_most)}</td>'
            f'<td role="cell" data-label="Verdict" class="{claim.verdict}">{_MARKS[claim.verdict]}</td></tr>'
        )
    head = "".join(
        f'<th scope="col" role="columnheader">{name}</th>'
        for name in ("Claim", "Source", "Measured", "Bound", "Verdict")
    )
    return (
        f'<h3>Claims</h3><table role="table"><caption>Claims of {_text(o.study)}</caption>'
        f'<thead role="rowgroup"><tr role="row">{head}</tr></thead>'
        f'<tbody role="rowgroup">{"".join(rows)}</tbody></table>'
    )


def _provenance(o: Outcome) -> str:
    seeds = o.parameters.get("seed")
    rows = {
        "Parameters": _values(o.parameters),
        "Overridden": _values(o.overrides),
        "Seeds": _values({"seed": seeds}) if seeds else "",
        "Points": f"{o.points} ({len(o.failures)} failed)" if o.failures else str(o.points),
        "Computing time": duration(o.wall_time),
        "Written": o.written,
        **{name.capitalize(): value for name, value in o.provenance.items()},
    }
    items = "".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in rows.items() if value)
    return f"<details><summary>Provenance of {_text(o.study)}</summary><dl>{items}</dl></details>"


def _values(parameters: Any) -> str:
    parts = []
    for name, value in parameters.items():
        if isinstance(value, list):
            shown = [_number(v) if isinstance(v, float) else str(v) for v in value]
            if len(shown) > 8:
                shown = [*shown[:3], "…", shown[-1], f"({len(value)} values)"]
            value = ", ".join(shown)
        parts.append(f"{name} = {value}")
    return "; ".join(parts)


def _number(value: float) -> str:
    return f"{value:.4g}"


def _bound(at_least: float | None, at_most: float | None) -> str:
    if at_least is None:
        return f"≤ {at_most:.4g}"
    if at_most is None:
        return f"≥ {at_least:.4g}"
    return f"{at_least:.4g} … {at_most:.4g}"


def _anchor(o: Outcome) -> str:
    return html.escape(f"{o.study}-{o.preset}".replace("/", "-").replace("+", "-"))


def _text(value: str) -> str:
    return html.escape(value)
