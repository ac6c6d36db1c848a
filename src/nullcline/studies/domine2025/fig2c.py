"""Figure 2C: bottlenecks of several proportions."""

from collections.abc import Iterator

import numpy as np

from ...engine import Claim, Grid, Study
from .._style import figure, shades
from ._kernel import kernel_distance


class BottleneckProportion(Study):
    """Kernel distance from initialization against λ, for N-2-N networks."""

    source = "domine2025/fig2c"
    version = 2
    presets = {
        "quick": Grid(width=[3, 4, 5, 6], lam=np.linspace(-9, 9, 21), seed=range(40)),
        "paper": Grid(width=[3, 4, 5, 6], lam=np.linspace(-9, 9, 21), seed=range(200)),
    }
    expected = {"quick": 30, "paper": 40}
    vectorized = ("lam", "seed")

    def compute(self, width, lam, seed):
        return {"distance": kernel_distance((width, 2, width), lam, seed)[..., 0]}

    def draw(self, data):
        fig, axes = figure(1, 1, width=3.8, height=2.8)
        ax = axes[0, 0]
        count = np.sqrt(data.seed.size)
        for width, color in zip(data.width.values, shades(data.width.size), strict=True):
            one = data.distance.sel(width=width)
            mean, error = one.mean("seed"), one.std("seed") / count
            ax.plot(data.lam, mean, "o-", ms=3, color=color, label=f"{width}-2-{width}")
            ax.fill_between(data.lam, mean - error, mean + error, color=color, alpha=0.2, lw=0)
        ax.set(xlabel="λ", ylabel="kernel distance $S(\\infty)$", ylim=(0, 0.85))
        ax.legend(loc="upper center", ncols=4, columnspacing=1)
        return fig

    def claims(self, data) -> Iterator[Claim]:
        mean = data.distance.mean("seed")
        yield Claim(
            "Bottlenecked networks remain in the rich regime for every λ and every proportion",
            measured=mean.min(),
            at_least=0.25,
            source="Figure 2C",
            note="Smallest mean kernel distance; ranges over λ: "
            + ", ".join(
                f"N = {n}: {float(mean.sel(width=n).min()):.2f}–{float(mean.sel(width=n).max()):.2f}"
                for n in mean.width.values
            ),
        )
        if mean.width.size > 1:
            yield Claim(
                "The kernel distance increases with N",
                measured=mean.diff("width").min(),
                at_least=0,
                source="Figure 2C",
                note="Smallest increase of the mean from one N to the next, over λ.",
            )
