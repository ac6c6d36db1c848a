"""The two tasks of schuessler2020 for linear networks: a constant output and a cosine."""

import math
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from ._cells import RateCell, check_dt
from ._trials import AbstractTask, Trials, steps_of


class Constant(AbstractTask):
    """Reach a target value under constant input by the end of the trial (the document's simple task).

    Parameters
    ----------
    target
        Value of the output in the decision, of either sign.
    duration, fixation, decision
        Length of the trial, of the silence before the input, and of the decision at the end.
    input_amplitude
        The constant input.
    """

    target: float = 0.5
    duration: float = 101.0
    fixation: float = 1.0
    decision: float = 1.0
    input_amplitude: float = 1.0
    dt: float = 0.5

    def __check_init__(self):
        check_dt(self.dt)
        for name in ("duration", "fixation", "decision"):
            steps_of(name, getattr(self, name), self.dt)
        if self.decision == 0 or self.duration < self.fixation + self.decision:
            raise ValueError(
                f"`decision` must be positive and fit into `duration` after `fixation`, got {self.decision}, "
                f"{self.duration}, {self.fixation}."
            )

    @property
    def inputs(self) -> int:
        """Number of input channels."""
        return 1

    @property
    def outputs(self) -> int:
        """Number of output channels."""
        return 1

    @property
    def time(self) -> int:
        """Number of steps of a trial."""
        return steps_of("duration", self.duration, self.dt)

    def draw(self, batch: int, key: PRNGKeyArray, dtype: jnp.dtype) -> Trials:
        """Repeat the one trial of this task ``batch`` times; nothing is random."""
        steps = jnp.arange(self.time)
        fixation = steps_of("fixation", self.fixation, self.dt)
        decision = steps_of("decision", self.decision, self.dt)
        inputs = self.input_amplitude * (steps >= fixation).astype(dtype)
        mask = (steps >= self.time - decision).astype(dtype)
        inputs, targets, mask = (
            jnp.broadcast_to(values[None, :, None], (batch, self.time, 1))
            for values in (inputs, self.target * mask, mask)
        )
        return Trials(inputs, targets, mask)


class Cosine(AbstractTask):
    """Oscillate after a kick: the network starts from its input vector and gets no input (Fig. S5).

    Parameters
    ----------
    frequency
        Cycles per unit of time.
    duration, window
        Length of the trial, and of its first part, where the loss looks.
    """

    frequency: float = 0.2
    duration: float = 20.0
    window: float = 10.0
    dt: float = 0.1

    starts_at_input: ClassVar[bool] = True

    def __check_init__(self):
        check_dt(self.dt)
        steps_of("duration", self.duration, self.dt)
        steps_of("window", self.window, self.dt)
        if not 0 < self.window <= self.duration:
            raise ValueError(f"`window` must be in (0, duration = {self.duration}], got {self.window}.")

    @property
    def inputs(self) -> int:
        """Number of input channels."""
        return 1

    @property
    def outputs(self) -> int:
        """Number of output channels."""
        return 1

    @property
    def time(self) -> int:
        """Number of steps of a trial."""
        return steps_of("duration", self.duration, self.dt)

    def draw(self, batch: int, key: PRNGKeyArray, dtype: jnp.dtype) -> Trials:
        """Repeat the one trial of this task ``batch`` times; nothing is random.

        The initial state belongs to a network: ``sample_for`` sets it.
        """
        steps = jnp.arange(self.time)
        cosine = jnp.cos(2 * math.pi * self.frequency * self.dt * steps.astype(dtype))
        mask = (steps < steps_of("window", self.window, self.dt)).astype(dtype)
        inputs, targets, mask = (
            jnp.broadcast_to(values[None, :, None], (batch, self.time, 1))
            for values in (jnp.zeros_like(mask), cosine, mask)
        )
        return Trials(inputs, targets, mask)


def is_short_trial(cell: RateCell, task: Constant) -> bool:
    r"""Tell whether a linear network is still far from its fixed point at the end of the trial.

    True when :math:`\exp[-(T - t_{fix})(1 - \max \Re\lambda)] > 10^{-3}`: then the theory of the fixed point
    does not describe the training.
    """
    _check_linear(cell)
    slowest = np.max(np.linalg.eigvals(np.asarray(cell.w)).real)
    return bool((task.duration - task.fixation) * (1 - slowest) < math.log(1e3))


def is_unstable_step(cell: RateCell, task: Constant, rate: float) -> bool:
    r"""Tell whether plain gradient descent on the recurrent weights takes too long steps to settle.

    True when ``rate`` exceeds :math:`\eta_\mathrm{crit} = 2/(|p|^2|q|^2)` at the solution of the flow from
    ``cell``, the network before training (:func:`nullcline.recurrent.theory.critical_step`): the end of
    training then oscillates or fails. False for weights that the theory does not know, with an eigenvalue of
    real part 1 or more.
    """
    from . import theory

    _check_linear(cell)
    if np.max(np.linalg.eigvals(np.asarray(cell.w)).real) >= 1:
        return False
    scale = math.sqrt(cell.hidden)
    m, w = task.input_amplitude * cell.w_in[0] / scale, cell.w_out[:, 0] * scale
    return bool(rate > theory.critical_step(cell.w, m, w, task.target))


def _check_linear(cell: RateCell) -> None:
    if cell.nonlinearity != "linear":
        raise ValueError(f"`cell` must be linear, got nonlinearity = {cell.nonlinearity!r}.")
