"""Figure S13: the dimension of the activity of GRUs on four tasks against g."""

from collections.abc import Iterator

from ...engine import Claim, Study
from .. import _style as style
from .._lazy import lazily, xr
from ._fourtasks import course
from ._memory import STAGES, dimension_of_chaos
from ._panels import STAGE_COLORS, first_setting, scaled_weights
from .figs14 import PAPER, QUICK

operators = lazily("nullcline.operators")


class GRUDimension(Study):
    """Dimension of the states of GRUs before and after training on four tasks, against g.

    The networks of Figures S14 and S15, whose docstrings say what g multiplies and what differs from the
    document. The same for memory-pro alone is in Figure S11.
    """

    source = "hazelden2025/figS13"
    presets = {"quick": QUICK, "paper": PAPER}
    vectorized = ("seed",)
    version = 3
    expected = {"quick": 45.0, "paper": 2_500_000.0}

    def compute(self, hidden, period, batch, angles, is_balanced, steps, record, scaled, g, seed):
        """Train the GRUs of one g and measure their states before and after."""
        found = course(hidden, period, batch, angles, is_balanced, steps, record, scaled, g, tuple(seed))
        flows = [[found.flow(index, stage) for stage in STAGES] for index in range(len(seed))]
        axes, count = ("seed", "stage"), operators.activity_dimension
        return xr.Dataset(
            {
                "dimension": (axes, [[float(count(flow.states)) for flow in row] for row in flows]),
                "chaos": (axes, [[dimension_of_chaos(flow, 3) for flow in row] for row in flows]),
                "loss": (axes, found.losses[:, [0, -1]]),
            },
            coords={"seed": seed, "stage": list(STAGES)},
        )

    def draw(self, data):
        """Principal components, Kaplan–Yorke dimension and loss before and after training."""
        weights, data = scaled_weights(data), first_setting(data)
        fig, axes = style.figure(1, 3, width=7.8, height=2.6)
        shown = {
            "dimension": "PCs for 95 % of variance",
            "chaos": "Kaplan–Yorke dimension",
            "loss": "test loss (MSE)",
        }
        for panel, (name, label) in zip(axes[0], shown.items(), strict=True):
            for stage, color in STAGE_COLORS.items():
                values = data[name].sel(stage=stage)
                panel.plot(data.g, values.median("seed"), color=color, label=f"{stage} training")
                panel.plot(data.g, values.transpose("g", "seed"), ".", color=color, ms=4, alpha=0.6)
            panel.set(xlabel="g  (code)", ylabel=label)
        axes[0, 2].set_yscale("log")
        axes[0, 0].legend(frameon=False)
        fig.suptitle(f"GRUs on four tasks, {weights}", fontsize=9)
        return fig

    def claims(self, data) -> Iterator[Claim]:
        """Figure S13; medians over seeds."""
        data = first_setting(data).median("seed")
        for stage, factor in (("before", 5), ("after", 2)):
            values = data.dimension.sel(stage=stage)
            first, last = float(values[0]), float(values[-1])
            yield Claim(
                f"the dimension of the activity grows with g, {stage} training",
                measured=last / first,
                at_least=factor,
                source="Fig. S13",
                note=f"PCs at the largest g, {last:g}, over those at the smallest, {first:g}; test losses "
                + ", ".join(f"{float(v):.2g}" for v in data.loss.sel(stage=stage)),
            )
        chaos = data.chaos.sel(stage="before")
        yield Claim(
            "a larger range of g than for the RNN is needed: no chaos before training for g up to 3",
            measured=float(chaos.sel(g=slice(None, 3.0)).max()),
            at_most=1,
            source="Fig. S13",
            note="largest Kaplan–Yorke dimension of these g; by g: "
            + ", ".join(f"{float(v):.3g}" for v in chaos),
        )
        yield Claim(
            "the largest Lyapunov dimension is reached for g around 10",
            measured=float(chaos.g[int(chaos.argmax("g"))]),
            at_least=7,
            source="Fig. S13",
            note="g with the largest Kaplan–Yorke dimension before training",
        )
