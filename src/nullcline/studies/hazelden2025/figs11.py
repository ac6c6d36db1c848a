"""Figure S11: the sweep of Experiment 1 with GRUs."""

from collections.abc import Iterator

import numpy as np

from ...engine import Claim, Grid, Study
from .. import _style as style
from .._lazy import lazily
from . import _memory as memory
from ._memory import TEST_TRIALS, Setup, ends, kernel_ranks, quietly, trained
from ._panels import STAGE_COLORS, draw_convergence, draw_stages, first_setting

operators = lazily("nullcline.operators")

QUICK = Grid(g=[0.1, 2.0, 4.0, 6.0, 8.0, 10.0], hidden=64, period=10, batch=32, steps=2000, stops=True,
             seed=range(2))  # fmt: skip
PAPER = Grid(g=[round(k * 10 / 49, 4) for k in range(50)], hidden=256, period=30, batch=200, steps=5000,
             stops=False, seed=range(10))  # fmt: skip


class GRUSweep(Study):
    """Convergence, effective ranks of K and P, and dimension of GRUs against the initial scale g.

    ``g`` multiplies ``weight_hh`` alone, as the text says. The dimension, which the text looks up in Figure
    S13, is here that of memory-pro; Figure S13 itself shows the four tasks.
    """

    source = "hazelden2025/figS11"
    presets = {"quick": QUICK, "paper": PAPER}
    vectorized = ("seed",)
    version = 2
    expected = {"quick": 35.0, "paper": 1_500_000.0}
    may_be_nan = ("iterations",)

    def compute(self, g, hidden, period, batch, steps, stops, seed):
        """Train the GRUs of one g and measure them before and after."""
        setup = Setup("gru", "code", hidden, period, batch, steps, stops)
        found = trained(setup, g, tuple(seed))

        def measure(flow):
            ranks = np.array(kernel_ranks(flow))
            of_p = operators.effective_rank(flow.propagator, probes=2, steps=20)
            return {
                "rank": ranks,
                "kernel_share": ranks / (TEST_TRIALS * setup.task.time),
                "propagator_share": float(of_p) / flow.space.size,
                "dimension": float(operators.activity_dimension(flow.states)),
            }

        measured = memory.measure_stages(found, setup, measure)
        axes = {"rank": ("power",), "kernel_share": ("power",)}
        return memory.as_dataset(found, seed, measured, **axes).assign_coords(power=[1, 2])

    @quietly
    def draw(self, data):
        """Convergence time, ranks of K with both powers, K beside P, and the dimension of the states."""
        steps = int(data.steps[0])
        data = first_setting(data)
        fig, axes = style.figure(1, 5, width=12.0, height=2.7)
        draw_convergence(axes[0, 0], data, steps)
        for panel, power in ((axes[0, 1], 1), (axes[0, 2], 2)):
            label = f"effective rank of K, power {power}"
            draw_stages(panel, data, data["rank"].sel(power=power), yscale="log", ylabel=label)
        for stage, color in STAGE_COLORS.items():
            ok = np.isfinite(data.iterations) | (stage == "before")
            share = data.kernel_share.sel(stage=stage, power=1).where(ok).median("seed")
            axes[0, 3].plot(data.g, share, ".-", color=color, label=f"K, {stage}")
            share = data.propagator_share.sel(stage=stage).where(ok).median("seed")
            axes[0, 3].plot(data.g, share, ".--", color=color, label=f"P, {stage}")
        axes[0, 3].set(yscale="log", ylabel="rank / dimension, power 1")
        axes[0, 3].legend(frameon=False, fontsize=6)
        draw_stages(axes[0, 4], data, data.dimension, ylabel="PCs for 95 % of variance", ylim=(0, None))
        for panel in axes[0]:
            panel.set_xlabel("g  (code)")
        for panel, text in zip(axes[0], "ABB  ", strict=True):
            style.letter(panel, text.strip())
        fig.suptitle("GRUs on memory-pro, g of the code (on W_hh)", fontsize=9)
        return fig

    @quietly
    def claims(self, data) -> Iterator[Claim]:
        """Appendix E.1; medians over seeds."""
        steps = int(data.steps[0])
        data = first_setting(data)
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
        met = np.isfinite(data.iterations)
        for stage, factor in (("before", 5), ("after", 2)):
            kept = data.dimension.sel(stage=stage).where(met | (stage == "before")).median("seed")
            first, last = ends(kept)
            yield Claim(
                f"the dimension of the activity grows with g, {stage} training",
                measured=last / first,
                at_least=factor,
                source="Appendix E.1",
                note=f"PCs at the largest g, {last:g}, over those at the smallest, {first:g}",
            )
        yield Claim(
            "a larger range of g than for the RNN is needed: untrained GRUs at g = 2 are low-dimensional",
            measured=float(before.dimension.sel(g=2.0, method="nearest")),
            at_most=8,
            source="Appendix E.1",
            note="PCs for 95 % of the variance",
        )
