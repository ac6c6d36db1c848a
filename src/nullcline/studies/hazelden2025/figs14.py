"""Figure S14: alignment of the states of four tasks against g."""

from collections.abc import Iterator

import numpy as np

from ...engine import Claim, Grid, Study
from .. import _style as style
from .._lazy import xr
from ._fourtasks import TASKS, course
from ._panels import draw_scores, draw_tasks_matrix, first_setting, scaled_weights
from .fig4 import scores

QUICK = Grid(hidden=64, period=10, batch=40, angles=10, is_balanced=True, steps=1500, record=100,
             scaled="all", g=[0.1, 1.0, 3.0, 7.0, 10.0], seed=range(6))  # fmt: skip
# The document's sweep begins at g = 0; a cell whose weights are all zero has no states to compare.
PAPER = Grid(hidden=256, period=30, batch=200, angles=10, is_balanced=False, steps=5000, record=100,
             scaled="all", g=[round(k * 10 / 49, 4) for k in range(1, 50)], seed=range(10))  # fmt: skip


class AlignmentSweep(Study):
    """Cosines of the states of four tasks before and after training, against g.

    Here g multiplies all weights and biases of the cell, as one of the document's programs does; its text
    speaks of the recurrent weights alone (``--set scaled=recurrent``). Three quick networks of that kind give
    the same verdicts on the states: an excess of Pro/Anti of 0.35 or more for g up to 3, and of 0.02, 0.18
    and 0.20 at g = 10. Batches are balanced as in Figure 4.
    """

    source = "hazelden2025/figS14"
    presets = {"quick": QUICK, "paper": PAPER}
    vectorized = ("seed",)
    version = 2
    expected = {"quick": 45.0, "paper": 2_500_000.0}

    def compute(self, hidden, period, batch, angles, is_balanced, steps, record, scaled, g, seed):
        """Train the GRUs of one g and follow their tasks."""
        found = course(hidden, period, batch, angles, is_balanced, steps, record, scaled, g, tuple(seed))
        axes, ends = ("seed", "stage", "task", "other"), [0, -1]
        return xr.Dataset(
            {
                "cosine": (axes, found.cosine[:, ends]),
                "interference": (axes, found.interference[:, ends]),
                "loss": (axes[:2], found.losses[:, ends]),
            },
            coords={"seed": seed, "stage": ["before", "after"], "task": list(TASKS), "other": list(TASKS)},
        )

    def draw(self, data):
        """Cosine matrices of some g, and scores before and after training against g."""
        weights, data = scaled_weights(data), first_setting(data)
        some = np.unique(np.linspace(0, data.g.size - 1, 4).round().astype(int))
        fig, axes = style.figure(2, len(some) + 1, width=10.2, height=4.6)
        for row, stage in enumerate(("before", "after")):
            for column, index in enumerate(some):
                matrix = data.cosine.isel(g=index, seed=0).sel(stage=stage).values
                draw_tasks_matrix(axes[row, column], matrix, f"g = {float(data.g[index]):g}, {stage}")
            states, _ = scores(data.sel(stage=stage))
            draw_scores(axes[row, len(some)], data.g, states, f"{stage} training")
            axes[row, len(some)].set_ylabel("mean cosine C")
        axes[0, len(some)].legend(frameon=False, fontsize=6)
        style.letter(axes[0, 0], "A")
        style.letter(axes[0, len(some)], "B")
        fig.suptitle(f"Four tasks, GRU, {weights}", fontsize=9)
        return fig

    def claims(self, data) -> Iterator[Claim]:
        """Figure S14, Appendix E.3; medians over seeds."""
        data = first_setting(data)
        states, _ = scores(data)
        gap = (states["Pro/Anti"] - states["Mem/Del"]).median("seed")
        before, after = gap.sel(stage="before"), gap.sel(stage="after")
        small, large = slice(None, 3.0), slice(9.5, None)
        yield Claim(
            "before training, for g < 3, states align by Pro/Anti",
            measured=float(-before.sel(g=slice(None, 2.9)).max()),
            at_least=0.03,
            source="Fig. S14, caption",
            erratum="Untrained states align by Mem/Del, as in Fig. 4: memory-pro and memory-anti have the "
            "same inputs after the context.",
            note="smallest excess of the mean cosine of Mem/Del over that of Pro/Anti",
        )
        yield Claim(
            "after training a bias towards Pro/Anti appears for smaller g",
            measured=float(after.sel(g=small).min()),
            at_least=0.2,
            source="Fig. S14B",
            note="smallest excess of Pro/Anti over Mem/Del for g up to 3",
        )
        yield Claim(
            "for large g the bias towards Pro/Anti is less clear",
            measured=float(after.sel(g=large).mean()),
            at_most=0.3,
            source="Fig. S14B",
            note="excess of Pro/Anti over Mem/Del near g = 10; for g up to 3 it is "
            f"{float(after.sel(g=small).mean()):.2g} in the mean",
        )
