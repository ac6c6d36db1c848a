"""Figure 4.4: training steps to convergence on the semantic task against λ."""

from collections.abc import Iterator

import numpy as np

from ...engine import Claim, Grid, Study
from .._lazy import jnp, jr
from .._style import BLACK, BLUE, VERMILION, figure
from ._common import linear, sweep
from ._semantic import RATE

SMALLEST = np.sqrt(2)
TOLERANCE = 1e-3


def balances(count: int) -> list[float]:
    """λ from −20 to −1 and from 1 to 20, spaced logarithmically on each side."""
    side = np.geomspace(1, 20, count)
    return [*(-side[::-1]), *side]


def fits(lam: np.ndarray, steps: np.ndarray) -> dict[str, tuple[tuple[float, ...], np.ndarray]]:
    """Fits on |λ| > 5: A·exp(−b|λ|), and c / √(λ² + 4 s_min²); parameters, and the curve over all λ."""
    from scipy.optimize import curve_fit

    size = np.abs(lam)
    high = size > 5
    (scale, rate), _ = curve_fit(lambda x, a, b: a * np.exp(-b * x), size[high], steps[high], p0=(700, 0.08))
    k = np.sqrt(lam**2 + 4 * SMALLEST**2)
    c = np.sum(steps[high] / k[high]) / np.sum(1 / k[high] ** 2)
    return {"exponential": ((scale, rate), scale * np.exp(-rate * size)), "hyperbola": ((c,), c / k)}


class StepsToConvergence(Study):
    """Training steps until the mean squared error is below 1e-3, against λ."""

    source = "anguita2024/fig4.4"
    presets = {
        "quick": Grid(lam=balances(12), steps=2500, seed=range(3)),
        "paper": Grid(lam=balances(40), steps=2500, seed=range(10)),
    }
    expected = {"quick": 4, "paper": 5}
    vectorized = ("lam", "seed")
    may_be_nan = ("reached",)

    def compute(self, lam, steps, seed):
        task = linear.semantic_hierarchy()

        def draw(lam, seed):
            return (linear.lambda_balanced(8, 8, 8, lam=lam, key=jr.fold_in(jr.key(44), seed)),)

        def run(lam, seed, network):
            descent = linear.gradient_descent(network, task, learning_rate=RATE, steps=steps)
            # The loss is ‖W2W1 − Y‖²/16, the mean squared error ‖W2W1 − Y‖²/64.
            is_below = linear.loss(descent, task) / 4 < TOLERANCE
            return {"reached": jnp.where(is_below.any(), jnp.argmax(is_below).astype(float), jnp.nan)}

        return sweep(draw, run, lam, seed, batch=20)

    def draw(self, data):
        data = data.isel(steps=0)
        mean, spread = data.reached.mean("seed"), data.reached.std("seed")
        fig, axes = figure(1, 1, width=3.8, height=2.8)
        ax = axes[0, 0]
        ax.errorbar(data.lam, mean, spread, fmt="o", ms=3, color=BLUE, label="gradient descent")
        found = fits(data.lam.values, mean.values)
        (scale, rate), curve = found["exponential"]
        (c,), other = found["hyperbola"]
        for side in (data.lam.values < 0, data.lam.values > 0):
            x = data.lam.values[side]
            is_first = x[0] < 0
            label = rf"${scale:.0f}\,e^{{-{rate:.3f}|\lambda|}}$" if is_first else None
            ax.plot(x, curve[side], color=VERMILION, label=label)
            label = rf"${c:.0f}\,/\sqrt{{\lambda^2 + 4s_{{\min}}^2}}$" if is_first else None
            ax.plot(x, other[side], "--", color=BLACK, label=label)
        ax.set(xlabel="λ", ylabel="training steps to convergence", ylim=(0, None))
        ax.legend(loc="upper right")
        return fig

    def claims(self, data) -> Iterator[Claim]:
        reached = data.reached.isel(steps=0)
        lam, mean = data.lam.values, reached.mean("seed").values
        found = fits(lam, mean)
        (scale, rate), curve = found["exponential"]
        (c,), other = found["hyperbola"]
        high = np.abs(lam) > 5

        def rms(values):
            return float(np.sqrt(np.mean(values**2)))

        yield Claim(
            "Every network converges",
            measured=float(np.isnan(reached).sum()),
            at_most=0,
            source="Figure 4.4",
            note=f"Number of {reached.size} networks that do not; means from {mean.min():.0f} to "
            f"{mean.max():.0f} steps.",
        )
        yield Claim(
            "The exponential through the steps at |λ| > 5 starts at 728",
            measured=scale,
            at_least=690,
            at_most=765,
            source="Figure 4.4",
        )
        yield Claim(
            "The exponential through the steps at |λ| > 5 has the rate −0.08",
            measured=-rate,
            at_least=-0.085,
            at_most=-0.075,
            source="Figure 4.4",
        )
        yield Claim(
            "For |λ| > 5 the steps fall exponentially with |λ|",
            measured=rms(mean[high] - other[high]) / rms(mean[high] - curve[high]),
            at_most=1,
            source="Section 4.3",
            erratum="The steps are c/√(λ² + 4 s_min²): the rate of learning is linear in |λ|.",
            note=f"Root mean square error of c/√(λ² + 4 s_min²), c = {c:.0f}, over that of the "
            "exponential, on |λ| > 5: "
            f"{rms(mean[high] - other[high]):.1f} against {rms(mean[high] - curve[high]):.1f} steps; over "
            "all λ "
            f"{rms(mean - other):.0f} against {rms(mean - curve):.0f}.",
        )
