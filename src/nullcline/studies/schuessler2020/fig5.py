"""Figure 5: low-rank changes of a two-layer LSTM trained on sentiment analysis."""

from collections.abc import Iterator

import numpy as np

from ...engine import Claim, Grid, Study
from .. import _style as style
from .._lazy import xr
from ._sst2 import KINDS, missing, supplied, trained

CURVES = ("change_accuracy", "change_agreement", "weights_accuracy", "weights_agreement")


class LSTMTruncation(Study):
    """Singular values and truncation accuracy of a two-layer LSTM trained on SST-2."""

    source = "schuessler2020/fig5"
    presets = {
        "quick": Grid(hidden=64, epochs=15, rate=0.02, seed=[0]),
        "paper": Grid(hidden=256, epochs=30, rate=0.01, seed=range(2)),
    }
    expected = {"quick": 70.0, "paper": 3600.0}
    may_be_nan = (*CURVES, "needed_change", "needed_weights")

    def missing(self) -> str:
        return missing()

    def supplied(self) -> str:
        return supplied()

    def compute(self, hidden, epochs, rate, seed):
        found = trained(hidden, epochs, rate, seed)
        return xr.Dataset(
            {
                **{name: ("rank", found[name]) for name in CURVES},
                **{
                    name: ((), found[name])
                    for name in ("full_accuracy", "needed_change", "needed_weights", "coverage")
                },
                "singular_values": (("kind", "mode"), found["singular_values"][:, 3]),
            },
            coords={
                "rank": np.arange(hidden + 1),
                "kind": list(KINDS),
                "mode": np.arange(1, found["singular_values"].shape[2] + 1),
            },
        )

    def draw(self, data):
        fig, axes = style.figure(1, 2, width=6.4, height=2.6)
        one = data.squeeze(["hidden", "epochs", "rate"], drop=True).isel(seed=0)
        labels = {"initial": "$W_0$", "final": "$W$", "change": "$\\Delta W$"}
        colors = (style.BLACK, style.BLUE, style.VERMILION)
        for kind, color in zip(KINDS, colors, strict=True):
            axes[0, 0].plot(
                one.mode, one.singular_values.sel(kind=kind), "o-", ms=2.5, color=color, label=labels[kind]
            )
        axes[0, 0].set(xlabel="index", ylabel="singular values, recurrent, layer 2", ylim=(0, None))
        axes[0, 0].legend()
        for of, color, label in (
            ("change", style.VERMILION, "truncate $\\Delta W$"),
            ("weights", style.BLUE, "truncate $W$"),
        ):
            curve = one[f"{of}_accuracy"].dropna("rank")
            axes[0, 1].plot(curve["rank"], curve, "o-", ms=2.5, color=color, label=label)
        axes[0, 1].axhline(float(one.full_accuracy), color=style.GREY, ls="--", lw=0.8)
        axes[0, 1].set(xlabel="rank R", ylabel="accuracy, dev and test")
        axes[0, 1].legend()
        for panel, text in zip(axes[0], "ab", strict=True):
            style.letter(panel, text)
        return fig

    def claims(self, data) -> Iterator[Claim]:
        data = data.squeeze(["epochs", "rate"], drop=True)
        hidden = int(data.hidden.values[0])
        data = data.isel(hidden=0)
        low, high = data.needed_change, data.needed_weights
        yield Claim(
            "the changes have a small number of large singular values: truncated at low rank they do all",
            measured=float(low.max()),
            at_most=16,
            source="Fig. 5(b)",
            note="rank of ΔW from which 97 % of the predictions stay as they are",
        )
        yield Claim(
            "truncating the entire weights takes more than half of the network's rank",
            measured=float(high.min()) / hidden,
            at_least=0.5,
            source="Fig. 5(b)",
            note="rank of W from which 97 % of the predictions stay, over N",
        )
        yield Claim(
            "the whole weights need far more ranks than their changes",
            measured=float((high / low).min()),
            at_least=3,
            source="Fig. 5(b)",
        )
        yield Claim(
            "a rank-10 approximation of the changes already yields the final accuracy",
            measured=float(abs(data.change_accuracy.sel(rank=10) - data.full_accuracy).max()),
            at_most=0.02,
            source="section 4",
            note=f"largest distance; accuracy {float(data.full_accuracy.mean()):.3f} on dev and test",
        )
        values = data.singular_values
        tail = values.sel(kind="final") - values.sel(kind="initial")
        yield Claim(
            "the final W visibly differs from W_0 only in the first singular values",
            measured=float(abs(tail.sel(mode=slice(10, None)) / values.sel(kind="initial")).max()),
            at_most=0.1,
            source="Fig. 5(a)",
            note="largest relative change of a singular value from the tenth on",
        )
        change = values.sel(kind="change")
        yield Claim(
            "the changes are approximately low-rank",
            measured=float((change.sel(mode=3) / change.sel(mode=1)).max()),
            at_most=0.5,
            source="Fig. 5(a)",
            note="third over first singular value of ΔW, recurrent weights of layer 2",
        )
