"""Figure S5: a linear network learns to oscillate only with initial connectivity."""

from collections.abc import Iterator

import numpy as np

from ...engine import Claim, Grid, Study
from .. import _style as style
from .._lazy import jnp, jr, lazily, optax, xr

recurrent = lazily("nullcline.recurrent")

RATES = {0.0: 0.2, 0.4: 0.15, 0.8: 0.05}
COLORS = {0.0: style.BLACK, 0.4: style.BLUE, 0.8: style.VERMILION}
EPOCHS, EVERY = 1000, 20


class Oscillation(Study):
    """A linear network learns a cosine from one vector: output, loss and leading eigenvalue over training."""

    source = "schuessler2020/figS5"
    presets = {
        "quick": Grid(g=[0.0, 0.4, 0.8], hidden=256, seed=[0]),
        "paper": Grid(g=[0.0, 0.4, 0.8], hidden=256, seed=range(3)),
    }
    expected = {"quick": 15.0, "paper": 120.0}

    def compute(self, g, hidden, seed):
        key = jr.fold_in(jr.key(55), seed)
        cell = recurrent.rate_cell(
            1, hidden, 1, g=g, nonlinearity="linear", dt=0.1, is_tied=True, dtype=jnp.float32, key=key
        )
        # The loss looks at the first half of the trial only: training needs no more of it.
        window = recurrent.Cosine(duration=10.0)
        result = recurrent.train(
            cell,
            window,
            steps=EPOCHS,
            batch_size=1,
            optimizer=optax.sgd(1.0),
            learning_rate=RATES[g],
            trainable=("w",),
            snapshot_every=EVERY,
            key=key,
        )
        whole = recurrent.Cosine().sample_for(cell, 1, key=key)
        _, outputs = recurrent.run(result.final, whole.inputs, whole.initial_state)
        spectra = [np.linalg.eigvals(w) for w in np.asarray(result.snapshots.w, dtype=float)]
        # The document's λ1 is the eigenvalue with the largest imaginary part.
        real, imaginary = np.array([_leading(values) for values in spectra]).T
        change = np.linalg.svd(np.asarray(result.final.w - cell.w, dtype=float), compute_uv=False)
        return xr.Dataset(
            {
                "output": ("time", np.asarray(outputs)[0, :, 0]),
                "target": ("time", np.asarray(whole.targets)[0, :, 0]),
                "loss": ("epoch", np.asarray(result.losses / result.losses[0])),
                "leading_imaginary": ("snapshot", imaginary),
                "leading_real": ("snapshot", real),
                "largest_real": ("snapshot", np.array([np.real(values).max() for values in spectra])),
                "change_singular_values": ("mode", change[:10]),
            },
            coords={
                "time": 0.1 * np.arange(200),
                "epoch": np.arange(EPOCHS),
                "snapshot": result.snapshot_steps,
                "mode": np.arange(1, 11),
            },
        )

    def draw(self, data):
        fig, axes = style.figure(2, 2, width=6.4, height=4.6)
        for g, color in COLORS.items():
            one = data.sel(g=g).isel(hidden=0, seed=0)
            axes[0, 0].plot(one.time, one.output, color=color, label=f"g = {g}")
            axes[0, 1].plot(one.epoch, one.loss, color=color)
            axes[1, 0].plot(one.snapshot, one.leading_imaginary, color=color)
            axes[1, 1].plot(one.snapshot, one.leading_real, color=color)
            axes[1, 1].plot(one.snapshot, one.largest_real, color=color, ls="--", lw=0.8)
        target = data.target.isel(g=0, hidden=0, seed=0)
        axes[0, 0].plot(data.time, target, color=style.GREY, ls="--", lw=1, label="target")
        axes[0, 0].set(xlabel="time", ylabel="output", ylim=(-1.6, 2.6))
        axes[0, 0].legend(fontsize=7, ncols=2, loc="upper center")
        axes[0, 1].set(xlabel="epoch", ylabel="loss $L/L_0$", ylim=(0, 1.1))
        axes[1, 0].set(xlabel="epoch", ylabel="imaginary part of $\\lambda^{(1)}$")
        axes[1, 1].set(xlabel="epoch", ylabel="real part (dashed: largest)")
        for panel, text in zip(axes.ravel(), "abcd", strict=True):
            style.letter(panel, text)
        return fig

    def claims(self, data) -> Iterator[Claim]:
        data = data.isel(hidden=0)
        idle = data.sel(g=0.0)
        yield Claim(
            "learning fails for g = 0",
            measured=float(idle.loss.min()),
            at_least=0.9,
            source="Fig. S5(b)",
            note="smallest loss over L_0",
        )
        yield Claim(
            "g = 0: no complex eigenvalue emerges throughout training",
            measured=float(idle.leading_imaginary.max()),
            at_most=1e-3,
            source="Fig. S5(c)",
        )
        values = idle.change_singular_values
        yield Claim(
            "g = 0: a single vector allows changes of rank one only",
            measured=float((values.sel(mode=2) / values.sel(mode=1)).max()),
            at_most=1e-4,
            source="Fig. S5 caption",
            note="second over first singular value of the change",
        )
        for g in (0.4, 0.8):
            one = data.sel(g=g)
            yield Claim(
                f"g = {g}: the network learns the oscillation",
                measured=float(one.loss.isel(epoch=-1).max()),
                at_most=0.05,
                source="Fig. S5(b)",
                note="final loss over L_0",
            )
            gap = np.hypot(
                one.leading_real.isel(snapshot=-1) - 1, one.leading_imaginary.isel(snapshot=-1) - 0.4 * np.pi
            )
            yield Claim(
                f"g = {g}: the leading pair comes close to 1 ± 2πf i",
                measured=float(gap.max()),
                at_most=0.1,
                source="Fig. S5(c, d)",
            )
            values = one.change_singular_values
            yield Claim(
                f"g = {g}: the change has two large singular values",
                measured=float((values.sel(mode=3) / values.sel(mode=2)).max()),
                at_most=0.5,
                source="Fig. S5 caption",
                note="third over second singular value of the change",
            )


def _leading(values: np.ndarray) -> tuple[float, float]:
    first = values[np.argmax(np.imag(values))]
    return float(np.real(first)), float(np.imag(first))
