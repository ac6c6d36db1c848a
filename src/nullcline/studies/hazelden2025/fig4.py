"""Figure 4: alignment and interference of four tasks."""

from collections.abc import Iterator

import numpy as np

from ...engine import Claim, Grid, Study
from ...plotting import plot_trial
from .. import _style as style
from ._fourtasks import FILTERS, TASKS, course, matrices, score
from ._memory import DOCUMENT_UNITS
from ._panels import FILTERS as COLORS
from ._panels import draw_tasks_matrix, first_setting

DOCUMENT_RUNS = 20
"""Networks of the document's figure."""


class FourTaskInterference(Study):
    """Cosines of states and of updates of four tasks while a GRU learns them together.

    The quick preset is smaller than the document's experiment, and its batches hold each of the ten angles
    once per task (``is_balanced``) where the document draws trials at random: its runs then switch at 400 to
    600 iterations. With random angles they switch at 800 to 1300, too late for 1500 iterations; after 3000
    every claim holds as well (``--set is_balanced=False --set steps=3000``). Twenty networks of the
    document's size switch at 1400 to 2000, but for one at 800.
    """

    source = "hazelden2025/fig4"
    presets = {
        "quick": Grid(
            hidden=64, period=10, batch=40, angles=10, is_balanced=True, steps=1500, record=100,
            scaled="recurrent", g=1.0, seed=range(3),
        ),
        "paper": Grid(
            hidden=256, period=30, batch=200, angles=10, is_balanced=False, steps=5000, record=100,
            scaled="recurrent", g=1.0, seed=range(20),
        ),
    }  # fmt: skip
    vectorized = ("seed",)
    version = 2
    expected = {"quick": 40.0, "paper": 100_000.0}

    def compute(self, hidden, period, batch, angles, is_balanced, steps, record, scaled, g, seed):
        """Train GRUs and follow their tasks."""
        found = course(hidden, period, batch, angles, is_balanced, steps, record, scaled, g, tuple(seed))
        return matrices(found, seed).assign(loss=(("seed", "iteration"), found.losses))

    def draw(self, data):
        """Tasks, cosine matrices over training, scores of states, cumulative scores of updates, filters."""
        period = int(data.period[0])
        data = first_setting(data).isel(g=0)
        fig, axes = style.figure(2, 4, width=10.2, height=5.0)
        self._draw_tasks(axes[0, 0], period)
        last = data.sizes["iteration"] - 1
        first = data.isel(seed=0)
        for panel, index in zip(axes[0, 1:], (0, last // 2, last), strict=True):
            matrix = first.cosine.isel(iteration=index).values
            draw_tasks_matrix(panel, matrix, f"states, iteration {int(first.iteration[index])}")
        fig.colorbar(axes[0, 3].images[0], ax=axes[0, 3], shrink=0.8, label="cosine C")
        states, updates = scores(data)
        for seed in data.seed.values:
            look = {"lw": 1.6 if seed == data.seed.values[0] else 0.7, "alpha": 0.9}
            for name, color in COLORS.items():
                label = name if seed == data.seed.values[0] else None
                one = states[name].sel(seed=seed)
                axes[1, 0].plot(data.iteration, one, color=color, **look)
                total = updates[name].sel(seed=seed).cumsum("iteration")
                axes[1, 1].plot(data.iteration, total, color=color, label=label, **look)
            axes[1, 2].plot(data.iteration, data.loss.sel(seed=seed), color=style.BLACK, **look)
        axes[1, 0].set(xlabel="iteration", ylabel="mean cosine of states", title="C")
        axes[1, 1].legend(frameon=False, fontsize=6)
        axes[1, 1].set(xlabel="iteration", ylabel="cumulative score of M", title="interference M")
        axes[1, 2].set(xlabel="iteration", ylabel="test loss (MSE)", yscale="log", title="loss")
        self._draw_filters(axes[1, 3])
        for panel, text in zip(axes.ravel(), "ABBBCD E", strict=True):
            style.letter(panel, text.strip())
        fig.suptitle(f"Four tasks, GRU, g = {float(data.g):g} (g of the code)", fontsize=9)
        return fig

    def _draw_tasks(self, panel, period):
        from nullcline import recurrent

        trials = recurrent.FourTasks(period=period, context=period).grid(32)
        # The stimulus and response of one angle in each task: cosine channels alone.
        inputs = np.stack([np.asarray(trials.inputs[8 * k + 1, :, 1]) for k in range(4)], axis=1)
        targets = np.stack([np.asarray(trials.targets[8 * k + 1, :, 1]) for k in range(4)], axis=1)
        plot_trial(panel, inputs, targets)
        panel.set_yticks(-np.arange(8), [f"{n} in" for n in TASKS] + [f"{n} out" for n in TASKS])
        panel.set_title("cosine channels")

    def _draw_filters(self, panel):
        from matplotlib.colors import to_rgb

        image = np.zeros((4, 9, 3))
        image[:, 4] = 1
        for offset, (name, pairs) in zip((0, 5), FILTERS.items(), strict=True):
            for i, j in pairs:
                image[i, offset + j] = image[j, offset + i] = to_rgb(COLORS[name])
        panel.imshow(image)
        panel.set_xticks([1.5, 6.5], list(FILTERS))
        panel.set_yticks(range(4), TASKS)
        panel.set_title("filters")

    def claims(self, data) -> Iterator[Claim]:
        """Section 3.2: every run counts."""
        data = first_setting(data).isel(g=0)
        states, updates = scores(data)
        gap = states["Pro/Anti"] - states["Mem/Del"]
        yield Claim(
            "untrained states align by memory/delay, in every run",
            measured=float(-gap.isel(iteration=0).max()),
            at_least=0.03,
            source="Fig. 4C",
            note="smallest excess of the mean cosine of Mem/Del over that of Pro/Anti at iteration 0",
        )
        yield Claim(
            "every run switches to pro/anti alignment",
            measured=float(gap.isel(iteration=-1).min()),
            at_least=0.2,
            source="Fig. 4C",
            note="smallest excess of Pro/Anti over Mem/Del at the end",
        )
        # Three of the quick preset's networks do so; of the document's twenty not all do.
        is_all = int(data.hidden) >= DOCUMENT_UNITS and data.seed.size >= DOCUMENT_RUNS
        switches = np.array([ahead_from(gap.sel(seed=seed)) for seed in data.seed.values])
        yield Claim(
            "the runs switch at a similar iteration",
            measured=quotient(switches.max(), switches.min()),
            at_least=2 if is_all else None,
            at_most=None if is_all else 2,
            source="Fig. 4C",
            erratum="Most runs do, not all: of twenty, nineteen switch at 1400 to 2000 and one at 800."
            if is_all
            else "",
            note=f"latest over earliest iteration from which Pro/Anti stays ahead: {switches.tolist()}",
        )
        lead = (updates["Pro/Anti"] - updates["Mem/Del"]).cumsum("iteration")
        leads = np.array([ahead_from(lead.sel(seed=seed)) for seed in data.seed.values])
        start = updates["Pro/Anti"].isel(iteration=0) - updates["Mem/Del"].isel(iteration=0)
        yield Claim(
            "cumulative interference favours pro/anti from the start, before the switch is visible",
            measured=max(quotient(*pair) for pair in zip(leads, switches, strict=True)),
            at_most=0.5,
            source="Fig. 4D",
            note="iteration from which the cumulative M of Pro/Anti stays ahead, over that of the switch, "
            f"the largest of the runs: {leads.tolist()}; at iteration 0 it is ahead by at least "
            f"{float(start.min()):.2g}",
        )
        mean = (updates["Pro/Anti"] - updates["Mem/Del"]).mean("iteration")
        yield Claim(
            "throughout training updates clearly prefer pro/anti alignment, in every run (by 0.1 or more)",
            measured=float(mean.min()),
            at_least=None if is_all else 0.1,
            at_most=0.1 if is_all else None,
            source="Fig. 4D",
            erratum="Every run prefers it, some by little: three of twenty by less than 0.1."
            if is_all
            else "",
            note="smallest excess of the mean M of Pro/Anti over that of Mem/Del; by run: "
            + ", ".join(f"{float(v):.2g}" for v in mean),
        )


def scores(data):
    """Scores of states and of updates by both filters."""

    def filtered(matrices):
        dims = [d for d in matrices.dims if d not in ("task", "other")]
        ordered = matrices.transpose(*dims, "task", "other")
        return {
            name: ordered.isel(task=0, other=0, drop=True).copy(data=score(ordered.values, pairs))
            for name, pairs in FILTERS.items()
        }

    return filtered(data.cosine), filtered(data.interference)


def quotient(part: float, whole: float) -> float:
    """Ratio of two iterations; NaN where there is none."""
    return float(part / whole) if whole > 0 else np.nan


def ahead_from(gap) -> float:
    """First iteration from which a course stays positive; NaN if it does not end so."""
    behind = np.flatnonzero(~(gap.values > 0))
    if len(behind) and behind[-1] == len(gap) - 1:
        return np.nan
    return float(gap.iteration[behind[-1] + 1 if len(behind) else 0])
