"""Gradient flow by an adaptive solver and gradient descent, for any weights and any inputs."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._checks import are_sorted, is_concrete, require_positive, require_size, require_times
from .._precision import full_precision
from ._exact import check_fit
from ._network import Network
from ._task import Task
from ._trajectory import BAD_TIMES, DIVERGED, FAILED, OK, TOO_MANY_STEPS, Trajectory


def integrate_flow(
    network: Network,
    task: Task,
    times,
    tau: float | Float[Array, ""] = 1.0,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    max_steps: int = 100_000,
) -> Trajectory:
    r"""Gradient flow by an adaptive Runge-Kutta method, for any weights and any inputs.

    Solves :math:`\tau\dot W_1 = W_2^\top(\Sigma_{yx} - W_2W_1\Sigma_{xx})`,
    :math:`\tau\dot W_2 = (\Sigma_{yx} - W_2W_1\Sigma_{xx})W_1^\top`.

    Parameters
    ----------
    network, task
        Initial weights, balanced or not; a task, whitened or not.
    times
        Sorted, nonnegative times in the units of ``tau``. The solver steps onto each of them.
    tau
        Time constant, the inverse learning rate.
    rtol, atol
        Tolerances of a step. Default: 1e-9 and 1e-12 in float64, 1e-5 and 1e-8 in float32.
    max_steps
        Steps after which the solver gives up; the result then has a nonzero ``status`` and NaN states, as it
        has where times or ``tau`` are wrong and cannot be inspected (``jit``).

    Returns
    -------
    The trajectory, with the weights themselves as factors (``w1t``, ``w2``).
    """
    times = require_times(times)
    check_fit(network, task)
    tau = require_positive("tau", tau)
    max_steps = require_size("max_steps", max_steps)
    is_double = jnp.finfo(network.w1.dtype).bits == 64
    rtol = (1e-9 if is_double else 1e-5) if rtol is None else rtol
    atol = (1e-12 if is_double else 1e-8) if atol is None else atol
    rtol = require_positive("rtol", rtol)
    atol = require_positive("atol", atol)
    w1t, w2, status = _integrate(network, task, times, tau, rtol, atol, max_steps)
    return Trajectory(times, w1t, w2, None, None, status)


@partial(jax.jit, static_argnums=6)
@full_precision
def _integrate(network: Network, task: Task, times, tau, rtol, atol, max_steps: int):
    # Here, where it is used: it takes longer to import than the rest of the room. It makes arrays of its own
    # on import, which must not be traced.
    with jax.ensure_compile_time_eval():
        import diffrax

    dtype = network.w1.dtype
    tau = jnp.asarray(tau, dtype)
    is_good = are_sorted(times) & (tau > 0)
    # Times that the solver would refuse from inside a compiled program: it gets others, and the status tells.
    clock = jnp.where(is_good, times.astype(dtype) / tau, 0)
    end = clock[-1]

    def field(t, state, arguments):
        w1, w2 = state
        error = _error(w1, w2, *arguments)
        return w2.T @ error, error @ w1.T

    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(field),
        diffrax.Dopri8(),
        t0=jnp.zeros((), dtype),
        # A solve to time zero would have no step to save.
        t1=jnp.where(end > 0, end, jnp.finfo(dtype).tiny ** 0.5),
        dt0=None,
        y0=(network.w1, network.w2),
        args=_correlations(task, dtype),
        # Stepping onto the times: interpolation between steps would lose digits.
        stepsize_controller=diffrax.ClipStepSizeController(
            diffrax.PIDController(rtol=rtol, atol=atol), step_ts=clock
        ),
        saveat=diffrax.SaveAt(ts=clock),
        max_steps=max_steps,
        throw=False,
    )
    assert solution.ys is not None
    w1, w2 = solution.ys
    codes = ((diffrax.RESULTS.successful, OK), (diffrax.RESULTS.max_steps_reached, TOO_MANY_STEPS))
    status = jnp.asarray(FAILED, jnp.int32)
    for result, code in codes:
        status = jnp.where(solution.result == result, code, status)
    is_finite = jnp.isfinite(w1).all() & jnp.isfinite(w2).all()
    status = jnp.where((status == OK) & ~is_finite, DIVERGED, status)
    status = jnp.where(is_good, status, BAD_TIMES)
    nan = jnp.where(status == OK, 0, jnp.nan).astype(dtype)
    return jnp.swapaxes(w1, 1, 2) + nan, w2 + nan, status


def gradient_descent(
    network: Network,
    task: Task,
    learning_rate: float | Float[Array, ""] = 1e-3,
    steps: int = 1000,
    *,
    every: int = 1,
) -> Trajectory:
    r"""Full-batch gradient descent on :math:`\|W_2W_1X - Y\|_F^2/(2P)`.

    Both layers step at once, :math:`W \leftarrow W - \eta\,\partial L/\partial W`. Descent on a balanced
    solution is stable only for :math:`\eta < 2/\sqrt{\lambda^2 + 4s_1^2}` on whitened inputs.

    Parameters
    ----------
    network, task
        Initial weights and the task.
    learning_rate
        Step size :math:`\eta`; step m is compared with the flow at time :math:`\eta m`.
    steps
        Number of steps.
    every
        Steps between the states that are kept; must divide ``steps``.

    Returns
    -------
    The trajectory at ``times = learning_rate * [0, every, …, steps]`` with the weights as factors. ``status``
    is nonzero if the weights stopped being finite or the loss ended above its start.
    """
    check_fit(network, task)
    learning_rate = require_positive("learning_rate", learning_rate)
    steps, every = require_size("steps", steps), require_size("every", every)
    if steps % every:
        raise ValueError(f"`every` must divide `steps` = {steps}, got {every}.")
    w1t, w2, status = _descend(network, task, learning_rate, steps, every)
    dtype = network.w1.dtype
    count = jnp.asarray(np.arange(0, steps + 1, every), dtype)
    rate = learning_rate if not is_concrete(learning_rate) else np.asarray(learning_rate)
    return Trajectory(jnp.asarray(rate, dtype) * count, w1t, w2, None, None, status)


@partial(jax.jit, static_argnums=(3, 4))
@full_precision
def _descend(network: Network, task: Task, learning_rate, steps: int, every: int):
    dtype = network.w1.dtype
    rate = jnp.asarray(learning_rate, dtype)
    correlations = _correlations(task, dtype)

    def step(_, state):
        w1, w2 = state
        error = _error(w1, w2, *correlations)
        return w1 + rate * (w2.T @ error), w2 + rate * (error @ w1.T)

    def chunk(state, _):
        state = jax.lax.fori_loop(0, every, step, state)
        return state, state

    start = (network.w1, network.w2)
    end, kept = jax.lax.scan(chunk, start, None, length=steps // every)
    w1, w2 = (jnp.concatenate([first[None], rest]) for first, rest in zip(start, kept, strict=True))

    def height(w1, w2):
        # The loss up to a constant, tr(f Σxx fᵀ)/2 − ⟨f, Σyx⟩.
        sigma_yx, sigma_xx = correlations
        f = w2 @ w1
        return 0.5 * jnp.sum(f * (f if sigma_xx is None else f @ sigma_xx)) - jnp.sum(f * sigma_yx)

    before, after = height(*start), height(*end)
    slack = 1e3 * jnp.finfo(dtype).eps * (jnp.abs(before) + jnp.sum(correlations[0] ** 2))
    is_down = after <= before + slack  # False for NaN as well
    status = jnp.where(is_down & jnp.isfinite(after), OK, DIVERGED).astype(jnp.int32)
    return jnp.swapaxes(w1, 1, 2), w2, status


def _correlations(task: Task, dtype) -> tuple[Array, Array | None]:
    """What descent sees of a task, in the precision of the weights."""
    return task.sigma_yx.astype(dtype), None if task.x is None else task.sigma_xx.astype(dtype)


def _error(w1: Array, w2: Array, sigma_yx: Array, sigma_xx: Array | None) -> Array:
    f = w2 @ w1
    return sigma_yx - (f if sigma_xx is None else f @ sigma_xx)
