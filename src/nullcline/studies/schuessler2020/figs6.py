"""Figure S6: training curves and singular values of all weights of the LSTM."""

from collections.abc import Iterator

import numpy as np

from ...engine import Claim, Grid, Study
from .. import _style as style
from .._lazy import xr
from ._sst2 import KINDS, MATRICES, missing, supplied, trained

CURVES = ("loss", "dev_loss", "accuracy", "dev_accuracy")


class LSTMDetails(Study):
    """Loss and accuracy over epochs, and singular values of input and recurrent weights of both layers."""

    source = "schuessler2020/figS6"
    presets = {
        "quick": Grid(hidden=64, epochs=15, rate=0.02, seed=[0]),
        "paper": Grid(hidden=256, epochs=30, rate=0.01, seed=[0]),
    }
    expected = {"quick": 70.0, "paper": 1800.0}

    def missing(self) -> str:
        return missing()

    def supplied(self) -> str:
        return supplied()

    def compute(self, hidden, epochs, rate, seed):
        found = trained(hidden, epochs, rate, seed)
        return xr.Dataset(
            {
                **{name: ("epoch", found[name]) for name in CURVES},
                "singular_values": (("kind", "matrix", "mode"), found["singular_values"]),
            },
            coords={
                "epoch": np.arange(1, epochs + 1),
                "kind": list(KINDS),
                "matrix": list(MATRICES),
                "mode": np.arange(1, found["singular_values"].shape[2] + 1),
            },
        )

    def draw(self, data):
        fig, axes = style.figure(2, 3, width=7.2, height=4.4)
        one = data.isel(hidden=0, epochs=0, rate=0, seed=0)
        for panel, (train, dev), label in (
            (axes[0, 0], CURVES[:2], "loss"),
            (axes[1, 0], CURVES[2:], "accuracy"),
        ):
            panel.plot(one.epoch, one[train], color=style.BLUE, label="training")
            panel.plot(one.epoch, one[dev], color=style.VERMILION, label="validation")
            panel.set(xlabel="epoch", ylabel=label)
        axes[0, 0].legend()
        labels = {"initial": "initial", "final": "final", "change": "change"}
        for panel, matrix in zip(axes[:, 1:].ravel(), MATRICES, strict=True):
            for kind, color in zip(KINDS, (style.BLACK, style.BLUE, style.VERMILION), strict=True):
                values = one.singular_values.sel(kind=kind, matrix=matrix)
                panel.plot(one.mode, values, ".-", ms=3, color=color, label=labels[kind])
            panel.set(title=matrix, xlabel="index", ylabel="singular values", ylim=(0, None))
        axes[0, 1].legend()
        for panel, text in zip(axes.T.ravel(), "abcdef", strict=True):
            style.letter(panel, text)
        return fig

    def claims(self, data) -> Iterator[Claim]:
        one = data.isel(hidden=0, epochs=0, rate=0, seed=0)
        yield Claim(
            "the network learns the task",
            measured=float(one.dev_accuracy[-1]),
            at_least=0.75,
            source="Fig. S6(b)",
            note="validation accuracy after the last epoch",
        )
        yield Claim(
            "the training loss falls smoothly",
            measured=float(np.max(np.diff(one.loss.values)) / (one.loss[0] - one.loss[-1])),
            at_most=0.1,
            source="Fig. S6(a)",
            note="largest rise between epochs over the whole fall",
        )
        change = one.singular_values.sel(kind="change")
        for matrix in MATRICES[1:]:
            values = change.sel(matrix=matrix)
            yield Claim(
                f"{matrix}: the change has few large singular values",
                measured=float(values.sel(mode=6) / values.sel(mode=1)),
                at_most=0.5,
                source="Fig. S6(c-f)",
                note="sixth over first singular value of the change",
            )
