r"""Aligned modes of networks of any depth.

With equal strength ``w`` in each of ``L`` layers a mode :math:`u = w^L` obeys
:math:`\tau\dot u = L\,|u|^{2-2/L} (s - u)`. Time as a function of strength is elementary: with
:math:`v = (|u|/s)^{1/L}` and :math:`\varepsilon = \mathrm{sgn}\, u`,

.. math:: s^{2-2/L}\, t/\tau = \varepsilon [T(v) - T(v_0)],\qquad
   T(v) = \frac{v^{2-L}}{2-L}
   - \frac{\varepsilon}{L}\sum_{\omega^L = \varepsilon} \omega^2 \log(1 - v/\omega),

the finite form of the hypergeometric series, inverted here by bisection. The first term is :math:`\log v` for
``L = 2``.
"""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ._checks import require_positive, require_size, require_times
from ._modes import check_modes


def _elapsed(v, one_minus, sign: int, depth: int):
    """Antiderivative of 1 / (v^(L-1) (1 - sign v^L)) at ``v``, given |1 - v| too so that nothing cancels."""
    angles = np.pi * (2 * np.arange(depth) + (sign < 0)) / depth
    # One root of each conjugate pair stands for both: 2 Re[root^2 log(1 - v / root)].
    above = angles[(angles > 1e-9) & (angles < np.pi - 1e-9)]
    cos, sin = (jnp.asarray(f(above), v.dtype) for f in (np.cos, np.sin))
    cos2, sin2 = (jnp.asarray(f(2 * above), v.dtype) for f in (np.cos, np.sin))
    log_size = jnp.log1p(v * (v - 2 * cos)) / 2
    total = 2 * jnp.sum(cos2 * log_size - sin2 * jnp.arctan2(v * sin, 1 - v * cos))
    if np.any(np.abs(angles) < 1e-9):
        total += jnp.log(one_minus)
    if np.any(np.abs(angles - np.pi) < 1e-9):
        total += jnp.log1p(v)
    first = jnp.log(v) if depth == 2 else v ** (2 - depth) / (2 - depth)
    return first - sign / depth * total


# The three kinds of course, each by a variable x that grows with time: (v, T, dT/dx > 0).


def _rising(x, depth):
    v, rest = jax.nn.sigmoid(x), jax.nn.sigmoid(-x)
    powers = -jnp.expm1(-depth * jax.nn.softplus(-x)) / rest  # 1 + v + ... + v^(L-1)
    return v, _elapsed(v, rest, 1, depth), v ** (2 - depth) / powers


def _falling(x, depth):
    rest = jnp.exp(-x)
    v = 1 + rest
    powers = jnp.expm1(depth * jnp.log1p(rest)) / rest
    return v, _elapsed(v, rest, 1, depth), v ** (1 - depth) / powers


def _vanishing(x, depth):
    v = jnp.exp(-x)
    return v, -_elapsed(v, jnp.abs(1 - v), -1, depth), v ** (2 - depth) / (1 + v**depth)


def _invert(course, x0, elapsed, depth: int):
    """Find x with T(x) - T(x0) = elapsed and return its v."""
    _, start, _ = course(x0, depth)
    fixed_start, target, low = jax.lax.stop_gradient((start, elapsed, x0))
    # Beyond this x the distance to the end is below the smallest number.
    reach = 0.9 * jnp.log(1 / jnp.finfo(x0.dtype).tiny)

    def halve(_, bracket):
        low, high = bracket
        middle = (low + high) / 2
        is_below = course(middle, depth)[1] - fixed_start < target
        return jnp.where(is_below, middle, low), jnp.where(is_below, high, middle)

    x, _ = jax.lax.fori_loop(0, 80, halve, (low, jnp.maximum(low, reach.astype(x0.dtype))))
    _, now, slope = course(x, depth)
    # A Newton step with a frozen slope polishes, and carries derivatives through the implicit equation.
    return course(x - (jax.lax.stop_gradient(now) - start - elapsed) / jax.lax.stop_gradient(slope), depth)[0]


def _deep_mode(s, u0, t, depth: int):
    size = jnp.abs(u0)
    is_zero, is_task = size == 0, s > 0
    s_safe = jnp.where(is_task, s, 1)
    # Every branch is evaluated: each gets a harmless start where it does not apply.
    ratio = jnp.where(is_zero, 0.5, size / s_safe)
    elapsed = s_safe ** (2 - 2 / depth) * t

    def end(course, applies, x_of_log, default):
        log_v = jnp.log(jnp.where(applies, ratio, default)) / depth
        return s * _invert(course, x_of_log(log_v), elapsed, depth) ** depth

    rises, falls, vanishes = (u0 > 0) & (ratio < 1), (u0 > 0) & (ratio > 1), u0 < 0
    rising = end(_rising, rises, lambda q: q - jnp.log(-jnp.expm1(q)), 0.5)
    falling = end(_falling, falls, lambda q: -jnp.log(jnp.expm1(q)), 2.0)
    vanishing = -end(_vanishing, vanishes, lambda q: -q, 0.5)
    power = 2 - 2 / depth
    safe = jnp.where(is_zero, 1, size)
    forgotten = u0 * (1 + depth * power * safe**power * t) ** (-1 / power)
    learned = jnp.where(rises, rising, jnp.where(falls, falling, jnp.where(vanishes, vanishing, u0)))
    return jnp.where(is_zero, 0, jnp.where(is_task, learned, forgotten))


@functools.partial(jax.jit, static_argnums=3)
def _deep_modes(s, u0, t, depth: int):
    over_modes = jax.vmap(lambda s, u0, t: _deep_mode(s, u0, t, depth), in_axes=(0, 0, None))
    return jax.vmap(over_modes, in_axes=(None, None, 0))(s, u0, t)


def deep_mode_flow(
    s: Float[Array, " modes"],
    u0: Float[Array, " modes"],
    times: Float[Array, " time"],
    *,
    depth: int,
    tau: float = 1.0,
) -> Float[Array, "time modes"]:
    r"""Exact flow of aligned modes in a zero-balanced network of ``depth`` weight layers.

    Solves :math:`\tau \dot u = L\,|u|^{2 - 2/L}(s - u)` (Saxe et al. 2014, cited by anguita2024 after
    equation 2.29) for strengths shared equally by the layers.

    Parameters
    ----------
    s
        Singular values of the task; not negative.
    u0
        Initial strengths. Zero stays zero and a negative strength ends at zero, for two layers and more.
    times
        Times, not negative, sorted.
    depth
        Number of weight layers, at least 1 (the shallow network).
    tau
        Time constant, the inverse learning rate.
    """
    s, u0 = check_modes("u0", s, u0)
    require_positive("tau", tau)
    require_size("depth", depth)
    t = require_times(times) / tau
    if depth == 1:
        return s[None, :] + (u0 - s)[None, :] * jnp.exp(-t)[:, None]
    return _deep_modes(s, u0, t, depth)


class LayerFlow(eqx.Module):
    """Strengths of one mode set in every layer, from a numerical solution.

    Attributes
    ----------
    times
        Times of the first axis.
    layers
        Signed strength of each mode in each layer.
    is_solved
        Whether the solver reached the last time for each mode; strengths after a failure are infinite.
    """

    times: Float[Array, " time"]
    layers: Float[Array, "time layers modes"]
    is_solved: Bool[Array, " modes"]

    @property
    def strength(self) -> Float[Array, "time modes"]:
        """Strength of each mode in the network function, the product over layers."""
        return jnp.prod(self.layers, axis=1)


def _others(w):
    """Product of all other layers, without dividing: exact with zeros."""
    ahead = jnp.concatenate([jnp.ones_like(w[:1]), jnp.cumprod(w)[:-1]])
    behind = jnp.concatenate([jnp.ones_like(w[:1]), jnp.cumprod(w[::-1])[:-1]])[::-1]
    return ahead * behind


def layer_flow(
    s: Float[Array, " modes"],
    w0: Float[Array, "layers modes"],
    times: Float[Array, " time"],
    *,
    tau: float = 1.0,
    rtol: float = 1e-9,
    max_steps: int = 100_000,
) -> LayerFlow:
    r"""Flow of aligned modes whose layers start with unequal strengths, by an adaptive implicit solver.

    Solves :math:`\tau \dot w_m = (u / w_m)(s - u)` with :math:`u = \prod_m w_m`; the differences
    :math:`w_m^2 - w_n^2` are conserved. There is no closed form for three unequal layers and more; two layers
    are :func:`mode_flow` with :math:`\lambda = w_2^2 - w_1^2`.

    Parameters
    ----------
    s
        Singular values of the task; not negative.
    w0
        Initial strength of each mode in each layer, of either sign.
    times
        Times, not negative, sorted.
    tau
        Time constant, the inverse learning rate.
    rtol
        Relative tolerance of the solver.
    max_steps
        Most steps the solver may take.
    """
    s, w0 = check_modes("w0", s, w0, layers=1)
    require_positive("tau", tau)
    times = require_times(times)
    t = times / tau
    layers, is_solved = _solve_layers(s, w0, t, rtol, max_steps)
    return LayerFlow(times, layers, is_solved)


@eqx.filter_jit
def _solve_layers(s, w0, t, rtol: float, max_steps: int):
    # Here, where it is used: it takes longer to import than the rest of the room. It makes arrays of its own
    # on import, which must not be traced.
    with jax.ensure_compile_time_eval():
        import diffrax

    control = diffrax.ClipStepSizeController(diffrax.PIDController(rtol=rtol, atol=1e-3 * rtol), step_ts=t)
    term = diffrax.ODETerm(lambda t, w, s: _others(w) * (s - jnp.prod(w)))

    def one(s, w0):
        solution = diffrax.diffeqsolve(
            term,
            diffrax.Kvaerno5(),
            jnp.zeros_like(t[0]),
            t[-1],
            None,
            w0,
            args=s,
            saveat=diffrax.SaveAt(ts=t),
            stepsize_controller=control,
            max_steps=max_steps,
            throw=False,
        )
        assert solution.ys is not None  # SaveAt(ts=...) always saves.
        return solution.ys, solution.result == diffrax.RESULTS.successful

    return jax.vmap(one, in_axes=(0, 1), out_axes=(2, 0))(s, w0)
