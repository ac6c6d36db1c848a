"""The scalar picture of circulant masks, carried over to blocks."""

from collections.abc import Iterator

import numpy as np

from ...engine import Claim, Grid, Study
from .._lazy import jax, jnp, jr
from .._style import BLUE, GREY, VERMILION, figure
from ._common import STARTS, gated, train

LANGUAGES = 10
MASKS = {
    "width 1": (0,), "{0, 2}": (0, 2), "{0, 5}": (0, 5),
    "width 2": (0, 1), "width 3": (0, 1, 2), "width 4": (0, 1, 2, 3), "width 5": (0, 1, 2, 3, 4),
}  # fmt: skip
DISCONNECTED = ["width 1", "{0, 2}", "{0, 5}"]
CONNECTED = ["width 2", "width 3", "width 4", "width 5"]
# Starts that reached zero loss in the reference, of eight.
REACHED, OF = {"width 2": 1, "width 3": 5, "width 4": 7, "width 5": 7}, 8


def _compatible(starts: int, reached: int) -> tuple[float, float]:
    """Smallest and largest share of ``starts`` that Fisher's test at 5 % accepts beside the reference."""
    from scipy.stats import fisher_exact

    def chance(k: int) -> float:
        table = np.array([[k, starts - k], [reached, OF - reached]])
        return float(fisher_exact(table).pvalue)  # pyright: ignore[reportAttributeAccessIssue]

    counts = [k for k in range(starts + 1) if chance(k) >= 0.05]
    return counts[0] / starts, counts[-1] / starts


class BlockCirculants(Study):
    """Block networks on circulant masks: which converge, which generalize."""

    source = "shared-representations/circulants"
    presets = {
        "quick": Grid(mask=list(MASKS), words=8, scale=0.001, budget=5_000, seed=range(12)),
        "paper": Grid(mask=list(MASKS), words=8, scale=0.001, budget=21_600, seed=range(64)),
    }
    vectorized = ("seed",)
    may_be_nan = ("test", "cross")
    expected = {"quick": 16, "paper": 150}

    def compute(self, mask, words, scale, budget, seed):
        trained = gated.circulant_mask(LANGUAGES, offsets=MASKS[mask])
        keys = jnp.stack([jr.fold_in(jr.key(STARTS), s) for s in seed])
        networks = jax.vmap(lambda k: gated.initialize(LANGUAGES, words, words, scale, key=k))(keys)
        run = train(networks, trained, max_evaluations=budget)
        ok = np.asarray(run.is_converged)
        return {
            "converged": ok,
            "test": np.where(ok, np.asarray(run.test_loss), np.nan),
            "cross": np.where(ok, np.asarray(run.cross_loss), np.nan),
        }

    def draw(self, data):
        fig, (axes,) = figure(1, 2, width=7.0, height=2.8)
        data = data.isel(words=0, scale=0, budget=0)
        place = np.arange(data.mask.size)
        axes[0].bar(place, data.converged.astype(float).mean("seed"), color=BLUE)
        axes[0].set(ylabel="share of starts that converge", ylim=(0, 1))
        for k, name in enumerate(data.mask.values):
            test = data.test.sel(mask=name).values
            jitter = k + 0.25 * np.linspace(-1, 1, test.size)
            axes[1].semilogy(jitter, test, ".", color=VERMILION if name in DISCONNECTED else BLUE)
        axes[1].axhline(1, color=GREY, ls=":", lw=0.8)
        axes[1].set(ylabel="test loss, converged starts")
        for ax in axes:
            ax.set_xticks(place, data.mask.values, rotation=40, ha="right")
        return fig

    def claims(self, data) -> Iterator[Claim]:
        data = data.isel(words=0, scale=0, budget=0)
        yield Claim(
            "Connected circulants: every start that converged generalizes",
            measured=data.test.sel(mask=CONNECTED).max(),
            at_most=1e-3,
            source="Section 3",
        )
        cross = data.cross.sel(mask=DISCONNECTED).mean("seed")
        for name, value in (("smallest", cross.min()), ("largest", cross.max())):
            yield Claim(
                f"Disconnected circulants end with cross losses near 1 ({name} mean of three masks)",
                measured=value,
                at_least=0.85,
                at_most=1.3,
                source="Section 3",
                erratum="The note expects every non-identity circulant to generalize; these never do.",
            )
        for name, reached in REACHED.items():
            ok = data.converged.astype(bool).sel(mask=name).values
            low, high = _compatible(ok.size, reached)
            yield Claim(
                f"Circulants of {name}: {reached / OF:.1%} of the starts reach zero loss",
                measured=ok.mean(),
                at_least=low,
                at_most=high,
                note=f"{reached} of {OF} starts: with {ok.size} here, Fisher's test at 5 %.",
            )
