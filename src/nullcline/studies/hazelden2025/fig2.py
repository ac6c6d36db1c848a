"""Figure 2: dynamic collapse on the memory-pro task."""

from collections.abc import Iterator

import numpy as np

from ...engine import Claim, Grid, Study
from ...plotting import plot_trial
from .. import _style as style
from . import _memory as memory
from ._memory import Setup, ends, quietly, trained
from ._panels import PERIODS, draw_convergence, draw_paths, draw_shares, draw_stages, first_setting

COMPONENTS, DRAWN = 60, 10
AXIS = {"text": "g  (text: W ~ N(0, g²/N))", "code": "g  (code: g·U(±1/√N))"}


class DynamicCollapse(Study):
    """Convergence time, rank of K, dimension of states and chaos against the initial scale g."""

    source = "hazelden2025/fig2"
    presets = {
        "quick": Grid(
            scale="text", g=[0.1, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0], hidden=128, period=10,
            batch=32, steps=2000, stops=True, seed=range(3),
        ),
        "paper": Grid(
            scale="code", g=[round(k * 3 / 49, 4) for k in range(50)], hidden=256, period=30, batch=200,
            steps=5000, stops=False, seed=range(10),
        ),
    }  # fmt: skip
    vectorized = ("seed",)
    expected = {"quick": 60.0, "paper": 400_000.0}
    may_be_nan = ("iterations",)

    def compute(self, scale, g, hidden, period, batch, steps, stops, seed):
        """Train the networks of one g and measure them before and after."""
        setup = Setup("tanh", scale, hidden, period, batch, steps, stops)
        found = trained(setup, g, tuple(seed))

        def measure(flow):
            chaos = memory.dimension_of_chaos(flow, 3)
            return memory.states_and_ranks(flow, COMPONENTS, DRAWN) | {"chaos": chaos}

        measured = memory.measure_stages(found, setup, measure)
        data = memory.as_dataset(found, seed, measured, **memory.STATES_AND_RANKS)
        data["test_loss"] = ("seed", found.losses[:, -1])
        return data.assign_coords(power=[1, 2], component=np.arange(1, COMPONENTS + 1))

    @quietly
    def draw(self, data):
        """Task, convergence, rank of K; states and their dimension for a small and a large g."""
        scale, steps, period = data.scale.values[0].item(), int(data.steps[0]), int(data.period[0])
        data = first_setting(data)
        fig, axes = style.figure(3, 4, width=10.2, height=7.0)
        self._draw_task(axes[0, 0], period)
        draw_convergence(axes[0, 1], data, steps)
        for panel, power in ((axes[0, 2], 1), (axes[0, 3], 2)):
            label = f"effective rank of K, power {power}"
            draw_stages(panel, data, data["rank"].sel(power=power), ylabel=label, yscale="log")
        for row, wanted in ((1, 1.33 / np.sqrt(3)), (2, 2.33 / np.sqrt(3))):
            # The document's 1.33 and 2.33 are of the code: √3 times smaller on the axis of the text.
            near = data.sel(g=wanted * (np.sqrt(3) if scale == "code" else 1), method="nearest")
            for column, stage in ((0, "before"), (1, "after")):
                draw_paths(axes[row, column], near.path.sel(stage=stage).values, period)
                axes[row, column].set_title(f"g = {float(near.g):.3g}, {stage} training")
            draw_shares(axes[row, 2], near.isel(seed=0))
        draw_stages(axes[1, 3], data, data.dimension, ylabel="PCs for 95 % of variance")
        draw_stages(axes[2, 3], data, data.chaos, ylabel="Kaplan–Yorke dimension")
        for panel in (axes[0, 1], axes[0, 2], axes[0, 3], axes[1, 3], axes[2, 3]):
            panel.set_xlabel(AXIS[scale])
        for panel, text in zip(axes.ravel(), "ABCCDDEGFFGG", strict=True):
            style.letter(panel, text if panel not in (axes[1, 3], axes[2, 3]) else "")
        fig.suptitle(f"Memory-pro, g of the {scale}; effective ranks of K with powers 1 and 2", fontsize=9)
        return fig

    def _draw_task(self, panel, period):
        from nullcline import recurrent

        trial = recurrent.MemoryPro(period=period).grid(8)
        plot_trial(panel, np.asarray(trial.inputs[1]), np.asarray(trial.targets[1]))
        for k, name in enumerate(("stimulus", "memory", "response")):
            panel.axvspan(k * period, (k + 1) * period, color=PERIODS[k], alpha=0.15, lw=0)
            panel.annotate(name, ((k + 0.5) * period, 0.5), ha="center", fontsize=6)

    @quietly
    def claims(self, data) -> Iterator[Claim]:
        """Section 3.1; medians over seeds, after training over the networks that converged."""
        scale, steps = data.scale.values[0].item(), int(data.steps[0])
        data = first_setting(data)
        met = np.isfinite(data.iterations)
        count = f"{int(met.sum())} of {met.size} networks converged; g of the {scale}"
        # A network that did not converge took longer than all steps.
        times = data.iterations.fillna(2 * steps).median("seed")
        low, best = (0.1, 1.25) if scale == "text" else (0.1 * np.sqrt(3), 2.0)
        yield Claim(
            f"gradient descent converges faster at larger g, from g = {low:.2g} to {best:g}",
            measured=float(times.sel(g=low, method="nearest") / times.sel(g=best, method="nearest")),
            at_least=8,
            source="Fig. 2B",
            note=f"median iterations at the small g over those at the larger one; {count}",
        )
        yield Claim(
            "gradient descent consistently converges faster in the large g regime",
            measured=float(times.isel(g=-1) / times.min()),
            at_least=3 if scale == "text" else 2,
            source="Fig. 2B",
            erratum="The time of convergence is U-shaped: it falls to an optimum (g of the text 1 to 1.5, of "
            "the code about 2) and rises again; deep in chaos networks are slowest or fail.",
            note="median iterations at the largest g over the smallest median (twice the limit if not met)",
        )
        if scale == "code":
            yield Claim(
                "on the document's own axis the optimum is near g = 2",
                measured=float(times.g[int(times.argmin("g"))]),
                at_least=1.5,
                at_most=2.5,
                source="Fig. 2B",
            )
        before = data["rank"].sel(stage="before").median("seed")
        after = data["rank"].sel(stage="after").where(met).median("seed")
        for power, start, factor in ((1, 0, 10), (2, int(np.argmax(data.g.values >= 1.5)), 4)):
            ranks = before.sel(power=power)
            yield Claim(
                f"the effective rank of K grows with g before training (power {power})",
                measured=float(ranks.isel(g=-1) / ranks.isel(g=start)),
                at_least=factor if scale == "text" else 2,
                source="Fig. 2C",
                note=f"rank at g = {float(ranks.g[-1]):g} over that at g = {float(ranks.g[start]):g}",
            )
        for power, bound in ((2, 0.4), (1, 0.7)):
            first, last = before.sel(power=power), after.sel(power=power)
            yield Claim(
                "after training the effective rank of K is similar for all g "
                + ("(power 2)" if power == 2 else "(power 1: its spread shrinks)"),
                measured=float((last.max() - last.min()) / (first.max() - first.min())),
                at_most=bound,
                source="Fig. 2C",
                note=f"spread over g after training, {float(last.min()):g} to {float(last.max()):g}, over "
                f"that before, {float(first.min()):g} to {float(first.max()):g}",
            )
        first, last = ends(data.dimension.sel(stage="after").where(met).median("seed"))
        yield Claim(
            "after training, larger g leaves a higher-dimensional hidden state",
            measured=last / first,
            at_least=3,
            source="Fig. 2E, G",
            note=f"PCs for 95 % of variance at the largest g, {last:g}, over the smallest g, {first:g}",
        )
        damped = 2.0 if scale == "text" else 3.0
        chaos = data.chaos.sel(g=slice(None, damped))
        yield Claim(
            f"chaos is rapidly damped into a stable regime, for g up to {damped:g}",
            measured=float(chaos.sel(stage="after").where(met).median("seed").max()),
            at_most=5,
            source="Section 3.1",
            note="largest median Kaplan–Yorke dimension after training; before it is "
            f"{float(chaos.sel(stage='before').median('seed').max()):.3g}",
        )
