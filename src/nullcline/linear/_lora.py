r"""Exact low-rank fine-tuning (LoRA) of a frozen linear map.

The map :math:`W = W_0 + \gamma B A` with frozen :math:`W_0` and trained :math:`A` (rank × in), :math:`B`
(out × rank) is a two-layer network with weights :math:`\sqrt\gamma A`, :math:`\sqrt\gamma B` that learns
the residual :math:`\Sigma - W_0`, in time :math:`\gamma t`. The solution of domine2025 therefore covers it.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._checks import as_float, require_finite, require_positive, require_times
from .._precision import full_precision
from ._exact import check_fit, exact_flow
from ._network import Network
from ._shallow import function_loss
from ._task import Task
from ._trajectory import Trajectory


class LoraFlow(eqx.Module):
    r"""Exact course of a low-rank adaptation.

    Attributes
    ----------
    frozen
        The map :math:`W_0` that does not change.
    adapter
        Trajectory of the rescaled adapter :math:`(\sqrt\gamma A, \sqrt\gamma B)`: its ``function`` is the
        correction :math:`\gamma BA`.
    task
        The task that the whole map learns.
    """

    frozen: Float[Array, "outputs inputs"]
    adapter: Trajectory
    task: Task

    @property
    def times(self) -> Float[Array, "*batch time"]:
        """Times of the states."""
        return self.adapter.times

    @property
    def function(self) -> Float[Array, "*batch time outputs inputs"]:
        r"""The whole map :math:`W_0 + \gamma BA` at each time."""
        return self.frozen[..., None, :, :] + self.adapter.function

    @property
    def loss(self) -> Float[Array, "*batch time"]:
        """Loss of the whole map on the task at each time."""
        return function_loss(self.function, self.task)


@full_precision
def residual_task(frozen: Float[Array, "outputs inputs"], task: Task) -> Task:
    r"""What is left to learn: the task with outputs :math:`Y - W_0 X`."""
    if task.x is None or task.y is None:
        return Task.from_correlation(task.sigma_yx - frozen)
    return Task(task.x, task.y - frozen @ task.x, is_isotropic=task.is_isotropic)


def lora_flow(
    frozen: Float[Array, "outputs inputs"],
    network: Network,
    task: Task,
    times: Float[Array, " time"],
    *,
    gamma: float = 1.0,
    tau: float = 1.0,
) -> LoraFlow:
    r"""Exact gradient flow of a low-rank adapter on top of a frozen linear map.

    The standard start :math:`B = 0` is solvable iff the rows of :math:`A` are orthogonal and of equal norm
    q; then :math:`\lambda = -q^2` and ``lambda_balanced(n_in, rank, n_out, lam=-q**2, scale=0.0, key=key)``
    makes it. A Gaussian :math:`A` is balanced only up to about :math:`2\sqrt{r/N_i}` and is refused. The
    flow converges to the best rank-r correction of :math:`\Sigma - W_0`.

    Parameters
    ----------
    frozen
        The map :math:`W_0` (outputs, inputs).
    network
        The adapter: ``w1`` is :math:`A`, ``w2`` is :math:`B`; λ-balanced.
    task
        The task to fine-tune on, with isotropic inputs.
    times
        Times, not negative, sorted.
    gamma
        Scale of the correction, usually α / rank.
    tau
        Time constant, the inverse learning rate.
    """
    check_fit(network, task)
    frozen = as_float("frozen", frozen)
    require_finite("frozen", frozen)
    gamma = require_positive("gamma", gamma)
    tau = require_positive("tau", tau)
    if frozen.shape != (task.n_out, task.n_in):
        raise ValueError(
            f"`frozen` must have shape (outputs, inputs) = {(task.n_out, task.n_in)}, got {frozen.shape}."
        )
    root = jnp.sqrt(jnp.asarray(gamma, network.w1.dtype))
    adapter = Network(root * network.w1, root * network.w2)
    flow = exact_flow(adapter, residual_task(frozen, task), require_times(times), tau=tau / gamma)
    return LoraFlow(frozen, flow, task)
