r"""Continual, reversal and transfer learning: one exact solution after the other.

Gradient flow conserves the balance, so λ is the same for every task and the state at the end of one task is a
valid start of the next (anguita2024, section 4.4).
"""

from collections.abc import Iterable
from collections.abc import Sequence as Items

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._checks import is_concrete, require_integer, require_positive
from .._precision import full_precision
from ._exact import balance_tolerance, check_fit, exact_flow, on_span, read_balance
from ._network import Network
from ._shallow import function_loss
from ._task import Task, require_task
from ._trajectory import Trajectory


@full_precision
def loss_rate(
    trajectory: Trajectory, training: Task, evaluated: Task | None = None, *, tau: float = 1.0
) -> Float[Array, " time"]:
    r"""Rate of change of the loss on one task while a network trains on another.

    :math:`\tau\,dL_i/dt = \langle \dot f, f\Sigma_{xx}^{(i)} - \Sigma_{yx}^{(i)}\rangle` with :math:`\dot f
    = W_2W_2^T R + R\,W_1^T W_1` and :math:`R = \Sigma_{yx} - f\Sigma_{xx}` of the training task. The rate
    of forgetting is the same number (anguita2024, theorem 4.4.1; erratum to equation 4.36: the bracket
    belongs around both terms).

    Parameters
    ----------
    trajectory
        States to evaluate at.
    training
        The task the network trains on.
    evaluated
        The task whose loss is asked for; the training task by default, whose rate is never positive.
    tau
        Time constant of the flow; for gradient descent against steps, the inverse learning rate.
    """
    tau = require_positive("tau", tau)
    evaluated = training if evaluated is None else evaluated
    if not isinstance(trajectory, Trajectory):
        raise ValueError(f"`trajectory` must be a `linear.Trajectory`, got a {type(trajectory).__name__}.")
    function = trajectory.function
    for name, task in (("training", training), ("evaluated", evaluated)):
        require_task(name, task)
        if function.shape[-2:] != (task.n_out, task.n_in):
            raise ValueError(
                f"`trajectory` maps {function.shape[-1]} inputs to {function.shape[-2]} outputs, but "
                f"`{name}` has {task.n_in} inputs and {task.n_out} outputs."
            )
    residual = training.sigma_yx[None] - function @ training.sigma_xx
    velocity = trajectory.output_gram @ residual + residual @ trajectory.input_gram
    slope = function @ evaluated.sigma_xx - evaluated.sigma_yx[None]
    return jnp.sum(velocity * slope, axis=(-2, -1)) / tau


def forgetting(
    task: Task, before: Float[Array, "*batch outputs inputs"], after: Float[Array, "*batch outputs inputs"]
) -> Float[Array, "*batch"]:
    r"""Rise of the loss on ``task`` when the network function goes from ``before`` to ``after``.

    Between two fully learned whitened tasks j and k it is
    :math:`\frac12(\|\Sigma_k - \Sigma_i\|^2 - \|\Sigma_j - \Sigma_i\|^2)`.
    """
    return function_loss(after, task) - function_loss(before, task)


class Sequence(eqx.Module):
    """Exact trajectories of one network through several tasks.

    Attributes
    ----------
    stages
        One trajectory for each task, its times counted from the start of that task.
    tasks
        The tasks, in order.
    durations
        Time spent on each.
    tau
        Time constant.
    """

    stages: tuple[Trajectory, ...]
    tasks: tuple[Task, ...]
    durations: tuple[float, ...]
    tau: float

    def _one_network(self) -> tuple[Trajectory, ...]:
        """The stages, of one network: those of a batch have its axis where the times should be."""
        if any(stage.status.ndim > 0 for stage in self.stages):
            raise ValueError(
                "This sequence holds a batch of networks: read what you need of it inside the function that "
                "you `vmap`, for example `jax.vmap(lambda n: linear.exact_sequence(n, tasks, times).losses)`."
            )
        return self.stages

    @property
    def times(self) -> Float[Array, " time"]:
        """Times since the very beginning, all stages in one row."""
        starts = [sum(self.durations[:i]) for i in range(len(self.stages))]
        return jnp.concatenate(
            [stage.times + start for stage, start in zip(self._one_network(), starts, strict=True)]
        )

    @property
    def stage(self) -> Int[Array, " time"]:
        """Which task is trained on at each of ``times``."""
        self._one_network()
        return jnp.repeat(
            jnp.arange(len(self.stages)),
            jnp.array([stage.times.size for stage in self.stages]),
            total_repeat_length=sum(stage.times.size for stage in self.stages),
        )

    @property
    def function(self) -> Float[Array, "time outputs inputs"]:
        """Network function at each of ``times``."""
        return jnp.concatenate([stage.function for stage in self._one_network()])

    @property
    def losses(self) -> Float[Array, "tasks time"]:
        """Loss on every task at each of ``times``."""
        return jnp.stack([function_loss(self.function, task) for task in self.tasks])

    @property
    def forgetting(self) -> Float[Array, "tasks time"]:
        """Rise of the loss on every task since the start of the current stage."""
        rows = []
        for task in self.tasks:
            losses = [function_loss(stage.function, task) for stage in self._one_network()]
            rows.append(jnp.concatenate([loss - loss[0] for loss in losses]))
        return jnp.stack(rows)

    @property
    def loss_rates(self) -> Float[Array, "tasks time"]:
        """Rate of change of the loss on every task, which is also the rate of forgetting."""
        return jnp.stack(
            [
                jnp.concatenate(
                    [
                        loss_rate(stage, training, task, tau=self.tau)
                        for stage, training in zip(self._one_network(), self.tasks, strict=True)
                    ]
                )
                for task in self.tasks
            ]
        )


@full_precision
def _check_unseen(network: Network, tasks: tuple[Task, ...], index: int) -> Array | None:
    """Raise if the first layer has a part that this task does not see, and loses, and a later one does see.

    Where values cannot be inspected, return whether it is so.
    """
    task, later = tasks[index], tasks[index + 1 :]
    check_fit(network, task)
    dtype = network.w1.dtype
    if task.is_spanning or not later:
        return None
    rest = network.w1 - network.w1 @ task.span.astype(dtype)
    seen = jnp.stack([jnp.linalg.norm(rest @ other.span.astype(dtype)) for other in later])
    share = jnp.max(seen) / jnp.maximum(jnp.linalg.norm(network.w1), jnp.finfo(dtype).tiny)
    is_lost = share > balance_tolerance(dtype)
    if not is_concrete(is_lost):
        return is_lost
    if is_lost:
        raise ValueError(
            f"The inputs of `tasks[{index}]` span a part of their space only; a later task sees the first "
            f"layer beyond it (a share {float(share):.2g}), which the exact solution does not follow. Use "
            "`linear.integrate_flow` for one task after the other."
        )
    return None


def exact_sequence(
    network: Network,
    tasks: Items[Task],
    durations: Items[float],
    *,
    points: int = 101,
    tau: float = 1.0,
) -> Sequence:
    r"""Exact learning of several tasks, one after the other.

    Continual learning (different tasks), reversal (:math:`\Sigma`, then :math:`-\Sigma`) and transfer are all
    this call. After full convergence with λ = 0 a reversed task has no overlap with the weights: the function
    decays to zero and stays there, a saddle that this solution respects. After a finite time T the overlap is
    :math:`e^{-2sT}`; weights of double precision can tell it from zero for :math:`sT \lesssim 14`, of single
    for 6. Beyond, rounding decides when a reversed mode escapes from the plateau, if ever.

    Parameters
    ----------
    network
        λ-balanced initial weights.
    tasks
        Tasks with the network's numbers of inputs and outputs, with isotropic inputs. Where the inputs of one
        span a part of their space only, later tasks must not see more of the first layer (an error; NaN under
        ``jit``).
    durations
        Time spent on each task, positive, in the units of ``tau``.
    points
        Number of evenly spaced times of each stage, first and last included.
    tau
        Time constant, the inverse learning rate.
    """
    if isinstance(tasks, Task):
        raise ValueError("`tasks` must be a list of tasks, got one `Task`: write `[task]` and `[duration]`.")
    if not isinstance(tasks, Iterable):
        raise ValueError(f"`tasks` must be a list of tasks, got {tasks!r}.")
    if not isinstance(durations, Iterable) or getattr(durations, "ndim", 1) == 0:
        raise ValueError(f"`durations` must be a list, one time for each task, got {durations!r}.")
    tasks, durations = tuple(tasks), tuple(durations)
    if not tasks or len(tasks) != len(durations):
        raise ValueError(
            f"`tasks` and `durations` must have the same length, at least 1; got {len(tasks)} tasks and "
            f"{len(durations)} durations."
        )
    durations = tuple(require_positive("durations", duration) for duration in durations)
    require_integer("points", points, 2)
    stages, lam, tolerance = [], None, None
    for index, (task, duration) in enumerate(zip(tasks, durations, strict=True)):
        is_lost = _check_unseen(network, tasks, index)
        times = jnp.linspace(0.0, duration, points, dtype=network.w1.dtype)
        stages.append(exact_flow(network, task, times, tau=tau, lam=lam, tolerance=tolerance))
        if lam is None:
            # Conserved, and read off best where the weights are as they were given.
            lam = read_balance(on_span(network, task), float(jnp.finfo(network.w1.dtype).eps))[0]
        # The state at the end of a stage carries a few roundings more than given weights.
        tolerance = 16 * float(jnp.finfo(network.w1.dtype).eps)
        network = stages[-1].network_at(-1)
        if is_lost is not None:
            network = Network(jnp.where(is_lost, jnp.nan, network.w1), network.w2)
    return Sequence(tuple(stages), tasks, durations, tau)
