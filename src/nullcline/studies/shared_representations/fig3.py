"""Figure 3: when training escapes from small weights."""

from collections.abc import Iterator

import numpy as np

from ...engine import Claim, Grid, Study
from .._lazy import jax, jnp
from .._style import BLACK, GREY, PALETTE, figure
from ._common import MASKS, STARTS, gated, key, stack, start, train

LANGUAGES, MOMENTS = 10, 161


def _mask(seed):
    return gated.nested_mask(LANGUAGES, 30, key=key(MASKS, seed))


class EscapeTime(Study):
    """Escape time of the scalar model against the initial scale, and the linearized theory."""

    source = "shared-representations/fig3a"
    presets = {
        "quick": Grid(scale=[0.1, 0.03, 0.01, 0.003, 0.001], seed=range(3)),
        "paper": Grid(scale=[0.1, 0.03, 0.01, 0.003, 0.001, 1e-4], seed=range(8)),
    }
    vectorized = ("scale", "seed")
    expected = {"quick": 12, "paper": 40}

    def compute(self, scale, seed):
        masks = jnp.stack([_mask(s) for s in seed])
        unit = stack([gated.scalar.initialize(LANGUAGES, 1.0, key=key(STARTS, s)) for s in seed])
        constant = np.asarray(jax.jit(jax.vmap(gated.scalar.escape_constant))(unit, masks))
        # Escape: the norm of s u vᵀ is half of that of the target. Moments that crowd around C / σ find it.
        apart = np.logspace(-5, -0.3, MOMENTS // 2)
        moments = np.concatenate([1 - apart[::-1], [1], 1 + apart])
        escape = np.empty((len(scale), len(seed)))
        for k, value in enumerate(scale):
            sized = jax.tree.map(lambda w, value=value: value * w, unit)
            for j, s in enumerate(seed):
                one = jax.tree.map(lambda w, j=j: w[j], sized)
                path = gated.scalar.train(
                    one,
                    masks[j],
                    times=jnp.asarray(moments * constant[j] / value),
                    max_evaluations=40_000,
                    tolerance=0.2,
                ).networks
                assert path is not None
                size = np.linalg.norm(path.u, axis=1) * np.linalg.norm(path.v, axis=1) * np.abs(path.s)
                after = int(np.argmax(size > LANGUAGES / 2))
                assert after > 0, f"no escape found for seed {s} at scale {value}"
                low, high = np.log(size[after - 1 : after + 1])
                part = (np.log(LANGUAGES / 2) - low) / (high - low)
                escape[k, j] = constant[j] * (
                    moments[after - 1] + part * (moments[after] - moments[after - 1])
                )
        return {"escape": escape, "constant": (("seed",), constant)}

    def draw(self, data):
        fig, ((ax,),) = figure(width=3.6, height=2.8)
        for color, seed in zip(PALETTE, data.seed.values, strict=False):
            one = data.sel(seed=seed)
            ax.semilogx(data.scale, one.escape, "o-", ms=3.5, color=color, label=f"mask and start {seed}")
            ax.axhline(float(one.constant), color=color, ls="--", lw=0.8)
        ax.plot([], [], "--", color=GREY, label="C, linearized theory")
        ax.set(xlabel="initial scale σ", ylabel="σ × escape time", ylim=(0, 1.6 * float(data.constant.max())))
        ax.legend(loc="upper right", fontsize=7)
        return fig

    def claims(self, data) -> Iterator[Claim]:
        ratio = data.escape / data.constant
        yield Claim(
            "Scalar model: σ t_escape at σ = 1e-3 is the constant C of the linearized flow",
            measured=np.abs(ratio.sel(scale=1e-3) - 1).max(),
            at_most=1e-3,
            note="Largest relative difference.",
        )
        growth = np.log(
            (data.escape / data.scale).sel(scale=1e-3) / (data.escape / data.scale).sel(scale=1e-2)
        )
        yield Claim(
            "Escape happens around t ~ -log σ",
            measured=(growth / np.log(10)).min(),
            at_least=0.95,
            at_most=1.05,
            source="Section 3, footnote 3",
            erratum="With three factors it happens at t = C/σ: the exponent of the escape time in 1/σ is 1.",
            note="Exponent of the escape time in 1/σ between σ = 1e-2 and 1e-3.",
        )


class BlockEscape(Study):
    """Escape time of the block model at the size of the note, and one aligned pair, an elliptic function."""

    source = "shared-representations/fig3b"
    presets = {
        "quick": Grid(scale=[0.01, 0.001], words=32, seed=range(2)),
        "paper": Grid(scale=[0.1, 0.03, 0.01, 0.003, 0.001, 1e-4], words=32, seed=range(6)),
    }
    vectorized = ("scale", "seed")
    expected = {"quick": 15, "paper": 120}

    def compute(self, scale, words, seed):
        masks = jnp.stack([_mask(s) for _ in scale for s in seed])
        networks = stack([start(LANGUAGES, words, words, value, s) for value in scale for s in seed])
        run = train(networks, masks, tolerance=0.25, rtol=1e-4)
        assert np.all(run.is_converged), f"not all runs reached a loss of 1/4: {run.status}"
        escape = np.asarray(run.time).reshape(len(scale), len(seed)) * np.asarray(scale)[:, None]
        return {"escape": escape, **self._aligned()}

    def _aligned(self):
        """One aligned pair of tiny weights: the closed form, and the whole nonlinear flow."""
        mask = _mask(0)
        u, rate, v = gated.scalar.spectral_prediction(mask)
        a, s, b = 3e-4, 1e-4, 2e-4
        end = gated.scalar.aligned_flow(a, s, b, rate, jnp.zeros(1)).blow_up
        time = jnp.linspace(0, 0.98, MOMENTS + 1)[1:] * end
        exact = gated.scalar.aligned_flow(a, s, b, rate, time)
        simple = gated.scalar.Network(a * u, jnp.asarray(s), b * v)
        path = gated.scalar.train(simple, mask, times=time, tolerance=0.45, max_evaluations=40_000).networks
        assert path is not None
        return {
            "time": (("moment",), np.asarray(time / end)),
            "exact": (("weight", "moment"), np.stack([exact.a, exact.s, exact.b])),
            "flow": (("weight", "moment"), np.stack([path.u @ u, path.s, path.v @ v])),
        }

    def draw(self, data):
        fig, (axes,) = figure(1, 2, width=6.4, height=2.6)
        data = data.isel(words=0)
        for color, seed in zip(PALETTE, data.seed.values, strict=False):
            axes[0].semilogx(
                data.scale, data.escape.sel(seed=seed), "o-", ms=3.5, color=color, label=f"{seed}"
            )
        axes[0].set(xlabel="initial scale σ", ylabel="σ × time to train loss 1/4")
        axes[0].set_ylim(0, 1.1 * float(data.escape.max()))
        axes[0].legend(title="mask and start", fontsize=7)
        for k, (name, color) in enumerate(zip("asb", PALETTE, strict=False)):
            axes[1].semilogy(data.time, data.flow.isel(weight=k), color=color, lw=2.5, alpha=0.45, label=name)
            axes[1].semilogy(data.time, data.exact.isel(weight=k), color=BLACK, ls=":", lw=1)
        axes[1].plot([], [], ":", color=BLACK, label="elliptic function")
        axes[1].set(xlabel="time / blow-up time", ylabel="aligned weights")
        axes[1].legend(fontsize=7)
        return fig

    def claims(self, data) -> Iterator[Claim]:
        data = data.isel(words=0)
        ratio = data.escape.sel(scale=0.01) / data.escape.sel(scale=0.001)
        yield Claim(
            "Block model: σ t(train < 1/4) is the same at σ = 0.01 and 0.001",
            measured=np.abs(ratio - 1).max(),
            at_most=0.03,
            note="Largest relative difference: the time grows as 1/σ, not as -log σ.",
        )
        apart = np.abs(data.flow / data.exact - 1).max()
        yield Claim(
            "One aligned pair of small weights follows the elliptic solution",
            measured=apart,
            at_most=1e-3,
            note="Largest relative difference up to 98 % of the blow-up time, against the nonlinear flow.",
        )
