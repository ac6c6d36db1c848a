r"""The weights themselves along the exact flow.

The exact solution gives :math:`QQ^T`, hence the weights up to one rotation of the hidden units. With the
network function known at all times, :math:`\tau\dot Q = \begin{pmatrix}0 & R^T\\ R & 0\end{pmatrix} Q` with
:math:`R = \Sigma_{yx} - f\Sigma_{xx}` is linear and only the rotation is left to find: a fourth-order
Magnus integrator finds it, and everything else is taken from the exact solution.
"""

import math
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._checks import is_concrete, require_positive, require_size, require_times
from .._precision import full_precision
from ..measures import largest
from ._exact import check_fit, exact_flow
from ._network import Network
from ._task import Task
from ._trajectory import Trajectory

_GAUSS = (0.5 - np.sqrt(3) / 6, 0.5 + np.sqrt(3) / 6)


class Weights(eqx.Module):
    """Weights of a network along training.

    Attributes
    ----------
    times
        Times of the states.
    w1, w2
        Weights at each time.
    error
        How far the integrated weights were from the exact solution before they were turned onto it,
        relative to it: an upper estimate of the error of the rotation, infinite where the steps were too
        long for any.
    """

    times: Float[Array, " time"]
    w1: Float[Array, "time hidden inputs"]
    w2: Float[Array, "time outputs hidden"]
    error: Float[Array, " time"]


def exact_weights(
    network: Network, task: Task, times: Float[Array, " time"], *, steps: int = 32, tau: float = 1.0
) -> Weights:
    r"""Weights along the exact flow, not only up to a rotation of the hidden units.

    The Gram matrices of the result are exact. The rotation has an error that falls with the fourth power of
    the length of a step; ``error`` bounds it, and above a percent there is a warning (not under ``jit``).

    Parameters
    ----------
    network
        λ-balanced initial weights.
    task
        Task with isotropic inputs.
    times
        Times, not negative, sorted.
    steps
        Magnus steps between two times (and from zero to the first). Steps should be short against the time
        constant of learning, :math:`\tau/\sqrt{s^2 + \lambda^2/4}`, as long as anything is learned.
    tau
        Time constant, the inverse learning rate.
    """
    tau = require_positive("tau", tau)
    steps = require_size("steps", steps)
    check_fit(network, task)
    times = require_times(times).astype(network.w1.dtype)
    knots = jnp.concatenate([jnp.zeros_like(times[:1]), times])
    widths = jnp.repeat(jnp.diff(knots) / steps, steps, total_repeat_length=steps * times.size)
    within = jnp.tile(jnp.arange(steps, dtype=times.dtype), times.size)
    starts = jnp.repeat(knots[:-1], steps, total_repeat_length=steps * times.size) + within * widths
    gauss = starts[:, None] + widths[:, None] * jnp.asarray(_GAUSS, times.dtype)[None, :]
    between = exact_flow(network, task, gauss.ravel(), tau=tau)
    sigma_yx, sigma_xx = task.sigma_yx.astype(times.dtype), task.sigma_xx.astype(times.dtype)
    rough = _propagate(network.q, between.function, sigma_yx, sigma_xx, widths / tau, steps)
    weights = _align(rough, exact_flow(network, task, times, tau=tau), network, task)
    if is_concrete(weights.error) and not np.all(np.asarray(weights.error) < 0.01):
        warnings.warn(
            f"{steps} steps between times are too few: the rotation of the hidden units may be off by up to "
            f"{float(largest(weights.error)):.1g}, relative (Gram matrices are exact). Give more `steps`.",
            stacklevel=2,
        )
    return weights


@eqx.filter_jit
@full_precision
def _propagate(q, function, sigma_yx, sigma_xx, widths, steps: int) -> Array:
    """State at the end of each group of ``steps`` Magnus steps, the function known at two times of each."""
    outputs, inputs = sigma_yx.shape
    residual = (sigma_yx[None] - function @ sigma_xx).reshape(-1, 2, outputs, inputs)

    def generator(r):
        return jnp.block(
            [[jnp.zeros((inputs, inputs), r.dtype), r.T], [r, jnp.zeros((outputs, outputs), r.dtype)]]
        )

    def step(q, item):
        r, width = item
        one, two = generator(r[0]), generator(r[1])
        commutator = two @ one - one @ two
        exponent = width / 2 * (one + two) + math.sqrt(3) / 12 * width**2 * commutator
        return jax.scipy.linalg.expm(exponent) @ q, None

    def group(q, items):
        q, _ = jax.lax.scan(step, q, items)
        return q, q

    groups = jax.tree.map(lambda x: x.reshape(-1, steps, *x.shape[1:]), (residual, widths))
    return jax.lax.scan(group, q, groups)[1]


@full_precision
def _align(rough: Array, exact: Trajectory, network: Network, task: Task) -> Weights:
    """Rotate the exact factors onto the integrated weights (orthogonal Procrustes)."""
    span = task.span.astype(rough.dtype)
    outside = network.w1 - network.w1 @ span
    inside = jnp.concatenate([span[None] @ rough[:, : network.n_in], rough[:, network.n_in :]], axis=1)
    factor = jnp.concatenate([exact.w1t, exact.w2], axis=1)
    # Steps so long that the weights overflow tell nothing about the rotation.
    is_lost = ~jnp.all(jnp.isfinite(inside), axis=(1, 2))
    inside = jnp.where(is_lost[:, None, None], 0, inside)
    left, _, right = jnp.linalg.svd(jnp.swapaxes(factor, -1, -2) @ inside, full_matrices=False)
    q = factor @ (left @ right)
    w1 = jnp.swapaxes(q[:, : network.n_in], -1, -2) + outside[None]
    size = jnp.maximum(jnp.linalg.norm(q, axis=(1, 2)), jnp.finfo(q.dtype).tiny)
    error = jnp.where(is_lost, jnp.inf, jnp.linalg.norm(inside - q, axis=(1, 2)) / size)
    return Weights(exact.times, w1, q[:, network.n_in :], error)
