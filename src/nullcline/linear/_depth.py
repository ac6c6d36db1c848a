r"""Aligned modes of networks of any depth.

With equal strength in each of ``L`` layers a mode obeys :math:`\tau\dot u = L\,|u|^p (s - u)`,
:math:`p = 2 - 2/L`. By a clock of its own, :math:`d\psi = L\,|u_0|\,|u|^{p-1} dt/\tau`, it moves as the
sigmoid of two layers, whose clock is time: with :math:`z = s/u_0`,

.. math:: u = \frac{u_0}{A},\qquad A = e^{-z\psi} + \frac{1 - e^{-z\psi}}{z},\qquad
   L\,|u_0|^p\, \frac{t}{\tau} = \int_0^\psi A^{p-1}\, d\psi
   = \int_0^{\log A} \frac{e^{p\xi}\, d\xi}{1 - z e^\xi}.

The last integral, a hypergeometric function, is inverted by bisection. Nothing is singular where there is no
task (``z = 0``) or nothing to learn (``z = 1``), and no large terms cancel.
"""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._checks import are_sorted, require_positive, require_size, require_times
from ._modes import check_modes

# While |s / u| is below 1/8 or above 8, this many terms of a geometric series reach rounding.
_EDGE, _TERMS = float(np.log(8)), 18
# In between the poles are at least pi away from log |s / u|: these nodes reach it too.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)


def _growth(x):
    """(e^x - 1) / x, smooth at 0 for derivatives too."""
    is_small = jnp.abs(x) < 0.5
    series = jnp.polyval(jnp.asarray(1 / np.cumprod(np.arange(1.0, 16.0))[::-1], x.dtype), x)
    return jnp.where(is_small, series, jnp.expm1(x) / jnp.where(is_small, 1, x))


def _series(a: float, z, x):
    """Integral of e^(a y) / (1 - z e^y) over y from 0 to x, for z and z e^x between -1/8 and 1/8."""
    # The terms are z^k (e^((a + k) x) - 1) / (a + k). Numerators follow one from another by sums of one sign,
    # where z^k and e^(k x) would underflow and overflow; the first two may differ in sign (-1 < a < 0).
    numerator = z * jnp.expm1((a + 1) * x)
    total = jnp.expm1(a * x) / a + numerator / (a + 1)
    power, end, step = z, z * jnp.exp(x), z * jnp.expm1(x)
    for k in range(2, _TERMS):
        numerator, power = end * numerator + power * step, power * z
        total += numerator / (a + k)
    return total


def _shrinkage(psi, y, z):
    """A = u0 / u and its logarithm at the clock ``psi``; ``y = z psi``."""
    gain = psi * _growth(-y)
    a = jnp.exp(-y) + gain
    # Three ways to write the logarithm: A close to 1; A far below 1; an A that may overflow.
    near, far = (1 - z) * gain, jnp.log(a)
    log_a = jnp.where(near > -0.5, jnp.log1p(jnp.maximum(near, -0.5)), far)
    return a, jnp.where(z < 0, jnp.log1p(psi * _growth(y)) - y, log_a)


def _elapsed(psi, z, p: float):
    """The integral of A^(p-1) up to ``psi``, and log A."""
    y = z * psi
    _, x = _shrinkage(psi, y, z)
    log_z = jnp.log(jnp.maximum(jnp.abs(z), jnp.finfo(z.dtype).tiny))
    is_negative, top = z < 0, jnp.maximum(x, 0)
    # The path of log A from 0 to x is cut where |s / u| = |z| A passes 1/8 and 8: upwards where the strength
    # falls (z < 1), downwards where it rises.
    first = jnp.clip(-_EDGE - log_z, 0, top)
    last = jnp.clip(_EDGE - log_z, jnp.minimum(x, 0), top)
    low = _series(p, jnp.where(log_z < -_EDGE, z, 0), first)
    # Beyond 8 the series is in u / s.
    start, end = jnp.where(is_negative, last, 0), jnp.where(is_negative, x, jnp.minimum(last, 0))
    q = jnp.sign(z) * jnp.exp(-jnp.maximum(log_z + start, _EDGE))
    high = q * jnp.exp(p * start) * _series(1 - p, q, start - end)
    # In between, for z > 0, the pole at u = s is taken out of the quadrature: its integral is y = z psi.
    start, end = jnp.where(is_negative, first, first + end), jnp.where(is_negative, last, x)
    ratio = jnp.clip(log_z + start, -_EDGE, _EDGE)
    reached = jnp.log(jnp.abs(1 - z)) - jnp.log(jnp.abs(1 - jnp.exp(ratio)))
    pole = jnp.where(jnp.abs(log_z) < _EDGE, y, jnp.maximum(y - reached, 0))
    nodes = ratio + (end - start) * jnp.asarray((_NODES + 1) / 2, z.dtype)
    smooth = (1 - p) * jnp.exp(nodes) * _growth((p - 1) * nodes) / _growth(nodes)
    values = jnp.where(is_negative, jnp.exp(p * nodes) / (1 + jnp.exp(nodes)), smooth)
    between = (end - start) * jnp.sum(jnp.asarray(_WEIGHTS / 2, z.dtype) * values)
    middle = jnp.exp(p * (start - ratio)) * (jnp.where(z > 0, pole, 0) + between)
    return low + middle + high, x


def _clock(z, c, p: float):
    """The ``psi`` at which ``c`` has elapsed."""
    info = jnp.finfo(z.dtype)

    def halve(_, bracket):
        low, high = bracket
        middle = (low + high) / 2
        is_below = _elapsed(jnp.exp(middle), z, p)[0] < c
        return jnp.where(is_below, middle, low), jnp.where(is_below, high, middle)

    def polish(_, psi):
        now, x = _elapsed(psi, z, p)
        return psi - (now - c) * jnp.exp((1 - p) * x)

    ends = jnp.full_like(z, np.log(info.tiny)), jnp.full_like(z, np.log(info.max))
    low, _ = jax.lax.fori_loop(0, 26, halve, ends)
    # Halving leaves an error below 1e-4 for Newton's method to square. Where c is nearly zero so is psi.
    return jnp.where(c < info.tiny, c, jax.lax.fori_loop(0, 3, polish, jnp.exp(low)))


@functools.partial(jax.custom_jvp, nondiff_argnums=(3,))
def _deep_mode(s, u0, t, depth: int):
    """Strength u, x = log(u0 / u) and y = z psi of one mode at one time."""
    p = 2 - 2 / depth
    z = s / jnp.where(u0 == 0, 1, u0)
    c = depth * jnp.abs(u0) ** p * t
    psi = c if depth == 2 else _clock(z, c, p)
    # The clock of two layers runs at zero strength too.
    y = 2 * jnp.where(u0 < 0, -s, s) * t if depth == 2 else z * psi
    a, x = _shrinkage(psi, y, z)
    x = jnp.where(u0 == 0, -y, x)
    return jnp.where(z < 0, u0 * jnp.exp(-x), u0 / a), x, y


@_deep_mode.defjvp
def _deep_mode_jvp(depth: int, primals, tangents):
    r"""Derivatives in closed form, themselves differentiable.

    With :math:`r(u) = L|u|^p(s - u)`, :math:`\partial u/\partial u_0 = r(u)/r(u_0) = e^{-(p+1)x - y}`: smooth
    at ``u0 = s``, and not 0/0 at late times. :math:`\partial u/\partial t` is ``r(u0)`` times that. Those by
    ``s`` follow from homogeneity: :math:`s\,\partial_s + u_0\,\partial_{u_0} - p\,t\,\partial_t` maps ``u``
    to itself and ``y`` to 0.
    """
    s, u0, t = primals
    u, x, y = outputs = _deep_mode(s, u0, t, depth)
    p, is_zero = 2 - 2 / depth, u0 == 0
    safe = jnp.where(is_zero, 1, u0)
    z, speed = s / safe, depth * jnp.abs(u0) ** p
    # Changes of u are relative to u / u0, which may underflow.
    by_u0, by_t = jnp.exp(-p * x - y), jnp.exp(-p * x - y) * speed * (s - u0)
    by_homogeneity = -jnp.expm1(-p * x - y) - p * speed * t * (1 - z) * by_u0
    # Divided by z that would cancel where |s / u| is small; integrated by parts it is a series.
    is_small = jnp.abs(z) * jnp.exp(x) < 1 / 8
    z_small, x_small, y_small = (jnp.where(is_small, value, 0) for value in (z, x, y))
    by_parts = -jnp.exp(x_small) * jnp.expm1(-(p + 1) * x_small - y_small)
    by_parts -= p * (1 - z) * by_u0 * _series(p + 1, z_small, x_small)
    by_s = jnp.where(is_small, by_parts, by_homogeneity / jnp.where(is_small, 1, z))
    by_s = jnp.where(is_zero, 0, by_s)
    # (1 - A^(1-p)) / (1 - z), where A - 1 = (1 - z) (1 - e^-y) / z.
    is_close = jnp.abs(1 - z) < 0.5
    x_close, y_close = jnp.where(is_close, x, 0), jnp.where(is_close, y, 0)
    close = (1 - p) * _growth((1 - p) * x_close) / _growth(x_close) * jnp.expm1(-y_close)
    far = -jnp.expm1((1 - p) * x) / jnp.where(is_close, 1, 1 - z)
    lag = jnp.where(is_close, close / jnp.where(is_close, z, 1), far) / safe
    pace = depth * jnp.where(u0 < 0, -1, 1).astype(u.dtype) * jnp.abs(u) ** (p - 1)

    ds, du0, dt = tangents
    du = jnp.exp(-x) * (by_u0 * du0 + by_t * dt + by_s * ds)
    dy = z * lag * du0 + s * pace * dt + (p * t * pace - lag) * ds
    dx = (-jnp.expm1(-p * x - y) * du0 - by_t * dt - by_s * ds) / safe
    return outputs, (du, jnp.where(is_zero, -dy, dx), dy)


@functools.partial(jax.jit, static_argnums=3)
def _deep_modes(s, u0, t, depth: int):
    over_modes = jax.vmap(lambda s, u0, t: _deep_mode(s, u0, t, depth)[0], in_axes=(0, 0, None))
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
        First derivatives at zero are those from above; second ones mean nothing there.
    times
        Times, not negative, sorted.
    depth
        Number of weight layers, at least 1 (the shallow network).
    tau
        Time constant, the inverse learning rate.
    """
    s, u0 = check_modes("u0", s, u0)
    tau = require_positive("tau", tau)
    require_size("depth", depth)
    t = require_times(times, s) / tau
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
    def strength(self) -> Float[Array, "*batch time modes"]:
        """Strength of each mode in the network function, the product over layers."""
        # Counted from the end: `vmap` puts axes in front.
        return jnp.prod(self.layers, axis=-2)


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
    rtol: float | None = None,
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
        Relative tolerance of the solver; 1e-9 in double precision and 1e-5 in single if not given. The
        absolute one is a thousandth of it times the smallest initial strength of the mode other than zero.
    max_steps
        Most steps the solver may take.
    """
    s, w0 = check_modes("w0", s, w0, layers=1)
    tau = require_positive("tau", tau)
    rtol = (1e-9 if w0.dtype == jnp.float64 else 1e-5) if rtol is None else rtol
    tolerance = require_positive("rtol", rtol)
    max_steps = require_size("max_steps", max_steps)
    times = require_times(times, w0)
    # Times that the solver would refuse from inside a compiled program: it gets others, and the result tells.
    is_good = are_sorted(times) & (jnp.asarray(tau) > 0)
    t = jnp.where(is_good, times / tau, 0)
    layers, is_solved = _solve_layers(s, w0, t, tolerance, max_steps)
    return LayerFlow(times, jnp.where(is_good, layers, jnp.nan), is_solved & is_good)


@eqx.filter_jit
def _solve_layers(s, w0, t, rtol: float, max_steps: int):
    # Here, where it is used: it takes longer to import than the rest of the room. It makes arrays of its own
    # on import, which must not be traced.
    with jax.ensure_compile_time_eval():
        import diffrax

    term = diffrax.ODETerm(lambda t, w, s: _others(w) * (s - jnp.prod(w)))

    def one(s, w0):
        # Small strengths grow by orders of magnitude: an error at the start is one at the end.
        least = jnp.min(jnp.where(w0 == 0, jnp.inf, jnp.abs(w0)))
        control = diffrax.PIDController(rtol=rtol, atol=1e-3 * rtol * jnp.where(jnp.isinf(least), 1, least))
        # A step solves for its increments. In the end these are rounding errors of the learned strengths,
        # which no iteration makes smaller.
        largest = jnp.maximum(jnp.max(jnp.abs(w0)), s ** (1 / w0.size))
        largest: Any = jnp.where(largest > 0, largest, 1)  # of a mode at rest
        root = diffrax.VeryChord(rtol=rtol, atol=1e3 * jnp.finfo(w0.dtype).eps.item() * largest)
        solution = diffrax.diffeqsolve(
            term,
            diffrax.Kvaerno5(root_finder=root),
            jnp.zeros_like(t[0]),
            t[-1],
            None,
            w0,
            args=s,
            saveat=diffrax.SaveAt(ts=t),
            stepsize_controller=diffrax.ClipStepSizeController(control, step_ts=t),
            max_steps=max_steps,
            throw=False,
        )
        assert solution.ys is not None  # SaveAt(ts=...) always saves.
        return solution.ys, solution.result == diffrax.RESULTS.successful

    return jax.vmap(one, in_axes=(0, 1), out_axes=(2, 0))(s, w0)
