"""Figure 4.5: how task specific the representations are, against λ."""

from collections.abc import Iterator

import numpy as np

from ...engine import Claim, Grid, Study
from .._lazy import jnp, jr
from .._style import BLUE, VERMILION, figure
from ._common import linear, match_sign, signed, sweep

LATE = 1e9
LIMIT = 1000.0


def balances(count: int) -> list[float]:
    """``count`` values of λ on [−20, 20], and ±1000 for the limits."""
    return [-LIMIT, *np.linspace(-20, 20, count).round(9), LIMIT]


class TaskSpecificScore(Study):
    """Task-specific score of both representations at convergence, against λ."""

    source = "anguita2024/fig4.5"
    presets = {
        "quick": Grid(lam=balances(401), seed=0),
        "paper": Grid(lam=balances(401), seed=range(3)),
    }
    expected = {"quick": 10, "paper": 12}
    vectorized = ("lam", "seed")

    def compute(self, lam, seed):
        task = linear.semantic_hierarchy()

        def draw(lam, seed):
            network = linear.lambda_balanced(8, 8, 8, lam=lam, key=jr.fold_in(jr.key(45), seed))
            return (match_sign(network, task),)

        def run(lam, seed, network):
            end = linear.exact_flow(network, task, jnp.asarray([LATE]))
            score = linear.task_specific_score(end, task)
            return {"input": score.inputs[0], "output": score.outputs[0]}

        return sweep(draw, run, lam, seed, batch=128)

    def draw(self, data):
        fig, axes = figure(1, 1, width=3.8, height=2.7)
        ax = axes[0, 0]
        shown = data.where(np.abs(data.lam) <= 20, drop=True).isel(seed=0)
        ax.plot(shown.lam, shown.input, color=BLUE, label=r"input $W_1^\top W_1$")
        ax.plot(shown.lam, shown.output, color=VERMILION, ls="--", label=r"output $W_2W_2^\top$")
        ax.set(xlabel="λ", ylabel="task-specific score")
        ax.legend(loc="lower center")
        return fig

    def claims(self, data) -> Iterator[Claim]:
        singular = np.array([8, 8, 4, 4, 2, 2, 2, 2]) ** 0.5
        lowest = singular.sum() / np.linalg.norm(singular) / np.sqrt(8)
        zero = data.sel(lam=0.0, method="nearest")
        both = {"input": 1, "output": -1}
        yield Claim(
            "At λ = 0 both representations are task specific",
            measured=min(float(zero.input.min()), float(zero.output.min())),
            at_least=1 - 1e-6,
            source="Figure 4.5",
        )
        for side, sign in both.items():
            score = data[side]
            yield Claim(
                f"The score of the {side} tends to its maximum 1 as λ → {'+' if sign > 0 else '−'}∞",
                measured=float(score.sel(lam=sign * LIMIT).min()),
                at_least=1 - 1e-4,
                source="Figure 4.5",
                note=f"At λ = {signed(sign * LIMIT)}.",
            )
            yield Claim(
                f"The score of the {side} tends to its minimum, cos(I, S) = {lowest:.4f}, as λ → "
                f"{'−' if sign > 0 else '+'}∞",
                measured=np.abs(score.sel(lam=-sign * LIMIT) - lowest).max(),
                at_most=1e-4,
                source="Figure 4.5",
                note=f"Distance from it at λ = {signed(-sign * LIMIT)}; at λ = {signed(-sign * 20)} the "
                "score is "
                f"{float(score.sel(lam=-sign * 20.0).mean()):.4f}.",
            )
            near = score.where((sign * data.lam > 0.5) & (sign * data.lam < 20), drop=True).mean("seed")
            at = float(np.abs(near.lam[near.argmin("lam")]))
            yield Claim(
                f"When |λ| is close to the singular values the {side} is less task specific: a local "
                "minimum of 0.9916",
                measured=float(near.min()),
                at_least=0.9915,
                at_most=0.9918,
                source="Section 4.3",
                note=f"At λ = {signed(sign * at)}, to the spacing of the grid.",
            )
            yield Claim(
                f"That minimum of the {side} is at |λ| = 2.17",
                measured=at,
                at_least=2.07,
                at_most=2.27,
                source="Section 4.3",
            )
