"""Figure 5: the modes of K before and after training."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ...engine import Claim, Grid, Study
from .. import _style as style
from .._lazy import jnp, lazily, xr
from ._memory import DOCUMENT_UNITS, STAGES, Setup, flow_of, quietly, rank_of, trained
from ._panels import STAGE_COLORS, first_setting

operators = lazily("nullcline.operators")

MODES, SHOWN, DRAWN = 4, 20, 10


class KernelModes(Study):
    """Modes of K over trials and times, their share of the inputs and of the targets."""

    source = "hazelden2025/fig5"
    presets = {
        "quick": Grid(
            scale="text", g=[0.5, 1.5], hidden=128, period=10, batch=32, steps=2000, stops=True, seed=range(3)
        ),
        "paper": Grid(
            scale="text", g=[0.5, 0.77, 1.0, 1.5], hidden=256, period=30, batch=200, steps=5000, stops=False,
            seed=range(3),
        ),
    }  # fmt: skip
    vectorized = ("seed",)
    expected = {"quick": 20.0, "paper": 12_000.0}
    may_be_nan = ("iterations",)

    def compute(self, scale, g, hidden, period, batch, steps, stops, seed):
        """Modes of the networks of one g, before and after training."""
        setup = Setup("tanh", scale, hidden, period, batch, steps, stops)
        found = trained(setup, g, tuple(seed))
        shape = (len(seed), len(STAGES))
        top, of_inputs, of_targets = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        curve, ranks = np.zeros((*shape, SHOWN)), np.zeros((*shape, 2))
        drawn = np.zeros((len(STAGES), MODES, DRAWN, 3 * period), np.float32)
        for i in range(len(seed)):
            for j, stage in enumerate(STAGES):
                flow = flow_of(found.one(i, stage), setup.task)
                kernel = operators.consensus(flow.parameter_operator, ("hidden",), "trace")
                values, modes = np.asarray(kernel.values), np.asarray(kernel.modes(MODES))
                curve[i, j] = np.cumsum(values)[:SHOWN] / values.sum()
                ranks[i, j] = [rank_of(values, power) for power in (1, 2)]
                top[i, j] = curve[i, j, MODES - 1]
                of_inputs[i, j] = weight_in_span(modes, values[:MODES], np.asarray(flow.inputs))
                targets = jnp.asarray(setup.task.grid(len(flow.inputs)).targets)
                of_targets[i, j] = float(np.sum(operators.mode_share(kernel, targets, MODES)))
                if i == 0:
                    every = len(flow.inputs) // DRAWN
                    drawn[j] = modes.reshape(MODES, len(flow.inputs), -1)[:, ::every][:, :DRAWN]
        return xr.Dataset(
            {
                "iterations": ("seed", found.iterations),
                "top_share": (("seed", "stage"), top),
                "input_weight": (("seed", "stage"), of_inputs),
                "target_share": (("seed", "stage"), of_targets),
                "rank": (("seed", "stage", "power"), ranks),
                "curve": (("seed", "stage", "mode"), curve),
                "shape": (("stage", "drawn_mode", "trial", "time"), drawn),
            },
            coords={
                "seed": list(seed), "stage": list(STAGES), "power": [1, 2], "mode": np.arange(1, SHOWN + 1),
            },
        )  # fmt: skip

    @quietly
    def draw(self, data):
        """Inputs and targets, the first modes before and after training, cumulative shares."""
        from nullcline import recurrent

        scale, period = data.scale.values[0].item(), int(data.period[0])
        data = first_setting(data)
        one = data.sel(g=shown_g(data))
        fig, axes = style.figure(3, MODES, width=10.2, height=6.0)
        colors = style.shades(DRAWN)
        trials = recurrent.MemoryPro(period=period).grid(DRAWN)
        shown = (("input, fixation", trials.inputs[:, :, 0]), ("input, cosine", trials.inputs[:, :, 1]),
                 ("target, cosine", trials.targets[:, :, 1]))  # fmt: skip
        for panel, (title, lines) in zip(axes[0], shown, strict=False):
            for line, color in zip(np.asarray(lines), colors, strict=True):
                panel.plot(line, color=color, lw=0.8)
            panel.set(title=title, xlabel="time")
        for row, stage in enumerate(STAGES, start=1):
            for k in range(MODES):
                panel = axes[row, k]
                for line, color in zip(one["shape"].sel(stage=stage)[k].values, colors, strict=True):
                    panel.plot(line, color=color, lw=0.8)
                panel.set(title=f"mode {k + 1} {stage} training", xlabel="time")
        panel = axes[0, 3]
        for stage, color in STAGE_COLORS.items():
            ranks = one["rank"].sel(stage=stage).median("seed").values
            label = f"{stage}: rank {ranks[0]:g} (power 1), {ranks[1]:g} (power 2)"
            panel.plot(data.mode, one.curve.sel(stage=stage).median("seed"), ".-", color=color, label=label)
        panel.axhline(0.95, color=style.BLACK, lw=0.6, ls=":")
        panel.set(xlabel="modes of K", ylabel="share of trace (power 1)", ylim=(0, 1.03))
        panel.legend(frameon=False, fontsize=5, loc="lower right")
        for panel, text in ((axes[0, 0], "A"), (axes[0, 3], "C"), (axes[1, 0], "B"), (axes[2, 0], "B")):
            style.letter(panel, text)
        fig.suptitle(f"Modes of K over (trial, time), g = {float(one.g):g} (g of the {scale})", fontsize=9)
        return fig

    @quietly
    def claims(self, data) -> Iterator[Claim]:
        """Figure 5; medians over networks that converged."""
        data = first_setting(data)
        kept = data.where(np.isfinite(data.iterations)).median("seed")
        g = shown_g(data)
        before, after = (kept.sel(g=g, stage=stage) for stage in STAGES)
        is_small = int(data.hidden) < DOCUMENT_UNITS
        yield Claim(
            "before training four modes of K dominate",
            measured=float(before.top_share),
            at_least=0.9,
            source="Fig. 5B",
            note=f"share of the trace (power 1) of the first four modes, g = {g:g}",
        )
        yield Claim(
            "before training the modes of K directly reflect the inputs",
            measured=float(before.input_weight),
            at_least=0.75,
            source="Fig. 5B",
            note=f"share of the first four modes' weight in the span of the inputs, g = {g:g}",
        )
        yield Claim(
            "after training the modes are more complex",
            measured=float(after.input_weight / before.input_weight),
            at_most=0.7 if is_small else 1,
            source="Fig. 5B",
            note=f"weight in the span of the inputs after training, {float(after.input_weight):.2g}, over "
            f"that before, g = {g:g}",
        )
        yield Claim(
            "after training the modes follow the learned dynamics",
            measured=float(after.target_share - before.target_share),
            at_least=0.1,
            source="Fig. 5B",
            note="rise of the four modes' share of the targets' variance, from "
            f"{float(before.target_share):.2g} to {float(after.target_share):.2g}, g = {g:g}",
        )
        note = f"share of the trace (power 1) of the first four modes after training, g = {g:g}"
        if is_small:
            yield Claim(
                "after training the effective rank of K is still low",
                measured=float(after.top_share),
                at_least=0.75,
                source="Fig. 5C",
                note=note,
            )
        else:
            yield Claim(
                "after training four modes of K still dominate",
                measured=float(after.top_share),
                at_most=0.75,
                source="Fig. 5C",
                erratum="At the document's size, where networks solve the task (g of the text from 1 on), "
                "four modes carry about half of the trace after training.",
                note=note,
            )
        large = kept.sel(g=1.5, stage="before")
        yield Claim(
            "g = 1.5: already before training the inputs have only about half of the weight of the modes",
            measured=float(large.input_weight),
            at_least=0.3,
            at_most=0.7,
            source="Fig. 5B",
        )


def shown_g(data: Any) -> float:
    """The smallest g whose networks solve the task, which at the document's size those of small g do not."""
    solved = data.g.where(np.isfinite(data.iterations).any("seed"), drop=True)
    return float((solved if solved.size else data.g)[0])


def weight_in_span(modes: np.ndarray, values: np.ndarray, inputs: np.ndarray) -> float:
    """Share of the modes' weight (eigenvalue times squared norm) in the span of the input channels."""
    basis = np.linalg.qr(inputs.reshape(-1, inputs.shape[2]))[0]
    inside = np.sum((modes @ basis) ** 2, axis=1)
    return float(np.sum(values * inside) / np.sum(values))
