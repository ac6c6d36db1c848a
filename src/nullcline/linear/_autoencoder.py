r"""Aligned networks on inputs that are not white, linear autoencoders first of all.

If :math:`\Sigma_{xx} = V\,\mathrm{diag}(\varsigma)\,V^T` shares its eigenvectors with :math:`\Sigma_{yx} =
U\,\mathrm{diag}(s)\,V^T`, weights aligned with :math:`U, V` learn mode by mode: mode m is the aligned
solution with target :math:`s_m/\varsigma_m` in time :math:`\varsigma_m t`. An autoencoder has
:math:`\Sigma_{yx} = \Sigma_{xx}`, so every target is 1 and a mode learns at the pace of its variance.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._checks import as_float, coarser, is_concrete, require_positive, require_times
from .._precision import full_precision
from ._exact import balance_tolerance, check_fit
from ._modes import Modes, evolve
from ._network import Network
from ._task import Task


def autoencoder_task(x: Float[Array, "inputs samples"]) -> Task:
    """Task of reproducing the inputs.

    With whitened inputs ``exact_flow`` solves it from any balanced weights. For other inputs,
    ``aligned(task, ...)`` makes weights that :func:`aligned_flow` solves.
    """
    x = as_float("x", x)
    return Task(x, x)


class AlignedFlow(eqx.Module):
    """Exact course of an aligned network on inputs with any variances.

    Attributes
    ----------
    modes
        Strengths of the modes in both layers.
    u, v
        Output and input direction of each mode, as columns; an output direction is zero where neither the
        task nor the network uses the input direction.
    target
        Strength that each mode is to reach.
    variance
        Variance of the inputs along each mode, the pace of its learning.
    """

    modes: Modes
    u: Float[Array, "outputs modes"]
    v: Float[Array, "inputs modes"]
    target: Float[Array, " modes"]
    variance: Float[Array, " modes"]

    @property
    def times(self) -> Float[Array, "*batch time"]:
        """Times of the states."""
        return self.modes.times

    @property
    @full_precision
    def function(self) -> Float[Array, "*batch time outputs inputs"]:
        """Network function at each time."""
        scaled = self.u[..., None, :, :] * self.modes.strength[..., :, None, :]
        return scaled @ jnp.swapaxes(self.v, -1, -2)[..., None, :, :]


def _unit(x: Array) -> Array:
    size = jnp.max(jnp.abs(x))
    return x / jnp.where(size > 0, size, 1)


def _directions(network: Network, task: Task, eps: float) -> tuple[Array, Array]:
    """Common eigenvectors on the input side, and the output direction that each of them leads to."""
    gram, function = network.w1.T @ network.w1, network.function
    # A generic combination of commuting matrices has their common eigenvectors, degenerate or not.
    mixed = (
        _unit(task.sigma_xx)
        + 0.6180339887 * _unit(gram)
        + 0.2720196495 * _unit(task.sigma_yx.T @ task.sigma_yx)
    )
    _, v = jnp.linalg.eigh(mixed)
    v = v[:, ::-1]

    def leads_to(matrix):
        image = matrix @ v
        norm = jnp.linalg.norm(image, axis=0)
        is_used = norm > 64 * eps * jnp.maximum(jnp.linalg.norm(matrix), jnp.finfo(v.dtype).tiny)
        return jnp.where(is_used[None], image / jnp.where(is_used, norm, 1)[None], 0), is_used

    by_task, is_task = leads_to(task.sigma_yx)
    by_network, _ = leads_to(function)
    return jnp.where(is_task[None], by_task, by_network), v


def _misalignment(network: Network, task: Task, u: Array, v: Array, c: Array, d: Array, a: Array) -> Array:
    """Largest relative distance of weights and task from the aligned form."""

    def relative(matrix, form):
        size = jnp.linalg.norm(matrix)
        return jnp.linalg.norm(matrix - form) / jnp.where(size > 0, size, 1)

    gram, output = network.w1.T @ network.w1, network.w2 @ network.w2.T
    variance = jnp.sum(v * (task.sigma_xx @ v), axis=0)
    used = jnp.sum(u**2, axis=0)
    strength = jnp.sum(u * (task.sigma_yx @ v), axis=0)
    size = jnp.linalg.norm(c * d)
    return jnp.max(
        jnp.stack(
            [
                relative(gram @ v, v * c[None] ** 2),
                relative(task.sigma_xx @ v, v * variance[None]),
                relative(task.sigma_yx, (u * strength[None]) @ v.T),
                relative(network.function, (u * a[None]) @ v.T),
                relative(output @ u, u * d[None] ** 2),
                jnp.linalg.norm(u.T @ u - jnp.diag(used)),
                # Both layers must send a mode through the same hidden direction.
                jnp.linalg.norm((jnp.abs(a) - c * d) * used) / jnp.where(size > 0, size, 1),
            ]
        )
    )


@full_precision
def aligned_flow(
    network: Network, task: Task, times: Float[Array, " time"], *, tau: float = 1.0
) -> AlignedFlow:
    r"""Exact gradient flow of an aligned network whose inputs need not be white.

    Each mode may have a balance of its own; no common λ is needed.

    Parameters
    ----------
    network
        Weights :math:`W_1 = R S_1 V^T`, :math:`W_2 = U S_2 R^T`, for example from ``aligned``.
    task
        Task whose :math:`\Sigma_{xx}` and :math:`\Sigma_{yx}` share :math:`V`; every autoencoder does.
    times
        Times, not negative, sorted.
    tau
        Time constant, the inverse learning rate.

    Notes
    -----
    Alignment is checked on values that can be inspected. Under ``jit`` it is taken for granted.
    """
    tau = require_positive("tau", tau)
    times = require_times(times)
    check_fit(network, task)
    # Weights or data that once were float32 carry its rounding, whatever they are computed with.
    dtype = coarser(network.w1.dtype, task.sigma_yx.dtype)
    eps = float(jnp.finfo(dtype).eps)
    wide = np.promote_types(network.w1.dtype, task.sigma_yx.dtype)
    network, task = jax.tree.map(lambda array: array.astype(wide), (network, task))
    u, v = _directions(network, task, eps)
    c = jnp.linalg.norm(network.w1 @ v, axis=0)
    d = jnp.linalg.norm(network.w2.T @ u, axis=0)
    a = jnp.sum(u * (network.function @ v), axis=0)
    misalignment = _misalignment(network, task, u, v, c, d, a)
    tolerance = balance_tolerance(dtype)
    if is_concrete(misalignment) and not misalignment <= tolerance:
        raise ValueError(
            f"`network` is not aligned with `task`: relative distance {float(misalignment):.1e}, allowed "
            f"{tolerance:.0e}. Make the weights with `aligned(task, ...)`, or use `integrate_flow`, which "
            "needs no "
            "alignment; on isotropic inputs `exact_flow` needs none either."
        )
    variance = jnp.sum(v * (task.sigma_xx @ v), axis=0)
    floor = variance.size * eps * jnp.max(variance)
    variance = jnp.where(variance > floor, variance, 0)
    strength = jnp.sum(u * (task.sigma_yx @ v), axis=0)
    target = jnp.where(variance > 0, strength / jnp.where(variance > 0, variance, 1), 0)
    lam = (d - c) * (d + c)
    # Rounding noise of the weights must not carry a mode off its saddle.
    lam = jnp.where(jnp.abs(lam) <= 64 * eps * (c**2 + d**2), 0, lam)
    first, second = jax.vmap(
        lambda s, c, d, lam, z: evolve(s[None], c[None], d[None], lam[None], z * times / tau)
    )(target, jnp.where(a < 0, -c, c), d, lam, variance)
    return AlignedFlow(Modes(times, first[..., 0].T, second[..., 0].T), u, v, target, variance)
