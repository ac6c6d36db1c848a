"""Figure 1: test loss against the number of trained pairs."""

from collections.abc import Iterator

import numpy as np

from ...engine import Claim, Grid, Study
from .._lazy import jax, jnp
from .._style import GREY, figure, letter, shades
from ._common import MASKS, describe, gated, key, outcome, stack, start, train

# Sizes at which bounds are known: the note's own.
PAPER_WORDS = 32


class TrainedPairs(Study):
    """Test loss on untrained pairs against the number of trained pairs, for falling initial scales."""

    source = "shared-representations/fig1"
    presets = {
        "quick": Grid(
            languages=6, words=8, hidden=[8, 16], budget=3_000,
            scale=[0.3, 0.1, 0.03, 0.01, 0.003], seed=range(3), pairs=range(6, 36),
        ),
        "paper": Grid(
            languages=10, words=32, hidden=[32, 64], budget=12_000,
            scale=[0.3, 0.1, 0.03, 0.01, 0.003, 0.001], seed=range(3), pairs=range(10, 100),
        ),
    }  # fmt: skip
    vectorized = ("seed", "pairs")
    may_be_nan = ("within", "cross", "resistance")
    expected = {"quick": 40, "paper": 6_000}

    def compute(self, languages, words, hidden, budget, scale, seed, pairs):
        orders = [gated.nested_masks(languages, key=key(MASKS, s)) for s in seed]
        masks = jnp.concatenate([masks[jnp.asarray(pairs) - languages] for masks in orders])
        networks = stack([start(languages, words, hidden, scale, s) for s in seed])
        networks = jax.tree.map(lambda w: jnp.repeat(w, len(pairs), axis=0), networks)
        # The last word directions of tiny weights are learnt late: they get 1.8 times the budget.
        run = train(networks, masks, max_evaluations=round(budget * (1.8 if scale < 0.005 else 1)))
        found = {**outcome(run), **describe(masks)}
        return {name: values.reshape(len(seed), len(pairs)) for name, values in found.items()}

    def draw(self, data):
        languages = int(data.languages[0])
        data = data.isel(languages=0, words=0, budget=0)
        fig, axes = figure(data.hidden.size, 2, width=7.2, height=2.5 * data.hidden.size, sharex=True)
        share = data.pairs.values / languages**2
        colors = shades(data.scale.size)[::-1]
        for row, hidden in enumerate(data.hidden.values):
            here = data.sel(hidden=hidden)
            first = here.isel(scale=0)
            for column, ax in enumerate(axes[row]):
                for color, scale in zip(colors, data.scale.values, strict=True):
                    for seed in data.seed.values:
                        one = here.sel(scale=scale, seed=seed)
                        ok = one.converged.values.astype(bool)
                        ax.plot(share, np.where(ok, one.test, np.nan), ".-", ms=2.5, lw=0.6, color=color)
                        ax.plot(share[~ok], one.test.values[~ok], "x", ms=3.5, mew=0.8, color=color)
                    ax.plot([], [], ".-", color=color, label=f"σ = {scale:g}")
                for seed in data.seed.values:
                    components = first.sel(seed=seed).components.values
                    ax.axvline(share[np.argmax(components == 1)], color=GREY, ls=":", lw=0.8)
                    predicted = first.sel(seed=seed).cross_pairs / (languages**2 - data.pairs)
                    ax.plot(share, predicted.where(predicted > 0), color="black", lw=0.6, ls="--")
                ax.plot([], [], "x", color=GREY, label="not converged")
                ax.plot([], [], ":", color=GREY, label="mask connects")
                ax.plot([], [], "--", color="black", label="prediction, σ → 0")
                ax.set_ylabel("test loss")
                ax.set_title(f"H = {hidden}" + (", clipped at 5" if column else ""))
            axes[row, 0].set_yscale("log")
            axes[row, 1].set_ylim(-0.15, 5)
            letter(axes[row, 0], "a" if not row else "")
            letter(axes[row, 1], "b" if not row else "")
        axes[0, 1].legend(fontsize=6, ncols=2)
        missed = int((~data.converged.astype(bool)).sum())
        fig.supxlabel(
            f"trained pairs / all pairs   ({missed} of {data.converged.size} runs did not converge: crosses)",
            fontsize=8,
        )
        return fig

    def claims(self, data) -> Iterator[Claim]:
        words, languages = int(data.words[0]), int(data.languages[0])
        data = data.isel(languages=0, words=0, budget=0)
        square = data.sel(hidden=words)
        is_paper = words == PAPER_WORDS
        ok = square.converged.astype(bool)
        joined = square.components == 1
        untrained = languages**2 - square.pairs
        bound = square.pairs * square.resistance * square.train
        yield Claim(
            "H = D: converged runs on connected masks generalize, test ≤ T mean(R) train",
            measured=(square.test / bound).where(ok & joined).max(),
            at_most=1.05,
            note="Largest ratio of all such runs; R is the effective resistance of the untrained pairs.",
        )
        yield Claim(
            "H = D: converged runs learn every untrained pair within a connected component",
            measured=square.within.where(ok).max(),
            at_most=1e-3,
        )
        spikes = (ok & joined & (square.test > 1e-3)).sum()
        yield Claim(
            "H = D: the spikes after the threshold are runs at a training loss of 1e-6",
            measured=spikes,
            at_most=0,
            source="Figure 1, caption",
            erratum="No converged run on a connected mask has a test loss above 1e-3: every spike is a "
            "frustrated run that never reaches the tolerance.",
        )
        low, high = (0.95, 1.15) if is_paper else (0.85, 1.3)
        cross = square.cross.where(ok & (square.scale <= 0.03))
        yield inside(
            cross,
            (low, high),
            "Small σ, fixed diagonal: in every run pairs across components end with a mean loss near 1",
            is_paper,
        )
        if is_paper:
            ratio = (square.test / (square.cross_pairs / untrained)).where(
                ok & ~joined & (square.scale <= 0.03)
            )
            yield inside(
                ratio,
                (0.97, 1.08),
                "Disconnected masks, small σ: test = n_cross / (L² - T) in every run",
                True,
            )
        share = ok.where(joined).mean(("seed", "pairs"))
        if is_paper:
            yield Claim(
                "H = D, σ = 0.001: connected runs converge", measured=share.sel(scale=0.001), at_least=0.95
            )
            yield Claim(
                "H = D, σ = 0.1: connected runs converge",
                measured=share.sel(scale=0.1),
                at_least=0.85,
                at_most=0.97,
            )
            stuck = square.frustration.where(~ok & (square.scale <= 0.03) & (square.frustration < 6.5))
            m = stuck.values[np.isfinite(stuck.values)]
            excess = m - np.round(m)
            yield Claim(
                "Stuck runs sit above an integer number m of frustrated pair-directions",
                measured=np.mean((excess >= 0) & (excess <= 0.02 + 0.03 * m)) if m.size else np.nan,
                at_least=0.85,
                note=f"{m.size} stuck runs with m < 6.5 at σ ≤ 0.03.",
            )
        yield Claim(
            "H = D: smaller initial scales leave fewer frustrated runs on connected masks",
            measured=share.isel(scale=-1) - share.sel(scale=0.1),
            at_least=0,
            note="Share of converged runs at the smallest scale minus that at σ = 0.1.",
        )
        yield from self._thresholds(data, words, languages, is_paper)

    def _thresholds(self, data, words, languages, is_paper) -> Iterator[Claim]:
        wide = data.sel(hidden=2 * words)
        connects = wide.pairs.values[np.argmax((wide.components == 1).values, axis=-1)]
        connects = wide.components[..., 0].copy(data=connects)
        good = ((wide.test < 0.01) & wide.converged.astype(bool)).values
        # Smallest n from which every larger mask generalizes, in runs that converged.
        last_bad = np.where(good.all(-1), -1, good.shape[-1] - 1 - np.argmax(~good[..., ::-1], axis=-1))
        threshold = connects.copy(data=wide.pairs.values[0] + last_bad + 1)
        tail = threshold.isel(scale=-1)
        yield Claim(
            "As σ → 0 the generalization threshold may go to zero",
            measured=(tail - (2 * languages - 1)).min(),
            at_least=0,
            source="Section 2",
            erratum="It goes to the connectivity of the mask, at least 2L - 1 pairs: pairs across components "
            "cannot be learnt.",
            note=f"H = 2D: thresholds {tail.values.tolist()}, masks connect at "
            f"{connects.isel(scale=-1).values.tolist()}; smallest distance from 2L - 1.",
        )
        yield Claim(
            "The threshold falls with σ",
            measured=threshold.isel(scale=0).mean() - tail.mean(),
            at_least=0,
            source="Section 2",
            note="H = 2D: mean threshold at the largest scale minus that at the smallest, in pairs.",
        )
        late = tail - connects.isel(scale=-1)
        if is_paper:
            yield Claim(
                "H = 64, σ = 0.001: in every seed the threshold is within 6 pairs of where the mask connects",
                measured=late.max(),
                at_least=7,
                erratum="Not in every seed: single masks just above the connection point are learned to the "
                "tolerance with a test loss of 0.05 to 0.2.",
                note=f"In pairs, the largest of the seeds: {late.values.tolist()}.",
            )
            yield Claim(
                "H = 64, σ = 0.001: the threshold is typically at the point where the mask connects",
                measured=late.median(),
                at_least=0,
                at_most=6,
                note="In pairs, median of the seeds.",
            )


def inside(values, bounds: tuple[float, float], sentence: str, is_paper: bool) -> Claim:
    """Every run in the range known from three seeds; of the many of the paper preset single ones are not."""
    known = values.values[np.isfinite(values.values)]
    share = np.mean((known >= bounds[0]) & (known <= bounds[1])) if known.size else np.nan
    reach = f"{known.min():.3f}–{known.max():.3f}" if known.size else "nothing"
    return Claim(
        f"{sentence} (within {bounds[0]}–{bounds[1]})",
        measured=share,
        at_least=0.95 if is_paper else 1.0,
        at_most=0.9999 if is_paper else None,
        erratum="In nearly every run; single masks fall a little outside." if is_paper else "",
        note=f"Share of {known.size} runs; they range over {reach}.",
    )
