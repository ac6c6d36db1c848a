"""Training and measuring nonlinear networks: what Figures 1, 2, S1 and S2 share."""

import functools
import itertools
import warnings
from collections.abc import Mapping

import numpy as np

from .._lazy import jax, jnp, jr, lazily

recurrent = lazily("nullcline.recurrent")

TASKS = ("flip-flop", "mante", "romo")
TITLES = {"flip-flop": "Flip-flop", "mante": "Mante", "romo": "Romo"}
# The document goes up to these; stronger networks no longer learn the task in the time given.
STRENGTHS = [round(0.3 * k, 1) for k in range(11)]
LAST = {"flip-flop": 2.1, "mante": 2.7, "romo": 3.0}
EPOCHS = {"flip-flop": 1000, "mante": 2000, "romo": 6000}
TEST_TRIALS, MAX_RANK, MODES = 512, 25, 40
CONVERGED = 0.05
# Small networks scatter more and cost less: many seeds where a training is short.
PAPER_SIZE, SMALL_SEEDS = 256, {"flip-flop": 8, "mante": 4, "romo": 1}
# Epochs to 5 % of the first loss at g = 0 and 0.9, smallest and largest of some known networks.
EPOCH_RANGES = {
    ("flip-flop", 64): ((62, 250), (26, 57)),
    ("flip-flop", 256): ((62, 95), (23, 43)),
    ("mante", 256): ((207, 801), (29, 69)),
    ("romo", 256): ((2379, 3620), (200, 251)),
}
KNOWN_NETWORKS = {64: 8, 256: 5}


def make_task(name: str):
    """Give the task of a panel."""
    return {"flip-flop": recurrent.FlipFlop, "mante": recurrent.Mante, "romo": recurrent.Romo}[name]()


def measured(
    name: str, g: float, hidden: int, seeds: tuple[int, ...], *, is_thinned: bool = True
) -> Mapping[str, np.ndarray]:
    """Train one network per seed and measure all that the figures show; the first axis is the seed.

    With ``is_thinned`` only the first seeds of the longer tasks are trained below the document's size; the
    others are NaN.
    """
    is_short = is_thinned and hidden < PAPER_SIZE
    count = min(SMALL_SEEDS[name], len(seeds)) if is_short else len(seeds)
    if jax.default_backend() == "cpu":
        networks = [_network(name, g, hidden, seed) for seed in seeds[:count]]
    else:
        batch = _batch(name, hidden, _company(name, g, hidden), seeds[:count])
        networks = [batch[g, seed] for seed in seeds[:count]]
    return {
        variable: np.stack(
            [network[variable] for network in networks]
            + [np.full_like(networks[0][variable], np.nan)] * (len(seeds) - count)
        )
        for variable in networks[0]
    }


# Figures show the same networks: those that were made by this process are found again.
@functools.lru_cache(maxsize=256)
def _network(name: str, g: float, hidden: int, seed: int) -> Mapping[str, np.ndarray]:
    task, key = make_task(name), _key(name, seed)
    cell = _cell(task, hidden, g, key)
    result = recurrent.train(cell, task, steps=EPOCHS[name], key=jr.fold_in(key, 1))
    return _padded(_measure(task, result.initial, result.final, result.losses, jr.fold_in(key, 2)))


@functools.lru_cache(maxsize=32)
def _batch(
    name: str, hidden: int, strengths: tuple[float, ...], seeds: tuple[int, ...]
) -> Mapping[tuple[float, int], Mapping[str, np.ndarray]]:
    """The networks of a task by strength and seed: one program trains them, another one measures them."""
    task, pairs = make_task(name), list(itertools.product(strengths, seeds))
    g, seed = (np.asarray(values) for values in zip(*pairs, strict=True))
    keys = jax.vmap(functools.partial(_key, name))(seed)
    part = jax.vmap(jr.fold_in, in_axes=(0, None))
    cells = jax.jit(jax.vmap(functools.partial(_cell, task, hidden)))(g, keys)
    result = recurrent.train_many(cells, task, steps=EPOCHS[name], key=part(keys, 1))
    measures = jax.jit(jax.vmap(functools.partial(_measure, task)))
    found = jax.device_get(measures(result.initial, result.final, result.losses, part(keys, 2)))
    return {
        pair: _padded({variable: values[index] for variable, values in found.items()})
        for index, pair in enumerate(pairs)
    }


def _company(name: str, g: float, hidden: int) -> tuple[float, ...]:
    """Strengths of the networks that an accelerator trains along with those of ``g``, in the same time."""
    known = [s for s in STRENGTHS if s <= LAST[name]] if hidden == PAPER_SIZE else [0.0, 0.9, 1.8]
    return tuple(known) if g in known else (g,)


def _key(name: str, seed):
    return jr.fold_in(jr.fold_in(jr.key(2020), TASKS.index(name)), seed)


def _cell(task, hidden: int, g, key):
    # A seed has the same directions and the same trials for every g.
    key = jr.fold_in(key, 0)
    return recurrent.rate_cell(task.inputs, hidden, task.outputs, g=g, dtype=jnp.float32, key=key)


def _measure(task, initial, final, losses, key) -> dict:
    """All numbers of a network; may be traced."""
    test_key, shuffle_key = jr.split(key)
    trials = task.sample_for(final, TEST_TRIALS, key=test_key)
    truncation = recurrent.truncation_losses(initial, final, trials, range(min(MAX_RANK, final.hidden) + 1))
    before, after = (
        recurrent.loss(recurrent.run(cell, trials.inputs)[1], trials) for cell in (initial, final)
    )
    spectrum = recurrent.spectrum(final, initial)
    return {
        "loss": losses,
        "test_loss": after.astype(float) / before.astype(float),
        "epochs": recurrent.epochs_to(losses, CONVERGED),
        "truncation": truncation / before,
        "rank": recurrent.epochs_to(truncation, 0.05),
        "shuffled": recurrent.shuffle_loss(initial, final, trials, key=shuffle_key),
        "norm_change": jnp.linalg.norm(final.w - initial.w),
        "norm_w": jnp.linalg.norm(final.w),
        "change_singular_values": spectrum.change_singular_values[:MODES],
        "singular_values": spectrum.singular_values[:MODES],
        "change_eigenvalues": spectrum.change_eigenvalues,
        "eigenvalues": spectrum.eigenvalues,
        **_example(task, final, test_key),
    }


def _example(task, cell, key) -> dict:
    """One trial of the trained network."""
    if isinstance(task, recurrent.FlipFlop):
        task = recurrent.FlipFlop(duration=100.0)
    trials = task.sample_for(cell, 1, key=key)
    _, outputs = recurrent.run(cell, trials.inputs)
    targets = jnp.where(trials.mask > 0, trials.targets, jnp.nan)
    return {"trial_inputs": trials.inputs[0], "trial_outputs": outputs[0], "trial_targets": targets[0]}


def _padded(found: Mapping) -> Mapping[str, np.ndarray]:
    """Measures as NumPy arrays, the trial padded with NaN to the longest of the three tasks."""
    found = {name: np.asarray(values) for name, values in found.items()}
    for name, channels in (("trial_inputs", 4), ("trial_outputs", 2), ("trial_targets", 2)):
        room = np.full((200, channels), np.nan)
        room[: found[name].shape[0], : found[name].shape[1]] = found[name]
        found[name] = room
    return found


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


def chance_of_same_law(ours: np.ndarray, low: float, high: float, known: int) -> float:
    """Chance that as many of ``ours`` lie beyond a range of known networks, if all are drawn alike.

    The range is that of ``known`` networks; the larger excess of the two sides counts, and the chance is
    doubled for the choice. A network that never meets the threshold (NaN) takes longer than all.
    """
    ours = np.where(np.isnan(ours), np.inf, ours)
    beyond = max(int((ours > high).sum()), int((ours < low).sum()))
    # The largest (or smallest) `beyond` of all networks are ours.
    steps = np.arange(beyond)
    return min(1.0, 2 * float(np.prod((ours.size - steps) / (ours.size + known - steps))))


def padded_losses(losses: np.ndarray) -> np.ndarray:
    """Losses relative to the first epoch's, padded with NaN to the longest training."""
    room = np.full((losses.shape[0], max(EPOCHS.values())), np.nan, dtype=np.float32)
    room[:, : losses.shape[1]] = losses / losses[:, :1]
    return room
