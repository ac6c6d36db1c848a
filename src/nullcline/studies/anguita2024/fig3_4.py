"""Figure 3.4: accuracy of the exact solution against the learning rate."""

from collections.abc import Iterator

import numpy as np

from ...engine import Claim, Grid, Study
from ._deviation import deviations, draw_deviation, larger_deviate_more, listed


class DeviationByLearningRate(Study):
    """Deviation of descent from the exact loss against the learning rate, at λ = 3."""

    source = "anguita2024/fig3.4"
    presets = {
        "quick": Grid(
            width=[5, 10, 15, 20], rate=np.geomspace(1e-4, 1e-2, 5), lam=3.0, steps=200, seed=range(6)
        ),
        "paper": Grid(
            width=[5, 10, 15, 20, 25], rate=np.geomspace(1e-4, 1e-2, 9), lam=3.0, steps=200, seed=range(40)
        ),
    }
    expected = {"quick": 33, "paper": 90}
    vectorized = ("rate", "seed")

    def compute(self, width, rate, lam, steps, seed):
        return deviations(width, np.full(rate.shape, lam), rate, seed, steps)

    def draw(self, data):
        return draw_deviation(data.isel(lam=0, steps=0), "rate", "learning rate η")

    def claims(self, data) -> Iterator[Claim]:
        data = data.isel(lam=0, steps=0)
        mean = data.deviation.mean("seed")
        yield Claim(
            "The average deviation remains below 0.05 for learning rates up to 0.01",
            measured=np.abs(mean).max(),
            at_most=0.05,
            source="Figure 3.4",
            note="Mean over trials, the largest of all sizes and rates; the mean absolute deviation reaches "
            f"{float(data.absolute.mean('seed').max()):.4f}.",
        )
        yield from larger_deviate_more(mean, "Figure 3.4")
        low, middle, high = (mean.sel(rate=10.0**power, method="nearest") for power in (-3.5, -2.5, -2))
        yield Claim(
            "The average deviation increases with the learning rate",
            measured=(high / middle).max(),
            at_most=1.5,
            source="Figure 3.4",
            erratum="It grows with η up to about 1e-3 and saturates beyond 2e-3.",
            note="Deviation at η = 0.01 over that at η = 0.0032, the largest of all sizes. From η = "
            "0.0001 to 0.00032 "
            f"it grows by, N = {listed(low / mean.isel(rate=0))}.",
        )
