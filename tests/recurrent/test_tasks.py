"""The laws of the tasks. Every statistical test has a fixed key and a false-alarm rate of 1e-5 over keys.

``Z`` is the two-sided normal quantile of that rate; tests of whole distributions reject below p = 1e-5.
"""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy import stats

from nullcline import recurrent

Z = stats.norm.isf(0.5e-5)
RATE = 1e-5
TRIALS = 2000

TASKS = {
    "flip-flop": recurrent.FlipFlop(),
    "flip-flop each": recurrent.FlipFlop(memory="each", channels=3),
    "mante": recurrent.Mante(),
    "romo": recurrent.Romo(),
    "constant": recurrent.Constant(target=2.0),
    "cosine": recurrent.Cosine(),
    "memory-pro": recurrent.MemoryPro(),
    "memory-anti": recurrent.MemoryAnti(),
    "delay-pro": recurrent.DelayPro(),
    "delay-anti": recurrent.DelayAnti(),
    "four": recurrent.FourTasks(),
    "pulses": recurrent.PulseFlipFlop(),
}


@functools.cache
def many(name):
    return jax.tree.map(np.asarray, sampler(name)(jr.key(7)))


@functools.cache
def sampler(name):
    # Compiled, and for one size: op by op each operation would be compiled for itself.
    return jax.jit(lambda key: TASKS[name].sample(TRIALS, key=key))


@functools.cache
def grid(name, batch):
    return jax.tree.map(np.asarray, jax.jit(lambda: TASKS[name].grid(batch))())


def zero_loss(name, rows):
    """Loss of a silent network on the first trials."""
    trials = jax.tree.map(lambda leaf: jnp.asarray(leaf[:rows]), many(name))
    return float(recurrent.loss(jnp.zeros(trials.targets.shape), trials))


def assert_uniform(counts):
    assert stats.chisquare(counts).pvalue > RATE


def assert_share(successes, trials, probability):
    gap = successes / trials - probability
    assert abs(gap) < Z * np.sqrt(probability * (1 - probability) / trials)


def assert_mean(values, expected):
    assert abs(np.mean(values) - expected) < Z * np.std(values) / np.sqrt(np.size(values))


@pytest.mark.parametrize("name", TASKS)
def test_shapes_precision_and_reproducibility(name, key):
    task = TASKS[name]
    trials, again, other = many(name), sampler(name)(jr.key(7)), sampler(name)(key)
    assert trials.inputs.shape == (TRIALS, task.time, task.inputs)
    assert trials.targets.shape == trials.mask.shape == (TRIALS, task.time, task.outputs)
    for ours, theirs in zip(jax.tree.leaves(trials), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    is_random = name not in ("constant", "cosine")
    assert is_random == bool(jnp.any(trials.inputs != other.inputs))
    single = jax.eval_shape(lambda key: task.sample(8, key=key, dtype=jnp.float32), key)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(single))
    assert set(np.unique(trials.mask)) <= {0.0, 1.0}


def test_sampling_needs_no_jit():
    eager = TASKS["flip-flop"].sample(TRIALS, key=jr.key(7))
    for ours, theirs in zip(jax.tree.leaves(eager), jax.tree.leaves(many("flip-flop")), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-14)


def pulses_of(inputs):
    """Onset, channel and sign of each pulse of one trial, read from the inputs; pulses last two steps."""
    found, step = [], 0
    while step < len(inputs):
        if np.any(inputs[step]):
            channel = int(np.argmax(np.abs(inputs[step])))
            found.append((step, channel, inputs[step, channel]))
            step += 2
        else:
            step += 1
    return found


@pytest.mark.parametrize("name", ["flip-flop", "flip-flop each"])
def test_flip_flop_targets_follow_the_pulses(name):
    task, trials = TASKS[name], many(name)
    for inputs, targets, mask in zip(trials.inputs[:200], trials.targets, trials.mask, strict=False):
        expected_inputs, expected, seen = (np.zeros_like(a) for a in (inputs, targets, mask))
        held = np.zeros(task.channels)
        pulses = pulses_of(inputs)
        for index, (onset, channel, sign) in enumerate(pulses):
            end = pulses[index + 1][0] if index + 1 < len(pulses) else task.time
            held = held.copy() if task.memory == "each" else np.zeros(task.channels)
            held[channel] = sign
            expected_inputs[onset : onset + 2, channel] = sign
            expected[onset + 10 : end], seen[onset + 10 : end] = 0.5 * held, 1
        np.testing.assert_array_equal(inputs, expected_inputs)
        np.testing.assert_array_equal(targets, expected)
        np.testing.assert_array_equal(mask, seen)


def test_flip_flop_law():
    trials = many("flip-flop")
    pulses = [pulses_of(inputs) for inputs in trials.inputs]
    assert all(found[0][0] == 2 for found in pulses)
    # The second onset always falls into the trial: its distance is a fair draw from 20..59.
    gaps = np.array([found[1][0] - found[0][0] for found in pulses])
    assert gaps.min() >= 20 and gaps.max() <= 59
    assert_uniform(np.bincount(gaps - 20, minlength=40))
    every = [pulse for found in pulses for pulse in found]
    assert_share(sum(channel == 0 for _, channel, _ in every), len(every), 0.5)
    assert_share(sum(sign > 0 for _, _, sign in every), len(every), 0.5)
    # Channel and sign are independent of each other and of the pulse before.
    table = np.zeros((2, 2))
    for _, channel, sign in every:
        table[channel, int(sign > 0)] += 1
    assert stats.chi2_contingency(table).pvalue > RATE
    repeats = [a[1:] == b[1:] for found in pulses for a, b in itertools.pairwise(found)]
    assert_share(sum(repeats), len(repeats), 0.25)


def test_flip_flop_means_are_those_of_the_renewal_process():
    """Mean numbers of pulses and of masked steps, summed exactly over the law of the gaps."""
    arrives = np.zeros(200)
    arrives[2] = 1
    for step in range(3, 200):
        arrives[step] = sum(arrives[step - gap] for gap in range(20, 60) if gap <= step) / 40
    count = arrives[:100].sum()
    share = sum(arrives[s] * np.mean([max(min(s + gap, 100) - s - 10, 0) for gap in range(20, 60)])
                for s in range(100)) / 100  # fmt: skip
    assert round(count, 3) == 3.012 and round(share, 3) == 0.690
    trials = many("flip-flop")
    assert_mean([len(pulses_of(inputs)) for inputs in trials.inputs], count)
    assert_mean(trials.mask.mean(axis=(1, 2)), share)
    assert zero_loss("flip-flop", 8) == 0.0625


def test_mante_law():
    trials, values = many("mante"), np.array(recurrent.Mante().coherences)
    context = trials.inputs[:, 6:46, :2]
    assert np.all(context == context[:, :1]) and np.all(context.sum(axis=2) == 1)
    assert np.all(trials.inputs[:, :6, :2] == 0) and np.all(trials.inputs[:, 46:, :2] == 0)
    chosen = np.argmax(context[:, 0], axis=1)
    assert_share(np.sum(chosen == 0), TRIALS, 0.5)
    # Averages over 40 steps of noise 0.0707 are within 0.011 (one standard deviation) of the coherence; the
    # nearest two coherences are 0.125 apart.
    nearest = np.argmin(
        np.abs(trials.inputs[:, 6:46, 2:].mean(axis=1)[:, :, None] - values[None, None, :]), axis=2
    )
    for signal in range(2):
        assert_uniform(np.bincount(nearest[:, signal], minlength=8))
    assert_uniform(np.bincount(8 * nearest[:, 0] + nearest[:, 1], minlength=64))
    is_on = np.zeros(96)
    is_on[6:46] = 1
    noise = trials.inputs[:, :, 2:] - is_on[None, :, None] * values[nearest][:, None, :]
    for part in (noise[:, :6], noise[:, 6:46], noise[:, 46:]):
        assert_mean(part, 0)
        assert_mean(part**2, 0.05**2 / 0.5)
    assert stats.kstest(noise[:500].ravel() / (0.05 / 0.5**0.5), "norm").pvalue > RATE
    sign = np.sign(values[nearest[np.arange(TRIALS), chosen]])
    np.testing.assert_array_equal(
        trials.targets[:, 56:, 0], np.broadcast_to(0.5 * sign[:, None], (TRIALS, 40))
    )
    assert np.all(trials.targets[:, :56] == 0)
    np.testing.assert_array_equal(trials.mask[0, :, 0], [1] * 46 + [0] * 10 + [1] * 40)
    assert round(zero_loss("mante", 8), 7) == 0.0581395


def test_mante_options():
    quiet = recurrent.Mante(noise=0.0, coherences=(-1.0, 1.0), n_in=6, signals_first=True)
    trials = quiet.sample(50, key=jr.key(0))
    signals, cue = trials.inputs[..., :3], trials.inputs[..., 3:]
    assert set(np.unique(signals[:, 6:46])) == {-1.0, 1.0} and set(np.unique(cue)) == {0.0, 1.0}
    relevant = jnp.sum(signals * cue, axis=2)[:, 20]
    np.testing.assert_array_equal(trials.targets[:, -1, 0], 0.5 * relevant)


def test_romo_law():
    trials = many("romo")
    inputs = trials.inputs[:, :, 0]
    assert np.all(inputs[:, :6] == 0) and np.all(inputs[:, 6] == inputs[:, 7])
    second = 8 + np.argmax(inputs[:, 8:] > 0, axis=1)
    gaps = second - 8
    assert gaps.min() >= 4 and gaps.max() <= 15
    assert_uniform(np.bincount(gaps - 4, minlength=12))
    rows = np.arange(TRIALS)
    first, last = inputs[:, 6], inputs[rows, second]
    np.testing.assert_array_equal(last, inputs[rows, second + 1])
    assert np.all(np.count_nonzero(inputs, axis=1) == 4)
    # The same law by the redrawing that it stands for.
    rng = np.random.default_rng(0)
    pairs = rng.uniform(0.5, 1.5, size=(40_000, 2))
    pairs = pairs[np.abs(pairs[:, 0] - pairs[:, 1]) >= 0.2]
    assert np.abs(first - last).min() >= 0.2 - 1e-12
    assert first.min() >= 0.5 and max(first.max(), last.max()) <= 1.5
    for ours, theirs in (
        (first, pairs[:, 0]),
        (last, pairs[:, 1]),
        (np.abs(first - last), np.abs(pairs[:, 0] - pairs[:, 1])),
        (first + last, pairs.sum(axis=1)),
        (np.minimum(first, last), pairs.min(axis=1)),
    ):
        assert stats.ks_2samp(ours, theirs).pvalue > RATE
    assert_share(np.sum(first > last), TRIALS, 0.5)
    winner = (first < last).astype(int)
    for row in range(300):
        expected, seen = np.zeros((56, 2)), np.zeros((56, 2))
        start = second[row] + 2 + 10
        expected[start : start + 20, winner[row]] = 0.5
        seen[: second[row] + 2] = 1
        seen[start : start + 20] = 1
        np.testing.assert_array_equal(trials.targets[row], expected)
        np.testing.assert_array_equal(trials.mask[row], seen)
    # 0.031646 = 0.5 * 0.25 * 20 / (2 * 39.5): the mean number of masked steps decides the pooled loss.
    assert_mean(trials.mask[:, :, 0].sum(axis=1), 39.5)


def test_constant_and_cosine(key):
    trials = recurrent.Constant(target=-2.0).sample(2, key=key)
    np.testing.assert_array_equal(trials.inputs[1, :, 0], [0] * 2 + [1] * 200)
    np.testing.assert_array_equal(trials.mask[1, :, 0], [0] * 200 + [1] * 2)
    np.testing.assert_array_equal(trials.targets[0, -3:, 0], [0, -2, -2])
    cell = recurrent.rate_cell(1, 7, 1, nonlinearity="linear", dt=0.1, is_tied=True, key=key)
    task = recurrent.Cosine()
    trials = task.sample_for(cell, 3, key=key)
    assert task.time == 200 and trials.mask.sum() == 300 and not trials.inputs.any()
    np.testing.assert_allclose(
        trials.targets[0, :, 0], np.cos(2 * np.pi * 0.2 * 0.1 * np.arange(200)), atol=1e-12
    )
    np.testing.assert_array_equal(trials.initial_state, np.broadcast_to(cell.w_in, (3, 7)))
    assert task.sample(3, key=key).initial_state is None


def test_steps_survive_rounding():
    """0.3 / 0.1 is 2.9999999999999996 in floating point; the task must still have three steps."""
    assert recurrent.Cosine(duration=0.3, window=0.3, dt=0.1).time == 3
    assert recurrent.Mante(dt=0.1).time == 480


@pytest.mark.parametrize("name", ["memory-pro", "memory-anti", "delay-pro", "delay-anti"])
def test_angle_tasks(name):
    trials = many(name)
    clean = jax.tree.map(jnp.asarray, grid(name, 10))
    angle = 2 * np.pi * np.arange(10) / 10
    shown = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    expected = np.zeros((10, 90, 3))
    expected[:, :60, 0] = 1
    expected[:, : 90 if "delay" in name else 30, 1:] = shown[:, None, :]
    np.testing.assert_allclose(clean.inputs, expected, atol=1e-15)
    asked = np.zeros((10, 90, 3))
    asked[:, :60, 0] = 1
    asked[:, 60:, 1:] = (-shown if "anti" in name else shown)[:, None, :]
    np.testing.assert_allclose(clean.targets, asked, atol=1e-15)
    assert np.all(trials.mask == 1)
    # Each trial is one of the ten, plus noise of standard deviation 0.1 sqrt(2) everywhere.
    chosen = np.argmin(((trials.targets[:, None, -1] - asked[None, :, -1]) ** 2).sum(axis=2), axis=1)
    np.testing.assert_allclose(trials.targets, asked[chosen], atol=1e-14)
    assert_uniform(np.bincount(chosen, minlength=10))
    noise = trials.inputs - expected[chosen]
    assert_mean(noise, 0)
    assert_mean(noise**2, 0.02)
    # Levels of the mean squared error, twice the loss: 1/3 at zero output, 1/9 when only fixation is learned.
    zero = recurrent.loss(jnp.zeros((10, 90, 3)), clean)
    np.testing.assert_allclose(2 * zero, (60 + 30) / 270, rtol=1e-12)
    fixation = clean.targets * jnp.array([[[1.0, 0.0, 0.0]]])
    np.testing.assert_allclose(2 * recurrent.loss(fixation, clean), 1 / 9, rtol=1e-12)


def test_uniform_angles(key):
    targets = recurrent.MemoryPro(angles=None).sample(TRIALS, key=key).targets[:, -1]
    angle = np.arctan2(targets[:, 2], targets[:, 1])
    assert stats.kstest(angle, stats.uniform(-np.pi, 2 * np.pi).cdf).pvalue > RATE


def test_four_tasks(key):
    task = TASKS["four"]
    clean = grid("four", 40)
    labels = np.array(task.labels(40))
    np.testing.assert_array_equal(labels, np.repeat(np.arange(4), 10))
    cue = np.zeros((40, 120, 4))
    cue[np.arange(40), :30, labels] = 1
    np.testing.assert_array_equal(clean.inputs[..., 3:], cue)
    for index, name in enumerate(("memory-pro", "memory-anti", "delay-pro", "delay-anti")):
        single, rows = grid(name, 10), labels == index
        np.testing.assert_array_equal(clean.inputs[rows, 30:, :3], single.inputs)
        np.testing.assert_array_equal(clean.targets[rows, 30:], single.targets)
        np.testing.assert_array_equal(clean.targets[rows, :30], clean.inputs[rows, :30, :3])
        assert np.all(clean.inputs[rows, :30, 0] == 1) and np.all(clean.inputs[rows, :30, 1:3] == 0)
    noise = many("four").inputs[:, :30, 1:3]
    assert_mean(noise**2, 0.02)
    with pytest.raises(ValueError, match="`batch` must be a multiple of 4"):
        task.sample(6, key=key)


def test_balanced_batches_hold_every_angle_equally_often(key):
    task = recurrent.FourTasks(period=2, context=1, angles=5, is_balanced=True)
    trials = task.sample(40, key=key)
    # Twice the five angles in each of the four tasks, without noise in the targets.
    np.testing.assert_array_equal(
        trials.targets.reshape(4, 2, 5, 7, 3),
        np.broadcast_to(task.grid(20).targets.reshape(4, 1, 5, 7, 3), (4, 2, 5, 7, 3)),
    )
    assert float(np.std(trials.inputs - np.tile(task.grid(20).inputs[:1], (40, 1, 1)))) > 0.1
    with pytest.raises(ValueError, match="`batch` must be a multiple of 20, every angle"):
        task.sample(24, key=key)


def test_pulse_flip_flop():
    trials, clean = many("pulses"), recurrent.PulseFlipFlop(noise=0.0).sample(TRIALS, key=jr.key(7))
    pulses = np.array(clean.inputs)
    assert_share(np.count_nonzero(pulses), pulses.size, 1 / 20)
    assert_share(np.sum(pulses > 0), np.count_nonzero(pulses), 0.5)
    assert_mean((trials.inputs - pulses) ** 2, 2 * 0.03**2)
    held = np.zeros((TRIALS, 3))
    for step in range(90):
        held = np.where(pulses[:, step] != 0, pulses[:, step], held)
        np.testing.assert_array_equal(trials.targets[:, step], held)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: recurrent.FlipFlop(dt=2.0), r"`dt` must be in \(0, 1\], got 2.0"),
        (lambda: recurrent.FlipFlop(stimulus=0.2), "`stimulus` is 0.2, shorter than one step, dt = 0.5"),
        (
            lambda: recurrent.FlipFlop(duration=6.0),
            "`duration` must exceed fixation \\+ delay = 6.0, got 6.0",
        ),
        # Longer than fixation and delay, but by less than a step.
        (lambda: recurrent.FlipFlop(duration=6.4), "`duration` must exceed fixation"),
        (lambda: recurrent.FlipFlop(interval=(5.0, 5.0)), "`interval` must be"),
        (lambda: recurrent.Romo(interval=(0.2, 8.0)), "`interval` is 0.2, shorter than one step"),
        (lambda: recurrent.Mante(n_in=3), "`n_in` must be even, half signals and half context, got 3"),
        (lambda: recurrent.Mante(coherences=(0.0, 1.0)), "`coherences` must be nonzero"),
        (lambda: recurrent.Romo(min_diff=1.0), "`min_diff` must be in"),
        (lambda: recurrent.Romo(delay=0.1), "`delay` is 0.1, shorter than one step"),
        (lambda: recurrent.Constant(decision=0.0), "`decision` must be positive"),
        (lambda: recurrent.Cosine(window=30.0), "`window` must be in"),
        (lambda: recurrent.MemoryPro(period=0), "`period` must be an integer of at least 1"),
        (
            lambda: recurrent.FourTasks(angles=None, is_balanced=True),
            "`is_balanced` needs a number of `angles`",
        ),
        (lambda: recurrent.PulseFlipFlop(rate=0.0), "`rate` must be in"),
        (lambda: recurrent.FlipFlop().sample(0, key=jr.key(0)), "`batch` must be an integer .*, got 0"),
        (lambda: recurrent.FlipFlop().sample(2.5, key=jr.key(0)), "`batch` must be an integer .*, got 2.5"),
        (lambda: recurrent.FlipFlop(duration=math.inf), "`duration` must be nonnegative and finite, got inf"),
        (lambda: recurrent.Constant(target=math.nan), "`target` must be finite, got nan"),
        (lambda: recurrent.Mante(noise=math.nan), "`noise` must be finite, got nan"),
        (lambda: recurrent.Romo(amplitudes=(0.5, math.inf)), "`amplitudes` must be finite"),
    ],
)
@pytest.mark.usefixtures("own_messages")
def test_refusals(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_settings_of_a_task_of_ones_own_may_be_of_any_type():
    """Only numbers are asked to be finite: not text, nor values that are traced."""

    class Named(recurrent.Constant):
        channels: tuple[str, ...] = ("motion", "color")

    assert Named().channels == ("motion", "color")
    inputs = jax.jit(lambda target: Named(target=target).sample(2, key=jr.key(0)).targets)(0.25)
    assert inputs.max() == 0.25
    with pytest.raises(ValueError, match="`target` must be finite"):
        Named(target=math.inf)
