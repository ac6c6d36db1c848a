r"""ReLU and tanh networks trained by gradient descent, and what becomes of their balance.

In a two-layer network :math:`\hat y = W_2\,\phi(W_1 x)` gradient flow conserves all of
:math:`D = W_2^T W_2 - W_1 W_1^T` if :math:`\phi` is linear, only its diagonal if :math:`\phi` is ReLU, and
nothing of it if :math:`\phi` is tanh (anguita2024, section 4.5 and figure 4.8).
"""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._checks import require_positive, require_size
from .._precision import full_precision
from ._exact import check_fit
from ._network import Network, balance_distance, fitted_lambda
from ._task import Task
from ._trajectory import DIVERGED, OK

Activation = Literal["linear", "relu", "tanh"]
_ACTIVATIONS = {"linear": lambda z: z, "relu": jax.nn.relu, "tanh": jnp.tanh}


class NonlinearDescent(eqx.Module):
    r"""Record of a training run of a nonlinear network.

    Attributes
    ----------
    network
        Weights after the last step; the last finite ones where training diverged.
    steps
        Steps at which the measures below were taken, from 0 on.
    loss
        :math:`\|W_2\phi(W_1X) - Y\|_F^2/(2P)`; NaN from the divergence on, as the other measures.
    fitted_lambda
        :math:`\lambda^* = \mathrm{tr}(D)/N_h` (erratum: theorem 4.5.1 lacks the :math:`1/N_h`).
    distance
        Distance from balance, :math:`\|D - \lambda^* I\|_F`.
    status
        0 for a run to be trusted, 3 for one that diverged or ended above its first loss (``STATUS``).
    """

    network: Network
    steps: Int[Array, " record"]
    loss: Float[Array, " record"]
    fitted_lambda: Float[Array, " record"]
    distance: Float[Array, " record"]
    status: Int[Array, ""]

    @property
    def is_ok(self) -> Array:
        """Whether every weight stayed finite and the loss did not end above its start."""
        return self.status == OK


@full_precision
def nonlinear_loss(network: Network, task: Task, activation: Activation = "relu") -> Float[Array, ""]:
    r"""Loss :math:`\|W_2\,\phi(W_1 X) - Y\|_F^2 / (2P)` of a two-layer network with activation φ."""
    check_fit(network, task)
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        raise ValueError(f"`activation` must be one of {sorted(_ACTIVATIONS)}, got {activation!r}.")
    if task.x is None or task.y is None:
        raise ValueError(
            "A nonlinear network needs the samples themselves; this `task` was made by "
            "`Task.from_correlation`. Make it from data: `Task(x, y)`."
        )
    error = network.w2 @ _ACTIVATIONS[activation](network.w1 @ task.x) - task.y
    return jnp.sum(error**2) / (2 * task.x.shape[-1])


def nonlinear_descent(
    network: Network,
    task: Task,
    *,
    activation: Activation = "relu",
    learning_rate: float | Float[Array, ""] = 1e-3,
    steps: int = 2000,
    every: int = 100,
) -> NonlinearDescent:
    r"""Train a two-layer nonlinear network by full-batch gradient descent and watch its balance.

    Parameters
    ----------
    network
        Initial weights, for example from ``lambda_balanced``.
    task
        Task with data; the inputs need not be whitened. To train on a second task, start again from
        ``result.network``.
    activation
        ``"relu"``, ``"tanh"`` or ``"linear"``.
    learning_rate
        Step size.
    steps
        Number of steps, a multiple of ``every``.
    every
        Steps between two records.
    """
    learning_rate = require_positive("learning_rate", learning_rate)
    steps, every = require_size("steps", steps), require_size("every", every)
    if steps % every:
        raise ValueError(f"`steps` must be a multiple of `every`, got steps = {steps} and every = {every}.")
    check_fit(network, task)
    return _descend(network, task, activation, learning_rate, steps, every)


@eqx.filter_jit
@full_precision
def _descend(network, task, activation, learning_rate, steps: int, every: int) -> NonlinearDescent:
    def measure(network, is_ok):
        measures = jnp.stack(
            [nonlinear_loss(network, task, activation), fitted_lambda(network), balance_distance(network)]
        )
        # Weights may be finite and their squares not.
        is_ok = is_ok & jnp.isfinite(measures).all()
        return is_ok, jnp.where(is_ok, measures, jnp.nan)

    def step(_, state):
        network, is_ok = state
        gradient = jax.grad(nonlinear_loss)(network, task, activation)
        moved = jax.tree.map(lambda w, g: w - jnp.asarray(learning_rate, w.dtype) * g, network, gradient)
        is_ok = is_ok & jnp.all(jnp.isfinite(moved.w1)) & jnp.all(jnp.isfinite(moved.w2))
        return jax.tree.map(lambda new, old: jnp.where(is_ok, new, old), moved, network), is_ok

    def chunk(state, _):
        network, is_ok = jax.lax.fori_loop(0, every, step, state)
        is_ok, measures = measure(network, is_ok)
        return (network, is_ok), measures

    is_ok, first = measure(network, jnp.asarray(True))
    (last, is_ok), later = jax.lax.scan(chunk, (network, is_ok), length=steps // every)
    loss, lam, distance = jnp.concatenate([first[None], later]).T
    # Descent that ends above its start has diverged, though it may not have had the time to overflow.
    slack = 1e3 * jnp.finfo(loss.dtype).eps * (loss[0] + jnp.sum(task.y**2))
    status = jnp.where(is_ok & (loss[-1] <= loss[0] + slack.astype(loss.dtype)), OK, DIVERGED)
    return NonlinearDescent(last, jnp.arange(0, steps + 1, every), loss, lam, distance, status)
