"""Figure 4: effective resistance bounds the loss of every untrained pair."""

from collections.abc import Iterator

import numpy as np

from ...engine import Claim, Grid, Study
from .._lazy import jax, jnp
from .._style import BLACK, BLUE, VERMILION, figure
from ._common import MASKS, gated, key, stack, start, train

# The note's own size. Smaller networks scatter more.
PAPER_WORDS = 32


class Resistance(Study):
    """Loss of each untrained pair over the total training loss, against its effective resistance."""

    source = "shared-representations/fig4"
    presets = {
        "quick": Grid(
            languages=6, words=8, scale=[0.1, 0.01], seed=range(6), pairs=[12, 14, 17, 20, 25], budget=3_000
        ),
        "paper": Grid(
            languages=10,
            words=32,
            scale=[0.1, 0.01],
            seed=range(6),
            pairs=[22, 26, 30, 40, 60],
            budget=12_000,
        ),
    }
    vectorized = ("seed", "pairs")
    may_be_nan = ("resistance", "ratio", "typical")
    expected = {"quick": 12, "paper": 200}

    def compute(self, languages, words, scale, seed, pairs, budget):
        masks = jnp.stack(
            [gated.nested_mask(languages, int(n), key=key(MASKS, s)) for s in seed for n in pairs]
        )
        networks = stack([start(languages, words, words, scale, s) for s in seed for _ in pairs])
        run = train(networks, masks, max_evaluations=budget)
        graph = jax.vmap(gated.connectivity)(masks)
        total = np.asarray(masks).sum((1, 2)) * np.asarray(run.train_loss)
        losses = np.asarray(jax.vmap(gated.pair_losses)(run.network))
        use = (
            np.asarray(run.is_converged)[:, None, None]
            & ~np.asarray(masks)
            & np.isfinite(np.asarray(graph.resistance))
        )
        shape = (len(seed), len(pairs), languages, languages)
        dims = ("seed", "pairs", "output", "input")
        typical = np.asarray(jax.vmap(gated.typical_ratio)(masks))
        counted = np.asarray(run.is_converged & np.asarray(graph.is_connected))
        with np.errstate(divide="ignore"):
            relative = np.asarray(run.test_loss) / np.asarray(run.train_loss) / typical
        return {
            "resistance": (dims, np.where(use, np.asarray(graph.resistance), np.nan).reshape(shape)),
            "ratio": (dims, np.where(use, losses / total[:, None, None], np.nan).reshape(shape)),
            "typical": np.where(counted, relative, np.nan).reshape(shape[:2]),
            "converged": np.asarray(run.is_converged).reshape(shape[:2]),
        }

    def draw(self, data):
        fig, ((ax,),) = figure(width=3.8, height=3.2)
        for color, scale in zip((BLUE, VERMILION), data.scale.values, strict=False):
            one = data.sel(scale=scale)
            ax.loglog(
                one.resistance.values.ravel(),
                one.ratio.values.ravel(),
                ".",
                ms=2,
                color=color,
                label=f"σ = {scale:g}",
            )
        ends = np.array([np.nanmin(data.resistance), np.nanmax(data.resistance)])
        ax.loglog(ends, ends, color=BLACK, lw=1, label=r"bound $\ell = R\,T\,\mathrm{train}$")
        missed = int((~data.converged.astype(bool)).sum())
        ax.set(
            xlabel="effective resistance R of the pair",
            ylabel=r"pair loss / ($T\times$ train loss)",
            ylim=(1e-4, None),
        )
        # Less than two decades: a few plain numbers, which do not overlap.
        ticks = [tick for tick in (0.2, 0.3, 0.5, 1, 2, 3, 5, 10) if ends[0] <= tick <= ends[1]]
        ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        ax.minorticks_off()
        ax.set_title(f"{missed} of {data.converged.size} runs not converged, left out", fontsize=8)
        ax.legend(loc="lower right", markerscale=3, fontsize=7)
        return fig

    def claims(self, data) -> Iterator[Claim]:
        yield Claim(
            "H = D: the loss of every untrained pair is at most R T train",
            measured=(data.ratio / data.resistance).max(),
            at_most=1.05,
            note="Largest ratio of all pairs of all converged runs, first order in the residuals.",
        )
        spread = data.typical.values[np.isfinite(data.typical.values)]
        yield Claim(
            "Test over training loss is about T(L - λ₂)/(λ₂(L² - T)), from the slowest mode",
            measured=np.max(spread),
            at_most=1.08 if int(data.words[0]) == PAPER_WORDS else 1.1,
            note="Largest measured/predicted, 1.08 at the size of the note; the 5-95 % range is "
            f"{np.quantile(spread, 0.05):.2f}-"
            f"{np.quantile(spread, 0.95):.2f}.",
        )
