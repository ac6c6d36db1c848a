"""Trials, the law that draws them, and the loss of schuessler2020."""

import abc
import math
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, DTypeLike, Float, PRNGKeyArray

from .._checks import require_size
from ._cells import AbstractCell


class Trials(eqx.Module):
    """A batch of trials.

    Parameters
    ----------
    inputs
        What the network is shown.
    targets
        What its outputs should be.
    mask
        1 where the loss looks, 0 elsewhere, in the shape of the targets.
    initial_state
        State of the network before the first input; ``None`` for the cell's own.
    """

    inputs: Float[Array, "batch time inputs"]
    targets: Float[Array, "batch time outputs"]
    mask: Float[Array, "batch time outputs"]
    initial_state: Float[Array, "batch state"] | None = None

    def __check_init__(self):
        if self.targets.shape != self.mask.shape or self.inputs.shape[:2] != self.targets.shape[:2]:
            raise ValueError(
                "`inputs`, `targets` and `mask` must agree in batch and time, the last two in all axes; got "
                f"{self.inputs.shape}, {self.targets.shape}, {self.mask.shape}."
            )
        if not isinstance(self.mask, Tracer) and not np.asarray(self.mask).any():
            raise ValueError("`mask` is zero everywhere: the loss of these trials is undefined.")


def loss(outputs: Float[Array, "batch time outputs"], trials: Trials) -> Float[Array, ""]:
    r"""Masked squared error, pooled over trials, steps and channels, schuessler2020 (18, 19).

    .. math:: L = \frac{1}{2} \frac{\sum M (z - \hat z)^2}{\sum M}
    """
    if outputs.shape != trials.targets.shape:
        raise ValueError(f"`outputs` have shape {outputs.shape}, the targets {trials.targets.shape}.")
    error = trials.mask * (outputs - trials.targets) ** 2
    return jnp.sum(error) / (2 * jnp.sum(trials.mask))


class AbstractTask(eqx.Module):
    """A law over trials."""

    dt: eqx.AbstractVar[float]

    starts_at_input: ClassVar[bool] = False
    """Whether the network starts from its own input vector instead of silence."""
    shares: ClassVar[int] = 1
    """Number of equal parts of a batch."""

    def __check_init__(self):
        for name, value in vars(self).items():
            if any(isinstance(part, float) and not math.isfinite(part) for part in jax.tree.leaves(value)):
                raise ValueError(f"`{name}` must be finite, got {value}.")

    @property
    @abc.abstractmethod
    def inputs(self) -> int:
        """Number of input channels."""

    @property
    @abc.abstractmethod
    def outputs(self) -> int:
        """Number of output channels."""

    @property
    @abc.abstractmethod
    def time(self) -> int:
        """Number of steps of a trial."""

    @abc.abstractmethod
    def draw(self, batch: int, key: PRNGKeyArray, dtype: jnp.dtype) -> Trials:
        """Law of the trials, to be traced; users call :meth:`sample`."""

    def sample(self, batch: int, *, key: PRNGKeyArray, dtype: DTypeLike = float) -> Trials:
        """Draw ``batch`` independent trials, by a program that is compiled once for each size."""
        batch = self.check_batch(batch)
        return _draw(self, batch, key, jnp.zeros((), dtype).dtype)

    def check_batch(self, batch: int) -> int:
        """Give the number of trials, if it is one that the task can give."""
        batch = require_size("batch", batch)
        if batch % self.shares:
            raise ValueError(f"`batch` must be a multiple of {self.shares}, one share per task, got {batch}.")
        return batch

    def sample_for(self, cell: AbstractCell, batch: int, *, key: PRNGKeyArray) -> Trials:
        """Draw trials in the precision of ``cell``, from the initial state that the task asks of it."""
        trials = self.sample(batch, key=key, dtype=cell.dtype)
        if not self.starts_at_input:
            return trials
        start = jax.lax.stop_gradient(cell.w_in[0])
        start = jnp.broadcast_to(start, (batch, *start.shape))
        return Trials(trials.inputs, trials.targets, trials.mask, start)


def check_fits(cell: AbstractCell, task: AbstractTask) -> None:
    """Refuse a cell whose channels are not those of the task."""
    for side in ("inputs", "outputs"):
        has, needs = getattr(cell, side), getattr(task, side)
        if has != needs:
            raise ValueError(
                f"The cell has {has} {side}, {type(task).__name__} needs {needs}. "
                f"Draw the cell with n_in = {task.inputs} and n_out = {task.outputs}."
            )
    cell_dt = getattr(cell, "dt", None)
    if cell_dt is not None and not math.isclose(cell_dt, task.dt):
        raise ValueError(
            f"The cell steps by dt = {cell_dt}, the trials of {type(task).__name__} by dt = {task.dt}; "
            "make them equal."
        )


def check_inputs(cell: AbstractCell, inputs: Float[Array, "batch time inputs"]) -> None:
    """Refuse inputs that a cell cannot take."""
    if inputs.ndim != 3:
        raise ValueError(f"`inputs` must be (batch, time, channels), got shape {inputs.shape}.")
    if inputs.shape[2] != cell.inputs:
        raise ValueError(f"`inputs` have {inputs.shape[2]} channels, the cell takes {cell.inputs}.")
    if inputs.dtype != cell.dtype:
        raise ValueError(
            f"`inputs` are {inputs.dtype}, the cell is {jnp.dtype(cell.dtype)}; draw the trials with "
            "`task.sample_for(cell, ...)` or `dtype=cell.dtype`."
        )


def check_trials(cell: AbstractCell, trials: Trials) -> None:
    """Refuse trials of another task than that of the cell."""
    check_inputs(cell, trials.inputs)
    if trials.targets.shape[2] != cell.outputs:
        raise ValueError(f"The targets have {trials.targets.shape[2]} channels, the cell has {cell.outputs}.")


@eqx.filter_jit
def _draw(task: AbstractTask, batch: int, key: PRNGKeyArray, dtype: jnp.dtype) -> Trials:
    return task.draw(batch, key, dtype)


def steps_of(name: str, duration: float, dt: float) -> int:
    """Number of steps in a duration, ``int(duration / dt)`` without the rounding error of 0.3 / 0.1."""
    if not 0 <= duration < math.inf:
        raise ValueError(f"`{name}` must be nonnegative and finite, got {duration}.")
    if 0 < duration < dt * (1 - 1e-9):
        raise ValueError(f"`{name}` is {duration}, shorter than one step, dt = {dt}.")
    return int(duration / dt + 1e-9)
