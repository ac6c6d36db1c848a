"""Training and measuring nonlinear networks: what Figures 1, 2, S1 and S2 share."""

import functools
import warnings
from collections.abc import Mapping

import numpy as np

from .._lazy import jnp, jr, lazily

recurrent = lazily("nullcline.recurrent")

TASKS = ("flip-flop", "mante", "romo")
TITLES = {"flip-flop": "Flip-flop", "mante": "Mante", "romo": "Romo"}
EPOCHS = {"flip-flop": 1000, "mante": 2000, "romo": 6000}
TEST_TRIALS, MAX_RANK, MODES = 512, 25, 40
CONVERGED = 0.05
# Small networks scatter more and cost less: many seeds where a training is short.
PAPER_SIZE, SMALL_SEEDS = 256, {"flip-flop": 8, "mante": 4, "romo": 1}
# Epochs to 5 % of the first loss at g = 0 and 0.9, smallest and largest of five networks (eight of N = 64).
EPOCH_RANGES = {
    ("flip-flop", 64): ((62, 250), (26, 57)),
    ("flip-flop", 256): ((62, 95), (23, 43)),
    ("mante", 256): ((207, 801), (29, 69)),
    ("romo", 256): ((2379, 3620), (200, 251)),
}


def make_task(name: str):
    """Give the task of a panel."""
    return {"flip-flop": recurrent.FlipFlop, "mante": recurrent.Mante, "romo": recurrent.Romo}[name]()


def measured(name: str, g: float, hidden: int, seeds: tuple[int, ...]) -> Mapping[str, np.ndarray]:
    """Train one network per seed and measure all that the figures show; the first axis is the seed.

    Below the document's size only the first seeds of the longer tasks are trained; the others are NaN.
    """
    count = min(SMALL_SEEDS[name], len(seeds)) if hidden < PAPER_SIZE else len(seeds)
    networks = [_network(name, g, hidden, seed) for seed in seeds[:count]]
    return {
        variable: np.stack(
            [network[variable] for network in networks]
            + [np.full_like(networks[0][variable], np.nan)] * (len(seeds) - count)
        )
        for variable in networks[0]
    }


# Figures show the same networks: those that were made by this process are found again.
@functools.lru_cache(maxsize=64)
def _network(name: str, g: float, hidden: int, seed: int) -> Mapping[str, np.ndarray]:
    task = make_task(name)
    key = jr.fold_in(jr.fold_in(jr.key(2020), TASKS.index(name)), seed)
    # A seed has the same directions and the same trials for every g.
    cell = recurrent.rate_cell(
        task.inputs, hidden, task.outputs, g=g, dtype=jnp.float32, key=jr.fold_in(key, 0)
    )
    result = recurrent.train(cell, task, steps=EPOCHS[name], key=jr.fold_in(key, 1))
    return _measure(task, result, jr.fold_in(key, 2))


def _measure(task, result, key) -> dict[str, np.ndarray]:
    test_key, shuffle_key = jr.split(key)
    initial, final = result.initial, result.final
    trials = task.sample_for(final, TEST_TRIALS, key=test_key)
    truncation = recurrent.truncation_losses(initial, final, trials, range(min(MAX_RANK, final.hidden) + 1))
    before, after = (
        float(recurrent.loss(recurrent.run(cell, trials.inputs)[1], trials)) for cell in (initial, final)
    )
    spectrum = recurrent.spectrum(final, initial)
    return {
        "loss": np.asarray(result.losses),
        "test_loss": np.asarray(after / before),
        "epochs": np.asarray(recurrent.epochs_to(result.losses, CONVERGED)),
        "truncation": np.asarray(truncation) / before,
        "rank": np.asarray(recurrent.epochs_to(truncation, 0.05)),
        "shuffled": np.asarray(recurrent.shuffle_loss(initial, final, trials, key=shuffle_key)),
        "norm_change": np.asarray(jnp.linalg.norm(final.w - initial.w)),
        "norm_w": np.asarray(jnp.linalg.norm(final.w)),
        "change_singular_values": np.asarray(spectrum.change_singular_values[:MODES]),
        "singular_values": np.asarray(spectrum.singular_values[:MODES]),
        "change_eigenvalues": np.asarray(spectrum.change_eigenvalues),
        "eigenvalues": np.asarray(spectrum.eigenvalues),
        **_example(task, final, test_key),
    }


def _example(task, cell, key) -> dict[str, np.ndarray]:
    """One trial of the trained network, padded with NaN to the longest of the three tasks."""
    if isinstance(task, recurrent.FlipFlop):
        task = recurrent.FlipFlop(duration=100.0)
    trials = task.sample_for(cell, 1, key=key)
    _, outputs = recurrent.run(cell, trials.inputs)
    targets = np.where(np.asarray(trials.mask) > 0, np.asarray(trials.targets), np.nan)

    def padded(values, channels):
        room = np.full((200, channels), np.nan)
        room[: values.shape[1], : values.shape[2]] = values[0]
        return room

    return {
        "trial_inputs": padded(np.asarray(trials.inputs), 4),
        "trial_outputs": padded(np.asarray(outputs), 2),
        "trial_targets": padded(targets, 2),
    }


def is_converged(data):
    """Networks that met the threshold and solve the task at the end; only they enter means and medians."""
    return np.isfinite(data.epochs) & (data.test_loss < CONVERGED)


def medians(data):
    """Medians over converged networks; epochs are those of all networks that met the threshold."""
    with warnings.catch_warnings():
        # No network of a group may have converged: then the median is NaN, and a claim about it fails.
        warnings.filterwarnings("ignore", "All-NaN slice", RuntimeWarning)
        kept = data.where(is_converged(data)).median("seed")
        return kept.assign(epochs=data.epochs.median("seed"))


def least_speedup(task: str, hidden: int) -> tuple[float, str]:
    """Smallest ratio of epochs at g = 0 and 0.9 that known networks allow, and where it comes from.

    Without numbers for this size the bound is 1: learning with initial connectivity is faster.
    """
    ranges = EPOCH_RANGES.get((task, hidden))
    if ranges is None:
        return 1.0, f"no numbers are known for N = {hidden}: only that it is faster"
    (slow, most), (least, fast) = ranges
    return slow / fast, f"known networks of N = {hidden} take {slow}-{most} and {least}-{fast} epochs"


def padded_losses(losses: np.ndarray) -> np.ndarray:
    """Losses relative to the first epoch's, padded with NaN to the longest training."""
    room = np.full((losses.shape[0], max(EPOCHS.values())), np.nan, dtype=np.float32)
    room[:, : losses.shape[1]] = losses / losses[:, :1]
    return room
