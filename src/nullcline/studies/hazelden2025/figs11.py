"""Figure S11: the sweep of Experiment 1 with GRUs."""

from collections.abc import Iterator

import numpy as np

from ...engine import Claim, Grid, Study
from .. import _style as style
from .._lazy import lazily, xr
from ._memory import TEST_TRIALS, Setup, flow_of, kernel_ranks, quietly, trained

operators = lazily("nullcline.operators")

STAGES = ("before", "after")

QUICK = Grid(g=[0.1, 2.0, 4.0, 6.0, 8.0, 10.0], hidden=64, period=10, batch=32, steps=2000, stops=True,
             seed=range(2))  # fmt: skip
PAPER = Grid(g=[round(k * 10 / 49, 4) for k in range(50)], hidden=256, period=30, batch=200, steps=5000,
             stops=False, seed=range(10))  # fmt: skip


class GRUSweep(Study):
    """Convergence and effective ranks of K and P of GRUs against the initial scale g."""

    source = "hazelden2025/figS11"
    presets = {"quick": QUICK, "paper": PAPER}
    vectorized = ("seed",)
    expected = {"quick": 35.0, "paper": 1_500_000.0}
    may_be_nan = ("iterations",)

    def compute(self, g, hidden, period, batch, steps, stops, seed):
        """Train the GRUs of one g and measure them before and after."""
        setup = Setup("gru", "code", hidden, period, batch, steps, stops)
        found = trained(setup, g, tuple(seed))
        shape = (len(seed), len(STAGES))
        ranks, full = np.zeros((*shape, 2)), np.zeros(shape)
        for i in range(len(seed)):
            for j, stage in enumerate(STAGES):
                flow = flow_of(found.one(i, stage), setup.task)
                ranks[i, j] = kernel_ranks(flow)
                rank = operators.effective_rank(flow.propagator, probes=2, steps=20)
                full[i, j] = float(rank) / flow.space.size
        pairs = TEST_TRIALS * setup.task.time
        return xr.Dataset(
            {
                "iterations": ("seed", found.iterations),
                "rank": (("seed", "stage", "power"), ranks),
                "kernel_share": (("seed", "stage", "power"), ranks / pairs),
                "propagator_share": (("seed", "stage"), full),
            },
            coords={"seed": list(seed), "stage": list(STAGES), "power": [1, 2]},
        )

    @quietly
    def draw(self, data):
        """Convergence time, ranks of K with both powers, and K beside P."""
        steps = int(data.steps[0])
        data = data.isel(hidden=0, period=0, batch=0, steps=0, stops=0)
        fig, axes = style.figure(1, 4, width=10.2, height=2.7)
        met = np.isfinite(data.iterations)
        axes[0, 0].plot(data.g, data.iterations.fillna(np.inf).median("seed"), color=style.BLUE)
        axes[0, 0].plot(
            data.g, data.iterations.transpose("g", "seed"), ".", color=style.BLUE, ms=4, alpha=0.6
        )
        late = np.where(met, np.nan, steps)
        axes[0, 0].plot(data.g, late, "x", color=style.VERMILION, ms=4)
        axes[0, 0].set(yscale="log", ylabel="iterations to MSE 1/60")
        for stage, color in (("before", style.GREY), ("after", style.BLUE)):
            ok = met | (stage == "before")
            for panel, power in ((axes[0, 1], 1), (axes[0, 2], 2)):
                ranks = data["rank"].sel(stage=stage, power=power).where(ok)
                panel.plot(data.g, ranks.median("seed"), color=color, label=f"{stage} training")
                panel.plot(data.g, ranks.transpose("g", "seed"), ".", color=color, ms=3, alpha=0.6)
                panel.set(yscale="log", ylabel=f"effective rank of K, power {power}")
            share = data.kernel_share.sel(stage=stage, power=1).where(ok).median("seed")
            axes[0, 3].plot(data.g, share, ".-", color=color, label=f"K, {stage}")
            share = data.propagator_share.sel(stage=stage).where(ok).median("seed")
            axes[0, 3].plot(data.g, share, ".--", color=color, label=f"P, {stage}")
        axes[0, 3].set(yscale="log", ylabel="rank / dimension, power 1")
        for panel in axes[0, 1:]:
            panel.legend(frameon=False, fontsize=6)
        for panel in axes[0]:
            panel.set_xlabel("g  (code)")
        for panel, text in zip(axes[0], "ABB ", strict=True):
            style.letter(panel, text.strip())
        fig.suptitle("GRUs on memory-pro, g of the code (on W_hh)", fontsize=9)
        return fig

    @quietly
    def claims(self, data) -> Iterator[Claim]:
        """Appendix E.1; medians over seeds."""
        steps = int(data.steps[0])
        data = data.isel(hidden=0, period=0, batch=0, steps=0, stops=0)
        times = data.iterations.fillna(2 * steps).median("seed")

        def at(g):
            return times.sel(g=g, method="nearest")

        yield Claim(
            "larger g leads to faster learning, up to around g = 6",
            measured=float(at(0.1) / at(6.0)),
            at_least=3,
            source="Fig. S11A",
            note="median iterations at g = 0.1 over those at g = 6",
        )
        yield Claim(
            "beyond g = 6 learning becomes slower",
            measured=float(at(10.0) / at(6.0)),
            at_least=2,
            source="Fig. S11A",
            note="median iterations at g = 10 over those at g = 6",
        )
        before = data.sel(stage="before").median("seed")
        for power, factor in ((1, 20), (2, 4)):
            ranks = before["rank"].sel(power=power)
            yield Claim(
                f"the effective rank of K is much larger for large g (power {power})",
                measured=float(ranks.sel(g=10.0) / ranks.sel(g=2.0, method="nearest")),
                at_least=factor,
                source="Fig. S11B",
                note="untrained, rank at g = 10 over that at g = 2",
            )
        ratio = before.kernel_share.sel(power=1) / before.propagator_share
        yield Claim(
            "the rank of K is much lower than that of P (g up to 2)",
            measured=float(ratio.sel(g=slice(None, 2.1)).max()),
            at_most=0.1,
            source="Appendix E.1",
            note="untrained, share of K (power 1) of its dimension over that of P in the full space",
        )
        yield Claim(
            "the rank of K is still much lower than that of P, for every g",
            measured=float(ratio.sel(g=slice(6.0, None)).min()),
            at_least=1,
            source="Appendix E.1",
            erratum="From g about 6 on P collapses to a few per cent of its dimension, and K has the larger "
            "share.",
            note="untrained, share of K (power 1) over that of P in the full space, the least from g = 6 on",
        )
