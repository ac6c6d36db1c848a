"""Appendix E.1: the alignment of the adjoint with K, and of updates with parameter-free ones."""

from collections.abc import Iterator

import numpy as np

from ...engine import Claim, Grid, Study
from .. import _style as style
from .._lazy import jax, lazily, xr
from ._memory import DOCUMENT_UNITS, THRESHOLD, Setup, flow_of, quietly, trained
from ._panels import first_setting

operators = lazily("nullcline.operators")

PLATEAU = 100
"""Iteration by which only fixation is learned."""


class AdjointAlignment(Study):
    """Rayleigh quotient of K at the adjoint, and the cosine of P K P* Err with P P* Err, over training."""

    source = "hazelden2025/alignment"
    presets = {
        "quick": Grid(
            scale="text", g=[0.5, 1.0, 1.5], hidden=128, period=10, batch=32, steps=800, seed=range(2)
        ),
        "paper": Grid(
            scale="text", g=[0.5, 1.0, 1.5], hidden=256, period=30, batch=200, steps=5000, seed=range(5)
        ),
    }
    vectorized = ("seed",)
    expected = {"quick": 20.0, "paper": 12_000.0}

    def compute(self, scale, g, hidden, period, batch, steps, seed):
        """Follow the networks of one g through training."""
        setup = Setup("tanh", scale, hidden, period, batch, steps, stops=False)
        found = trained(setup, g, tuple(seed), keeps_snapshots=True)
        trials = setup.task.grid(10)
        shape = found.losses.shape
        quotient, cosine = np.zeros(shape), np.zeros(shape)
        for i in range(shape[0]):
            for j in range(shape[1]):
                cell = jax.tree.map(lambda leaf, i=i, j=j: leaf[i, j], found.snapshots)
                flow = flow_of(cell, setup.task, 10)
                adjoint = flow.adjoint(trials.targets, trials.mask)
                quotient[i, j] = operators.rayleigh(flow.parameter_operator, adjoint, relative=True)
                cosine[i, j] = operators.misdirection(flow, trials.targets, trials.mask)
        return xr.Dataset(
            {
                "loss": (("seed", "iteration"), found.losses),
                "quotient": (("seed", "iteration"), quotient),
                "cosine": (("seed", "iteration"), cosine),
            },
            coords={"seed": list(seed), "iteration": found.records},
        )

    @quietly
    def draw(self, data):
        """Loss, quotient and cosine against iterations."""
        scale = data.scale.values[0].item()
        data = first_setting(data)
        fig, axes = style.figure(1, 3, width=7.8, height=2.6)
        for g, color in zip(data.g.values, style.PALETTE, strict=False):
            for seed in data.seed.values:
                one = data.sel(g=g, seed=seed)
                label = f"g = {g:g}" if seed == data.seed.values[0] else None
                for panel, name in zip(axes[0], ("loss", "quotient", "cosine"), strict=True):
                    panel.plot(data.iteration, one[name], color=color, lw=0.9, label=label)
        axes[0, 0].set(yscale="log", ylabel="test loss (MSE)")
        axes[0, 1].set(yscale="log", ylabel="$R(K, P^*Err)/\\lambda_1$")
        axes[0, 2].set(ylabel="cos($PKP^*Err$, $PP^*Err$)", ylim=(-0.1, 1.03))
        axes[0, 0].legend(frameon=False, fontsize=6)
        for panel in axes[0]:
            panel.set_xlabel("iteration")
        fig.suptitle(
            f"Adjoint and K over training, g of the {scale} (no effective rank is taken)", fontsize=9
        )
        return fig

    @quietly
    def claims(self, data) -> Iterator[Claim]:
        """Appendix E.1 and B.4; means over seeds."""
        data = first_setting(data)
        mean = data.mean("seed")
        small = mean.sel(g=0.5)
        yield Claim(
            "the adjoint is initially completely unaligned with K",
            measured=float(small.quotient.isel(iteration=0)),
            at_least=0.2,
            source="Appendix E.1",
            erratum="At iteration 0 the adjoint is well aligned (R/λ₁ about a half); it loses the alignment "
            "while fixation is learned.",
            note="R(K, P*Err)/λ₁ at iteration 0, g = 0.5",
        )
        yield Claim(
            "on the plateau, where only fixation is learned, the adjoint is unaligned with K",
            measured=float(small.quotient.sel(iteration=PLATEAU)),
            at_most=0.05,
            source="Appendix E.1",
            note=f"R(K, P*Err)/λ₁ at iteration {PLATEAU}, g = 0.5",
        )
        # At the document's size networks of g = 0.5 stay on the plateau: the smallest g that solves the task.
        is_small = int(data.hidden) < DOCUMENT_UNITS
        is_solved = data.loss < THRESHOLD
        solving = data.g.where(is_solved.any(("seed", "iteration")), drop=True)
        g = float(solving[0]) if solving.size else 0.5
        yield Claim(
            "the adjoint becomes aligned with K",
            measured=float(data.quotient.sel(g=g).where(is_solved.sel(g=g)).mean()),
            at_least=0.1 if is_small else None,
            at_most=None if is_small else 0.1,
            source="Appendix E.1",
            erratum=""
            if is_small
            else "At the document's size R/λ₁ of solved networks rises little above that of the plateau.",
            note=f"mean R(K, P*Err)/λ₁ of solved networks, g = {g:g}; on the plateau "
            f"{float(mean.quotient.sel(g=g, iteration=PLATEAU)):.2g}",
        )
        late = data.sel(iteration=slice(PLATEAU, None))
        correlation = {
            float(g): sum(
                ranked(late.quotient.sel(g=g, seed=s), late.loss.sel(g=g, seed=s)) for s in data.seed.values
            )
            / data.seed.size
            for g in data.g.values
        }
        yield Claim(
            "R(K, P*Err) increases as the loss decreases (g = 0.5, from the plateau on)",
            measured=correlation[0.5],
            at_least=None if is_small else -0.4,
            at_most=-0.4 if is_small else None,
            source="Appendix E.1",
            erratum=""
            if is_small
            else "At the document's size networks of g = 0.5 do not leave the plateau in 5000 iterations.",
            note="rank correlation of R/λ₁ with the loss, mean over seeds; smallest loss "
            f"{float(data.loss.sel(g=0.5).min()):.2g}, solved is below {THRESHOLD:.2g}",
        )
        yield Claim(
            "R(K, P*Err) increases as the loss decreases in almost all cases considered",
            measured=max(value for g, value in correlation.items() if g >= 1),
            at_least=-0.4,
            source="Appendix E.1",
            erratum="At g = 1 and 1.5 the rank correlation with the loss is weak.",
            note="rank correlation of R/λ₁ with the loss from the plateau on: "
            + ", ".join(f"{value:.2f} at g = {g:g}" for g, value in correlation.items()),
        )
        yield Claim(
            "on the plateau K misdirects the update (g = 0.5)",
            measured=float(small.cosine.sel(iteration=PLATEAU)),
            at_most=0.2,
            source="Appendix B.4",
            note="cosine of P K P* Err with the parameter-free P P* Err",
        )
        for g in (0.5, 1.0) if is_small else (1.0,):
            yield Claim(
                f"g = {g:g}: at the end of training updates follow the parameter-free ones",
                measured=float(mean.cosine.sel(g=g).max()),
                at_least=0.75,
                source="Appendix B.4",
                note="largest mean cosine of P K P* Err with P P* Err",
            )


def ranked(a, b) -> float:
    """Rank correlation of two courses; NaN for a single record."""
    if len(a) < 2:
        return np.nan
    first, second = (np.argsort(np.argsort(np.asarray(course))) for course in (a, b))
    first, second = first - first.mean(), second - second.mean()
    return float(np.sum(first * second) / np.sqrt(np.sum(first**2) * np.sum(second**2)))
