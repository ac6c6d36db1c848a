"""The figures of the report: dataset in, matplotlib figures out."""

from typing import TYPE_CHECKING, Any

import numpy as np

from nullcline.studies._style import BLUE, GREY, STYLE, VERMILION, figure, letter, shades

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

COLORS = {"before": GREY, "after": BLUE}


def figures(data: "xr.Dataset") -> "dict[str, Figure]":
    """Draw the weights, the operators and the dynamics; names are those of the files."""
    import matplotlib.style

    with matplotlib.style.context(STYLE):
        return {"weights": _weights(data), "operators": _operators(data), "dynamics": _dynamics(data)}


def _ordinal(values: np.ndarray) -> np.ndarray:
    return np.arange(1, len(values) + 1)


def _weights(data: "xr.Dataset") -> "Figure":
    recurrent = [name for name in data.weight.values if "_hh_" in name]
    fig, axes = figure(1, 2, width=7.0, height=2.8)
    left, right = axes[0]
    for name, color in zip(data.weight.values, shades(data.sizes["weight"]), strict=True):
        values = data.change_values.sel(weight=name).dropna("weight_mode").values
        if values[0] > 0:
            rank = int(data.change_rank.sel(weight=name))
            label = f"{name}: {rank} of {int(data.full_rank.sel(weight=name))}"
            left.semilogy(
                _ordinal(values),
                np.maximum(values, 1e-16 * values[0]) / values[0],
                ".-",
                c=color,
                label=label,
            )
    left.set(xlabel="mode", ylabel="singular value / largest", title="change of each weight")
    left.set_ylim(bottom=max(1e-6, left.get_ylim()[0]))
    if left.lines:
        left.legend(title="effective rank", fontsize=6, title_fontsize=6, loc="upper right")
    else:
        left.annotate("no weight changed", (0.5, 0.5), xycoords="axes fraction", ha="center")
    for layer, name in enumerate(recurrent):
        for moment in ("before", "after"):
            values = data.weight_values.sel(weight=name, moment=moment).dropna("weight_mode").values
            label = moment if len(recurrent) == 1 else f"{moment}, layer {layer}"
            look = ("-", "--", ":", "-.")[layer % 4]
            right.plot(_ordinal(values), values, look, c=COLORS[moment], label=label)
    right.set(
        xlabel="mode",
        ylabel="singular value",
        title="recurrent weights",
    )
    right.set_ylim(bottom=0)
    right.legend()
    letter(left, "a")
    letter(right, "b")
    return fig


def _pairs(axes: Any, data: "xr.Dataset", name: str, dimension: str, *, style: str = "-") -> None:
    for moment in ("before", "after"):
        values = data[name].sel(moment=moment).values
        axes.plot(_ordinal(values), values, style, c=COLORS[moment], label=moment)
    axes.set(xlabel=dimension, ylim=(0, 1.05 * float(data[name].max())))


def _operators(data: "xr.Dataset") -> "Figure":
    fig, axes = figure(1, 3, width=7.4, height=2.5)
    kernel, top, over_time = axes[0]
    for moment in ("before", "after"):
        values = data.kernel_values.sel(moment=moment).values
        share = values / values.sum()
        kernel.loglog(_ordinal(share), np.where(share > 1e-12, share, np.nan), c=COLORS[moment], label=moment)
        rank = float(data.kernel_rank.sel(moment=moment, power=1))
        kernel.axvline(rank, c=COLORS[moment], ls=":", lw=1)
    kernel.set(xlabel="mode", ylabel="share of the trace", title="K over trials and times")
    kernel.legend()
    _pairs(top, data, "propagator_top", "mode", style="o-")
    top.set(ylabel="singular value", title="P, largest")
    _pairs(over_time, data, "propagator_time_values", "mode")
    over_time.set(ylabel="singular value", title="P over time")
    for axis, name in zip(axes[0], "abc", strict=True):
        letter(axis, name)
    return fig


def _dynamics(data: "xr.Dataset") -> "Figure":
    fig, axes = figure(1, 2, width=7.0, height=2.6)
    left, right = axes[0]
    for moment in ("before", "after"):
        exponents = data.exponents.sel(moment=moment).values
        finite = np.where(np.isfinite(exponents), exponents, np.nan)
        left.plot(_ordinal(finite.T), finite.T, c=COLORS[moment], lw=0.6, alpha=0.4)
        left.plot(_ordinal(finite.T), np.median(finite, axis=0), c=COLORS[moment], label=moment)
        share = np.cumsum(data.variances.sel(moment=moment).values)
        if share[-1] > 0:
            right.plot(_ordinal(share), share / share[-1], ".-", c=COLORS[moment], label=moment)
    left.axhline(0, c=VERMILION, ls=":", lw=1)
    left.set(xlabel="exponent", ylabel="per step", title="Lyapunov exponents")
    left.legend()
    right.axhline(float(data.attrs["fraction"]), c=VERMILION, ls=":", lw=1)
    most = int(np.clip(3 * data.activity_components.max(), 5, data.sizes["component"]))
    right.set(
        xlabel="principal component",
        ylabel="share of the variance",
        title="activity",
        ylim=(0, 1.02),
        xlim=(0.5, most + 0.5),
    )
    if right.get_legend_handles_labels()[0]:
        right.legend(loc="lower right")
    else:
        right.annotate("the activity does not vary", (0.5, 0.5), xycoords="axes fraction", ha="center")
    letter(left, "a")
    letter(right, "b")
    return fig
