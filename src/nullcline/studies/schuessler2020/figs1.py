"""Figure S1: learning dynamics do not depend on the size of the network."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ...engine import Claim, Grid, Study
from .. import _style as style
from .._lazy import xr
from ._networks import TASKS, TITLES, is_converged, measured, medians

VARIABLES = ("epochs", "norm_change", "norm_w", "rank", "test_loss")
COLORS = (style.BLACK, style.VERMILION, style.ORANGE)


class NetworkSize(Study):
    """Epochs, norms and functional rank against the number of units, for three tasks and three g."""

    source = "schuessler2020/figS1"
    presets = {
        "quick": Grid(task=["flip-flop"], g=[0.0, 0.9, 1.8], hidden=[64, 128], seed=range(4)),
        "paper": Grid(task=TASKS, g=[0.0, 0.9, 1.8], hidden=[64, 128, 256, 512, 1024], seed=range(5)),
    }
    vectorized = ("seed",)
    version = 2
    expected = {"quick": 110.0, "paper": 37_000.0}
    may_be_nan = VARIABLES

    def compute(self, task, g, hidden, seed):
        found = measured(task, g, hidden, tuple(seed), is_thinned=False)
        return xr.Dataset({name: ("seed", found[name]) for name in VARIABLES}, coords={"seed": list(seed)})

    def draw(self, data):
        tasks = data.task.values
        fig, axes = style.figure(4, len(tasks), width=2.6 * len(tasks) + 0.6, height=7.2, sharex=True)
        kept = data.where(is_converged(data))
        labels = ("epochs to 5 %", "$\\|\\Delta W\\|$", "$\\|W\\|$", "functional rank")
        for column, task in enumerate(tasks):
            axes[0, column].set_title(TITLES[str(task)])
            for row, (name, label) in enumerate(zip(VARIABLES, labels, strict=False)):
                panel = axes[row, column]
                for g, color in zip(data.g.values, COLORS, strict=False):
                    values = kept[name].sel(task=task, g=g)
                    mean, spread = values.mean("seed"), values.std("seed")
                    panel.plot(data.hidden, mean, "o-", ms=3, color=color, label=f"g = {g}")
                    panel.fill_between(
                        data.hidden, mean - spread, mean + spread, color=color, alpha=0.2, lw=0
                    )
                panel.set_xscale("log", base=2)
                if column == 0:
                    panel.set_ylabel(label)
            axes[3, column].set_xlabel("number of units N")
        axes[0, 0].legend()
        return fig

    def claims(self, data) -> Iterator[Claim]:
        kept = medians(data)
        smallest, largest = data.hidden.values[0], data.hidden.values[-1]
        for task in data.task.values:
            for g in (0.0, 0.9):
                one = kept.sel(task=task, g=g)
                yield Claim(
                    f"{TITLES[str(task)]}, g = {g}: the norm of the change does not grow with N",
                    measured=float(
                        one.norm_change.sel(hidden=largest) / one.norm_change.sel(hidden=smallest)
                    ),
                    at_most=1.05,
                    source="Fig. S1(d-f)",
                    note=f"N = {largest} over N = {smallest}; known flip-flop networks go from 1.95 to 2.03",
                )
            for g in data.g.values:
                ratio = float(
                    kept.epochs.sel(task=task, g=g, hidden=largest)
                    / kept.epochs.sel(task=task, g=g, hidden=smallest)
                )
                yield Claim(
                    f"{TITLES[str(task)]}, g = {g}: the number of epochs does not grow with N",
                    measured=_chance_without_growth(data.epochs.sel(task=task, g=g)),
                    at_least=0.01,
                    source="Fig. S1(a-c)",
                    note="p-value of Spearman's test for growth over all networks, those that never meet the "
                    f"threshold last; median of N = {largest} over that of N = {smallest}: {ratio:.2f}",
                )
        large = data.hidden.values[data.hidden.values >= 256]
        if large.size:
            full = kept.norm_w.sel(g=[0.9, 1.8], hidden=large)
            ratio = full / (full.g * np.sqrt(full.hidden))
            yield Claim(
                "the norm of W is that of the initial connectivity, g sqrt(N)",
                measured=float(abs(ratio - 1).max()),
                at_most=0.035,
                source="Fig. S1(g-i)",
                note="largest relative distance, g of 0.9 and more, N of 256 and more: 3 %",
            )


def _chance_without_growth(epochs) -> float:
    """One-sided p-value of the rank correlation of epochs with the number of units; NaN without epochs."""
    from scipy.stats import spearmanr

    epochs = epochs.transpose("hidden", "seed")
    if not np.isfinite(epochs).any():
        return np.nan
    hidden = np.broadcast_to(epochs.hidden.values[:, None], epochs.shape)
    values = np.nan_to_num(epochs.values, nan=np.inf)
    if np.all(values == values.flat[0]):
        return 1.0
    found: Any = spearmanr(hidden.ravel(), values.ravel(), alternative="greater")
    return float(found.pvalue)
