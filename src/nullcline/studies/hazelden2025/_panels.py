"""Panels that several figures of hazelden2025 share."""

from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _style as style
from ._fourtasks import TASKS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STAGE_COLORS = {"before": style.GREY, "after": style.BLUE}
"""Color of what is measured before and after training."""
PERIODS = (style.GREEN, style.ORANGE, style.PINK)
"""Colors of stimulus, memory and response."""
FILTERS = {"Pro/Anti": style.VERMILION, "Mem/Del": style.BLUE}
"""Colors of the two ways in which four tasks can align."""


SETTINGS = (
    *("scale", "hidden", "period", "batch", "steps", "stops", "trials"),
    *("angles", "is_balanced", "record", "scaled"),
)
"""Axes of one value each."""


def first_setting(data: Any) -> Any:
    """The data without the axes that hold one setting; the figures show the others."""
    return data.isel({axis: 0 for axis in SETTINGS if axis in data.dims})


def scaled_weights(data: Any) -> str:
    """What g multiplies in the networks of four tasks, in words."""
    every = {"recurrent": "W_hh", "all": "all weights of the cell"}
    return f"g of the code (on {every[data.scaled.values[0].item()]})"


def draw_convergence(panel: "Axes", data: Any, steps: int) -> None:
    """Iterations to convergence against g: median, networks, and crosses for those that did not converge."""
    met = np.isfinite(data.iterations)
    panel.plot(data.g, data.iterations.fillna(np.inf).median("seed"), color=style.BLUE)
    for seed in data.seed.values:
        one, ok = data.iterations.sel(seed=seed), met.sel(seed=seed).values
        panel.plot(data.g[ok], one[ok], ".", color=style.BLUE, ms=4, alpha=0.6)
        panel.plot(data.g[~ok], np.full((~ok).sum(), steps), "x", color=style.VERMILION, ms=4)
    panel.set(yscale="log", ylabel="iterations to MSE 1/60")
    if not met.all():
        panel.plot([], [], "x", color=style.VERMILION, label=f"not in {steps}")
        panel.legend(frameon=False, fontsize=6)


def draw_stages(panel: "Axes", data: Any, values: Any, **labels: Any) -> None:
    """Values before and after training against g; after it, medians over the networks that converged.

    Networks that did not converge are crosses. ``labels`` go to the panel.
    """
    for stage, color in STAGE_COLORS.items():
        met = np.isfinite(data.iterations) | (stage == "before")
        mine = values.sel(stage=stage)
        panel.plot(data.g, mine.where(met).median("seed"), color=color, label=f"{stage} training")
        panel.plot(data.g, mine.where(met).transpose("g", "seed"), ".", color=color, ms=3, alpha=0.5)
        panel.plot(data.g, mine.where(~met).transpose("g", "seed"), "x", color=color, ms=3)
    panel.set(**labels)
    panel.legend(frameon=False, fontsize=6)


def draw_paths(panel: "Axes", paths: np.ndarray, period: int) -> None:
    """States of some trials in their first two components, colored by period, with their ends."""
    for path in paths:
        for k, color in enumerate(PERIODS):
            part = path[max(k * period - 1, 0) : (k + 1) * period]
            panel.plot(part[:, 0], part[:, 1], color=color, lw=0.7)
        panel.plot(*path[-1, :2], "o", color=style.BLACK, ms=2.5)
    panel.set(xlabel="PC 1", ylabel="PC 2")


def draw_shares(panel: "Axes", one: Any) -> None:
    """Variance in the first components of one network's states, before and after training."""
    for stage, color in STAGE_COLORS.items():
        count = int(one.dimension.sel(stage=stage))
        panel.plot(one.component, one.share.sel(stage=stage), color=color, label=f"{stage}: {count} PCs")
    panel.axhline(0.95, color=style.BLACK, lw=0.6, ls=":")
    panel.set(xlabel="principal components", ylabel="share of variance", ylim=(0, 1.03))
    panel.set_title(f"g = {float(one.g):.3g}")
    panel.legend(frameon=False, fontsize=6)


def draw_tasks_matrix(panel: "Axes", matrix: np.ndarray, title: str) -> None:
    """A matrix between the four tasks."""
    panel.imshow(matrix, vmin=0, vmax=1, cmap="viridis")
    panel.set_xticks(range(4), TASKS)
    panel.set_yticks(range(4), TASKS)
    panel.set_title(title)


def draw_scores(panel: "Axes", g: Any, scores: dict[str, Any], title: str) -> None:
    """Scores of both filters against g: medians and networks."""
    for name, color in FILTERS.items():
        panel.plot(g, scores[name].median("seed"), ".-", color=color, label=name)
        panel.plot(g, scores[name].transpose("g", "seed"), ".", color=color, ms=3, alpha=0.4)
    panel.set(xlabel="g  (code)", title=title)
