"""The tasks of hazelden2025: angles to remember or to copy, four of them at once, and a flip-flop of pulses.

Inputs carry white noise at every step and channel, targets do not. ``grid`` gives noise-free trials of evenly
spaced angles, for tests.
"""

import math
from typing import ClassVar

import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, DTypeLike, Float, Int, PRNGKeyArray

from .._checks import require_size, require_sizes
from ._cells import check_dt
from ._trials import AbstractTask, Trials


class AbstractAngleTask(AbstractTask):
    """An angle is shown, and asked for in the response; channels are fixation, cosine and sine.

    Parameters
    ----------
    period
        Steps of each of the three periods: stimulus, memory, response.
    noise
        Standard deviation of the noise at one step.
    angles
        Number of evenly spaced angles to draw from; ``None`` for uniform ones.
    """

    period: int = 30
    noise: float = 0.1 * math.sqrt(2)
    angles: int | None = 10
    dt: float = 1.0

    is_anti: ClassVar[bool]
    """Whether the response has the opposite sign."""
    keeps_stimulus: ClassVar[bool]
    """Whether the stimulus stays on to the end of the trial."""

    def __check_init__(self):
        _check_angles(self.period, self.noise, self.angles, self.dt)

    @property
    def inputs(self) -> int:
        """Number of input channels."""
        return 3

    @property
    def outputs(self) -> int:
        """Number of output channels."""
        return 3

    @property
    def time(self) -> int:
        """Number of steps of a trial."""
        return 3 * self.period

    def draw(self, batch: int, key: PRNGKeyArray, dtype: jnp.dtype) -> Trials:
        """Law of the trials."""
        angle_key, noise_key = jr.split(key)
        angle = _draw_angles(angle_key, (batch,), self.angles, dtype)
        inputs, targets = _angle_trials(angle, self.period, self.is_anti, self.keeps_stimulus)
        return _noisy(inputs, targets, self.noise, noise_key)

    def grid(self, batch: int, *, dtype: DTypeLike = float) -> Trials:
        """Noise-free trials of ``batch`` evenly spaced angles."""
        self.check_batch(batch)
        angle = _even_angles(batch, dtype)
        inputs, targets = _angle_trials(angle, self.period, self.is_anti, self.keeps_stimulus)
        return Trials(inputs, targets, jnp.ones_like(targets))


class MemoryPro(AbstractAngleTask):
    """Remember an angle over a delay and report it."""

    is_anti: ClassVar[bool] = False
    keeps_stimulus: ClassVar[bool] = False


class MemoryAnti(AbstractAngleTask):
    """Remember an angle over a delay and report its opposite."""

    is_anti: ClassVar[bool] = True
    keeps_stimulus: ClassVar[bool] = False


class DelayPro(AbstractAngleTask):
    """Wait, then report the angle that is still shown."""

    is_anti: ClassVar[bool] = False
    keeps_stimulus: ClassVar[bool] = True


class DelayAnti(AbstractAngleTask):
    """Wait, then report the opposite of the angle that is still shown."""

    is_anti: ClassVar[bool] = True
    keeps_stimulus: ClassVar[bool] = True


class FourTasks(AbstractTask):
    """Memory-pro, memory-anti, delay-pro and delay-anti in one batch, told apart by a context cue.

    A context period comes first: fixation is on, and a one-hot cue on four more input channels names the
    task. Trials are stacked task by task, in equal shares.

    Parameters
    ----------
    period, context
        Steps of each of the three periods, and of the context before them.
    noise, angles
        As in the single tasks.
    is_balanced
        Whether a batch holds every one of the ``angles`` equally often in each task, in place of random
        ones: what the tasks share is then learned in about half as many updates.
    """

    period: int = 30
    context: int = 30
    noise: float = 0.1 * math.sqrt(2)
    angles: int | None = 10
    is_balanced: bool = False
    dt: float = 1.0

    tasks: ClassVar[tuple[type[AbstractAngleTask], ...]] = (MemoryPro, MemoryAnti, DelayPro, DelayAnti)
    shares: ClassVar[int] = 4

    def __check_init__(self):
        _check_angles(self.period, self.noise, self.angles, self.dt)
        require_size("context", self.context)
        if self.is_balanced and self.angles is None:
            raise ValueError("`is_balanced` needs a number of `angles`, got None: uniform ones.")

    @property
    def inputs(self) -> int:
        """Number of input channels: fixation, cosine, sine, and one cue per task."""
        return 3 + len(self.tasks)

    @property
    def outputs(self) -> int:
        """Number of output channels."""
        return 3

    @property
    def time(self) -> int:
        """Number of steps of a trial."""
        return self.context + 3 * self.period

    def labels(self, batch: int) -> Int[Array, " batch"]:
        """Index of the task of each trial."""
        self.check_batch(batch)
        return jnp.repeat(jnp.arange(len(self.tasks)), batch // len(self.tasks))

    def draw(self, batch: int, key: PRNGKeyArray, dtype: jnp.dtype) -> Trials:
        """Law of the trials, a quarter of them of each task."""
        angle_key, noise_key = jr.split(key)
        share = batch // len(self.tasks)
        if not self.is_balanced or self.angles is None:
            angle = _draw_angles(angle_key, (len(self.tasks), share), self.angles, dtype)
        elif share % self.angles:
            raise ValueError(
                f"`batch` must be a multiple of {len(self.tasks) * self.angles}, every angle of every task "
                f"equally often, got {batch}."
            )
        else:
            angle = jnp.tile(_even_angles(self.angles, dtype), (len(self.tasks), share // self.angles))
        return _noisy(*self._trials(angle), self.noise, noise_key)

    def grid(self, batch: int, *, dtype: DTypeLike = float) -> Trials:
        """Noise-free trials of evenly spaced angles, the same ones in every task."""
        self.check_batch(batch)
        angle = _even_angles(batch // len(self.tasks), dtype)
        inputs, targets = self._trials(jnp.broadcast_to(angle, (len(self.tasks), *angle.shape)))
        return Trials(inputs, targets, jnp.ones_like(targets))

    def _trials(self, angle: Float[Array, "tasks share"]) -> tuple[Array, Array]:
        inputs, targets = [], []
        for index, task in enumerate(self.tasks):
            shown, asked = _angle_trials(angle[index], self.period, task.is_anti, task.keeps_stimulus)
            lead = jnp.zeros((angle.shape[1], self.context, 3), angle.dtype).at[:, :, 0].set(1)
            shown, asked = (jnp.concatenate([lead, part], axis=1) for part in (shown, asked))
            cue = jnp.zeros((*shown.shape[:2], len(self.tasks)), angle.dtype)
            cue = cue.at[:, : self.context, index].set(1)
            inputs.append(jnp.concatenate([shown, cue], axis=2))
            targets.append(asked)
        return jnp.concatenate(inputs), jnp.concatenate(targets)


class PulseFlipFlop(AbstractTask):
    """Hold the sign of the last pulse on each of three channels; pulses come at random, also together.

    Parameters
    ----------
    channels, duration
        Number of channels and of steps.
    rate
        Probability of a pulse in each entry.
    noise
        Standard deviation of the noise of the inputs at one step.
    """

    channels: int = 3
    duration: int = 90
    rate: float = 1 / 20
    noise: float = 0.03 * math.sqrt(2)
    dt: float = 1.0

    def __check_init__(self):
        check_dt(self.dt)
        require_sizes(channels=self.channels, duration=self.duration)
        if not 0 < self.rate <= 1:
            raise ValueError(f"`rate` must be in (0, 1], got {self.rate}.")
        if self.noise < 0:
            raise ValueError(f"`noise` must be nonnegative, got {self.noise}.")

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
        return self.duration

    def draw(self, batch: int, key: PRNGKeyArray, dtype: jnp.dtype) -> Trials:
        """Law of the trials."""
        pulse_key, sign_key, noise_key = jr.split(key, 3)
        shape = (batch, self.time, self.channels)
        pulses = jr.bernoulli(pulse_key, self.rate, shape).astype(dtype)
        pulses = pulses * jr.rademacher(sign_key, shape, dtype)
        # Step of the last pulse so far, -1 before the first.
        last = jnp.where(pulses != 0, jnp.arange(self.time)[None, :, None], -1)
        last = jnp.maximum.accumulate(last, axis=1)
        held = jnp.take_along_axis(pulses, jnp.maximum(last, 0), axis=1)
        return _noisy(pulses, jnp.where(last >= 0, held, jnp.zeros((), dtype)), self.noise, noise_key)


def _check_angles(period: int, noise: float, angles: int | None, dt: float) -> None:
    check_dt(dt)
    require_size("period", period)
    if noise < 0:
        raise ValueError(f"`noise` must be nonnegative, got {noise}.")
    if angles is not None:
        require_size("angles", angles)


def _draw_angles(
    key: PRNGKeyArray, shape: tuple[int, ...], angles: int | None, dtype: jnp.dtype
) -> Float[Array, "..."]:
    if angles is None:
        return jr.uniform(key, shape, dtype, 0, 2 * math.pi)
    return 2 * math.pi / angles * jr.randint(key, shape, 0, angles).astype(dtype)


def _even_angles(count: int, dtype: DTypeLike) -> Float[Array, " count"]:
    return 2 * math.pi / count * jnp.arange(count).astype(jnp.zeros((), dtype).dtype)


def _angle_trials(
    angle: Float[Array, " batch"], period: int, is_anti: bool, keeps_stimulus: bool
) -> tuple[Float[Array, "batch time 3"], Float[Array, "batch time 3"]]:
    """Clean inputs and targets of one task."""
    steps = jnp.arange(3 * period)
    is_response = (steps >= 2 * period).astype(angle.dtype)
    is_shown = jnp.ones_like(is_response) if keeps_stimulus else (steps < period).astype(angle.dtype)
    fixation = jnp.broadcast_to((1 - is_response)[None, :, None], (len(angle), len(steps), 1))
    stimulus = jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1)[:, None, :]
    response = -stimulus if is_anti else stimulus
    inputs = jnp.concatenate([fixation, is_shown[None, :, None] * stimulus], axis=2)
    targets = jnp.concatenate([fixation, is_response[None, :, None] * response], axis=2)
    return inputs, targets


def _noisy(inputs: Array, targets: Array, noise: float, key: PRNGKeyArray) -> Trials:
    inputs = inputs + noise * jr.normal(key, inputs.shape, inputs.dtype)
    return Trials(inputs, targets, jnp.ones_like(targets))
