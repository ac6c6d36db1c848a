"""Figure S15: cumulative alignment of the updates of four tasks against g."""

from collections.abc import Iterator

import numpy as np

from ...engine import Claim, Study
from .. import _style as style
from .._lazy import xr
from ._fourtasks import TASKS, course
from .fig4 import COLORS, scores
from .figs14 import PAPER, QUICK


class InterferenceSweep(Study):
    """Cumulative interference of four tasks at several iterations, against g."""

    source = "hazelden2025/figS15"
    presets = {"quick": QUICK, "paper": PAPER}
    expected = {"quick": 45.0, "paper": 2_500_000.0}

    def compute(self, hidden, period, batch, angles, is_balanced, steps, record, scaled, g, seed):
        """Train one GRU and follow its tasks."""
        found = course(hidden, period, batch, angles, is_balanced, steps, record, scaled, g, seed)
        return xr.Dataset(
            {
                "cosine": (("iteration", "task", "other"), found.cosine),
                "interference": (("iteration", "task", "other"), found.interference),
            },
            coords={"iteration": found.records, "task": list(TASKS), "other": list(TASKS)},
        )

    def draw(self, data):
        """Cumulative scores at four iterations."""
        data = data.isel(hidden=0, period=0, batch=0, angles=0, is_balanced=0, steps=0, record=0, scaled=0)
        _, updates = scores(data)
        last = data.sizes["iteration"] - 1
        fig, axes = style.figure(1, 4, width=10.2, height=2.6)
        for panel, index in zip(axes[0], sorted({1, last // 4, last // 2, last} - {0}), strict=False):
            for name, color in COLORS.items():
                total = updates[name].cumsum("iteration").isel(iteration=index)
                panel.plot(data.g, total.median("seed"), ".-", color=color, label=name)
                panel.plot(data.g, total.transpose("g", "seed"), ".", color=color, ms=3, alpha=0.4)
            panel.set(xlabel="g  (code)", title=f"iteration {int(data.iteration[index])}")
        axes[0, 0].set_ylabel("cumulative score of M")
        axes[0, 0].legend(frameon=False, fontsize=6)
        fig.suptitle(
            "Interference of four tasks, GRU, g of the code (on all weights of the cell)", fontsize=9
        )
        return fig

    def claims(self, data) -> Iterator[Claim]:
        """Figure S15, Appendix E.3; medians over seeds."""
        data = data.isel(hidden=0, period=0, batch=0, angles=0, is_balanced=0, steps=0, record=0, scaled=0)
        _, updates = scores(data)
        mean = updates["Pro/Anti"].mean("iteration").median("seed")
        lead = updates["Pro/Anti"] - updates["Mem/Del"]
        early = lead.cumsum("iteration").sel(iteration=100).median("seed")
        yield Claim(
            "after 100 iterations the updates align by Pro/Anti for smaller g",
            measured=float(early.sel(g=slice(None, 3.0)).min()),
            at_least=0,
            source="Fig. S15",
            note="smallest lead of the cumulative M of Pro/Anti over that of Mem/Del, g up to 3",
        )
        yield Claim(
            "for smaller g the updates are aligned throughout training",
            measured=float(mean.sel(g=slice(None, 3.0)).min()),
            at_least=0.4,
            source="Fig. S15",
            note="smallest mean M of Pro/Anti, g up to 3",
        )
        yield Claim(
            "for large g the overall alignment of updates is lower",
            measured=float(mean.sel(g=slice(9.5, None)).mean()),
            at_most=0.25,
            source="Fig. S15",
            note="mean M of Pro/Anti near g = 10",
        )
        total = np.abs(lead.mean("iteration").median("seed"))
        yield Claim(
            "for large g there is less of a distinction between Mem/Del and Pro/Anti",
            measured=float(total.sel(g=slice(9.5, None)).mean() / total.sel(g=slice(None, 3.0)).mean()),
            at_most=0.7,
            source="Fig. S15",
            note="difference of the mean M near g = 10 over that for g up to 3",
        )
