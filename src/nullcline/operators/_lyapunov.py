"""Lyapunov exponents along the trajectories and the matrices behind them (hazelden2025 B.3, C)."""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._checks import is_concrete, require_integer
from ._consensus import push
from ._flow import Flow

_MATRIX_LIMIT = 10**8
"""Most numbers in a stack of transition matrices."""


def _moving(flow: Flow) -> tuple[Array, Array]:
    return jnp.swapaxes(flow.states_before, 0, 1), jnp.swapaxes(flow.inputs, 0, 1)


def lyapunov(
    flow: Flow, count: int | None = None, *, warmup: int = 0, dt: int | float = 1.0
) -> Float[Array, "batch count"]:
    r"""Lyapunov exponents of each trial, by repeated QR decompositions.

    :math:`Q_t R_t = J_t Q_{t-1}`, :math:`\lambda_i = \sum_{t \ge t_0} \log |R_{t,ii}| / ((T - t_0)\, dt)`,
    in the order of the decomposition (nearly, not strictly, descending). All of them add up to the mean of
    :math:`\log |\det J_t|`. A zero on the diagonal of R gives a true :math:`-\infty`, as for a ReLU network
    at rest: ``warmup`` leaves such a start out.

    Parameters
    ----------
    flow
        The model along its trajectories. Sums of logarithms want float64.
    count
        How many exponents; all by default.
    warmup
        Steps left out of the mean; the frame still turns during them.
    dt
        Time of one step; exponents are per step by default, whatever the cell's own step is.
    """
    _, time, size = flow.states.shape
    count = size if count is None else count
    require_integer("count", count, 1, size, "the state size")
    require_integer("warmup", warmup, 0, time - 1, "less than the number of steps")
    if not dt > 0:
        raise ValueError(f"`dt` must be positive, got {dt}.")
    return _lyapunov(flow, count, warmup) / dt


@eqx.filter_jit
def _lyapunov(flow: Flow, count: int, warmup: int) -> Array:
    batch, _, size = flow.states.shape

    def step(q, now):
        q, r = jnp.linalg.qr(push(flow, now, q))
        return q, jnp.log(jnp.abs(jnp.diagonal(r, axis1=1, axis2=2)))

    start = jnp.broadcast_to(jnp.eye(size, count, dtype=flow.states.dtype), (batch, size, count))
    logs = jax.lax.scan(step, start, _moving(flow))[1]
    return jnp.mean(logs[warmup:], axis=0)


def kaplan_yorke(exponents: Float[Array, "*batch count"]) -> Float[Array, "*batch"]:
    r"""Kaplan–Yorke dimension of each set of exponents (the last axis, in any order).

    With exponents in descending order and k the last index whose partial sum is nonnegative,
    :math:`D = k + \sum_{i \le k} \lambda_i / |\lambda_{k+1}|`; 0 if the largest is negative, the number of
    exponents if no partial sum is negative. An exponent of :math:`-\infty` is allowed.
    """
    exponents = jnp.asarray(exponents)
    if exponents.ndim == 0 or exponents.shape[-1] == 0:
        raise ValueError("`exponents` must hold at least one exponent.")
    if is_concrete(exponents) and not (np.asarray(exponents) < np.inf).all():
        raise ValueError("`exponents` must be numbers below infinity; NaN or +inf has no dimension.")
    size = exponents.shape[-1]
    ordered = jnp.sort(exponents, axis=-1)[..., ::-1]
    sums = jnp.cumsum(ordered, axis=-1)
    # Sums of descending numbers rise, then fall: once negative they stay so.
    k = jnp.sum(sums >= 0, axis=-1)
    held = jnp.take_along_axis(sums, jnp.clip(k - 1, 0)[..., None], axis=-1)[..., 0]
    following = jnp.take_along_axis(ordered, jnp.clip(k, max=size - 1)[..., None], axis=-1)[..., 0]
    is_inside = (k > 0) & (k < size)
    part = jnp.where(is_inside, held, 0) / jnp.where(is_inside, jnp.abs(following), 1)
    return k.astype(exponents.dtype) + part


class FiniteTimeExponents(eqx.Module):
    """Exponents from singular values of the whole transition matrix, with what rounding leaves of them.

    Attributes
    ----------
    exponents
        Per trial, or one set for a consensus; descending.
    rounding
        Estimated error of each exponent from rounding in the product of Jacobians.
    is_reliable
        Whether the spread of the exponents is within what the floating-point type resolves.
    """

    exponents: Float[Array, "*batch hidden"]
    rounding: Float[Array, "*batch hidden"]
    is_reliable: Array


def finite_time_exponents(flow: Flow, *, dt: int | float = 1.0) -> FiniteTimeExponents:
    r"""Finite-time exponents :math:`\log \sigma_i(\Phi(T-1, -1)) / (T\, dt)`, hazelden2025 (39).

    They differ from the QR values of :func:`lyapunov` at finite T. The product of Jacobians resolves a spread
    :math:`T(\lambda_1 - \lambda_S)` up to about 30 in float64 and 14 in float32; beyond, the small ones are
    rounding noise and a warning says so (an exponent of :math:`-\infty` of a singular Jacobian counts as
    beyond).
    """
    if not dt > 0:
        raise ValueError(f"`dt` must be positive, got {dt}.")
    values = _singular_values(flow, False)
    return _finite_time(values, flow.states.shape[1], dt, "finite-time exponents")


def consensus_exponents(flow: Flow, *, dt: int | float = 1.0) -> FiniteTimeExponents:
    r"""Consensus exponents :math:`\log eig(\sum_b w_b \Phi_b \Phi_b^T) / (2 T\, dt)`, hazelden2025 (42).

    With the weights of the erratum to (41): identical trials give the exponents of one of them. A second
    moment, dominated by the most expanding trial:
    :math:`\max_b \lambda_{1b} - \log(B)/(2T) \le \lambda_1 \le \max_b \lambda_{1b}` for equal weights and
    finite-time exponents; not the mean over trials.
    """
    if not dt > 0:
        raise ValueError(f"`dt` must be positive, got {dt}.")
    values = _singular_values(flow, True)
    return _finite_time(values, flow.states.shape[1], dt, "consensus exponents")


def _finite_time(values: Array, time: int, dt: int | float, what: str) -> FiniteTimeExponents:
    eps = float(jnp.finfo(values.dtype).eps)
    logs = jnp.log(values)
    limit = 30.0 if values.dtype == jnp.float64 else 14.0
    spread = logs[..., 0] - logs[..., -1]
    is_reliable = spread < limit
    if is_concrete(values) and not bool(jnp.all(is_reliable)):
        worst = float(jnp.max(jnp.where(jnp.isnan(spread), jnp.inf, spread)))
        warnings.warn(
            f"The {what} spread over T (lambda_1 - lambda_S) = {worst:.3g}, beyond the range of {limit:g} "
            f"that {values.dtype} "
            "resolves: the smallest are rounding noise. Use `lyapunov`, fewer steps, or `rounding` to see "
            "which to keep.",
            stacklevel=3,
        )
    ratio = values[..., :1] / jnp.where(values > 0, values, 1)
    rounding = jnp.where(values > 0, eps * ratio, jnp.inf) / (time * dt)
    return FiniteTimeExponents(logs / (time * dt), rounding, is_reliable)


@eqx.filter_jit
def _singular_values(flow: Flow, is_consensus: bool) -> Array:
    batch, _, size = flow.states.shape
    phi, _ = jax.lax.scan(
        lambda phi, now: (push(flow, now, phi), None),
        jnp.broadcast_to(jnp.eye(size, dtype=flow.states.dtype), (batch, size, size)),
        _moving(flow),
    )
    if is_consensus:
        # Singular values of the wide matrix keep twice the digits of the eigenvalues of its square.
        phi = (jnp.sqrt(flow.weights)[:, None, None] * phi).transpose(1, 0, 2).reshape(size, -1)
    return jnp.linalg.svd(phi, compute_uv=False)


def transition_matrices(flow: Flow, start: int = -1) -> Float[Array, "batch steps hidden hidden"]:
    r"""Transition matrices :math:`\Phi(t, s) = J_t \cdots J_{s+1}` from ``start`` to every later step.

    Parameters
    ----------
    flow
        The model along its trajectories.
    start
        The step s, from -1 (the initial state) to T - 2; entry n of the result is :math:`\Phi(s + 1 + n, s)`.
    """
    batch, time, size = flow.states.shape
    if not -1 <= start < time - 1:
        raise ValueError(f"`start` must be from -1 to {time - 2}, got {start}.")
    count = batch * (time - 1 - start) * size * size
    if count > _MATRIX_LIMIT:
        raise ValueError(
            f"{batch} x {time - 1 - start} matrices of side {size} are {count:.1e} numbers, beyond the "
            "limit of "
            f"{_MATRIX_LIMIT:.0e}. Apply `flow.propagator`, or take fewer trials with `flow.take`."
        )
    return _transitions(flow, start)


@eqx.filter_jit
def _transitions(flow: Flow, start: int) -> Array:
    batch, _, size = flow.states.shape
    eye = jnp.broadcast_to(jnp.eye(size, dtype=flow.states.dtype), (batch, size, size))

    def step(phi, now):
        phi = push(flow, now, phi)
        return phi, phi

    moving = jax.tree.map(lambda a: a[start + 1 :], _moving(flow))
    return jnp.swapaxes(jax.lax.scan(step, eye, moving)[1], 0, 1)


class VolterraForm(eqx.Module):
    r"""P as :math:`U V U^{-1}` with V a running sum, hazelden2025 Theorem 2: a diagnostic, not an algorithm.

    ``condition`` is the condition number of U per trial; the result loses as many digits.
    """

    transitions: Array
    condition: Float[Array, " batch"]

    def propagate(self, q: Float[Array, "batch time hidden"]) -> Float[Array, "batch time hidden"]:
        """Apply P through the factors."""
        pulled = jnp.linalg.solve(self.transitions, q[..., None])
        return (self.transitions @ jnp.cumsum(pulled, axis=1))[..., 0]


def volterra_form(flow: Flow) -> VolterraForm:
    """The Volterra form of P; refused where a Jacobian is singular, for U has no inverse then."""
    transitions = transition_matrices(flow)
    values = np.linalg.svd(np.asarray(transitions, np.float64), compute_uv=False)
    largest, smallest = values.max(axis=(1, 2)), values.min(axis=(1, 2))
    condition = np.where(smallest > 0, largest / np.where(smallest > 0, smallest, 1), np.inf)
    worst = int(np.argmax(condition))
    if condition[worst] > 1 / np.finfo(np.asarray(transitions).dtype).eps:
        raise ValueError(
            f"The Volterra form does not exist in this precision: a Jacobian of trial {worst} is singular, "
            "cond(U) = "
            f"{condition[worst]:.3g}. Use `flow.propagator`, which needs no inverse."
        )
    return VolterraForm(transitions, jnp.asarray(condition))


def volterra_singular_values(time: int) -> Float[Array, " time"]:
    r"""Singular values :math:`1/(2 \sin((2j - 1) \pi / (4T + 2)))`, j = 1..T, of a running sum."""
    require_integer("time", time, 1)
    j = jnp.arange(1, time + 1, dtype=float)
    return 1 / (2 * jnp.sin((2 * j - 1) * jnp.pi / (4 * time + 2)))
