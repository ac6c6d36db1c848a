"""Figure S3: all singular values of the weight change, on a logarithmic scale."""

from collections.abc import Iterator

import numpy as np

from ...engine import Claim, Grid, Study
from .._style import GREY, figure, letter, shades
from ._linear import learning_curves

# Exact arithmetic, infinite width, target 2, g = 0.6, after convergence.
LIMIT = (0.4281, 0.03211, 3.6e-4, 1.8e-6, 5.4e-9)


class SmallSingularValues(Study):
    """Five singular values of the weight change during learning: simulation, third order, infinite width."""

    source = "schuessler2020/figS3"
    presets = {
        "quick": Grid(target=[0.5, 2.0], g=[0.0, 0.6], neurons=256, seed=0),
        "paper": Grid(target=[0.5, 2.0], g=[0.0, 0.6], neurons=1024, seed=range(5)),
    }
    expected = {"quick": 25.0, "paper": 2400.0}

    def compute(self, target, g, neurons, seed):
        variables, _, _ = learning_curves(target, g, neurons, seed)
        return variables

    def draw(self, data):
        fig, axes = figure(3, 2, width=6.4, height=6.0, sharex="col", sharey="row")
        data = data.isel(neurons=0)
        colors = shades(5)
        for j, target in enumerate(data.target.values):
            for g, style in zip(data.g.values, ("-", "--"), strict=False):
                one = data.sel(target=target, g=g).isel(seed=0)
                axes[0, j].plot(one.effective_time, one.loss, color=GREY, ls=style, label=f"$g$ = {g:g}")
            axes[0, j].set_title(f"target {target:g}", fontsize=9)
            axes[0, j].set_ylabel("loss $L/L_0$" if j == 0 else "")
            for i, g in enumerate(data.g.values):
                ax, one = axes[1 + i, j], data.sel(target=target, g=g).isel(seed=0)
                for mode, color in zip(data.mode.values, colors, strict=True):
                    # A logarithmic axis has no place for the zero before learning.
                    simulated = np.maximum(one["values"].sel(mode=mode), 1e-22)[1:]
                    ax.semilogy(one.snapshot_time[1:], simulated, color=color, label=f"$s_{mode}$")
                    exact = np.maximum(one.limit_values.sel(mode=mode), 1e-22)[1:]
                    ax.semilogy(one.snapshot_time[1:], exact, color="k", ls=":", lw=1)
                    if mode <= 2:
                        third = one.third_values.sel(pair=mode)[1:]
                        ax.semilogy(one.snapshot_time[1:], third, color=color, ls="--")
                ax.set(ylim=(1e-18, 3), ylabel=f"singular values, $g$ = {g:g}" if j == 0 else "")
            axes[2, j].set_xlabel("effective learning time $\\tilde\\tau$")
        axes[0, 0].legend(fontsize=7)
        axes[1, 0].plot([], [], color=GREY, ls="--", label="third order")
        axes[1, 0].plot([], [], color="k", ls=":", label="$N = \\infty$")
        axes[1, 0].legend(ncols=2, loc="center right", fontsize=7)
        for ax, name in zip(axes.ravel(), "abcdef", strict=True):
            letter(ax, name)
        return fig

    def claims(self, data) -> Iterator[Claim]:
        data = data.isel(neurons=0)
        final = data["values"].isel(snapshot=-1)
        yield Claim(
            "Without initial weights the change has rank two: the third singular value is zero",
            measured=float(final.sel(g=0.0, mode=3).max()),
            at_most=1e-6,
            source="Fig. S3(c,d)",
            note="Here in double precision; single precision leaves noise of up to 1e-6.",
        )
        third = final.sel(g=0.6, mode=3)
        yield Claim(
            "With initial weights a third singular value appears",
            measured=float(third.min()),
            at_least=1e-6,
            at_most=1e-3,
            source="Fig. S3(e,f)",
        )
        yield Claim(
            "and stays small",
            measured=float(third.max()),
            at_least=1e-6,
            at_most=1e-3,
            source="Fig. S3(e,f)",
        )
        yield Claim(
            "The fourth singular value is much smaller than the third",
            measured=float((final.sel(g=0.6, mode=4) / third).max()),
            at_most=0.1,
            source="Fig. S3(e,f)",
        )
        exact = data.converged_values.sel(target=2.0, g=0.6).isel(seed=0)
        yield Claim(
            "At infinite width, target 2 and g = 0.6 the singular values end at 0.4281, 0.03211, 3.6e-4, "
            "1.8e-6 and 5.4e-9",
            measured=float(np.max(np.abs(exact.values / np.array(LIMIT) - 1))),
            at_most=0.03,
            source="Fig. S3(f)",
            note="Largest relative distance; the digits quoted allow 3 %.",
        )
