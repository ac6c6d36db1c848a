"""The open question whether fixing the diagonal matters."""

import functools
import math
from collections.abc import Iterator

import numpy as np

from ...engine import Claim, Grid, Study
from .._lazy import jax, jnp, jr
from .._style import BLUE, VERMILION, figure
from ._common import MASKS, gated, key, stack, start, train

# With fewer words cross losses scatter more.
LANGUAGES, PAPER_WORDS = 10, 32


def _connects_at(diagonal, keys):
    """Count the trained pairs at which each random order connects all languages, by bisection."""
    draw = jax.jit(jax.vmap(lambda n, k: gated.nested_mask(LANGUAGES, n, diagonal, key=k)))
    low, high = np.full(len(keys), LANGUAGES), np.full(len(keys), LANGUAGES**2)
    for _ in range(7):
        middle = (low + high) // 2
        mask = np.asarray(draw(jnp.asarray(middle), keys), np.float32)
        # Outputs that share an input are one step apart; within 2, 4, 8 and 16 steps, all are, or never.
        near = mask @ mask.transpose(0, 2, 1)
        for _ in range(4):
            near = np.minimum(near @ near, 1)
        found = near.all((1, 2)) & (mask.sum(1) > 0).all(-1)
        low, high = np.where(found, low, middle), np.where(found, middle, high)
    return high


def connection_chances(languages: int, diagonal: bool) -> np.ndarray:
    """Chance that a random mask with 0, 1, … L² trained pairs is connected, counted exactly.

    Labelled bipartite graphs by number of edges, as polynomials: all of them, less those in which the
    component of the first output is a smaller one. With a fixed diagonal a component has as many inputs as
    outputs, the same languages, and the edges of the diagonal are there already.
    """

    def every(outputs, inputs):
        free = outputs * inputs - (outputs if diagonal else 0)
        return np.array([math.comb(free, n) for n in range(free + 1)], dtype=object)

    @functools.cache
    def connected(outputs, inputs):
        count = every(outputs, inputs)
        for a in range(1, outputs + 1):
            for b in [a] if diagonal else range(inputs + 1):
                if (a, b) != (outputs, inputs):
                    ways = math.comb(outputs - 1, a - 1) * (1 if diagonal else math.comb(inputs, b))
                    apart = ways * np.convolve(connected(a, b), every(outputs - a, inputs - b))
                    count[: len(apart)] -= apart
        return count

    chance = (connected(languages, languages) / every(languages, languages)).astype(float)
    return np.concatenate([np.zeros(languages), chance]) if diagonal else chance


class FixedDiagonal(Study):
    """Trained pairs at which random masks connect, with the diagonal fixed and free."""

    source = "shared-representations/diagonal"
    version = 2
    presets = {
        "quick": Grid(diagonal=[True, False], orders=2_000, words=8, seed=range(4)),
        "paper": Grid(diagonal=[True, False], orders=4_000, words=32, seed=range(8)),
    }
    vectorized = ("seed",)
    expected = {"quick": 10, "paper": 60}

    def compute(self, diagonal, orders, words, seed):
        at = _connects_at(diagonal, jr.split(jr.key(MASKS), orders))
        # Few trained pairs and small weights: what do pairs across components cost?
        masks = jnp.stack([gated.nested_mask(6, 8, diagonal, key=key(MASKS, s)) for s in seed])
        networks = stack([start(6, words, words, 0.01, s) for s in seed])
        run = train(networks, masks, max_evaluations=6_000)
        losses = np.asarray(jax.vmap(gated.pair_losses)(run.network))
        predicted = np.asarray(jax.vmap(gated.small_scale_losses)(masks))
        trained = np.asarray(masks)
        silent = (trained.sum(2) == 0)[:, :, None] | (trained.sum(1) == 0)[:, None, :]
        ok = np.asarray(run.is_converged)

        def mean(where):
            return float(losses[where].mean()) if where.any() else -1.0

        use = ok[:, None, None] & (predicted > 0)
        return {
            "connects": (("order",), at),
            "chance": (("trained",), connection_chances(LANGUAGES, diagonal)),
            "cross": ((), mean(use & ~silent)),
            "predicted": ((), float(predicted[use & ~silent].mean())),
            "silent": ((), mean(use & silent)),
            "converged": ok,
        }

    def draw(self, data):
        fig, ((ax,),) = figure(width=4.0, height=2.8)
        data = data.isel(orders=0, words=0)
        bins = np.arange(18.5, 70.5)
        for color, fixed in ((BLUE, True), (VERMILION, False)):
            at = data.connects.sel(diagonal=fixed).values
            ax.hist(
                at, bins, density=True, histtype="step", lw=1.5, color=color,
                label=f"diagonal {'fixed' if fixed else 'free'}: median {np.median(at):.0f}",
            )  # fmt: skip
        ax.set(xlabel="trained pairs at which 10 languages connect", ylabel="share of orders")
        ax.legend()
        return fig

    def claims(self, data) -> Iterator[Claim]:
        words = int(data.words[0])
        data = data.isel(orders=0, words=0)
        quantiles = {True: (19, 23, 31), False: (21, 29, 43)}
        for fixed, expected in quantiles.items():
            name = "fixed" if fixed else "free"
            at = data.connects.sel(diagonal=fixed).values
            chance = data.chance.sel(diagonal=fixed).values
            mean = np.sum(1 - chance)
            error = (2 * np.sum(np.arange(chance.size) * (1 - chance)) + mean - mean**2) ** 0.5 / at.size**0.5
            yield Claim(
                f"Diagonal {name}: masks connect at {mean:.2f} of 100 pairs on average",
                measured=at.mean(),
                at_least=mean - 4 * error,
                at_most=mean + 4 * error,
                source="Section 2, 'roughly 30 %'",
                note=f"{at.size} random orders, within four standard errors of the exact count.",
            )
            by_25 = chance[25]
            error = (by_25 * (1 - by_25) / at.size) ** 0.5
            yield Claim(
                f"Diagonal {name}: {by_25:.1%} of the masks are connected at 25 pairs",
                measured=np.mean(at <= 25),
                at_least=by_25 - 4 * error,
                at_most=by_25 + 4 * error,
                note=f"{at.size} random orders, within four standard errors of the exact count.",
            )
            for share, pairs in zip((0.05, 0.5, 0.95), expected, strict=True):
                yield Claim(
                    f"Diagonal {name}: {share:.0%} of the masks are connected at {pairs} pairs",
                    measured=float(np.argmax(chance >= share)),
                    at_least=pairs,
                    at_most=pairs,
                    note="Exact count.",
                )
        fixed, free = data.sel(diagonal=True), data.sel(diagonal=False)
        yield Claim(
            "Fixed diagonal: components are square, and cross pairs cost about 1",
            measured=fixed.cross,
            at_least=0.95 if words == PAPER_WORDS else 0.85,
            at_most=1.15 if words == PAPER_WORDS else 1.3,
        )
        yield Claim(
            "Free diagonal: a language without trained pair leaves pairs at about 1/2",
            measured=free.silent,
            at_least=0.49,
            at_most=0.51,
            source="Section 2, footnote 2",
            note="The diagonal does matter: it connects sooner, and no language is left untrained.",
        )
