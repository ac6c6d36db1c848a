"""The exact gradient flow of λ-balanced networks."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ._basis import task_basis
from ._charts import factors, make_chart
from ._checks import as_float, is_concrete, require_finite, require_positive, require_times
from ._network import Network, balance_residual
from ._order import after
from ._task import Task, isotropy_tolerance
from ._trajectory import NOT_WHITE, OK, UNBALANCED, Trajectory

# A chart serves earlier times at full accuracy while l·(t* − t) ≤ 16, or down to t*/4. One for all times
# costs four digits at worst; four charts leave errors below 1e-12.
_REACH, _RATIO = 16.0, 4.0
_BLOCKS_UNDER_TRACE = 4


def exact_flow(
    network: Network,
    task: Task,
    times,
    tau: float | Float[Array, ""] = 1.0,
    *,
    lam: float | Float[Array, ""] | None = None,
    tolerance: float | None = None,
) -> Trajectory:
    r"""Exact gradient flow of a λ-balanced two-layer linear network on isotropic inputs.

    Solves :math:`\tau\dot W_1 = W_2^\top(\Sigma_{yx} - W_2W_1\Sigma_{xx})`,
    :math:`\tau\dot W_2 = (\Sigma_{yx} - W_2W_1\Sigma_{xx})W_1^\top` in closed form,

    .. math:: QQ^\top = e^{Ft} Q_0 \left[I + Q_0^\top \frac{e^{2Ft} - I}{2F} Q_0\right]^{-1} Q_0^\top e^{Ft},

    for every architecture, every admissible λ and any rank of the task and of the weights, accurate to about
    1e-14 in float64 from :math:`t = 0` to any time. A mode with no overlap stays a saddle at all times.

    Parameters
    ----------
    network
        λ-balanced weights, strictly or on a projector (see ``lambda_balanced``).
    task
        A task with isotropic inputs on their span (see ``whiten``).
    times
        Sorted, nonnegative times, in the units of ``tau``.
    tau
        Time constant, the inverse learning rate: with ``tau=1/learning_rate`` times count descent steps.
    lam
        The balance, if known; by default it is read off the weights. A contradiction raises.
    tolerance
        Relative rounding error of the weights; overlaps below it count as exact zeros. Default: that of
        their precision. Give ``1e-7`` for float32 weights cast to float64; 0 switches exact saddles off.

    Returns
    -------
    The trajectory. Where values cannot be inspected (``jit``, ``vmap``, ``grad``) nothing raises: weights
    that are not balanced or inputs that are not isotropic give NaN and a nonzero ``status``.

    Notes
    -----
    Derivatives with respect to the weights make sense along balanced weights only: differentiate through
    ``lambda_balanced``. Those with respect to the task need distinct, nonzero singular values.

    References
    ----------
    domine2025, Theorem A.3, and anguita2024, Theorem 3.3.1, with errata (the bracket is inverted; rates
    of directions outside the task).
    """
    times = require_times(times)
    w1, w2 = network.w1, network.w2
    check_fit(network, task)
    require_positive("tau", tau)
    if lam is not None:
        require_finite("lam", as_float(lam))
    dtype = jnp.result_type(w1.dtype, w2.dtype)
    if tolerance is None:
        tolerance = float(jnp.finfo(dtype).eps)
    if not (is_concrete(tolerance) and tolerance >= 0):
        raise ValueError(f"`tolerance` must be a number of at least 0, got {tolerance}.")
    if task.is_isotropic is False:
        raise ValueError(
            "The exact solution needs isotropic inputs, XXᵀ/P = κ·(projector), and those of `task` are not. "
            "Whiten them with `linear.whiten(x)`, or use `linear.integrate_flow`, which takes any inputs."
        )
    leaves = (w1, w2, task.x, task.y, task.correlation, times)
    blocks = min(times.shape[0], _BLOCKS_UNDER_TRACE)
    if is_concrete(*leaves, lam, tau):
        rate, clock = _check_values(network, task, tau, lam, tolerance)
        blocks = _count_blocks(np.asarray(times), rate * clock)
    arguments = (w1, w2, (task.x, task.y, task.correlation), times, tau, lam, tolerance)
    g1, g2, v, u, status = _solve(*arguments, task.is_isotropic, blocks)
    return Trajectory(times, g1, g2, v, u, status)


def balance_tolerance(dtype) -> float:
    """Largest residual of weights that count as balanced."""
    return 1e-8 if jnp.finfo(dtype).bits == 64 else 1e-4


def check_fit(network: Network, task: Task) -> None:
    """Raise unless the sizes of network and task agree."""
    if (network.n_in, network.n_out) != (task.n_in, task.n_out):
        raise ValueError(
            f"`network` maps {network.n_in} inputs to {network.n_out} outputs, but `task` has "
            f"{task.n_in} inputs and {task.n_out} outputs."
        )


@partial(jax.jit, static_argnums=(7, 8))
def _solve(w1, w2, data, times, tau, lam, tolerance, is_isotropic, blocks):
    """One program for the whole solution, on arrays."""
    dtype = jnp.result_type(w1.dtype, w2.dtype)
    w1, w2, times, tau = w1.astype(dtype), w2.astype(dtype), times.astype(dtype), jnp.asarray(tau, dtype)
    tolerance = jnp.asarray(tolerance, dtype)
    task = Task.from_correlation(data[2]) if data[0] is None else Task(*data[:2], is_isotropic=is_isotropic)
    status = jnp.asarray(OK, jnp.int32)
    w1t, target, clock = w1.T, task.sigma_yx.astype(dtype), times / tau
    if task.x is not None:
        sigma_xx, kappa = task.sigma_xx.astype(dtype), task.kappa.astype(dtype)
        target, clock = target / kappa, clock * kappa
        span = sigma_xx / kappa
        w1t = span @ w1t
        gap = jnp.linalg.norm(span @ span - span) / jnp.linalg.norm(span)
        status = jnp.where(gap <= isotropy_tolerance(dtype), status, NOT_WHITE)
    seen, residual = balance_residual(Network(w1t.T, w2))
    # A λ that is rounding noise of zero would turn the saddles of zero-balanced weights into escapes.
    noise = 16 * tolerance * (jnp.sum(w1t**2) + jnp.sum(w2**2))
    seen = jnp.where(jnp.abs(seen) <= noise, seen - jax.lax.stop_gradient(seen), seen)
    lam = seen if lam is None else jnp.asarray(lam, dtype)
    allowed = jnp.maximum(balance_tolerance(dtype), 10 * tolerance)
    is_balanced = (residual <= allowed) & (
        jnp.abs(lam - seen) <= allowed * jnp.maximum(1, jnp.sum(w1t**2) + jnp.sum(w2**2))
    )
    status = jnp.where((status == OK) & ~is_balanced, UNBALANCED, status)

    hidden, n = w1.shape[0], w1.shape[1] + w2.shape[0]
    q = jnp.concatenate([w1t, w2])
    if hidden > n:
        q = jnp.linalg.qr(q.T, mode="r").T
    basis = task_basis(q[: w1t.shape[0]], q[w1t.shape[0] :], after(target, q), lam, tolerance)

    count = times.shape[0]
    length = -(-count // blocks)
    clock = jnp.pad(clock, (0, blocks * length - count), mode="edge").reshape(blocks, length)

    def block(ts):
        chart = make_chart(basis, jnp.max(ts), tolerance)
        each = partial(factors, basis, chart)
        # Large matrices one by one: batched products of them are slow and their temporaries leave the cache.
        return jax.vmap(each)(ts) if hidden < 48 else jax.lax.map(each, ts)

    g1, g2 = jax.vmap(block)(clock) if hidden < 48 else jax.lax.map(block, clock)
    g1, g2 = (g.reshape(-1, *g.shape[2:])[:count] for g in (g1, g2))
    nan = jnp.where(status == OK, 0, jnp.nan).astype(dtype)
    return g1 + nan, g2 + nan, basis.v, basis.u, status


def _check_values(network: Network, task: Task, tau, lam, tolerance: float) -> tuple[float, float]:
    """Raise on weights that are not balanced; return the fastest rate and the speed of the clock."""
    w1, w2 = np.asarray(network.w1), np.asarray(network.w2)
    kappa = 1.0
    if task.x is None:
        target = np.asarray(task.correlation)
    else:
        x = np.asarray(task.x)
        sigma_xx = x @ x.T / x.shape[1]
        kappa = float(np.sum(sigma_xx**2) / np.trace(sigma_xx))
        target = np.asarray(task.y) @ x.T / (x.shape[1] * kappa)
        w1 = w1 @ (sigma_xx / kappa)
    for name, value in (("w1", w1), ("w2", w2), ("task", target)):
        if not np.isfinite(value).all():
            raise ValueError(f"`{name}` must be finite, got NaN or infinite entries.")
    left, right = w1 @ w1.T, w2.T @ w2
    d, gram = right - left, right + left
    total = float(np.trace(gram))
    qd = gram @ d
    seen = float(np.trace(qd)) / total if total > 0 else 0.0
    direction = np.ones(len(gram), gram.dtype) + gram[np.argmax(np.diagonal(gram))]
    for _ in range(8):
        direction = gram @ direction
        direction = direction / max(float(np.sqrt(direction @ direction)), np.finfo(gram.dtype).tiny)
    top = float(np.sqrt(np.sum((gram @ direction) ** 2)))
    # ‖QD − λQ‖² = ⟨D − λ, QᵀQ (D − λ)⟩, from matrices of hidden size alone, loses digits: use Q itself.
    gap = np.sqrt(_norm2(w1.T @ d - seen * w1.T) + _norm2(w2 @ d - seen * w2))
    residual = gap / (np.sqrt(total) * top) if total > 0 else 0.0
    bound = max(balance_tolerance(w1.dtype), 10 * tolerance)
    if residual > bound:
        raise ValueError(
            f"`network` is not λ-balanced: the best λ is {seen:.6g} (tr(D)/n_hidden = "
            f"{np.trace(d) / len(d):.6g}) with relative residual {residual:.3g}, allowed {bound:.0e}. The "
            "exact solution does not hold: use `linear.integrate_flow`, or draw weights with "
            "`linear.lambda_balanced`."
        )
    if lam is not None and abs(float(lam) - seen) > bound * max(1.0, top):
        raise ValueError(
            f"`lam` = {float(lam):.9g} contradicts the weights, which are balanced with λ = {seen:.9g}. "
            "Omit `lam`."
        )
    bound_s = np.sqrt(np.sqrt(_norm2(target @ target.T)))
    return float(np.hypot(bound_s, seen / 2)), kappa / float(tau)


def _norm2(matrix: np.ndarray) -> float:
    return float(np.vdot(matrix, matrix))


def _count_blocks(times: np.ndarray, rate: float) -> int:
    """Fewest equal blocks (a power of two) that one chart each can serve."""
    count = len(times)
    blocks = 1
    while blocks < count:
        length = -(-count // blocks)
        first = times[::length]
        last = times[np.minimum(np.arange(length - 1, len(first) * length, length), count - 1)]
        spread = rate * (last - first)
        if ((spread <= _REACH) | (last <= _RATIO * first)).all():
            return len(first)
        blocks *= 2
    return count
