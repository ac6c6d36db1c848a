"""Figure 4.3: the course of the loss on the semantic task."""

import functools
from collections.abc import Iterator

import numpy as np

from ...engine import Claim, Grid, Study
from .._lazy import jax
from .._style import PALETTE, figure
from ._common import descend, linear, recorded
from ._semantic import RATE, ZERO, draws

INITS = ["Gaussian small", "Gaussian large", ZERO, "λ = 10", "λ = -10", "λ = 100", "λ = -100"]
SAMPLES, SMALLEST = 8, np.sqrt(2)
# Loss at which rounding stops the descent, in the sense of the flat end of the curves.
FLOOR = 1e-26


def first_below(loss, level: float):
    """First recorded step with a loss below ``level``, for every draw; NaN where there is none."""
    is_below = loss < level
    return loss.step[is_below.argmax("step")].where(is_below.any("step"))


def _stages(steps: int) -> tuple[tuple[int, int], ...]:
    """Every step up to 1000, then every tenth."""
    return ((steps, 1),) if steps <= 1000 else ((1000, 1), ((steps - 1000) // 10 * 10, 10))


@functools.cache
def _descent(steps: int):
    """Losses of a batch of networks; compiled once for all initializations."""
    task = linear.semantic_hierarchy()

    def run(network):
        return linear.loss(descend(network, task, RATE, _stages(steps)), task)

    return jax.jit(jax.vmap(run))


class LossCurves(Study):
    """Loss on the semantic task for seven initializations, on a logarithmic axis."""

    source = "anguita2024/fig4.3"
    presets = {
        "quick": Grid(init=INITS, steps=12_000, seed=range(4)),
        "paper": Grid(init=INITS, steps=20_000, seed=range(20)),
    }
    expected = {"quick": 2, "paper": 7}
    vectorized = ("seed",)

    def compute(self, init, steps, seed):
        return {
            "step": ("step", recorded(_stages(steps))),
            "loss": (("seed", "step"), _descent(steps)(draws(init, seed))),
        }

    def draw(self, data):
        fig, axes = figure(1, 2, width=7.4, height=2.6, sharey=True)
        for ax, last in zip(axes[0], (1000, int(data.step.max())), strict=True):
            for init, color, style in zip(data.init.values, PALETTE, "----:-:", strict=False):
                one = data.loss.sel(init=init, step=slice(None, last)).isel(seed=0, steps=0)
                ax.semilogy(
                    one.step,
                    np.maximum(one, 1e-32),
                    color=color,
                    ls=style,
                    label=str(init).replace(" -", " −"),
                )
            ax.set(xlabel="training step")
        axes[0, 0].set_ylabel("loss")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        fig.legend(handles, labels, loc="outside right center")
        return fig

    def claims(self, data) -> Iterator[Claim]:
        loss = data.loss.isel(steps=0)
        reached = first_below(loss, 1e-6)
        mean = reached.mean("seed", skipna=False)
        tens, hundreds = ["λ = 10", "λ = -10"], ["λ = 100", "λ = -100"]
        slow = ["Gaussian small", "Gaussian large", ZERO]
        yield Claim(
            "Higher |λ| leads to faster convergence: |λ| = 100 before |λ| = 10 before 0 and Gaussian weights",
            measured=max(
                float(
                    reached.sel(init=hundreds).max(skipna=False) / reached.sel(init=tens).min(skipna=False)
                ),
                float(reached.sel(init=tens).max(skipna=False) / reached.sel(init=slow).min(skipna=False)),
            ),
            at_most=0.5,
            source="Figure 4.3",
            note="Steps to a loss of 1e-6: the slowest of a group over the fastest of the next. Means: "
            + ", ".join(
                f"{str(i).replace(' -', ' −')}: {float(mean.sel(init=i)):.0f}" for i in data.init.values
            ),
        )
        for inits, low, high in ((tens, 576, 638), (hundreds, 60, 68)):
            yield Claim(
                f"Steps to a loss of 1e-6 at {inits[0].replace('λ', '|λ|')}",
                measured=mean.sel(init=inits).mean(skipna=False),
                at_least=low,
                at_most=high,
                source="Figure 4.3",
            )
        worst, rates = 0.0, {}
        for init in [ZERO, *tens, *hundreds]:
            lam = 0.0 if init == ZERO else float(init.removeprefix("λ = "))
            expected = 2 * np.log1p(-RATE / SAMPLES * np.sqrt(lam**2 + 4 * SMALLEST**2))
            for one in loss.sel(init=init).transpose("seed", "step").values:
                inside = (one < 1e-8) & (one > 1e-20)
                slope = np.nan
                if inside.sum() > 2:
                    slope = np.polyfit(data.step.values[inside], np.log(one[inside]), 1)[0]
                worst = np.maximum(worst, abs(slope / expected - 1))
                rates.setdefault(init, []).append(-np.expm1(slope / 2) * SAMPLES / RATE / max(abs(lam), 1))
        yield Claim(
            "For large |λ| the log loss is a line of constant slope: 2 log(1 − (η/8)√(λ² + 4 s_min²)) "
            "per step",
            measured=float(worst),
            at_most=0.03,
            source="Figure 4.3",
            note="Largest relative difference of the slope between 1e-8 and 1e-20, all draws, λ = 0, "
            "±10, ±100.",
        )
        yield Claim(
            "For large |λ| the rate of learning is |λ|/2",
            measured=float(np.mean([rates[init] for init in hundreds])),
            at_least=0.97,
            at_most=1.03,
            source="Section 4.3",
            erratum="The amplitude decays at the rate |λ|, and the loss at 2|λ|; it is linear in |λ|, "
            "not exponential.",
            note="Rate of the amplitude at λ = ±100, from its shrinking in one step, over |λ|.",
        )
        ends = {
            name: first_below(loss.sel(init=group), FLOOR)
            for name, group in (("10", tens), ("100", hundreds))
        }
        yield Claim(
            "The curves of λ = ±10 reach their floor after about 250 steps",
            measured=ends["10"].min(skipna=False),
            at_least=1500,
            source="Figure 4.3",
            erratum="The curves plotted as ±10 are those of λ = ±100.",
            note=f"Steps to a loss of {FLOOR:g} at λ = ±10, the smallest of all draws; at λ = ±100 "
            f"{float(ends['100'].min()):.0f} to {float(ends['100'].max()):.0f}.",
        )
