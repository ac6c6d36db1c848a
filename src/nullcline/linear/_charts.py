r"""Pivoted charts: the closed form evaluated without loss of digits at any time.

The state depends only on the column space of the stacked rows :math:`[\sqrt\varphi \circ y; I]`, whose scales
:math:`\varphi_j = (e^{2l_jt} - 1)/(2l_j)` differ by many orders of magnitude. A *chart* picks one row per
column (complete pivoting with the scales kept as logarithms) and reduces the stack to unit rows there:
:math:`X = yT`. Column scales then cancel the growth, and an ordinary Cholesky factorization is well
conditioned. A chart made for one time serves all earlier times of its block.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, Int

from ._basis import Basis, decay_integral


class Chart(NamedTuple):
    """The reduced rows, which do not depend on time, and the pivot row of each column."""

    pivot: Int[Array, " hidden"]  # row of [up; down; identity]
    up: Float[Array, "ups hidden"]
    down: Float[Array, "k hidden"]
    w1: Float[Array, "k hidden"]
    w2: Float[Array, "k hidden"]
    identity_gram: Float[Array, "hidden hidden"]
    identity_log: Float[Array, " hidden"]


def _log(x: Array) -> Array:
    """Logarithm that is very negative, never infinite, at zero."""
    return jnp.log(jnp.maximum(x, jnp.finfo(x.dtype).tiny))


def choose_pivots(
    rows: Float[Array, "rows hidden"], log_scale: Float[Array, " rows"], tolerance: Float[Array, ""]
) -> Int[Array, " hidden"]:
    """Complete pivoting on rows with logarithmic scales; columns without pivot keep their identity row."""
    n, hidden = rows.shape
    size = jnp.max(jnp.abs(rows), axis=1)
    # Rounding of each row, carried along: a small pivot magnifies that of its own row.
    noise = tolerance * (16 * size + 4 * jnp.max(size))

    def best(left, scale, noise):
        size = jnp.max(jnp.abs(left), axis=1)
        value = jnp.where(size > 4 * noise, scale + _log(size), -jnp.inf)
        row = jnp.argmax(value)
        return row, value[row] > 0

    def go_on(state):
        step, is_active, *_ = state
        return is_active & (step < hidden)

    def eliminate(state):
        step, _, row, left, scale, noise, pivot = state
        line = left[row]
        column = jnp.argmax(jnp.abs(line))
        # The pivot column cancels to exact zeros, which takes it out of the search.
        ratio = (line / line[column]).at[column].set(1)
        noise = noise + jnp.abs(left[:, column] / line[column]) * noise[row]
        left = left - left[:, column][:, None] * ratio[None, :]
        scale = scale.at[row].set(-jnp.inf)
        pivot = pivot.at[column].set(row.astype(pivot.dtype))
        row, is_active = best(left, scale, noise)
        return step + 1, is_active, row, left, scale, noise, pivot

    identity = n + jnp.arange(hidden, dtype=jnp.int32)
    row, is_active = best(rows, log_scale, noise)
    state = (jnp.zeros((), jnp.int32), is_active, row, rows, log_scale, noise, identity)
    return jax.lax.while_loop(go_on, eliminate, state)[-1]


def make_chart(basis: Basis, time: Float[Array, ""], tolerance: Float[Array, ""]) -> Chart:
    """The chart of one time, good for earlier times as well."""
    rows = jnp.concatenate([basis.up, basis.down])
    k, hidden = basis.down.shape
    size = jnp.concatenate([basis.size, basis.size[:k]])
    growth = jnp.concatenate([jnp.where(basis.grows, basis.size, 0), jnp.zeros(k, size.dtype)])
    log_scale = growth * time + 0.5 * _log(decay_integral(size, jnp.full_like(size, time)))
    pivot = choose_pivots(*jax.lax.stop_gradient((rows, log_scale)), tolerance)

    stack = jnp.concatenate([rows, jnp.eye(hidden, dtype=rows.dtype)])
    pivots = stack[pivot]
    transform = jnp.linalg.inv(pivots)
    reduced = rows @ transform
    column_size = jnp.max(jnp.abs(transform), axis=0)
    # Entries that are rounding noise of an exact zero: left alone they would grow and escape a saddle. The
    # inverse carries the condition of its rows (Skeel's, which does not depend on their scales).
    condition = jnp.max(jnp.sum(jnp.abs(transform) @ jnp.abs(pivots), axis=1))
    noise = (64 + 4 * condition) * tolerance * jnp.max(jnp.abs(rows), axis=1)[:, None] * column_size[None, :]
    # Subtracted, not replaced: derivatives of such entries need not vanish (λ = 0 has some).
    reduced = reduced - jax.lax.stop_gradient(jnp.where(jnp.abs(reduced) <= noise, reduced, 0))
    # Pivot rows are unit rows exactly.
    unit = jnp.eye(hidden, dtype=rows.dtype)
    slot = (
        jnp.full(rows.shape[0] + hidden, -1, pivot.dtype).at[pivot].set(jnp.arange(hidden, dtype=pivot.dtype))
    )
    slot = slot[: rows.shape[0]]
    reduced = jnp.where(slot[:, None] >= 0, unit[slot], reduced)
    ups = basis.up.shape[0]
    return Chart(
        pivot,
        reduced[:ups],
        reduced[ups:],
        basis.w1 @ transform,
        basis.w2 @ transform,
        transform.T @ transform,
        _log(jax.lax.stop_gradient(column_size)),
    )


def factors(
    basis: Basis, chart: Chart, time: Float[Array, ""]
) -> tuple[Float[Array, "rows1 hidden"], Float[Array, "rows2 hidden"]]:
    r"""Factors of :math:`W_1^\top` and :math:`W_2` at one time, in the basis of the task."""
    k, hidden = basis.down.shape
    ups = basis.up.shape[0]
    lt = basis.size * time
    integral = decay_integral(basis.size, jnp.full_like(basis.size, time))

    # Exponents in two parts, is_grown·(a t) + rest: equal first parts cancel exactly however large a t is.
    base = basis.a * time
    rest = jnp.where(basis.grows, basis.delta * time, 0)
    half_log = 0.5 * _log(integral)
    scales = jnp.concatenate([rest + half_log, half_log[:k], chart.identity_log])
    grows = jnp.concatenate([basis.grows, jnp.zeros(k + hidden, bool)])
    scales, base_of_columns = jax.lax.stop_gradient((scales, base))
    column_rest, column_grows = scales[chart.pivot], grows[chart.pivot]
    is_low = jnp.where(column_grows, base_of_columns, 0) + column_rest < chart.identity_log
    column_rest = jnp.where(is_low, chart.identity_log, column_rest)
    column_grows = column_grows & ~is_low

    limit = jnp.log(jnp.finfo(basis.up.dtype).max) - 4
    same = basis.grows[:, None].astype(base.dtype) - column_grows[None, :].astype(base.dtype)
    exponent = same * base + (rest[:, None] - column_rest[None, :])
    cap = jnp.where(chart.up == 0, 0.2 * limit, limit).astype(exponent.dtype)
    up = jnp.exp(jnp.minimum(exponent, cap)) * chart.up
    column = jnp.exp(-(jnp.where(column_grows, base, 0) + column_rest))
    # Kept, not recomputed: XLA would otherwise repeat the exponentials in each of the products below.
    up, column = jax.lax.optimization_barrier((up, column))
    down = chart.down * column[None, :]
    rows, weight = jnp.concatenate([up, down]), jnp.concatenate([integral, integral[:k]])
    gram = rows.T @ (weight[:, None] * rows) + chart.identity_gram * (column[:, None] * column[None, :])
    lower = jnp.linalg.cholesky(gram.T, symmetrize_input=False)

    pair, outside = up[:k], up[k:]
    lt = lt[:k]
    shrink, lost = jnp.exp(-lt), jnp.expm1(-lt)
    # While little has grown, add the change to the initial weights: the weaker layer keeps its own accuracy.
    is_early = lt < 0.5
    grown = jnp.where(is_early, -lost, 1)
    shrunk = jnp.where(is_early, lost, shrink)
    first = jnp.where(is_early, 1, 0).astype(lt.dtype)[:, None] * column[None, :]
    top = (basis.c * grown)[:, None] * pair + (basis.z * shrunk)[:, None] * down + first * chart.w1
    bottom = (basis.z * grown)[:, None] * pair - (basis.c * shrunk)[:, None] * down + first * chart.w2
    if ups > k:
        decay = jnp.where(basis.grows[k:], 1, jnp.exp(-basis.size[k:] * time))
        outside = outside * decay[:, None]
        if basis.v.shape[1] > k:
            top = jnp.concatenate([top, outside])
        else:
            bottom = jnp.concatenate([bottom, outside])
    solved = solve_triangular(lower, jnp.concatenate([top, bottom]).T, lower=True).T
    return solved[: top.shape[0]], solved[top.shape[0] :]
