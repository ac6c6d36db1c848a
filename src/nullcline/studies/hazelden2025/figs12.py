"""Figure S12: ReLU instead of tanh."""

from collections.abc import Iterator

import numpy as np

from ...engine import Claim, Grid, Study
from .. import _style as style
from . import _memory as memory
from ._memory import DOCUMENT_UNITS, STAGES, Setup, ends, quietly, trained
from ._panels import draw_paths, draw_shares, first_setting

COMPONENTS, DRAWN = 40, 10


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
        measured = memory.measure_stages(
            found, setup, lambda flow: memory.states_and_ranks(flow, COMPONENTS, DRAWN)
        )
        data = memory.as_dataset(found, seed, measured, **memory.STATES_AND_RANKS)
        return data.assign_coords(power=[1, 2], component=np.arange(1, COMPONENTS + 1))

    @quietly
    def draw(self, data):
        """States of ReLU networks at a small and a large g, their dimension, and K beside tanh."""
        scale, period = data.scale.values[0].item(), int(data.period[0])
        data = first_setting(data)
        fig, axes = style.figure(2, 4, width=10.2, height=5.0)
        relu = data.sel(cell="relu")
        root = np.sqrt(3) if scale == "text" else 1
        for row, wanted in enumerate((1.5 / root, 3.0 / root)):
            near = relu.sel(g=wanted, method="nearest")
            for column, stage in enumerate(STAGES):
                draw_paths(axes[row, column], near.path.sel(stage=stage).values, period)
                axes[row, column].set_title(f"ReLU, g = {float(near.g):.3g}, {stage}")
            draw_shares(axes[row, 2], near.isel(seed=0))
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
        data = first_setting(data)
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
        is_small = int(data.hidden) < DOCUMENT_UNITS
        for power in (1, 2):
            ratio = after.sel(cell="relu", power=power) / after.sel(cell="tanh", power=power)
            # At the document's size it is so at the largest g, if ranks are counted with power 2.
            is_so = not is_small and power == 2
            yield Claim(
                f"ReLU leads to a higher rank of K, at large g (power {power})",
                measured=ends(ratio)[1],
                at_least=1 if is_so else None,
                at_most=None if is_so else 1,
                source="Appendix E.1",
                erratum=""
                if is_so
                else "Not reproduced: after training at large g, K of ReLU networks has no higher rank "
                "than K of tanh networks.",
                note="rank for ReLU over that for tanh after training, at the largest g; over all g "
                + ", ".join(
                    f"{cell} {float(one.min()):g} to {float(one.max()):g}"
                    for cell in ("relu", "tanh")
                    for one in [after.sel(cell=cell, power=power)]
                ),
            )
        threshold = np.sqrt(2) * (1 if scale == "text" else np.sqrt(3))
        before = data["rank"].sel(stage="before", cell="relu").median("seed")
        before = before.where(before.g > threshold)
        largest = {power: float(before.sel(power=power).max()) for power in (1, 2)}
        yield Claim(
            "beyond g = √2 untrained ReLU networks have one growing direction, and K rank 1 or 2 (power 1)",
            measured=largest[1],
            at_least=None if is_small else 3,
            at_most=2 if is_small else None,
            source="Appendix E.1",
            erratum=""
            if is_small
            else "At the document's size the growing direction has not yet taken over: more modes count.",
            note=f"the largest of these g (of the text); with power 2 {largest[2]:g}",
        )
