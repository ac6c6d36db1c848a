r"""Closed-form growth of aligned modes: two layers of any balance.

Weights aligned with the task, :math:`W_1 = R S_1 V^T`, :math:`W_2 = U S_2 R^T` with :math:`U, V` the singular
vectors of :math:`\Sigma_{yx}`, stay aligned: every mode learns by itself. Notation of anguita2024: a mode of
strength ``s`` in the task has strength ``c`` in the first layer, ``d`` in the second and ``a = c d`` in the
network function.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._checks import as_float, is_concrete, require_finite, require_positive, require_times
from ._init import balanced_strengths


class Modes(eqx.Module):
    """Strengths of aligned modes along training, one column per mode.

    Attributes
    ----------
    times
        Times of the rows.
    first, second
        Signed strengths ``c`` and ``d`` in the first and in the second layer.
    """

    times: Float[Array, " time"]
    first: Float[Array, "time modes"]
    second: Float[Array, "time modes"]

    @property
    def strength(self) -> Float[Array, "*batch time modes"]:
        """Strength ``a = c d`` of each mode in the network function."""
        return self.first * self.second


def check_modes(name: str, s: object, strengths: object, layers: int = 0) -> tuple[Array, Array]:
    """Both as arrays; raise if singular values are negative, or strengths not finite or not one per mode."""
    values, others = as_float("s", s), as_float(name, strengths)
    require_finite("s", values)
    require_finite(name, others)
    if values.ndim != 1:
        raise ValueError(f"`s` must have one axis, the modes, got shape {values.shape}.")
    # By NumPy: inside `jit` JAX would trace the comparison, even of values that are known.
    if is_concrete(values) and (np.asarray(values) < 0).any():
        raise ValueError(
            f"`s` must hold singular values, not negative, got {np.asarray(values).min()}. "
            "Flip one singular vector, and the sign of the strength, to make a mode positive."
        )
    if others.shape[-1:] != values.shape or others.ndim != 1 + layers or 0 in others.shape:
        raise ValueError(
            f"`{name}` must have shape {'(layers, modes)' if layers else '(modes,)'} with as many modes as "
            f"`s`, {values.size}, got {others.shape}."
        )
    return values, others


def saturation(rate: Float[Array, "*shape"], t: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    r"""Evaluate :math:`g = (1 - e^{-2 l t}) / (2 l)` for :math:`l \ge 0`, smoothly down to :math:`l = 0`."""
    x = 2 * rate * t
    is_small = x < 1e-3
    series = t * (1 - x / 2 + x**2 / 6 - x**3 / 24 + x**4 / 120)
    safe = jnp.where(is_small, 1, rate)
    return jnp.where(is_small, series, -jnp.expm1(-2 * safe * t) / (2 * safe))


def _mode(s, c0, d0, lam, t):
    """Strengths of one mode at one time; ``t`` in units of the time constant."""
    half = jnp.abs(lam) / 2
    rate = jnp.hypot(s, half)
    is_flat = rate == 0
    safe = jnp.where(is_flat, 1, rate)
    # Eigenvector (c, z) of [[-lam/2, s], [s, lam/2]] with eigenvalue +rate; the other one is (z, -c).
    big = jnp.where(is_flat, math.sqrt(0.5), jnp.sqrt((safe + half) / (2 * safe)))
    small = jnp.where(is_flat, math.sqrt(0.5), s / jnp.sqrt(2 * safe * (safe + half)))
    c, z = jnp.where(lam >= 0, small, big), jnp.where(lam >= 0, big, small)
    # With opposite signs c c0 + z d0 cancels; multiplied out with d0² - c0² = lam it does not, and it is
    # exactly zero on the saddle (lam = 0), which a mode without overlap never leaves.
    is_opposite = c0 * d0 < 0
    multiplied = lam * (z**2 + c0**2 / (2 * safe)) / jnp.where(is_opposite, z * d0 - c * c0, 1)
    up, down = jnp.where(is_opposite, multiplied, c * c0 + z * d0), z * c0 - c * d0
    fade, g = jnp.exp(-rate * t), saturation(rate, t)
    # Divided by the larger of what grows and what fades: their squares would underflow. A mode on the saddle
    # (up = 0) has nothing left once it has faded.
    is_gone = (up == 0) & (fade < jnp.finfo(fade.dtype).tiny)
    size = jax.lax.stop_gradient(jnp.where(is_gone, 1, jnp.maximum(fade, jnp.abs(up))))
    risen, fallen = up / size, fade / size
    norm = jnp.sqrt(jnp.where(is_gone, 1, fallen**2 * (1 + down**2 * g) + risen**2 * g))
    late = (c * risen + z * fallen * fade * down) / norm, (z * risen - c * fallen * fade * down) / norm
    is_early = rate * t < 0.5
    early = _early_mode(s, c0, d0, lam, jnp.where(is_early, t, 0))
    return jnp.where(is_early, early[0], late[0]), jnp.where(is_early, early[1], late[1])


def _early_mode(s, c0, d0, lam, t):
    r"""The same while :math:`l t` is small, by :math:`q = \cosh(lt)\,q_0 + \sinh(lt)/l\,F q_0`.

    Keeps the weaker layer accurate in itself, and has the right derivatives at :math:`s = \lambda = 0`.
    """
    y = (s**2 + lam**2 / 4) * t**2
    grown1, grown2 = s * d0 - lam / 2 * c0, s * c0 + lam / 2 * d0
    cosh, sinh = 1 + y * _cosh_rest(y), t * _sinhc(y)
    square = t * _sinhc(4 * y) * (c0**2 + d0**2) + 2 * t**2 * _cosh_rest(4 * y) * (c0 * grown1 + d0 * grown2)
    norm = jnp.sqrt(1 + square)
    return (cosh * c0 + sinh * grown1) / norm, (cosh * d0 + sinh * grown2) / norm


def _sinhc(y):
    """Evaluate sinh(√y)/√y for y ≤ 1, by its series."""
    return _series(y, [math.factorial(2 * k + 1) for k in range(10)])


def _cosh_rest(y):
    """Evaluate (cosh √y − 1)/y for y ≤ 1, by its series."""
    return _series(y, [math.factorial(2 * k + 2) for k in range(10)])


def _series(y, factorials):
    total = jnp.zeros_like(y)
    for factorial in reversed(factorials):
        total = total * y + 1 / factorial
    return total


@jax.jit
def evolve(
    s: Float[Array, " modes"],
    c0: Float[Array, " modes"],
    d0: Float[Array, " modes"],
    lam: Float[Array, " modes"],
    t: Float[Array, " time"],
) -> tuple[Float[Array, "time modes"], Float[Array, "time modes"]]:
    """Strengths in both layers from a pair with ``lam = d0² - c0²``; ``t`` in units of the time constant."""
    over_modes = jax.vmap(_mode, in_axes=(0, 0, 0, 0, None))
    return jax.vmap(over_modes, in_axes=(None, None, None, None, 0))(s, c0, d0, lam, t)


def mode_flow(
    s: Float[Array, " modes"],
    a0: Float[Array, " modes"],
    times: Float[Array, " time"],
    *,
    lam: float | Float[Array, ""] | Float[Array, " modes"] = 0.0,
    tau: float = 1.0,
) -> Modes:
    r"""Exact flow of the modes of an aligned two-layer network.

    Solves :math:`\tau \dot a = \sqrt{\lambda^2 + 4a^2}\,(s - a)`, anguita2024 equation 3.3, for
    :math:`\lambda` of either sign and zero, ``a0`` of either sign and any time. Near :math:`a = s` the
    distance decays as :math:`e^{-Kt/\tau}` with :math:`K = \sqrt{\lambda^2 + 4 s^2}`.

    Parameters
    ----------
    s
        Singular values of the task; not negative (flip a singular vector and the sign of ``a0`` instead).
    a0
        Initial strengths, of either sign. With ``lam = 0`` a negative strength ends at zero, a saddle.
    times
        Times, not negative, sorted.
    lam
        Balance :math:`d^2 - c^2`, one for all modes or one for each.
    tau
        Time constant, the inverse learning rate.

    Returns
    -------
    The strengths in both layers; ``.strength`` is their product.

    Notes
    -----
    The printed solution (anguita2024 equations 3.2 and 3.19) holds for :math:`\lambda > 0` only, and the
    sigmoid of equation 2.28 for ``a0 > 0`` only (errata). This one has neither restriction.
    """
    s, a0 = check_modes("a0", s, a0)
    tau = require_positive("tau", tau)
    times = require_times(times, s)
    lam = as_float("lam", lam)
    if lam.shape not in ((), s.shape):
        raise ValueError(f"`lam` must be one number or {s.size}, one for each mode, got shape {lam.shape}.")
    require_finite("lam", lam)
    lam = jnp.broadcast_to(lam.astype(s.dtype), s.shape)
    first, second = jax.vmap(lambda a, lam: balanced_strengths(a[None], lam))(a0, lam)
    return Modes(times, *evolve(s, first[:, 0], second[:, 0], lam, times / tau))
