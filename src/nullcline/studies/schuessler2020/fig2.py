"""Figure 2: how learning depends on the strength of the initial connectivity."""

from collections.abc import Iterator

import numpy as np

from ...engine import Claim, Grid, Study
from .. import _style as style
from .._lazy import xr
from ._networks import (
    LAST,
    PAPER_SIZE,
    STRENGTHS,
    TASKS,
    TITLES,
    is_converged,
    least_speedup,
    measured,
    medians,
)

# Norm of the change at g = 0 and at a stronger g: medians of five networks of 256 units, to two digits.
FALLS = {"flip-flop": (1.2, 2.0, 0.9), "mante": (1.5, 2.4, 0.8), "romo": (2.1, 4.2, 0.9)}
COLORS = dict(zip(TASKS, (style.BLUE, style.VERMILION, style.GREEN), strict=True))
VARIABLES = ("epochs", "norm_change", "norm_w", "shuffled", "rank", "test_loss")


class InitialConnectivity(Study):
    """Epochs, norm of the change, loss after shuffling and functional rank against g, for three tasks."""

    source = "schuessler2020/fig2"
    presets = {
        "quick": Grid(task=TASKS, g=[0.0, 0.6, 1.2, 1.8], hidden=64, seed=range(4)),
        "paper": Grid(task=TASKS, g=STRENGTHS, hidden=256, seed=range(5)),
    }
    vectorized = ("seed",)
    expected = {"quick": 135.0, "paper": 6300.0}
    may_be_nan = VARIABLES

    def compute(self, task, g, hidden, seed):
        """Train and measure the networks of one task and g; NaN where the document stops earlier."""
        if g > LAST[task] + 1e-9:
            found = dict.fromkeys(VARIABLES, np.full(len(seed), np.nan))
        else:
            found = measured(task, g, hidden, tuple(seed))
        return xr.Dataset({name: ("seed", found[name]) for name in VARIABLES}, coords={"seed": list(seed)})

    def draw(self, data):
        """Lines are means over converged networks, crosses the networks that did not converge."""
        fig, axes = style.figure(2, 2, width=6.4, height=4.8)
        data = data.isel(hidden=0)
        kept = data.where(is_converged(data))
        labels = ("epochs to 5 % of $L_0$", "$\\|\\Delta W\\|$", "shuffled loss $L/L_0$", "functional rank")
        names = ("epochs", "norm_change", "shuffled", "rank")
        for panel, name, label, text in zip(axes.ravel(), names, labels, "abcd", strict=True):
            for task in TASKS:
                values = kept[name].sel(task=task)
                mean, spread = values.mean("seed"), values.std("seed")
                panel.plot(data.g, mean, "o-", ms=3, color=COLORS[task], label=TITLES[task])
                panel.fill_between(data.g, mean - spread, mean + spread, color=COLORS[task], alpha=0.2, lw=0)
                failed = data[name].where(~is_converged(data)).sel(task=task)
                for seed in data.seed.values:
                    panel.plot(data.g, failed.sel(seed=seed), "x", ms=5, color=COLORS[task])
            panel.set(xlabel="initial strength g", ylabel=label)
            style.letter(panel, text)
        axes[0, 0].set_yscale("log")
        axes[1, 0].set_ylim(0, 2)
        axes[0, 0].legend(frameon=False)
        return fig

    def claims(self, data) -> Iterator[Claim]:
        """Section 2 of the document, "Effects of initial connectivity"; medians over converged networks."""
        data = data.isel(hidden=0)
        hidden = int(data.hidden)
        kept = medians(data)
        strengths = data.g.values
        middle = strengths[np.argmin(np.abs(strengths - 1.2))]
        for task in TASKS:
            one = kept.sel(task=task)
            count = f"{int(is_converged(data).sel(task=task).sum())} networks converged"
            bound, reason = least_speedup(task, hidden)
            yield Claim(
                f"{TITLES[task]}: convergence time decreases with g",
                measured=float(one.epochs.sel(g=0.0) / one.epochs.sel(g=middle)),
                at_least=bound,
                source="Fig. 2(a)",
                note=f"epochs at g = 0 over epochs at g = {middle}; {count}. At g = 0.9 {reason}",
            )
            yield Claim(
                f"{TITLES[task]}: the norm of the change decreases with g",
                measured=float(one.norm_change.sel(g=0.0) / one.norm_change.sel(g=middle)),
                at_least=1.0,
                source="Fig. 2(b)",
                note=f"at g = 0 over g = {middle}",
            )
            # Smaller networks change more: the size of the fall is known for the document's only.
            if hidden == PAPER_SIZE and FALLS[task][0] in strengths:
                yield self._fall(data.norm_change.where(is_converged(data)).sel(task=task), task)
        for task in ("flip-flop", "mante"):
            one = kept.sel(task=task)
            last = strengths[strengths <= LAST[task] + 1e-9][-1]
            yield Claim(
                f"{TITLES[task]}: for very large g convergence time increases again",
                measured=float(one.epochs.sel(g=last) / one.epochs.sel(g=middle)),
                at_least=1,
                source="Fig. 2(a)",
                note=f"epochs at g = {last} over g = {middle}",
            )
        strong = kept.sel(g=strengths[strengths >= 0.6 - 1e-9])
        for task in TASKS:
            yield Claim(
                f"{TITLES[task]}: shuffling strongly degrades performance for g of 0.6 and more",
                measured=float(strong.shuffled.sel(task=task).min()),
                at_least=0.8,
                source="Fig. 2(c)",
                note=f"smallest median loss over L_0 after shuffling, N = {hidden}",
            )
        weak = data.sel(g=0.0)
        yield Claim(
            "without initial connectivity shuffling has no effect",
            measured=float(abs(weak.shuffled - weak.test_loss).max()),
            at_most=1e-6,
            source="Fig. 2(c)",
            note="largest difference of the losses over L_0 with and without shuffling",
        )
        if 0.3 in strengths:
            for task in ("flip-flop", "mante"):
                yield Claim(
                    f"{TITLES[task]}: shuffling hardly matters for very weak initial connectivity",
                    measured=float(kept.shuffled.sel(task=task, g=0.3)),
                    at_most=0.35,
                    source="Fig. 2(c)",
                    note="g = 0.3",
                )
        ranks = kept["rank"].sel(g=strengths[strengths <= 1.8 + 1e-9])
        yield Claim(
            "the functional rank is at most 10 for all three tasks",
            measured=float(ranks.max()),
            at_most=10,
            source="Fig. 2(d)",
            note="largest median for g up to 1.8",
        )
        flip = kept["rank"].sel(task="flip-flop")
        yield Claim(
            "Flip-flop: the functional rank rises with g",
            measured=float(flip.sel(g=ranks.g[-1]) - flip.sel(g=0.0)),
            at_least=1,
            source="Fig. 2(d)",
            note=f"median at g = {float(ranks.g[-1])} less that at g = 0",
        )
        if hidden == PAPER_SIZE and LAST["flip-flop"] in strengths:
            yield Claim(
                "Flip-flop, g = 2.1: the functional rank is 10 to 14",
                measured=float(flip.sel(g=LAST["flip-flop"])),
                at_least=10,
                at_most=14,
                source="Fig. 2(d)",
                note="median",
            )
        yield Claim(
            "the functional rank is at least 2 for all three tasks",
            measured=float(ranks.min()),
            at_least=2,
            source="Fig. 2(d)",
            note="smallest median for g up to 1.8",
        )
        if hidden >= PAPER_SIZE:
            full = kept.norm_w.sel(g=strengths[strengths >= 0.9 - 1e-9])
            yield Claim(
                "the final connectivity is dominated by the initial one, of norm g sqrt(N)",
                measured=float(abs(full / (full.g * np.sqrt(hidden)) - 1).max()),
                at_most=0.035,
                source="section 2",
                note="largest relative distance of the norm of W from g sqrt(N), g of 0.9 and more: 3 %",
            )

    def _fall(self, norms, task: str) -> Claim:
        """Distance of the fall from a known one: both are ratios of medians, which scatter."""
        at, before, after = FALLS[task]
        ratio, variance = 1.0, 0.0
        for g, power in ((0.0, 1), (at, -1)):
            values = norms.sel(g=g).values
            values = values[np.isfinite(values)]
            median = np.median(values) if values.size else np.nan
            ratio *= median**power
            # Of a median of normal numbers: pi / 2 times the variance of their mean.
            spread = np.std(values, ddof=1) / median if values.size > 1 else np.nan
            variance += np.pi / 2 * spread**2 / values.size if values.size else np.nan
        low, high = (before - 0.05) / (after + 0.05), (before + 0.05) / (after - 0.05)
        beyond = max(np.log(low / ratio), np.log(ratio / high), 0.0)
        return Claim(
            f"{TITLES[task]}: the norm of the change falls from {before} to {after} at g = {at}",
            measured=float(beyond / np.sqrt(2 * variance)),
            at_most=3.0,
            source="Fig. 2(b)",
            note=f"here by {ratio:.2f}; distance from {low:.2f} to {high:.2f}, what the digits allow, in "
            "standard errors of the difference of two such runs",
        )
