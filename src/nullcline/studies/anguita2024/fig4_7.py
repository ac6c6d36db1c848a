"""Figure 4.7: the rate of the loss, exact and from descent."""

from collections.abc import Iterator

import numpy as np

from ...engine import Claim, Grid, Study
from .._lazy import jnp, jr
from .._style import BLACK, BLUE, GREY, figure
from ._common import linear, sweep

SIZE, SAMPLES, RATE = 5, 10, 0.01


class RateOfLoss(Study):
    """Rate of the loss along training at λ = 5: exact, and as differences of descent."""

    source = "anguita2024/fig4.7"
    presets = {
        "quick": Grid(lam=5.0, steps=1000, seed=range(10)),
        "paper": Grid(lam=5.0, steps=1000, seed=range(40)),
    }
    expected = {"quick": 7, "paper": 8}
    vectorized = ("seed",)

    def compute(self, lam, steps, seed):
        def draw(seed):
            task_key, key = jr.split(jr.fold_in(jr.key(47), seed))
            task = linear.random_regression(SIZE, SIZE, SAMPLES, key=task_key)
            return linear.lambda_balanced(SIZE, SIZE, SIZE, lam=lam, key=key), task

        def run(seed, network, task):
            exact = linear.exact_flow(network, task, RATE * jnp.arange(steps + 1.0))
            descent = linear.gradient_descent(network, task, learning_rate=RATE, steps=steps)
            return {
                "exact": linear.loss_rate(exact, task)[:-1],
                "descent": jnp.diff(linear.loss(descent, task)) / RATE,
            }

        found = sweep(draw, run, seed)
        return {
            "step": ("step", np.arange(steps)),
            **{name: (("seed", "step"), values) for name, values in found.items()},
        }

    def draw(self, data):
        one = data.isel(seed=0, lam=0, steps=0)
        fig, axes = figure(1, 2, width=6.4, height=2.5)
        for ax in axes[0]:
            ax.plot(one.step, one.descent, color=BLUE, lw=2, label="descent, ΔL/η")
            ax.plot(one.step, one.exact, color=BLACK, ls=":", lw=1.5, label="exact, dL/dt")
            ax.axhline(0, color=GREY, lw=0.5)
            ax.set(xlabel="training step", ylabel="rate of the loss")
        axes[0, 0].legend(loc="lower right")
        axes[0, 0].set_title(f"λ = {float(one.lam):g}")
        axes[0, 1].set(xlim=(-0.5, 20.5), title="the first 20 steps")
        return fig

    def claims(self, data) -> Iterator[Claim]:
        start = np.abs(data.exact.isel(step=0))
        gap = np.abs(data.descent - data.exact) / start
        late = gap.sel(step=slice(20, None))
        yield Claim(
            "The rate of the loss converges to 0",
            measured=(np.abs(data.exact.isel(step=-1)) / start).max(),
            at_most=1e-6,
            source="Figure 4.7",
            note="Last rate over the first, the largest of all draws.",
        )
        yield Claim(
            "The loss never grows: its rate is at most 0 throughout",
            measured=data.exact.max(),
            at_most=0,
            source="Section 4.4",
        )
        yield Claim(
            "Analytical and empirical rates match exactly",
            measured=gap.isel(step=0).mean(),
            at_least=0.05,
            at_most=0.2,
            source="Figure 4.7",
            erratum="Differences of descent divided by η differ from the rate by O(η), about 11 % at step 0.",
            note=f"Relative difference at step 0, mean over draws; {float(gap.isel(step=0).min()):.3f} to "
            f"{float(gap.isel(step=0).max()):.3f}.",
        )
        yield Claim(
            "After 20 steps the rates differ by less than 1 % of the initial rate",
            measured=late.max(),
            at_most=0.01,
            source="Figure 4.7",
            note=f"Largest of all draws; their mean is {float(late.max('step').mean()):.4f}.",
        )
