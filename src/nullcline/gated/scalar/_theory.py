"""Closed forms of the scalar network: small weights, one aligned pair, regular masks."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from ..._checks import is_concrete, require_integer, require_size, require_times
from .._masks import MaskLike, as_mask
from ._elliptic import amplitude, complete, incomplete
from ._model import Network


class _Modes(eqx.Module):
    """Weights in the singular basis of the mask: the linearized problem."""

    strength: Float[Array, " modes"]
    a: Float[Array, " modes"]
    b: Float[Array, " modes"]
    s: Float[Array, ""]
    left: Float[Array, "languages modes"]
    right: Float[Array, "modes languages"]


def _modes(simple: Network, mask: Bool[Array, "outputs inputs"]) -> _Modes:
    dense = mask.astype(simple.u.dtype)
    left, strength, right = jnp.linalg.svd(dense)

    def dot(x, y):
        return jnp.matmul(x, y, precision="highest")

    return _Modes(strength, dot(left.T, simple.u), dot(right, simple.v), simple.s, left, right)


def _acceleration(modes: _Modes, S: Float[Array, ""]) -> Float[Array, ""]:
    x = 2 * modes.strength * S
    square = (modes.a**2 + modes.b**2) / 2
    return jnp.sum(modes.strength * (square * jnp.sinh(x) + modes.a * modes.b * jnp.cosh(x)))


class EarlyFlow(eqx.Module):
    r"""The linearized flow at given times.

    Attributes
    ----------
    networks
        Weights, with an axis of times in front.
    integral
        :math:`S(t) = \int_0^t s`.
    """

    networks: Network
    integral: Float[Array, " times"]


def early_flow(simple: Network, mask: MaskLike, times: Float[Array, " times"]) -> EarlyFlow:
    r"""Follow the flow of small weights, :math:`E \approx -M`, exact for the linearized problem.

    With :math:`M = U\Sigma V^\top`, :math:`a = U^\top u(0)`, :math:`b = V^\top v(0)`:

    .. math::
        U^\top u &= \cosh(\Sigma S) a + \sinh(\Sigma S) b, \qquad
        V^\top v = \sinh(\Sigma S) a + \cosh(\Sigma S) b, \\
        S'' &= \sum_k \Sigma_k [\tfrac12(a_k^2 + b_k^2)\sinh 2\Sigma_k S + a_k b_k \cosh 2\Sigma_k S]

    Only the scalar ``S`` is integrated. It may run to minus infinity, where ``u`` and ``v`` take opposite
    signs (erratum: the note takes :math:`S \to \infty` for granted).

    Parameters
    ----------
    simple
        Initial weights.
    mask
        Trained entries.
    times
        Increasing times before the blow-up at :func:`escape_constant`.
    """
    times = require_times(times)
    if is_concrete(simple.u, times):
        end = float(escape_constant(simple, mask))
        if not float(times[-1]) < end:
            raise ValueError(
                f"`times` must be in [0, {end:.6g}), before the linearized flow blows up, got {times[-1]}."
            )
    return _early_flow(simple, as_mask(mask, simple.n_languages), times)


@eqx.filter_jit
def _early_flow(
    simple: Network, mask: Bool[Array, "outputs inputs"], times: Float[Array, " times"]
) -> EarlyFlow:
    modes = _modes(simple, mask)

    def velocity(t, y, args):
        S, speed = y
        return speed, _acceleration(args, S)

    rtol = 1e-11 if simple.u.dtype == jnp.float64 else 1e-5
    start = (jnp.zeros_like(simple.s), simple.s)
    tiny = rtol * jnp.sqrt(jnp.mean(simple.u**2))
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(velocity), diffrax.Tsit5(), jnp.zeros_like(times[0]), times[-1], None, start, modes,
        saveat=diffrax.SaveAt(ts=times), max_steps=100_000, throw=False,
        stepsize_controller=diffrax.ClipStepSizeController(
            diffrax.PIDController(rtol=rtol, atol=tiny), step_ts=times
        ),
    )  # fmt: skip
    assert solution.ys is not None
    S, speed = solution.ys
    x = modes.strength[None, :] * S[:, None]
    cosh, sinh = jnp.cosh(x), jnp.sinh(x)
    a, b = modes.a[None, :], modes.b[None, :]

    def dot(x, y):
        return jnp.matmul(x, y, precision="highest")

    u, v = dot(cosh * a + sinh * b, modes.left.T), dot(sinh * a + cosh * b, modes.right)
    return EarlyFlow(Network(u=u, s=speed, v=v), S)


def escape_constant(simple: Network, mask: MaskLike) -> Float[Array, ""]:
    r"""Time at which the linearized flow from ``simple`` blows up.

    The problem is homogeneous: for weights :math:`\sigma Z` it is :math:`C/\sigma`, with ``C`` the value for
    the unit draw ``Z``. So training escapes at :math:`t = C/\sigma` (erratum: not at :math:`-\log\sigma`,
    which holds with two factors only).
    """
    return _escape_constant(simple, as_mask(mask, simple.n_languages))


@eqx.filter_jit
def _escape_constant(simple: Network, mask: Bool[Array, "outputs inputs"]) -> Float[Array, ""]:
    size = jnp.sqrt(
        (jnp.sum(simple.u**2) + jnp.sum(simple.v**2) + simple.s**2) / (2 * simple.n_languages + 1)
    )
    modes = _modes(Network(simple.u / size, simple.s / size, simple.v / size), mask)
    top = modes.strength[0]

    def velocity(tau, y, args):
        # A clock that slows down as the weights explode: S grows linearly in tau, and so does log(speed).
        _, S, speed = y
        clock = 1 / (1 + top * jnp.abs(speed))
        return clock, speed * clock, _acceleration(args, S) * clock

    def is_far(t, y, args, **kwargs):
        return top * jnp.abs(y[1]) > 20

    zero = jnp.zeros_like(size)
    rtol = 1e-11 if size.dtype == jnp.float64 else 1e-5
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(velocity), diffrax.Tsit5(), zero, jnp.full_like(zero, 1e6), None,
        (zero, zero, modes.s), modes, max_steps=100_000, throw=False,
        event=diffrax.Event(is_far),
        stepsize_controller=diffrax.PIDController(rtol=rtol, atol=rtol),
    )  # fmt: skip
    assert solution.ys is not None
    t, _, speed = (y[0] for y in solution.ys)
    # What is left: beyond this point the speed is exponential in S.
    escape = (t + 1 / (top * jnp.abs(speed))) / size
    return jnp.where(solution.result == diffrax.RESULTS.event_occurred, escape, jnp.inf)


def spectral_prediction(
    mask: MaskLike,
) -> tuple[Float[Array, " outputs"], Float[Array, ""], Float[Array, " inputs"]]:
    r"""Leading singular triple of the mask: the directions at escape as :math:`\sigma \to 0`.

    The second mode is suppressed by :math:`\sigma^\gamma` only, :math:`\gamma = 1 - s_2/s_1`. Erratum: this
    is the state at escape; training ends in the masked completion, not in the best rank-one approximation.
    """
    left, strength, right = jnp.linalg.svd(as_mask(mask).astype(float))
    sign = jnp.where(jnp.sum(left[:, 0]) < 0, -1.0, 1.0)
    return sign * left[:, 0], strength[0], sign * right[0]


class AlignedFlow(eqx.Module):
    """One aligned pair at given times, and the time at which it blows up (infinite if it never does)."""

    a: Float[Array, " times"]
    s: Float[Array, " times"]
    b: Float[Array, " times"]
    blow_up: Float[Array, ""]


def aligned_flow(
    a: float | Float[Array, ""],
    s: float | Float[Array, ""],
    b: float | Float[Array, ""],
    rate: float | Float[Array, ""],
    times: Float[Array, " times"],
) -> AlignedFlow:
    r"""Small weights along one singular pair, :math:`u = a u_1`, :math:`v = b v_1`: an elliptic function.

    :math:`a' = gsb,\; s' = gab,\; b' = gsa`. The variable of smallest modulus, called ``s``, follows
    :math:`s = \varsigma\sqrt\beta\,\mathrm{sc}(\sqrt\alpha g (t + t_0) | 1 - \beta/\alpha)` with
    :math:`\alpha = a^2 - s^2 \ge \beta = b^2 - s^2`, :math:`\varsigma = \mathrm{sign}(ab)`. When the two
    smallest have equal modulus it is elementary, :math:`\sqrt\alpha/\sinh(\theta_0 - \sqrt\alpha g t)`.

    Parameters
    ----------
    a, s, b
        Initial values; at most one of them zero.
    rate
        The singular value :math:`g`, positive.
    times
        Times from 0; beyond the blow-up the result is NaN.
    """
    if is_concrete(rate) and not (np.isfinite(rate) and rate > 0):
        raise ValueError(f"`rate` must be positive and finite, got {rate}.")
    if is_concrete(a, s, b) and not (
        np.isfinite([float(x) for x in (a, s, b)]).all() and sum(float(x) != 0 for x in (a, s, b)) >= 2
    ):
        raise ValueError(
            f"`a`, `s`, `b` must be finite with at most one zero (else nothing moves), got {(a, s, b)}."
        )
    times = require_times(times)
    start = jnp.stack([jnp.asarray(x, times.dtype) for x in (a, s, b)])
    return _aligned_flow(start, jnp.asarray(rate, times.dtype), times)


@jax.jit
def _aligned_flow(
    start: Float[Array, " 3"], rate: Float[Array, ""], times: Float[Array, " times"]
) -> AlignedFlow:
    order = jnp.argsort(jnp.abs(start))
    small, middle, large = start[order]
    alpha = (large - small) * (large + small)
    beta = (middle - small) * (middle + small)
    # Ties within rounding: there the elliptic form divides by zero.
    is_tie = beta <= 4 * jnp.finfo(times.dtype).eps * middle**2

    sign = jnp.sign(middle * large)
    safe_beta, safe_alpha = jnp.where(is_tie, 1.0, beta), jnp.where(is_tie, 1.0, alpha)
    complement = safe_beta / safe_alpha
    speed = jnp.sqrt(safe_alpha) * rate
    t0 = incomplete(jnp.arctan(sign * small / jnp.sqrt(safe_beta)), complement) / speed
    end = complete(complement) / speed - t0
    phase = jax.vmap(lambda t: amplitude(speed * (t + t0), complement))(times)
    elliptic = sign * jnp.sqrt(safe_beta) * jnp.tan(phase)

    # Two equal: |s|' = ±g |s| sqrt(alpha + s²), growing when the product of all three is positive.
    growth = jnp.where(small * middle * large < 0, -1.0, 1.0)
    root = jnp.sqrt(jnp.maximum(alpha, 0))
    theta = jnp.arcsinh(root / jnp.abs(small)) - growth * root * rate * times
    balanced = small / (1 - growth * jnp.abs(small) * rate * times)
    is_flat = alpha <= 4 * jnp.finfo(times.dtype).eps * large**2
    safe_theta = jnp.where(theta == 0, 1.0, theta)
    equal = jnp.where(is_flat, balanced, jnp.sign(small) * root / jnp.sinh(safe_theta))
    end_equal = jnp.where(
        is_flat, 1 / (jnp.abs(small) * rate), jnp.arcsinh(root / jnp.abs(small)) / (root * rate)
    )
    end_equal = jnp.where(growth > 0, end_equal, jnp.inf)

    blow_up = jnp.where(is_tie, end_equal, end)
    first = jnp.where(is_tie, equal, elliptic)
    first = jnp.where(times < blow_up, first, jnp.nan)
    second = jnp.sign(middle) * jnp.sqrt(jnp.maximum(beta, 0) + first**2)
    third = jnp.sign(large) * jnp.sqrt(jnp.maximum(alpha, 0) + first**2)
    values = jnp.zeros((3, times.shape[0]), times.dtype).at[order].set(jnp.stack([first, second, third]))
    return AlignedFlow(values[0], values[1], values[2], blow_up)


def regular_flow(
    start: float | Float[Array, ""], width: int, n_languages: int, times: Float[Array, " times"]
) -> Float[Array, " times"]:
    r"""Balanced constant weights on a regular mask, exact for all times.

    With ``width`` ones in every row and column, :math:`u = v = x 1/\sqrt n` and :math:`s = x`:
    :math:`y = x/n^{1/3}` solves :math:`n^{1/3} w t = F(y) - F(y_0)`,

    .. math::
        F(y) = -\frac1y - \frac13\ln(1-y) + \frac16\ln(1+y+y^2) - \frac1{\sqrt3}\arctan\frac{2y+1}{\sqrt3}

    Parameters
    ----------
    start
        Initial value of ``x``, in (0, :math:`n^{1/3}`): learning ends at :math:`n^{1/3}`.
    width
        Ones per row and column, as in a circulant mask.
    n_languages
        Number of languages ``n``.
    times
        Times from 0.

    Returns
    -------
    The value ``x`` at each time.
    """
    require_size("n_languages", n_languages)
    times = require_times(times)
    top = n_languages ** (1 / 3)
    require_integer("width", width, 1, n_languages)
    if is_concrete(start) and not 0 < start < top:
        raise ValueError(f"`start` must be in (0, n^(1/3)) = (0, {top:.6g}), got {start}.")

    def clock(z: Float[Array, " times"]) -> Float[Array, " times"]:
        # z = -log(1 - y) keeps the distance from the end to full relative precision.
        y = -jnp.expm1(-z)
        root = 3**0.5
        bend = jnp.log1p(y + y**2) / 6 - jnp.arctan((2 * y + 1) / root) / root
        return -1 / y + z / 3 + bend

    z0 = -jnp.log1p(-jnp.asarray(start, times.dtype) / top) * jnp.ones_like(times)
    goal = clock(z0) + top * width * times
    # F grows by at least a third of z: the answer is within this bracket.
    low, high = jnp.log(z0), jnp.log(z0 + 3 * (top * width * times + 1 / z0 + 2))

    def halve(_, bracket):
        low, high = bracket
        middle = (low + high) / 2
        is_below = clock(jnp.exp(middle)) < goal
        return jnp.where(is_below, middle, low), jnp.where(is_below, high, middle)

    low, high = lax.fori_loop(0, 100, halve, (low, high))
    return -top * jnp.expm1(-jnp.exp((low + high) / 2))
