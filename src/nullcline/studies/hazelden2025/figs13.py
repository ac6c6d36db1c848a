"""Figure S13: the dimension of the activity of GRUs against g."""

from collections.abc import Iterator

import numpy as np

from ...engine import Claim, Study
from .. import _style as style
from .._lazy import lazily, xr
from ._memory import Setup, ends, flow_of, quietly, trained
from .figs11 import PAPER, QUICK, STAGES

operators = lazily("nullcline.operators")


class GRUDimension(Study):
    """Dimension of the states of GRUs before and after training on memory-pro, against g."""

    source = "hazelden2025/figS13"
    presets = {"quick": QUICK, "paper": PAPER}
    vectorized = ("seed",)
    expected = {"quick": 20.0, "paper": 1_500_000.0}
    may_be_nan = ("iterations",)

    def compute(self, g, hidden, period, batch, steps, stops, seed):
        """Train the GRUs of one g and count the components of their states."""
        setup = Setup("gru", "code", hidden, period, batch, steps, stops)
        found = trained(setup, g, tuple(seed))
        dimension = [
            [
                operators.activity_dimension(flow_of(found.one(i, stage), setup.task).states)
                for stage in STAGES
            ]
            for i in range(len(seed))
        ]
        return xr.Dataset(
            {
                "iterations": ("seed", found.iterations),
                "dimension": (("seed", "stage"), np.asarray(dimension, float)),
            },
            coords={"seed": list(seed), "stage": list(STAGES)},
        )

    @quietly
    def draw(self, data):
        """Principal components before and after training."""
        data = data.isel(hidden=0, period=0, batch=0, steps=0, stops=0)
        fig, axes = style.figure(1, 1, width=3.4, height=2.6)
        panel = axes[0, 0]
        for stage, color in (("before", style.GREY), ("after", style.BLUE)):
            ok = np.isfinite(data.iterations) | (stage == "before")
            values = data.dimension.sel(stage=stage).where(ok)
            panel.plot(data.g, values.median("seed"), color=color, label=f"{stage} training")
            panel.plot(data.g, values.transpose("g", "seed"), ".", color=color, ms=4, alpha=0.6)
        panel.set(xlabel="g  (code)", ylabel="PCs for 95 % of variance", ylim=(0, None))
        panel.set_title("GRUs on memory-pro, g of the code", fontsize=8)
        panel.legend(frameon=False)
        return fig

    @quietly
    def claims(self, data) -> Iterator[Claim]:
        """Figure S13; medians, after training over networks that converged."""
        data = data.isel(hidden=0, period=0, batch=0, steps=0, stops=0)
        met = np.isfinite(data.iterations)
        for stage, factor in (("before", 5), ("after", 2)):
            kept = data.dimension.sel(stage=stage).where(met | (stage == "before")).median("seed")
            first, last = ends(kept)
            yield Claim(
                f"the dimension of the activity grows with g, {stage} training",
                measured=last / first,
                at_least=factor,
                source="Fig. S13",
                note=f"PCs at the largest g, {last:g}, over those at the smallest, {first:g}",
            )
        before = data.dimension.sel(stage="before").median("seed")
        yield Claim(
            "a larger range of g than for the RNN is needed: untrained GRUs at g = 2 are low-dimensional",
            measured=float(before.sel(g=2.0, method="nearest")),
            at_most=8,
            source="Fig. S13",
            note="PCs for 95 % of the variance",
        )
