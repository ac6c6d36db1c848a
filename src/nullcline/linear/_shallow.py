"""The shallow network, one linear layer: exact for every input correlation."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._checks import as_float, require_finite, require_positive, require_times
from .._precision import full_precision
from ._modes import saturation
from ._task import Task, require_task


@full_precision
def shallow_flow(
    weights: Float[Array, "outputs inputs"],
    task: Task,
    times: Float[Array, " time"],
    *,
    tau: float = 1.0,
) -> Float[Array, "time outputs inputs"]:
    r"""Exact gradient flow of a shallow network :math:`\hat y = W x`.

    Solves :math:`\tau\dot W = \Sigma_{yx} - W\Sigma_{xx}`. For whitened inputs :math:`W(t) = \Sigma_{yx} +
    (W(0) - \Sigma_{yx}) e^{-t/\tau}` (anguita2024 equation 4.21); here the inputs may have any correlation,
    and directions that no input explores stay where they are.

    Parameters
    ----------
    weights
        Initial weights.
    task
        The task; its inputs need not be whitened.
    times
        Times, not negative, sorted.
    tau
        Time constant, the inverse learning rate.

    Notes
    -----
    At convergence on whitened inputs :math:`W^TW = V S^2 V^T` and :math:`W W^T = U S^2 U^T` (erratum:
    equation 4.20 prints S). The tangent kernel is :math:`I \otimes X^T X` at all times: a shallow network
    is lazy, although its representations change (erratum to the text after equation 4.20).
    """
    require_task("task", task)
    weights = as_float("weights", weights)
    require_finite("weights", weights)
    tau = require_positive("tau", tau)
    if weights.shape != (task.n_out, task.n_in):
        raise ValueError(
            f"`weights` must have shape (outputs, inputs) = {(task.n_out, task.n_in)}, got {weights.shape}."
        )
    t = require_times(times).astype(weights.dtype) / tau
    variance, basis = jnp.linalg.eigh(task.sigma_xx)
    # Rounding makes tiny negative eigenvalues of directions that are not explored.
    variance = jnp.where(variance > variance.size * jnp.finfo(t.dtype).eps * variance[-1], variance, 0)
    rate, when = jnp.broadcast_arrays(variance[None, :], t[:, None])
    decay = jnp.exp(-rate * when)[:, None, :]
    # Without variance there is no correlation either, beyond rounding that would grow with time.
    grown = jnp.where(rate > 0, saturation(rate / 2, when), 0)[:, None, :]
    path = (weights @ basis)[None] * decay + (task.sigma_yx @ basis)[None] * grown
    return path @ basis.T


@full_precision
def function_loss(function: Float[Array, "*batch outputs inputs"], task: Task) -> Float[Array, "*batch"]:
    r"""Loss :math:`\|fX - Y\|_F^2/(2P)` of linear maps on a task; without data, the excess loss.

    Takes any stack of maps: the ``function`` of a trajectory, the weights of a shallow network, the target of
    another task. Nothing is assumed about the inputs.
    """
    require_task("task", task)
    function = as_float("function", function)
    if function.shape[-2:] != (task.n_out, task.n_in):
        raise ValueError(
            f"Maps of this task must have shape (…, outputs, inputs) = (…, {task.n_out}, {task.n_in}), "
            f"got {function.shape}."
        )
    if task.x is None or task.y is None:
        return 0.5 * jnp.sum((function - _like(task.sigma_yx, function)) ** 2, axis=(-2, -1))
    error = function @ task.x - _like(task.y, function)
    return 0.5 * jnp.sum(error**2, axis=(-2, -1)) / task.x.shape[-1]


def _like(matrix: Array, stack: Array) -> Array:
    return matrix.reshape((1,) * (stack.ndim - 2) + matrix.shape)
