"""The three tasks of schuessler2020, section S2, as they were run: flip-flop, Mante and Romo."""

from typing import Literal

import jax.numpy as jnp
import jax.random as jr
from jaxtyping import PRNGKeyArray

from .._checks import require_size
from ._cells import check_dt
from ._trials import AbstractTask, Trials, steps_of


class FlipFlop(AbstractTask):
    """Remember the channel and the sign of the last pulse.

    Pulses of random sign come on random channels, one at a time. From ``delay`` after the onset of a pulse
    until the next onset the loss is on: the target is the sign on the channel of the last pulse, zero on the
    others.

    Parameters
    ----------
    duration, fixation, stimulus, delay
        Length of the trial, of the silence before the first pulse, of a pulse, and from onset to decision.
    interval
        Bounds of the uniform waiting time from the end of the decision delay to the next onset: onsets are
        ``delay + interval`` apart.
    input_amplitude, target_amplitude
        Sizes of pulses and targets.
    channels
        Number of input and of output channels.
    memory
        ``"last"``: only the channel of the last pulse has a target (what was trained). ``"each"``: every
        channel holds the sign of its own last pulse (the wording of the document's main text).
    """

    duration: float = 50.0
    fixation: float = 1.0
    stimulus: float = 1.0
    delay: float = 5.0
    interval: tuple[float, float] = (5.0, 25.0)
    input_amplitude: float = 1.0
    target_amplitude: float = 0.5
    channels: int = 2
    dt: float = 0.5
    memory: Literal["last", "each"] = "last"

    def __check_init__(self):
        check_dt(self.dt)
        require_size("channels", self.channels)
        time, fixation, _, delay = (
            steps_of(name, getattr(self, name), self.dt)
            for name in ("duration", "fixation", "stimulus", "delay")
        )
        if time <= fixation + delay:
            raise ValueError(
                f"`duration` must exceed fixation + delay = {self.fixation + self.delay}, "
                f"got {self.duration}: no step would be left for the loss."
            )
        low, high = self.interval
        if not 0 <= low < high:
            raise ValueError(f"`interval` must be (low, high) with 0 <= low < high, got {self.interval}.")
        if steps_of("interval", low + self.delay, self.dt) < 1:
            raise ValueError("The shortest time between pulses, `delay` + interval[0], is below one step.")
        if self.memory not in ("last", "each"):
            raise ValueError(f"`memory` must be 'last' or 'each', got {self.memory!r}.")

    @property
    def inputs(self) -> int:
        """Number of input channels."""
        return self.channels

    @property
    def outputs(self) -> int:
        """Number of output channels."""
        return self.channels

    @property
    def time(self) -> int:
        """Number of steps of a trial."""
        return steps_of("duration", self.duration, self.dt)

    def draw(self, batch: int, key: PRNGKeyArray, dtype: jnp.dtype) -> Trials:
        """Law of the trials."""
        low, high = self.interval
        first = steps_of("fixation", self.fixation, self.dt)
        shortest = steps_of("interval", low + self.delay, self.dt)
        pulses = 1 + (self.time - first) // shortest
        wait_key, channel_key, sign_key = jr.split(key, 3)
        wait = jr.uniform(wait_key, (batch, pulses), dtype, low, high)
        gaps = ((wait + self.delay) / self.dt + 1e-9).astype(int)
        onsets = first + jnp.cumsum(gaps, axis=1) - gaps
        channel = jr.randint(channel_key, (batch, pulses), 0, self.channels)
        sign = jr.rademacher(sign_key, (batch, pulses), dtype)

        steps = jnp.arange(self.time)
        # Index of the current pulse at each step; -1 before the first.
        current = jnp.sum(onsets[:, None, :] <= steps[None, :, None], axis=2) - 1
        pulse = jnp.maximum(current, 0)
        since = jnp.where(current >= 0, steps[None, :] - jnp.take_along_axis(onsets, pulse, axis=1), -1)
        on_channel = jnp.arange(self.channels)[None, None, :] == channel[:, :, None]
        signed = jnp.where(on_channel, sign[:, :, None], jnp.zeros((), dtype))
        held = signed if self.memory == "last" else _last_nonzero(signed)

        def at_steps(values):
            return jnp.take_along_axis(values, pulse[:, :, None], axis=1)

        is_pulse = (since >= 0) & (since < steps_of("stimulus", self.stimulus, self.dt))
        is_decision = since >= steps_of("delay", self.delay, self.dt)
        is_decision &= current[:, :] >= 0
        shape = (batch, self.time, self.channels)
        mask = jnp.broadcast_to(is_decision[:, :, None].astype(dtype), shape)
        inputs = self.input_amplitude * is_pulse[:, :, None].astype(dtype) * at_steps(signed)
        return Trials(inputs, self.target_amplitude * mask * at_steps(held), mask)


def _last_nonzero(signed):
    """For each pulse and channel the last nonzero sign up to that pulse."""
    pulses = signed.shape[1]
    index = jnp.where(signed != 0, jnp.arange(pulses)[None, :, None], -1)
    last = jnp.max(
        jnp.where(
            jnp.arange(pulses)[None, None, :, None] <= jnp.arange(pulses)[None, :, None, None],
            index[:, None, :, :],
            -1,
        ),
        axis=2,
    )
    held = jnp.take_along_axis(signed, jnp.maximum(last, 0), axis=1)
    return jnp.where(last >= 0, held, jnp.zeros((), signed.dtype))


class Mante(AbstractTask):
    r"""Report the sign of the signal that the context points at.

    Half of the channels carry noisy signals, the other half a one-hot context, both during the stimulus; the
    noise of the signals lasts all trial. The target is zero until the decision; the delay is masked out.

    Parameters
    ----------
    fixation, stimulus, delay, decision
        Durations of the phases, in this order.
    n_in
        Number of input channels, even: half context, half signal.
    coherences
        Mean values of a signal, drawn uniformly. The document's text has :math:`\pm 1` only, its program
        these.
    noise
        Amplitude of white noise; its standard deviation at one step is ``noise / sqrt(dt)``.
    signals_first
        Put the signal channels before the context channels, as the document's text does.
    """

    fixation: float = 3.0
    stimulus: float = 20.0
    delay: float = 5.0
    decision: float = 20.0
    n_in: int = 4
    coherences: tuple[float, ...] = (-1.0, -0.5, -0.25, -0.125, 0.125, 0.25, 0.5, 1.0)
    noise: float = 0.05
    input_amplitude: float = 1.0
    target_amplitude: float = 0.5
    dt: float = 0.5
    signals_first: bool = False

    def __check_init__(self):
        check_dt(self.dt)
        if self.n_in < 2 or self.n_in % 2:
            raise ValueError(f"`n_in` must be even, half signals and half context, got {self.n_in}.")
        if not self.coherences or 0 in self.coherences:
            raise ValueError(
                f"`coherences` must be nonzero numbers, got {self.coherences}: zero has no sign."
            )
        if self.noise < 0:
            raise ValueError(f"`noise` must be nonnegative, got {self.noise}.")
        if self.fixation + self.stimulus + self.decision == 0:
            raise ValueError("The mask is empty: `fixation`, `stimulus` and `decision` are all zero.")
        _ = self.phases

    @property
    def phases(self) -> tuple[int, int, int, int]:
        """Numbers of steps of fixation, stimulus, delay and decision."""
        return (
            steps_of("fixation", self.fixation, self.dt),
            steps_of("stimulus", self.stimulus, self.dt),
            steps_of("delay", self.delay, self.dt),
            steps_of("decision", self.decision, self.dt),
        )

    @property
    def inputs(self) -> int:
        """Number of input channels."""
        return self.n_in

    @property
    def outputs(self) -> int:
        """Number of output channels."""
        return 1

    @property
    def time(self) -> int:
        """Number of steps of a trial."""
        return sum(self.phases)

    def draw(self, batch: int, key: PRNGKeyArray, dtype: jnp.dtype) -> Trials:
        """Law of the trials."""
        fixation, stimulus, delay, _ = self.phases
        signals = self.n_in // 2
        context_key, coherence_key, noise_key = jr.split(key, 3)
        context = jr.randint(context_key, (batch,), 0, signals)
        choice = jr.randint(coherence_key, (batch, signals), 0, len(self.coherences))
        coherence = jnp.asarray(self.coherences, dtype)[choice]
        noise = jr.normal(noise_key, (batch, self.time, signals), dtype) * (self.noise / self.dt**0.5)

        steps = jnp.arange(self.time)
        is_stimulus = ((steps >= fixation) & (steps < fixation + stimulus)).astype(dtype)
        is_decision = (steps >= fixation + stimulus + delay).astype(dtype)
        is_seen = ((steps < fixation + stimulus).astype(dtype) + is_decision)[None, :, None]
        one_hot = (jnp.arange(signals)[None, :] == context[:, None]).astype(dtype)
        cue = is_stimulus[None, :, None] * one_hot[:, None, :]
        signal = is_stimulus[None, :, None] * coherence[:, None, :] + noise
        parts = (signal, cue) if self.signals_first else (cue, signal)
        inputs = self.input_amplitude * jnp.concatenate(parts, axis=2)
        sign = jnp.sign(jnp.take_along_axis(coherence, context[:, None], axis=1))
        targets = self.target_amplitude * is_decision[None, :, None] * sign[:, :, None]
        return Trials(inputs, targets, jnp.broadcast_to(is_seen, (batch, self.time, 1)))


class Romo(AbstractTask):
    """Report which of two pulses was larger.

    The target is ``target_amplitude`` on the output of the larger pulse during the decision. The loss is on
    from the start to the end of the second pulse (target zero) and in the decision, off in the delay and
    after the decision.

    Parameters
    ----------
    fixation, stimulus, delay, decision
        Durations before the first pulse, of a pulse, from the second pulse to the decision, of the decision.
    interval
        Bounds of the uniform time between the pulses.
    amplitudes
        Bounds of the uniform amplitudes of both pulses.
    min_diff
        Both amplitudes are redrawn while they differ by less.
    """

    fixation: float = 3.0
    stimulus: float = 1.0
    interval: tuple[float, float] = (2.0, 8.0)
    delay: float = 5.0
    decision: float = 10.0
    amplitudes: tuple[float, float] = (0.5, 1.5)
    min_diff: float = 0.2
    target_amplitude: float = 0.5
    dt: float = 0.5

    def __check_init__(self):
        check_dt(self.dt)
        for name in ("fixation", "stimulus", "delay", "decision"):
            steps_of(name, getattr(self, name), self.dt)
        if self.stimulus == 0 or self.decision == 0:
            raise ValueError(
                f"`stimulus` and `decision` must be positive, got {self.stimulus}, {self.decision}."
            )
        low, high = self.interval
        if not 0 <= low < high:
            raise ValueError(f"`interval` must be (low, high) with 0 <= low < high, got {self.interval}.")
        for bound in self.interval:
            steps_of("interval", bound, self.dt)
        low, high = self.amplitudes
        if not low < high:
            raise ValueError(f"`amplitudes` must be (low, high) with low < high, got {self.amplitudes}.")
        if not 0 <= self.min_diff < high - low:
            raise ValueError(
                f"`min_diff` must be in [0, {high - low}), the span of `amplitudes`, got {self.min_diff}: "
                "no pair of pulses would ever be accepted."
            )

    @property
    def inputs(self) -> int:
        """Number of input channels."""
        return 1

    @property
    def outputs(self) -> int:
        """Number of output channels."""
        return 2

    @property
    def time(self) -> int:
        """Number of steps of a trial: the longest possible."""
        total = self.fixation + 2 * self.stimulus + self.interval[1] + self.delay + self.decision
        return steps_of("duration", total, self.dt)

    def draw(self, batch: int, key: PRNGKeyArray, dtype: jnp.dtype) -> Trials:
        """Law of the trials."""
        fixation, stimulus, delay, decision = (
            steps_of(name, getattr(self, name), self.dt)
            for name in ("fixation", "stimulus", "delay", "decision")
        )
        wait_key, low_key, gap_key, order_key = jr.split(key, 4)
        wait = jr.uniform(wait_key, (batch,), dtype, *self.interval)
        second = fixation + stimulus + (wait / self.dt + 1e-9).astype(int)
        end = second + stimulus

        # The law of the redrawn pair without a loop: the difference D of the amplitudes has a density
        # proportional to span - D on [min_diff, span], and the smaller one is uniform given D.
        low, high = self.amplitudes
        room = (high - low - self.min_diff) * jnp.sqrt(jr.uniform(gap_key, (batch,), dtype))
        smaller = low + room * jr.uniform(low_key, (batch,), dtype)
        larger = smaller + (high - low) - room
        first_wins = jr.bernoulli(order_key, 0.5, (batch,))
        amplitude_1 = jnp.where(first_wins, larger, smaller)
        amplitude_2 = jnp.where(first_wins, smaller, larger)

        steps = jnp.arange(self.time)[None, :]

        def between(start, stop):
            return ((steps >= start) & (steps < stop)).astype(dtype)

        pulse_1 = between(fixation, fixation + stimulus)
        pulse_2 = between(second[:, None], end[:, None])
        is_decision = between(end[:, None] + delay, end[:, None] + delay + decision)
        inputs = pulse_1 * amplitude_1[:, None] + pulse_2 * amplitude_2[:, None]
        winner = jnp.stack([first_wins, ~first_wins], axis=1).astype(dtype)
        targets = self.target_amplitude * is_decision[:, :, None] * winner[:, None, :]
        mask = (between(0, end[:, None]) + is_decision)[:, :, None]
        return Trials(inputs[:, :, None], targets, jnp.broadcast_to(mask, targets.shape))
