"""Figure 1: learning dynamics in three neuroscience tasks."""

from collections.abc import Iterator

import numpy as np

from ...engine import Claim, Grid, Study
from ...plotting import plot_trial
from .. import _style as style
from .._lazy import xr
from ._networks import (
    EPOCH_RANGES,
    EPOCHS,
    KNOWN_NETWORKS,
    MAX_RANK,
    MODES,
    TASKS,
    TITLES,
    chance_of_same_law,
    is_converged,
    least_speedup,
    measured,
    medians,
    padded_losses,
)

# Romo needs more units than the other tasks to be learned without initial connectivity.
HIDDEN = {"small": {"flip-flop": 64, "mante": 64, "romo": 128}, "paper": dict.fromkeys(TASKS, 256)}
COLORS = {0.0: style.BLACK, 0.9: style.VERMILION}
# How many of five networks of 256 units end below 2 % of the loss before training, at g = 0 and 0.9.
SOLVED = {"flip-flop": (5, 5), "mante": (4, 5), "romo": (4, 5)}
SHOWN = {"flip-flop": 200, "mante": 1000, "romo": 6000}


class ThreeTasks(Study):
    """Trials, loss, singular values and truncation of networks on three tasks, for g = 0 and 0.9."""

    source = "schuessler2020/fig1"
    presets = {
        "quick": Grid(task=TASKS, g=[0.0, 0.9], size="small", seed=range(8)),
        "paper": Grid(task=TASKS, g=[0.0, 0.9], size="paper", seed=range(5)),
    }
    vectorized = ("seed",)
    expected = {"quick": 125.0, "paper": 1250.0}
    may_be_nan = (
        *("loss", "test_loss", "epochs", "rank", "truncation", "singular_values"),
        *("trial_inputs", "trial_outputs", "trial_targets"),
    )

    def compute(self, task, g, size, seed):
        """Train and measure the networks of one task and g."""
        found = measured(task, g, HIDDEN[size][task], tuple(seed))
        return xr.Dataset(
            {
                "loss": (("seed", "epoch"), padded_losses(found["loss"])),
                "test_loss": ("seed", found["test_loss"]),
                "epochs": ("seed", found["epochs"]),
                "rank": ("seed", found["rank"]),
                "truncation": (("seed", "truncated_rank"), found["truncation"]),
                "singular_values": (("seed", "mode"), found["change_singular_values"]),
                "trial_inputs": (("seed", "time", "input"), found["trial_inputs"]),
                "trial_outputs": (("seed", "time", "output"), found["trial_outputs"]),
                "trial_targets": (("seed", "time", "output"), found["trial_targets"]),
            },
            coords={
                "seed": list(seed),
                "epoch": np.arange(max(EPOCHS.values())),
                "truncated_rank": np.arange(MAX_RANK + 1),
                "mode": np.arange(1, MODES + 1),
                "time": 0.5 * np.arange(200),
            },
        )

    def draw(self, data):
        """Columns are tasks; rows are a trial, the loss, singular values and truncation losses."""
        fig, axes = style.figure(4, 3, width=7.2, height=7.6)
        data = data.isel(size=0)
        for column, task in enumerate(TASKS):
            one = data.sel(task=task)
            trial = one.sel(g=0.9).isel(seed=0)
            plot_trial(
                axes[0, column],
                trial.trial_inputs.values,
                trial.trial_targets.values,
                trial.trial_outputs.values,
                dt=0.5,
            )
            axes[0, column].set_title(TITLES[task])
            for g, color in COLORS.items():
                nets = one.sel(g=g)
                for seed in nets.seed.values:
                    net, is_first = nets.sel(seed=seed), seed == nets.seed.values[0]
                    look = {"color": color, "alpha": 1.0 if is_first else 0.3, "lw": 1.2 if is_first else 0.6}
                    label = f"g = {g}" if is_first else None
                    axes[1, column].plot(net.epoch, net.loss, label=label, **look)
                    axes[2, column].plot(net.mode[:11], net.singular_values[:11], "o-", ms=3, **look)
                    axes[3, column].plot(net.truncated_rank[1:12], net.truncation[1:12], "o-", ms=3, **look)
            axes[1, column].set(xlim=(0, SHOWN[task]), ylim=(0, 1.3), xlabel="epoch")
            axes[2, column].set(xlabel="index of singular value", ylim=(0, None))
            axes[3, column].set(xlabel="rank R", ylim=(0, 1.3))
        for row, label in enumerate(
            ("", "loss $L/L_0$", "singular values of $\\Delta W$", "loss at rank R, $L/L_0$")
        ):
            axes[row, 0].set_ylabel(label)
        axes[1, 0].legend(frameon=False)
        for panel, text in zip(axes.ravel(), "abcdefghijkl", strict=True):
            style.letter(panel, text)
        return fig

    def claims(self, data) -> Iterator[Claim]:
        """Section 2 of the document; medians over converged networks."""
        size = str(data["size"].values[0])
        data = data.isel(size=0)
        kept = medians(data)
        yield from self._flip_flop(data.sel(task="flip-flop", g=0.0))
        reached = np.isfinite(data.epochs).sum("seed") / np.isfinite(data.test_loss).sum("seed")
        yield Claim(
            "the loss curves indicate convergence for all three tasks, at g = 0 and 0.9",
            measured=float(reached.min()),
            at_least=0.8,
            source="Fig. 1(d-f)",
            note="share of networks that meet 5 % of the first loss, the least of the six settings; one "
            "network in five may never do",
        )
        for task in TASKS:
            yield from self._speed(data.sel(task=task), task, HIDDEN[size][task])
        if size == "paper":
            # Small networks lose the solution again later in training: this is about the document's size.
            yield self._solved(data)
        for task, low, high in (("mante", 4, 6), ("romo", 5, 10)):
            yield Claim(
                f"{TITLES[task]}, g = 0: a low-rank change solves the task",
                measured=float(kept["rank"].sel(task=task, g=0.0)),
                at_least=low,
                at_most=high,
                source="Fig. 1(k, l)",
                note="functional rank; the document's networks have 4 and 6",
            )
        yield Claim(
            "the functional rank is at most 10 in every network of every task, at g = 0 and 0.9",
            measured=float(data["rank"].where(is_converged(data)).max()),
            at_most=10,
            source="Fig. 1(j-l)",
        )
        for task, epoch, low, high in (("romo", 1500, 0.4, 0.6), ("mante", 150, 0.9, 1.1)):
            plateau = data.loss.sel(task=task, g=0.0).isel(epoch=slice(epoch - 50, epoch)).median()
            yield Claim(
                f"{TITLES[task]}, g = 0: the loss stays on a plateau before it falls",
                measured=float(plateau),
                at_least=low,
                at_most=high,
                source="Fig. 1(e, f)",
                note=f"median loss over L_0 in the 50 epochs before {epoch}",
            )

    def _solved(self, data) -> Claim:
        """Counts against those of another run: with five networks each, only Fisher's test is fair."""
        from scipy.stats import fisher_exact

        counts, chances = [], []
        for task, known in SOLVED.items():
            for g, those in zip((0.0, 0.9), known, strict=True):
                losses = data.test_loss.sel(task=task, g=g).values
                ours = int((losses < 0.02).sum())
                counts.append(ours)
                chances.append(fisher_exact([[ours, len(losses) - ours], [those, 5 - those]])[1])
        return Claim(
            "trained networks solve the tasks: 5, 5, 4, 5, 4, 5 of five end below 2 % of L_0",
            measured=min(chances),
            at_least=0.01,
            source="Fig. 1(d-f)",
            note=f"here {', '.join(map(str, counts))} of {data.seed.size} (flip-flop, Mante, Romo, each at "
            "g = 0 and 0.9); smallest p-value of Fisher's exact test that both runs have the same share",
        )

    def _flip_flop(self, flip) -> Iterator[Claim]:
        yield Claim(
            "flip-flop, g = 0: the loss after truncation drops to zero at rank 2, in every network",
            measured=float(abs(flip["rank"] - 2).max()),
            at_most=0,
            source="Fig. 1(j)",
            note="largest distance of the functional rank from 2",
        )
        for mode, name in ((1, "first"), (2, "second")):
            yield Claim(
                f"flip-flop, g = 0: the {name} singular value is large, between 1.3 and 1.4",
                measured=float(flip.singular_values.sel(mode=mode).median()),
                at_least=1.25,
                at_most=1.45,
                source="Fig. 1(g)",
                note="median over networks; 1.3 and 1.4 to two digits",
            )
        third = flip.singular_values.sel(mode=3)
        yield Claim(
            "flip-flop, g = 0: the remaining singular values are much smaller",
            measured=float(third.median()),
            at_most=0.355,
            source="Fig. 1(g)",
            note="third singular value, median over networks, against 0.35, to two digits, as the largest of "
            f"five others; here the largest is {float(third.max()):.2f}",
        )

    def _speed(self, data, task: str, hidden: int) -> Iterator[Claim]:
        for g, (low, high) in zip((0.0, 0.9), EPOCH_RANGES.get((task, hidden), ()), strict=False):
            nets = data.sel(g=g)
            ours = nets.epochs.values[np.isfinite(nets.test_loss.values)]
            yield Claim(
                f"{TITLES[task]}, g = {g}: training takes {low} to {high} epochs",
                measured=chance_of_same_law(ours, low, high, KNOWN_NETWORKS[hidden]),
                at_least=0.01,
                source="Fig. 1(d-f)",
                note=f"here {np.nanmin(ours):.0f} to {np.nanmax(ours):.0f} epochs to 5 % of the first loss, "
                f"median {np.nanmedian(ours):.0f}, N = {hidden}; chance that as many of our {ours.size} "
                f"networks lie beyond the range of {KNOWN_NETWORKS[hidden]} others, if all are alike",
            )
        bound, reason = least_speedup(task, hidden)
        yield Claim(
            f"{TITLES[task]}: learning becomes faster with initial connectivity",
            measured=float(data.epochs.sel(g=0.0).median() / data.epochs.sel(g=0.9).median()),
            at_least=bound,
            source="Fig. 1(d-f)",
            note=f"epochs to 5 % of the first loss, g = 0 over g = 0.9; {reason}",
        )
