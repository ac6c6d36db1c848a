"""Figure S4: gradients explode when an eigenvalue crosses 1, and when that happens."""

from collections.abc import Iterator

import numpy as np

from ...engine import Claim, Grid, Study
from .._style import BLUE, GREY, PALETTE, VERMILION, figure, letter
from ._linear import EPOCHS, network, simulate, theory

ETA0 = {2.0: 0.002, 4.0: 0.001}


def largest_real_parts(matrix: np.ndarray) -> np.ndarray:
    """Five largest real parts of the eigenvalues; NaN for weights that are not finite."""
    if not np.isfinite(matrix).all():
        return np.full(5, np.nan)
    return np.sort(np.linalg.eigvals(matrix).real)[::-1][:5]


class ExplodingGradient(Study):
    """Loss and leading eigenvalues for large targets: the critical step tells which networks fail."""

    source = "schuessler2020/figS4"
    presets = {
        "quick": Grid(target=[2.0, 4.0], g=[0.6, 0.8], neurons=128, seed=range(3)),
        "paper": Grid(target=[2.0, 4.0], g=[0.6, 0.8], neurons=256, seed=range(5)),
    }
    expected = {"quick": 30.0, "paper": 300.0}
    may_be_nan = ("loss", "eigenvalues", "final")

    def compute(self, target, g, neurons, seed):
        w0, m, w = network(neurons, g, seed)
        rate, every = ETA0[target] * (1 - g**2) ** 2, 10
        changes, losses, _ = simulate(w0, m, w, target, rate, duration=201.0, every=every)
        losses = losses / (target**2 / 2)
        losses[np.cumsum(~np.isfinite(losses)) > 0] = np.nan
        return {
            "epoch": ("epoch", np.arange(EPOCHS)),
            "snapshot": ("snapshot", np.arange(0, EPOCHS + 1, every)),
            "order": ("order", np.arange(1, 6)),
            "loss": ("epoch", losses),
            "final": ((), np.max(losses[-20:])),
            "is_learned": ((), bool(np.any(losses < 0.05))),
            "eigenvalues": (
                ("snapshot", "order"),
                np.stack([largest_real_parts(np.asarray(w0) + change) for change in changes]),
            ),
            "rate_over_critical": ((), rate / theory.critical_step(w0, m, w, target)),
            "limit_ratio": ((), rate / theory.critical_step(target=target, g=g)),
        }

    def draw(self, data):
        fig, axes = figure(3, 2, width=6.4, height=6.0, sharex=True)
        data = data.isel(neurons=0)
        for j, target in enumerate(data.target.values):
            for i, (g, color) in enumerate(zip(data.g.values, (BLUE, VERMILION), strict=False)):
                one = data.sel(target=target, g=g)
                for k in range(one.seed.size):
                    # Networks that the theory predicts to be unstable are drawn dashed.
                    style = "--" if one.rate_over_critical[k] > 1 else "-"
                    label = f"$g$ = {g:g}" if k == 0 else ""
                    axes[0, j].semilogy(data.epoch, one.loss[k], color=color, ls=style, lw=1, label=label)
                ax, first = axes[1 + i, j], one.isel(seed=0)
                for order, line in zip(data.order.values, PALETTE, strict=False):
                    values = first.eigenvalues.sel(order=order)
                    ax.plot(data.snapshot, values, "o-", ms=2.5, color=line, label=f"$\\lambda_{order}$")
                ax.axhline(1, color=GREY, ls="--", lw=0.8)
                ratio = float(first.rate_over_critical)
                ax.set_title(f"target {target:g}, $g$ = {g:g}, $\\eta/\\eta_c$ = {ratio:.2f}", fontsize=9)
                ax.set_ylim(0, 1.6)
                ax.set_ylabel("Re $\\lambda$" if j == 0 else "")
            axes[0, j].set_title(f"target {target:g}", fontsize=9)
            axes[0, j].set_ylim(1e-12, 1e3)
            axes[2, j].set_xlabel("epoch")
        axes[0, 0].set_ylabel("loss $L/L_0$ (dashed: $\\eta > \\eta_c$)")
        axes[0, 0].legend(loc="upper right", fontsize=7)
        axes[2, 1].legend(ncols=2, loc="upper right", fontsize=7)
        for ax, name in zip(axes.ravel(), "abcedf", strict=True):
            letter(ax, name)
        return fig

    def claims(self, data) -> Iterator[Claim]:
        data = data.isel(neurons=0)
        learned, top = data.is_learned.astype(float), data.eigenvalues.sel(order=1)
        easy = data.sel(target=2.0, g=0.6)
        yield Claim(
            "Target 2, g = 0.6: learning converges",
            measured=easy.final.max(),
            at_most=1e-3,
            source="Fig. S4(a)",
            note="Largest L/L₀ over the last 20 epochs, all networks.",
        )
        yield Claim(
            "Target 2, g = 0.6: no eigenvalue crosses 1",
            measured=top.sel(target=2.0, g=0.6).max(),
            at_most=1.0,
            source="Fig. S4(c)",
        )
        yield Claim(
            "Target 2, g = 0.8: every network reaches 5 % of the loss",
            measured=learned.sel(target=2.0, g=0.8).mean(),
            at_least=1.0,
            source="Fig. S4(a)",
        )
        yield Claim(
            "Target 4, g = 0.6: every network reaches 5 % of the loss",
            measured=learned.sel(target=4.0, g=0.6).mean(),
            at_least=1.0,
            source="Fig. S4(b)",
        )
        hard = data.sel(target=4.0, g=0.8)
        fails = ~(hard.final < 0.05)
        yield Claim(
            "Target 4, g = 0.8: the gradient diverges and learning stops",
            measured=fails.mean(),
            at_least=0.5,
            source="Fig. S4(b,f)",
            note="Share of networks that do not end below 5 % of the loss; it depends on the network.",
        )
        # Slower ones converge as well, but not to this level within the epochs of the figure.
        is_safe = (data.rate_over_critical >= 0.2) & (data.rate_over_critical < 0.4)
        if is_safe.any():
            yield Claim(
                "Networks trained at 0.2 to 0.4 of their own critical step converge",
                measured=data.final.where(is_safe).max(),
                at_most=1e-10,
                source="Fig. S4",
                note=f"Largest L/L₀ over the last 20 epochs among these {int(is_safe.sum())}.",
            )
        unsafe = data.final.where(data.rate_over_critical > 1.2)
        yield Claim(
            "Networks trained above 1.2 times their own critical step keep oscillating or fail",
            measured=unsafe.fillna(np.inf).where(data.rate_over_critical > 1.2).min(),
            at_least=1e-3,
            source="Fig. S4",
            note="Smallest of their largest L/L₀ over the last 20 epochs; one that is not finite counts as "
            "infinite.",
        )
        for target, g, value in ((2.0, 0.6, 0.22), (2.0, 0.8, 0.97), (4.0, 0.6, 1.65), (4.0, 0.8, 8.2)):
            ratio = float(data.limit_ratio.sel(target=target, g=g).isel(seed=0))
            yield Claim(
                f"Infinite width, target {target:g}, g = {g:g}: η/η_crit = {value:g}",
                measured=ratio,
                at_least=0.98 * value,
                at_most=1.02 * value,
                source="Fig. S4",
            )
