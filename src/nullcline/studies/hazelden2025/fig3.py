"""Figure 3: effective ranks of K, P and P K P* of untrained networks."""

from collections.abc import Iterator

import numpy as np

from ...engine import Claim, Grid, Study
from .. import _style as style
from .._lazy import xr
from ._memory import Setup, flow_of, operator_spectra, rank_of, share_of_modes
from ._panels import first_setting

OPERATORS = ("K", "P", "PKP*")
SHOWN = 30
COLORS = {"K": style.BLUE, "P": style.VERMILION, "PKP*": style.GREEN}
LABELS = {"K": "K, (trial, time)", "P": "P, time", "PKP*": "PKP*, time"}


class OperatorRanks(Study):
    """Cumulative spectra of K, P and P K P* before training, and their effective ranks against g."""

    source = "hazelden2025/fig3"
    presets = {
        "quick": Grid(
            scale="text", g=[0.5, 1.0, 1.33, 2.0, 3.0], hidden=128, period=10, trials=10, seed=range(3)
        ),
        "paper": Grid(
            scale="text", g=[0.5, 1.0, 1.33, 1.7, 2.0, 2.33, 3.0], hidden=256, period=30, trials=10,
            seed=range(5),
        ),
    }  # fmt: skip
    vectorized = ("seed",)
    expected = {"quick": 18.0, "paper": 300.0}

    def compute(self, scale, g, hidden, period, trials, seed):
        """Spectra of the untrained networks of one g."""
        setup = Setup("tanh", scale, hidden, period)
        count = len(seed)
        rank, size = np.zeros((count, 3, 2)), np.zeros(3)
        curve = np.ones((count, 3, 2, SHOWN))
        full = np.zeros(count)
        for i, one in enumerate(seed):
            flow = flow_of(setup.network(g, one), setup.task, trials)
            for j, (_, values) in enumerate(operator_spectra(flow).items()):
                size[j] = len(values)
                for power in (1, 2):
                    weights = values**power
                    rank[i, j, power - 1] = rank_of(values, power)
                    curve[i, j, power - 1] = (np.cumsum(weights) / weights.sum())[:SHOWN]
            full[i] = share_of_modes(flow)
        return xr.Dataset(
            {
                "rank": (("seed", "operator", "power"), rank),
                "curve": (("seed", "operator", "power", "mode"), curve),
                "full": ("seed", full),
                "size": ("operator", size),
            },
            coords={
                "seed": list(seed), "operator": list(OPERATORS), "power": [1, 2],
                "mode": np.arange(1, SHOWN + 1),
            },
        )  # fmt: skip

    def draw(self, data):
        """Three cumulative spectra at g = 1, and the ranks as shares of their dimension against g."""
        scale = data.scale.values[0].item()
        data = first_setting(data)
        fig, axes = style.figure(1, 4, width=10.2, height=2.7)
        one = data.sel(g=1.0, method="nearest")
        for panel, name in zip(axes[0, :3], OPERATORS, strict=True):
            mine = one.sel(operator=name)
            # Eigenvalues of PP* are the squared singular values of P: power 2 of P in the usual counting.
            powers = ((1, "-"),) if name == "P" else ((1, "-"), (2, "--"))
            for power, look in powers:
                curve = mine.curve.sel(power=power)
                rank = float(mine["rank"].sel(power=power).median())
                label = "squared singular values" if name == "P" else f"power {power}"
                panel.plot(
                    data.mode, curve.median("seed"), look, color=COLORS[name], label=f"{label}: {rank:g}"
                )
                panel.fill_between(
                    data.mode, curve.min("seed"), curve.max("seed"), color=COLORS[name], alpha=0.2
                )
            panel.axhline(0.95, color=style.BLACK, lw=0.6, ls=":")
            panel.set(ylim=(0, 1.03), xlabel="modes", title=LABELS[name])
            panel.legend(frameon=False, fontsize=6, title="effective rank", title_fontsize=6)
        axes[0, 0].set_ylabel("cumulative share")
        panel = axes[0, 3]
        for name in OPERATORS:
            share = data["rank"].sel(operator=name, power=1).median("seed") / data["size"].sel(operator=name)
            panel.plot(data.g, share, ".-", color=COLORS[name], label=LABELS[name])
        panel.plot(data.g, data.full.median("seed"), ".--", color=COLORS["P"], label="P, full space")
        panel.set(yscale="log", xlabel="g  (text)", ylabel="rank / dimension", title="untrained, power 1")
        panel.legend(frameon=False, fontsize=6)
        for panel, text in zip(axes[0], "ABC ", strict=True):
            style.letter(panel, text.strip())
        fig.suptitle(f"Untrained networks, g = 1 in A–C; g of the {scale}", fontsize=9)
        return fig

    def claims(self, data) -> Iterator[Claim]:
        """Observation 3.1; medians over seeds, ranks as shares of the dimension."""
        data = first_setting(data)
        share = (data["rank"] / data["size"]).median("seed")
        full = data.full.median("seed")
        one = share.sel(g=1.0)
        yield Claim(
            "g = 1: P is high rank (over time)",
            measured=float(one.sel(operator="P", power=1)),
            at_least=0.85,
            source="Fig. 3B",
            note="effective rank of squared singular values over the number of steps",
        )
        yield Claim(
            "g = 1: P is high rank (in the full space)",
            measured=float(full.sel(g=1.0)),
            at_least=0.5,
            source="Fig. 3B",
            note="effective rank of squared singular values over the dimension",
        )
        for power, bound in ((1, 0.05), (2, 0.01)):
            yield Claim(
                f"g = 1: K is very low rank (power {power})",
                measured=float(one.sel(operator="K", power=power)),
                at_most=bound,
                source="Fig. 3A",
                note="effective rank over the number of (trial, time) pairs",
            )
        for power, bound in ((1, 0.5), (2, 0.2)):
            yield Claim(
                f"g = 1: P K P* is low rank (power {power})",
                measured=float(one.sel(operator="PKP*", power=power)),
                at_most=bound,
                source="Fig. 3C",
                note="effective rank over the number of steps",
            )
        collapse = "In chaos P collapses onto its few exploding directions, and K has the higher rank."
        deep = share.isel(g=-1)
        yield Claim(
            "P is high rank for any g",
            measured=float(deep.sel(operator="P", power=1)),
            at_most=0.5,
            source="Observation 3.1",
            erratum=collapse,
            note=f"untrained, g = {float(deep.g):g}: rank over time over the number of steps; in the "
            f"full space {100 * float(full.isel(g=-1)):.2g} % of the dimension",
        )
        yield Claim(
            "K is significantly low rank relative to P, regardless of g",
            measured=float(deep.sel(operator="K", power=1) / full.isel(g=-1)),
            at_least=1,
            source="Observation 3.1",
            erratum=collapse,
            note=f"untrained, g = {float(deep.g):g}: share of K (power 1) over that of P in the full space",
        )
