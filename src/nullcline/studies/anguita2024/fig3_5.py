"""Figure 3.5: accuracy of the exact solution against λ."""

from collections.abc import Iterator

import numpy as np

from ...engine import Claim, Grid, Study
from ._deviation import deviations, draw_deviation, larger_deviate_more, listed


class DeviationByBalance(Study):
    """Deviation of descent from the exact loss against λ, at learning rate 1e-4."""

    source = "anguita2024/fig3.5"
    presets = {
        "quick": Grid(
            width=[3, 5, 10, 20], lam=np.geomspace(0.01, 100, 9), rate=1e-4, steps=200, seed=range(6)
        ),
        "paper": Grid(
            width=[3, 5, 10, 20], lam=np.geomspace(0.01, 100, 13), rate=1e-4, steps=200, seed=range(40)
        ),
    }
    expected = {"quick": 10, "paper": 40}
    vectorized = ("lam", "seed")

    def compute(self, width, lam, rate, steps, seed):
        return deviations(width, lam, np.full(lam.shape, rate), seed, steps)

    def draw(self, data):
        return draw_deviation(data.isel(rate=0, steps=0), "lam", "λ")

    def claims(self, data) -> Iterator[Claim]:
        mean = data.isel(rate=0, steps=0).deviation.mean("seed")
        ten, hundred = mean.sel(lam=10, method="nearest"), mean.sel(lam=100, method="nearest")
        low = mean.where(mean.lam <= ten.lam * (1 + 1e-9), drop=True)
        yield Claim(
            "Below λ ≈ 10 the deviation hardly depends on λ",
            measured=((low.max("lam") - low.min("lam")) / (hundred - ten)).max(),
            at_most=0.1,
            source="Figure 3.5",
            note="Range of the means over λ ≤ 10 relative to the rise from 10 to 100, for the worst size.",
        )
        yield Claim(
            "Beyond λ ≈ 10 the deviation rises with λ",
            measured=(hundred / ten).min(),
            at_least=4,
            source="Figure 3.5",
            note=f"Deviation at λ = 100 over that at 10, for N = {listed(hundred / ten)}.",
        )
        yield from larger_deviate_more(mean, "Figure 3.5")
