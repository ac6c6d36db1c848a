"""Figure S10: the Lyapunov dimension against g, and what float32 makes of it."""

import warnings
from collections.abc import Iterator

import numpy as np

from ...engine import Claim, Grid, Study
from .. import _style as style
from .._lazy import jnp, lazily
from ._memory import Setup, flow_of

operators = lazily("nullcline.operators")

PAPER_SIZE = 256


class LyapunovDimension(Study):
    """Kaplan–Yorke dimension of untrained networks, by QR in float64 and by the product in float32."""

    source = "hazelden2025/figS10"
    presets = {
        "quick": Grid(
            scale=["text", "code"], g=[1.33, 1.5, 2.0, 2.33, 3.0], hidden=256, period=30, trials=1,
            seed=range(1),
        ),
        "paper": Grid(
            scale=["text", "code"], g=[round(0.25 * k, 2) for k in range(1, 13)] + [1.33, 2.33], hidden=256,
            period=30, trials=3, seed=range(5),
        ),
    }  # fmt: skip
    vectorized = ("seed",)
    expected = {"quick": 13.0, "paper": 250.0}

    def compute(self, scale, g, hidden, period, trials, seed):
        """Dimensions of the networks of one g."""
        setup = Setup("tanh", scale, hidden, period)
        # The dimension stays below half of the units: so many exponents are enough, and cost a quarter.
        count = hidden // 2
        exact, product, components = np.zeros((3, len(seed)))
        for i, one in enumerate(seed):
            cell = setup.network(g, one)
            flow = flow_of(cell, setup.task)
            components[i] = operators.activity_dimension(flow.states)
            some = flow.take(jnp.arange(trials))
            dimensions = np.asarray(operators.kaplan_yorke(operators.lyapunov(some, count)))
            if np.any(dimensions >= count):
                dimensions = np.asarray(operators.kaplan_yorke(operators.lyapunov(some)))
            exact[i] = dimensions.mean()
            single = operators.linearize(cell, setup.task.grid(trials, dtype=jnp.float32).inputs)
            with warnings.catch_warnings():
                # That the range of float32 is exceeded is what this figure shows.
                warnings.filterwarnings("ignore", "The finite-time exponents spread")
                exponents = operators.finite_time_exponents(single).exponents
            product[i] = np.mean(operators.kaplan_yorke(exponents))
        return {"exact": exact, "product": product, "components": components}

    def draw(self, data):
        """Dimensions by both ways, for both meanings of g."""
        hidden = int(data.hidden[0])
        data = data.isel(hidden=0, period=0, trials=0).sortby("g")
        fig, axes = style.figure(1, 2, width=6.4, height=2.7)
        for scale, look in (("text", "-"), ("code", "--")):
            one = data.sel(scale=scale)
            ways = (
                ("exact", style.BLUE, "QR, float64"),
                ("product", style.VERMILION, "product, float32"),
            )
            for name, color, label in ways:
                values = one[name]
                axes[0, 0].plot(
                    data.g, values.mean("seed"), f".{look}", color=color, label=f"{label}, {scale}"
                )
                axes[0, 0].fill_between(
                    data.g, values.min("seed"), values.max("seed"), color=color, alpha=0.2, lw=0
                )
            axes[0, 1].plot(
                data.g, one.components.mean("seed"), f".{look}", color=style.BLACK, label=f"g of the {scale}"
            )
        axes[0, 0].axhline(hidden, color=style.GREY, lw=0.6, ls=":")
        axes[0, 0].set(xlabel="g", ylabel="Kaplan–Yorke dimension", ylim=(-10, 1.45 * hidden))
        axes[0, 1].set(xlabel="g", ylabel="PCs for 95 % of variance")
        for panel in axes[0]:
            panel.legend(frameon=False, fontsize=6, loc="upper left")
        fig.suptitle(f"Untrained networks of {hidden} units on memory-pro, g of text and code", fontsize=9)
        return fig

    def claims(self, data) -> Iterator[Claim]:
        """Figure S10 and its erratum; means over seeds, known for the document's size."""
        if int(data.hidden[0]) != PAPER_SIZE:
            return
        data = data.isel(hidden=0, period=0, trials=0).mean("seed")
        text, code = data.sel(scale="text"), data.sel(scale="code")
        wrong = (
            "The float32 product of Jacobians leaves only rounding noise in the small exponents; QR in "
            "float64 gives 78 at g = 3 of 256."
        )
        yield Claim(
            "g = 3 leads to a maximal Lyapunov dimension of 256, the number of units",
            measured=float(text.exact.sel(g=3.0)),
            at_least=65,
            at_most=90,
            source="Fig. S10",
            erratum=wrong,
            note="by QR in float64, W ~ N(0, g²/N)",
        )
        yield Claim(
            "the document's 256 is what the float32 SVD of the product of Jacobians gives",
            measured=float(text.product.sel(g=3.0)),
            at_least=240,
            source="Fig. S10",
            note="g = 3 of the text",
        )
        for g, low, high in ((1.33, 0, 1), (1.5, 15, 40), (2.0, 50, 75), (2.33, 60, 85)):
            yield Claim(
                f"the Lyapunov dimension grows with g: g = {g:g} of the text",
                measured=float(text.exact.sel(g=g)),
                at_least=low,
                at_most=high,
                source="Fig. S10",
                note="by QR in float64",
            )
        yield Claim(
            "with the initialisation of the code chaos is weaker: its g = 3",
            measured=float(code.exact.sel(g=3.0)),
            at_least=25,
            at_most=50,
            source="Fig. S10",
            note="by QR in float64, W = g·U(±1/√N)",
        )
        yield Claim(
            "W ~ N(0, g²/N): before training, g = 2.33 requires around 40 PCs",
            measured=float(text.components.sel(g=2.33)),
            at_least=80,
            source="Fig. 2E, G",
            erratum="The figures have the g of the code, g·U(±1/√N): there the states need about 31 PCs; "
            "with N(0, g²/N) they need about 115.",
            note=f"PCs with the g of the text; with that of the code {float(code.components.sel(g=2.33)):g}",
        )
        yield Claim(
            "g·U(±1/√N): before training, g = 2.33 requires around 40 PCs",
            measured=float(code.components.sel(g=2.33)),
            at_least=20,
            at_most=50,
            source="Fig. 2E, G",
        )
