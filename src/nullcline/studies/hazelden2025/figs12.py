"""Figure S12: ReLU instead of tanh."""

from collections.abc import Iterator

import numpy as np

from ...engine import Claim, Grid, Study
from .. import _style as style
from .._lazy import lazily, xr
from ._memory import Setup, ends, flow_of, kernel_ranks, principal_components, quietly, trained

operators = lazily("nullcline.operators")

STAGES = ("before", "after")
COMPONENTS, DRAWN = 40, 10
PERIODS = (style.GREEN, style.ORANGE, style.PINK)


class ReluNetworks(Study):
    """States, convergence and effective rank of K of ReLU networks beside tanh networks."""

    source = "hazelden2025/figS12"
    presets = {
        "quick": Grid(
            cell=["relu", "tanh"], scale="text", g=[0.5, 1.2, 1.5, 1.73], hidden=128, period=10,
            batch=32, steps=2000, stops=True, seed=range(1),
        ),
        "paper": Grid(
            cell=["relu", "tanh"], scale="code", g=[1.0, 1.5, 2.0, 2.5, 3.0], hidden=256, period=30,
            batch=200, steps=5000, stops=False, seed=range(5),
        ),
    }  # fmt: skip
    vectorized = ("seed",)
    expected = {"quick": 20.0, "paper": 40_000.0}
    may_be_nan = ("iterations",)

    def compute(self, cell, scale, g, hidden, period, batch, steps, stops, seed):
        """Train the networks of one kind and g and measure them before and after."""
        setup = Setup(cell, scale, hidden, period, batch, steps, stops)
        found = trained(setup, g, tuple(seed))
        shape = (len(seed), len(STAGES))
        ranks, dimensions = np.zeros((*shape, 2)), np.zeros(shape)
        shares = np.zeros((*shape, COMPONENTS))
        paths = np.zeros((len(STAGES), DRAWN, 3 * period, 3), np.float32)
        for i in range(len(seed)):
            for j, stage in enumerate(STAGES):
                flow = flow_of(found.one(i, stage), setup.task)
                ranks[i, j] = kernel_ranks(flow)
                dimensions[i, j] = operators.activity_dimension(flow.states)
                projection, shares[i, j] = principal_components(flow.states, COMPONENTS)
                if i == 0:
                    paths[j] = projection[:: len(projection) // DRAWN][:DRAWN]
        return xr.Dataset(
            {
                "iterations": ("seed", found.iterations),
                "rank": (("seed", "stage", "power"), ranks),
                "dimension": (("seed", "stage"), dimensions),
                "share": (("seed", "stage", "component"), shares),
                "path": (("stage", "trial", "time", "axis"), paths),
            },
            coords={
                "seed": list(seed), "stage": list(STAGES), "power": [1, 2],
                "component": np.arange(1, COMPONENTS + 1),
            },
        )  # fmt: skip

    @quietly
    def draw(self, data):
        """States of ReLU networks at a small and a large g, their dimension, and K beside tanh."""
        scale, period = data.scale.values[0].item(), int(data.period[0])
        data = data.isel(scale=0, hidden=0, period=0, batch=0, steps=0, stops=0)
        fig, axes = style.figure(2, 4, width=10.2, height=5.0)
        relu = data.sel(cell="relu")
        root = np.sqrt(3) if scale == "text" else 1
        for row, wanted in enumerate((1.5 / root, 3.0 / root)):
            near = relu.sel(g=wanted, method="nearest")
            for column, stage in enumerate(STAGES):
                panel = axes[row, column]
                for path in near.path.sel(stage=stage).values:
                    for k, color in enumerate(PERIODS):
                        part = path[max(k * period - 1, 0) : (k + 1) * period]
                        panel.plot(part[:, 0], part[:, 1], color=color, lw=0.7)
                    panel.plot(*path[-1, :2], "o", color=style.BLACK, ms=2.5)
                panel.set(xlabel="PC 1", ylabel="PC 2", title=f"ReLU, g = {float(near.g):.3g}, {stage}")
            panel = axes[row, 2]
            for stage, color in (("before", style.GREY), ("after", style.BLUE)):
                one = near.isel(seed=0).sel(stage=stage)
                panel.plot(near.component, one.share, color=color, label=f"{stage}: {int(one.dimension)} PCs")
            panel.axhline(0.95, color=style.BLACK, lw=0.6, ls=":")
            panel.set(xlabel="principal components", ylabel="share of variance", ylim=(0, 1.03))
            panel.legend(frameon=False, fontsize=6)
        for row, power in enumerate((1, 2)):
            panel = axes[row, 3]
            for cell, color in (("relu", style.VERMILION), ("tanh", style.BLUE)):
                for stage, look in (("before", "--"), ("after", "-")):
                    one = data.sel(cell=cell)
                    ok = np.isfinite(one.iterations) | (stage == "before")
                    ranks = one["rank"].sel(stage=stage, power=power).where(ok).median("seed")
                    panel.plot(data.g, ranks, f".{look}", color=color, label=f"{cell}, {stage}")
            panel.set(xlabel=f"g  ({scale})", ylabel=f"effective rank of K, power {power}", yscale="log")
            panel.legend(frameon=False, fontsize=6)
        for panel, text in zip(axes.ravel(), "ACG DFH ", strict=True):
            style.letter(panel, text.strip())
        fig.suptitle(f"ReLU networks on memory-pro, g of the {scale}; powers 1 and 2", fontsize=9)
        return fig

    @quietly
    def claims(self, data) -> Iterator[Claim]:
        """Appendix E.1, ReLU; medians, after training over networks that converged."""
        scale, steps = data.scale.values[0].item(), int(data.steps[0])
        data = data.isel(scale=0, hidden=0, period=0, batch=0, steps=0, stops=0)
        met = np.isfinite(data.iterations)
        times = data.iterations.fillna(2 * steps).median("seed").sel(cell="relu")
        yield Claim(
            "ReLU networks converge, and faster at larger g",
            measured=float(times.isel(g=0) / times.min()),
            at_least=3,
            source="Appendix E.1",
            note="median iterations at the smallest g over the smallest median; "
            f"{int(met.sel(cell='relu').sum())} of {met.sel(cell='relu').size} networks converged",
        )
        after = data["rank"].sel(stage="after").where(met).median("seed")
        for power in (1, 2):
            ratio = after.sel(cell="relu", power=power) / after.sel(cell="tanh", power=power)
            yield Claim(
                f"ReLU leads to a higher rank of K, at large g (power {power})",
                measured=ends(ratio)[1],
                at_most=1,
                source="Appendix E.1",
                erratum="Not reproduced: after training K of ReLU networks has rank 7 to 13 (power 1) and 1 "
                "to 3 (power 2), of tanh networks at the same g 6 to 19 and 2 to 5.",
                note="rank for ReLU over that for tanh after training, at the largest g",
            )
        threshold = np.sqrt(2) * (1 if scale == "text" else np.sqrt(3))
        before = data["rank"].sel(stage="before", power=1, cell="relu").median("seed")
        yield Claim(
            "beyond g = √2 untrained ReLU networks have one growing direction, and K rank 1 or 2",
            measured=float(before.where(before.g > threshold).max()),
            at_most=2,
            source="Appendix E.1",
            note="power 1, the largest of these g (of the text)",
        )
