r"""Where training ends, and what becomes of it for very large :math:`|\lambda|`.

Corrected versions of anguita2024, theorems 4.1.2, 4.1.3 and 4.2.3.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._checks import (
    as_float,
    coarser,
    is_concrete,
    require_finite,
    require_positive,
    require_scalar,
    require_size,
    require_times,
)
from .._precision import full_precision
from ._exact import balance_tolerance, check_fit, exact_flow, on_span, read_balance
from ._network import Network, balance_distance, balance_residual
from ._task import Task, require_task
from ._trajectory import Trajectory


class State(eqx.Module):
    r"""Function and representations of a network, at one time or along an axis of times.

    Attributes
    ----------
    function
        :math:`W_2 W_1`.
    input_gram
        :math:`W_1^T W_1`.
    output_gram
        :math:`W_2 W_2^T`.
    """

    function: Float[Array, "*time outputs inputs"]
    input_gram: Float[Array, "*time inputs inputs"]
    output_gram: Float[Array, "*time outputs outputs"]


def _spectrum(task: Task) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """SVD of the target and its numerical rank."""
    u, s, vt = np.linalg.svd(np.asarray(task.target), full_matrices=False)
    rank = int(
        np.sum(s > max(task.n_in, task.n_out) * np.finfo(s.dtype).eps * max(s[0], np.finfo(s.dtype).tiny))
    )
    return u, s, vt.T, rank


def _require_isotropic(task: Task) -> None:
    if task.is_isotropic is False:
        raise ValueError(
            "The inputs of `task` are not isotropic: the limits of training are known for isotropic inputs. "
            "Whiten them with `linear.whiten(x)`, or use `linear.integrate_flow`, which takes any inputs."
        )


def converged_state(task: Task, *, lam: float, rank: int) -> State:
    r"""State that gradient flow reaches from generic λ-balanced weights of a given rank.

    :math:`W_2W_1` becomes the best approximation of the target of that rank. On its modes
    :math:`W_1^TW_1 = (K - \lambda)/2` and :math:`W_2W_2^T = (K + \lambda)/2` with
    :math:`K = \sqrt{\lambda^2 + 4s^2}`. Ranks beyond the task's keep :math:`|\lambda|` in the stronger layer:
    for λ > 0 in output directions, for λ < 0 in input directions that the task does not use.

    Parameters
    ----------
    task
        Task with isotropic inputs.
    lam
        Balance.
    rank
        Rank of the initial weights :math:`[W_1^T; W_2]`, usually the number of hidden units.

    Raises
    ------
    ValueError
        If the state depends on more than λ and the rank: some, but not all, unused directions keep their
        strength, or the approximation cuts through equal singular values. ``limit`` gives the state of a
        given network.

    Notes
    -----
    Theorem 4.1.2 of anguita2024 prints other block sizes (erratum). There are exceptional initial weights
    that end elsewhere, on a saddle: see :func:`can_converge`.
    """
    require_size("rank", rank)
    lam = require_scalar("lam", lam)
    require_finite("lam", as_float("lam", lam))
    require_task("task", task)
    if not is_concrete(lam, task.sigma_yx):
        raise ValueError(
            "`converged_state` decides by values and cannot run under `jit`, `vmap` or `grad`: use `limit`."
        )
    _require_isotropic(task)
    u, s, v, task_rank = _spectrum(task)
    span = np.asarray(task.span)
    modes = min(rank, task_rank)
    if rank < task_rank and s[rank - 1] - s[rank] <= 1e-10 * s[0]:
        raise ValueError(
            f"`rank` = {rank} cuts through equal singular values {s[rank - 1]:.6g} of the task: which "
            "directions are learned depends on the initial weights. Use `limit(network, task)`."
        )
    free = (task.n_out if lam > 0 else round(float(np.trace(span)))) - task_rank
    extra = rank - task_rank
    if lam != 0 and extra > free:
        raise ValueError(
            f"No weights of rank {rank} are balanced with lam = {lam}: at most {free + task_rank} are "
            "possible."
        )
    if lam != 0 and 0 < extra < free:
        raise ValueError(
            f"{extra} of {free} directions outside the task keep strength |lam|, and which ones depends on "
            "the initial weights. Use `limit(network, task)`."
        )
    u, s, v = u[:, :modes], s[:modes], v[:, :modes]
    k = np.hypot(lam, 2 * s)
    large = (k + abs(lam)) / 2
    small = np.divide(s**2, large, out=np.zeros_like(s), where=large > 0)
    first, second = (small, large) if lam >= 0 else (large, small)
    input_gram, output_gram = (v * first) @ v.T, (u * second) @ u.T
    if extra > 0 and lam > 0:
        output_gram = output_gram + lam * (np.eye(task.n_out, dtype=s.dtype) - u @ u.T)
    if extra > 0 and lam < 0:
        input_gram = input_gram - lam * (span - v @ v.T)
    return State(*map(jnp.asarray, ((u * s) @ v.T, input_gram, output_gram)))


def limit(network: Network, task: Task) -> Trajectory:
    r"""State of a network after training for ever.

    From the exact solution at :math:`t = 10^{12}\max(1, |\lambda|/s_1)/s_1`. Converged to rounding unless
    singular values (their squares, for large :math:`|\lambda|`) are not equal and yet differ by less than
    :math:`10^{-12}` of the largest, or λ = 0 and the rank exceeds that of the task (then the rest decays only
    as 1/t). Saddles are respected.
    """
    check_fit(network, task)
    top = jnp.linalg.norm(task.target, ord=2)
    top = jnp.where(top > 0, top, 1)
    lam, _ = balance_residual(on_span(network, task))
    # Modes part at rates that differ by s²/|λ| where that is less than s.
    late = 1e12 / (task.kappa * top) * jnp.maximum(1, jnp.abs(lam).astype(top.dtype) / top)
    # So late, rounding noise of the weights has grown by any factor: count more of it as exact zeros.
    tolerance = 16 * float(jnp.finfo(network.w1.dtype).eps)
    return exact_flow(network, task, jnp.minimum(late, 1e30)[None], tolerance=tolerance)


def can_converge(network: Network, task: Task) -> bool:
    r"""Whether gradient flow from these balanced weights reaches the best function of their rank.

    It does not where the weights have no overlap with a direction that is to be learned. For λ = 0 and
    :math:`N_i = N_o \le N_h` this happens if the determinants of :math:`W_2W_1` and of the target have
    opposite signs, which is true of half of all random starts: the flow ends on a saddle with excess loss
    :math:`s_{min}^2/2`. It does not happen for :math:`N_i \ne N_o`, bottlenecks or λ ≠ 0, unless the
    weights are aligned with the wrong modes. (Assumption 2.2.1 of anguita2024 excludes these starts.)

    Works on values, not under ``jit``.
    """
    check_fit(network, task)
    if not is_concrete(network.w1, network.w2, task.sigma_yx):
        raise ValueError("`can_converge` decides by values and cannot run under `jit`, `vmap` or `grad`.")
    _require_isotropic(task)
    # Inputs see their span alone, and balance is a matter of what they see.
    network = on_span(network, task)
    q = np.asarray(network.q)
    lam, residual = map(float, balance_residual(network))
    allowed = balance_tolerance(network.w1.dtype)
    if residual > allowed:
        raise ValueError(
            f"`network` is not λ-balanced: relative residual {residual:.3g}, allowed {allowed:.0e}. Use "
            "`linear.integrate_flow` to see where it ends."
        )
    u, s, v, task_rank = _spectrum(task)
    # An overlap is as good as zero if the coarser of both could not tell it from zero.
    tolerance = 64 * sum(q.shape) * float(np.finfo(coarser(s.dtype, q.dtype)).eps)
    scale = np.linalg.norm(q, 2)
    rank = int(np.sum(np.linalg.svd(q, compute_uv=False) > tolerance * scale))
    wanted = min(rank, task_rank)
    if wanted == 0:
        return task_rank == 0
    half = np.hypot(s, lam / 2)
    half = np.where(half > 0, half, 1)  # of a mode that nothing is to learn
    large, small = np.sqrt((half + abs(lam) / 2) / (2 * half)), s / np.sqrt(2 * half * (half + abs(lam) / 2))
    c, z = (small, large) if lam >= 0 else (large, small)
    overlap = (c[:, None] * v.T) @ q[: task.n_in] + (z[:, None] * u.T) @ q[task.n_in :]

    def reached(is_above):
        return int(np.sum(np.linalg.svd(overlap[is_above], compute_uv=False) > tolerance * scale))

    # Equal singular values at the cut are one level: any of its directions will do.
    above = s > s[wanted - 1] * (1 + 1e-10)
    level = s >= s[wanted - 1] * (1 - 1e-10)
    complete = not above.any() or reached(above) == int(above.sum())
    return complete and reached(level) == wanted


@full_precision
def lazy_limit(network: Network, task: Task, times: Float[Array, " time"], *, tau: float = 1.0) -> State:
    r"""Leading order of the flow for very large :math:`|\lambda|`, where training is lazy.

    :math:`f(t) = \Sigma + (f(0) - \Sigma) e^{-|\lambda| t/\tau}`, up to relative corrections of order
    :math:`\lambda^{-2}`; the active layer stays :math:`|\lambda| I` plus :math:`f f^T/|\lambda|` (or
    :math:`f^T f/|\lambda|`), the other one is :math:`f^T f/|\lambda|` (or :math:`f f^T/|\lambda|`).

    Parameters
    ----------
    network
        Strictly balanced weights with :math:`N_h = N_o` and λ > 0, or :math:`N_h = N_i` and λ < 0. In any
        other architecture the active layer has to rotate, late, and there is no such limit.
    task
        Task with whitened or isotropic inputs of full span.
    times
        Times, not negative, sorted.
    tau
        Time constant, the inverse learning rate.

    Returns
    -------
    The limit; NaN where it does not exist and values cannot be inspected (``jit``).

    Notes
    -----
    Theorem 4.2.3 of anguita2024 omits the condition, and equations 4.18 and 4.19 omit one of two terms of the
    same order in the change of the kernel (errata).
    """
    tau = require_positive("tau", tau)
    check_fit(network, task)
    _require_isotropic(task)
    t = require_times(times, network.w1) / tau * task.kappa
    # What is rounding noise of zero counts as zero, for which there is no such limit.
    lam, _ = read_balance(network, float(jnp.finfo(network.w1.dtype).eps))
    distance = balance_distance(network) / jnp.maximum(jnp.sum(network.q**2), jnp.finfo(lam.dtype).tiny)
    allowed = balance_tolerance(network.w1.dtype)
    has_width = ((lam > 0) & (network.n_hidden == network.n_out)) | (
        (lam < 0) & (network.n_hidden == network.n_in)
    )
    if is_concrete(lam, task.x):
        if not task.is_spanning:
            raise ValueError("The lazy limit needs inputs that span their whole space; use `exact_flow`.")
        if distance > allowed:
            raise ValueError(
                f"`network` is not strictly λ-balanced: relative distance {float(distance):.3g} from "
                f"{float(lam):.3g}·I, allowed {allowed:.0e}. Use `exact_flow` or `integrate_flow`."
            )
        narrow, size = ("n_out", network.n_out) if lam > 0 else ("n_in", network.n_in)
        if not has_width:
            raise ValueError(
                "The lazy limit exists for `n_hidden` = `n_out` with λ > 0 or `n_hidden` = `n_in` with λ < 0;"
                f" got λ = {float(lam):.3g}, `n_hidden` = {network.n_hidden} and `{narrow}` = {size}. Use "
                "`exact_flow`."
            )
    size, target = jnp.where(has_width & (distance <= allowed), jnp.abs(lam), jnp.nan), task.target
    decay = jnp.exp(-size * t)[:, None, None]
    function = target[None] + (network.function - target)[None] * decay
    transposed = jnp.swapaxes(function, -1, -2)
    inputs, outputs = transposed @ function / size, function @ transposed / size
    inputs = inputs + jnp.where(lam < 0, size, 0) * jnp.eye(network.n_in, dtype=size.dtype)[None]
    outputs = outputs + jnp.where(lam > 0, size, 0) * jnp.eye(network.n_out, dtype=size.dtype)[None]
    return State(function, inputs, outputs)


def rotation_time(task: Task, lam: float | Float[Array, ""], *, tau: float = 1.0) -> Float[Array, ""]:
    r"""Time scale :math:`2|\lambda|\tau/s_1^2` on which a large active layer rotates towards the task.

    Where the active layer cannot stay a multiple of the identity (every architecture but those of
    :func:`lazy_limit`), the loss first falls to a plateau on the scale :math:`\tau/|\lambda|` and leaves it
    at about this time: richness is delayed, not absent.
    """
    tau = require_positive("tau", tau)
    lam = require_scalar("lam", lam)
    require_finite("lam", as_float("lam", lam))
    require_task("task", task)
    _require_isotropic(task)
    top = jnp.linalg.norm(task.target, ord=2)
    return 2 * jnp.abs(jnp.asarray(lam, top.dtype)) * tau / (top**2 * task.kappa)
