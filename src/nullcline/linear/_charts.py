r"""Pivoted charts: the closed form evaluated without loss of digits at any time.

The state depends only on the column space of the stacked rows :math:`[\sqrt\varphi \circ y; I]`, whose scales
:math:`\varphi_j = (e^{2l_jt} - 1)/(2l_j)` differ by many orders of magnitude. A *chart* picks one row per
column (complete pivoting with the scales kept as logarithms) and reduces the stack to unit rows there:
:math:`X = yT`. Column scales then cancel the growth, and an ordinary Cholesky factorization is well
conditioned. A chart serves a block of times.

In a large network a column whose pivot has outgrown all else by far is *done*: it no longer couples to the
others, and is known without solving for it. Columns are sorted such that those that learn last come first.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax.linalg import triangular_solve
from jaxtyping import Array, Float, Int

from ._basis import Basis, decay_integral

_LARGE = 4096  # entries of a network that is large
_LARGEST_EXCESS = math.log(1e3)  # of an entry over its pivot; e was seen
_PROBES = 8  # random numbers that show what rounding does to a row


class Chart(NamedTuple):
    """The reduced rows, which do not depend on time, and the pivot row of each column.

    Transposed, as LAPACK wants the matrices that it is given from the right.
    """

    pivot: Int[Array, " hidden"]  # row of [up; down; identity]
    up: Float[Array, "hidden ups"]
    down: Float[Array, "hidden k"]
    weights: Float[Array, "hidden 2 k"]  # both layers on the k pairs
    identity_gram: Float[Array, "hidden hidden"]
    identity_log: Float[Array, " hidden"]
    rest: "Rest | None"  # of large networks only


class Rest(NamedTuple):
    """What each column of a chart has beside its pivot: logarithms that bound it at any time of the chart."""

    still: Float[Array, " hidden"]  # rows that do not grow
    grown: Float[Array, " hidden"]  # rows that grow, at time zero; −∞ without such rows
    delta: Float[Array, " hidden"]  # the fastest of them


class Scales(NamedTuple):
    """What a chart multiplies its rows and columns by at one time: all that depends on time are vectors.

    Exponents come in two parts, grows·base + rest: equal first parts cancel exactly however large they are.
    """

    base: Float[Array, ""]
    rest: Float[Array, " ups"]
    column_rest: Float[Array, " hidden"]
    column_grows: Float[Array, " hidden"]
    column: Float[Array, " hidden"]
    integral: Float[Array, " ups"]
    grown: Float[Array, "2 k"]  # share of the growing, of the decaying and of the initial rows in both layers
    shrunk: Float[Array, "2 k"]
    first: Float[Array, " k"]
    outside: Float[Array, " outside"]
    busy: Int[Array, ""] | None  # this many leading columns are not done yet


def _log(x: Array) -> Array:
    """Logarithm that is very negative, never infinite, at zero."""
    return jnp.log(jnp.maximum(x, jnp.finfo(x.dtype).tiny))


def choose_pivots(
    rows: Float[Array, "rows hidden"],
    log_scale: Float[Array, " rows"],
    tolerance: Float[Array, ""],
    blur: Float[Array, " rows"],
) -> tuple[Int[Array, " hidden"], Float[Array, " rows"]]:
    """Complete pivoting on rows with logarithmic scales; columns without pivot keep their identity row.

    Also returns up to what size each row is rounding noise in these columns.
    """
    n, hidden = rows.shape
    size = jnp.max(jnp.abs(rows), axis=1)
    # What rounding does to each row is seen on a few random numbers of its size, eliminated like the row
    # itself. A bound would not do: that of a hundred eliminations exceeds the rows. Each elimination rounds
    # anew, which adds up as a random walk.
    walk = max(1.0, hidden / 16) ** 0.5
    rounding = walk * tolerance * (16 * size + 4 * jnp.max(size)) + 2 * blur
    probes = rounding[:, None] * jnp.asarray(_signs(n), rows.dtype)

    def noise(probes):
        # They may cancel by chance; what they started with is there at the least. Of rows that are noise, in
        # networks of up to 250 units with up to 100 units at rest, none was seen above a third of this.
        return jnp.maximum(8 * jnp.sqrt(jnp.mean(probes**2, axis=1)), 4 * rounding)

    def best(left, scale, probes):
        size = jnp.max(jnp.abs(left), axis=1)
        value = jnp.where(size > noise(probes), scale + _log(size), -jnp.inf)
        row = jnp.argmax(value)
        return row, value[row] > 0

    def eliminate(_, state):
        row, is_active, left, scale, probes, pivot = state
        line = left[row]
        column = jnp.argmax(jnp.abs(line))
        # In a loop of fixed length nothing is left to do once no row is active.
        top = jnp.where(is_active, line[column], 1)
        entries = jnp.where(is_active, left[:, column], 0)
        # The pivot column cancels to exact zeros, which takes it out of the search.
        ratio = jnp.where(columns == column, 1, line / top)
        left = left - entries[:, None] * ratio[None, :]
        probes = probes - (entries / top)[:, None] * probes[row][None, :]
        scale = jnp.where((numbers == row) & is_active, -jnp.inf, scale)
        pivot = jnp.where((columns == column) & is_active, row.astype(pivot.dtype), pivot)
        row, is_active = best(left, scale, probes)
        return row, is_active, left, scale, probes, pivot

    # Masks, where one entry is set: a scatter is a kernel of its own.
    numbers, columns = jnp.arange(n), jnp.arange(hidden)
    identity = n + jnp.arange(hidden, dtype=jnp.int32)
    row, is_active = best(rows, log_scale, probes)
    state = (row, is_active, rows, log_scale, probes, identity)
    # Few rows are active at early times. Small networks do not gain by a loop that may end early, and would
    # lose under `vmap`, where it copies its whole state at every turn.
    if n * hidden > _LARGE:
        state = jax.lax.while_loop(lambda state: state[1], lambda state: eliminate(0, state), state)
    else:
        # Several eliminations a turn fuse into fewer kernels, each of which a GPU takes time to launch.
        unroll = 1 if jax.default_backend() == "cpu" else 4
        state = jax.lax.fori_loop(0, hidden, eliminate, state, unroll=unroll)
    *_, probes, pivot = state
    return pivot, noise(probes)


def _signs(n: int) -> np.ndarray:
    """A few random signs for each row, the same at every call."""
    return np.random.default_rng(0).choice([-1.0, 1.0], (n, _PROBES))


def make_chart(
    basis: Basis, first: Float[Array, ""], last: Float[Array, ""], tolerance: Float[Array, ""]
) -> Chart:
    """The chart of all times from ``first`` to ``last``.

    Its pivots are those of the middle: of a mode that is still small there, the identity row. A chart costs
    digits as modes grow that have no pivot, and back in time as those shrink that have one.
    """
    time = first + (last - first) / 2
    rows = jnp.concatenate([basis.up, basis.down])
    k, hidden = basis.down.shape
    size = jnp.concatenate([basis.size, basis.size[:k]])
    growth = jnp.concatenate([jnp.where(basis.grows, basis.size, 0), jnp.zeros(k, size.dtype)])
    log_scale = growth * time + 0.5 * _log(decay_integral(size, jnp.full_like(size, time)))
    pivot, noise_of_rows = choose_pivots(*jax.lax.stop_gradient((rows, log_scale)), tolerance, basis.blur)
    of_stack = jax.lax.stop_gradient(jnp.concatenate([log_scale, jnp.zeros(hidden, log_scale.dtype)]))
    is_large = rows.size > _LARGE
    if is_large:
        pivot = pivot[jnp.argsort(of_stack[pivot])]

    stack = jnp.concatenate([rows, jnp.eye(hidden, dtype=rows.dtype)])
    pivots = stack[pivot]
    transform = jnp.linalg.inv(pivots)
    reduced = rows @ transform
    column_size = jnp.max(jnp.abs(transform), axis=0)
    # Entries that are rounding noise of an exact zero: left alone they would grow and escape a saddle. The
    # inverse carries the condition of its rows (Skeel's, which does not depend on their scales).
    condition = jnp.max(jnp.sum(jnp.abs(transform) @ jnp.abs(pivots), axis=1))
    noise = (64 + 4 * condition) * tolerance * jnp.max(jnp.abs(rows), axis=1)
    # What the task's singular vectors left in a row, and in the pivot rows that it is reduced by.
    blur_of_pivots = jnp.concatenate([basis.blur, jnp.zeros(hidden, rows.dtype)])[pivot]
    noise = noise + 8 * (basis.blur + jnp.abs(reduced) @ blur_of_pivots)
    noise = noise[:, None] * column_size[None, :]
    # Rows that were noise to the search for pivots are so in the columns that it left without.
    is_free = pivot[None, :] >= rows.shape[0]
    left = jnp.max(jnp.where(is_free, jnp.abs(reduced), 0), axis=1)
    is_passed = is_free & (left <= noise_of_rows)[:, None]
    noise = jnp.where(is_passed, jnp.maximum(noise, noise_of_rows[:, None]), noise)
    # No entry outgrows its pivot by far, but of rows that the search passed over as noise.
    column_log = jnp.maximum(of_stack[pivot], _log(column_size))
    excess = log_scale[:, None] + _log(jnp.abs(reduced)) - column_log[None, :]
    is_noise = (jnp.abs(reduced) <= noise) | (excess > _LARGEST_EXCESS)
    # Subtracted, not replaced: derivatives of such entries need not vanish (λ = 0 has some).
    reduced = reduced - jax.lax.stop_gradient(jnp.where(is_noise, reduced, 0))
    # Pivot rows are unit rows exactly.
    unit = jnp.eye(hidden, dtype=rows.dtype)
    slot = (
        jnp.full(rows.shape[0] + hidden, -1, pivot.dtype).at[pivot].set(jnp.arange(hidden, dtype=pivot.dtype))
    )
    slot = slot[: rows.shape[0]]
    reduced = jnp.where(slot[:, None] >= 0, unit[slot], reduced)
    ups = basis.up.shape[0]
    up, down, identity_gram = reduced[:ups].T, reduced[ups:].T, transform.T @ transform
    parts = jax.lax.stop_gradient((basis, pivot, up, down, identity_gram, last))
    return Chart(
        pivot,
        up,
        down,
        jnp.stack([(basis.w1 @ transform).T, (basis.w2 @ transform).T], axis=1),
        identity_gram,
        _log(jax.lax.stop_gradient(column_size)),
        _rest_of(*parts) if is_large else None,
    )


def _rest_of(basis: Basis, pivot, up, down, identity_gram, time) -> Rest:
    """Bounds on what is not the pivot, from a chart and its time."""
    # Integrals grow with time: those of the last time of a chart bound all others.
    integral = decay_integral(basis.size, jnp.full_like(basis.size, time))
    is_pivot = pivot[:, None] == jnp.arange(up.shape[1], dtype=pivot.dtype)[None, :]
    squares = jnp.where(is_pivot, 0, integral[None, :] * up**2)
    still = jnp.where(basis.grows[None, :], 0, squares)
    still = jnp.sum(still, axis=1) + down**2 @ integral[: down.shape[1]] + jnp.diagonal(identity_gram)
    grown = jnp.where(basis.grows[None, :], squares, 0)
    is_there = jnp.any(grown > 0, axis=1)
    return Rest(
        0.5 * _log(still),
        jnp.where(is_there, 0.5 * _log(jnp.sum(grown, axis=1)), -jnp.inf),
        jnp.max(jnp.where(grown > 0, basis.delta[None, :], 0), axis=1),
    )


def scales_at(basis: Basis, chart: Chart, time: Float[Array, ""]) -> Scales:
    """The scales of rows and columns at one time."""
    hidden, k = chart.down.shape
    integral = decay_integral(basis.size, jnp.full_like(basis.size, time))
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
    column_log = jnp.where(column_grows, base, 0) + column_rest
    column = jnp.exp(-column_log)
    busy = None
    if chart.rest is not None:
        others = jnp.maximum(chart.rest.still, chart.rest.grown + base + chart.rest.delta * time)
        # Far below rounding: a layer that is weaker than the other by many orders must not notice.
        is_done = others - column_log < 1.5 * jnp.log(jnp.finfo(base.dtype).eps)
        busy = jnp.max(jnp.where(is_done, 0, jnp.arange(1, hidden + 1)))

    lt = (basis.size * time)[:k]
    shrink, lost = jnp.exp(-lt), jnp.expm1(-lt)
    # While little has grown, add the change to the initial weights: the weaker layer keeps its own accuracy.
    is_early = lt < 0.5
    grown = jnp.stack([basis.c, basis.z]) * jnp.where(is_early, -lost, 1)[None, :]
    shrunk = jnp.stack([basis.z, -basis.c]) * jnp.where(is_early, lost, shrink)[None, :]
    outside = jnp.where(basis.grows[k:], 1, jnp.exp(-basis.size[k:] * time))
    return Scales(
        base,
        rest,
        column_rest,
        column_grows.astype(lt.dtype),
        column,
        integral,
        grown,
        shrunk,
        is_early.astype(lt.dtype),
        outside,
        busy,
    )


def factors(
    basis: Basis, chart: Chart, scales: Scales
) -> tuple[Float[Array, "rows1 hidden"], Float[Array, "rows2 hidden"]]:
    r"""Factors of :math:`W_1^\top` and :math:`W_2` at the time of the scales, in the basis of the task."""
    hidden, k = chart.down.shape
    limit = jnp.log(jnp.finfo(basis.up.dtype).max) - 4
    same = basis.grows[None, :].astype(scales.rest.dtype) - scales.column_grows[:, None]
    exponent = same * scales.base + (scales.rest[None, :] - scales.column_rest[:, None])
    cap = jnp.where(chart.up == 0, 0.2 * limit, limit).astype(exponent.dtype)
    up = jnp.exp(jnp.minimum(exponent, cap)) * chart.up
    column = scales.column
    gram = (scales.integral[None, :] * up) @ up.T + (
        (scales.integral[None, :k] * chart.down) @ chart.down.T + chart.identity_gram
    ) * (column[:, None] * column[None, :])
    lower = jnp.linalg.cholesky(gram.T, symmetrize_input=False)

    rows = (
        scales.grown[None] * up[:, None, :k]
        + (scales.shrunk[None] * chart.down[:, None, :] + scales.first[None, None, :] * chart.weights)
        * column[:, None, None]
    ).reshape(hidden, 2 * k)
    if up.shape[1] > k:
        rows = jnp.concatenate([rows, up[:, k:] * scales.outside[None, :]], axis=1)
    # From the right: BLAS takes half the time of a solve from the left on small matrices.
    solved = triangular_solve(lower, rows.T, lower=True, transpose_a=True)
    return _layers(basis, solved[:k], solved[k : 2 * k], solved[2 * k :])


def leading_factors(
    basis: Basis, chart: Chart, scales: Scales, count: int
) -> tuple[Float[Array, "rows1 hidden"], Float[Array, "rows2 hidden"]]:
    """The same where all but the ``count`` leading columns are done: only the pivot is left of each."""
    part = Chart(
        chart.pivot[:count],
        chart.up[:count],
        chart.down[:count],
        chart.weights[:count],
        chart.identity_gram[:count, :count],
        chart.identity_log[:count],
        None,
    )
    columns = {name: getattr(scales, name)[:count] for name in ("column_rest", "column_grows", "column")}
    busy1, busy2 = factors(basis, part, scales._replace(**columns))

    rows, k = jnp.arange(chart.up.shape[1], dtype=chart.pivot.dtype), chart.down.shape[1]
    is_pivot = rows[:, None] == chart.pivot[None, count:]
    alone = jnp.where(is_pivot, jax.lax.rsqrt(scales.integral)[:, None], 0)
    top, bottom = (share[:, None] * alone[:k] for share in scales.grown)
    done1, done2 = _layers(basis, top, bottom, scales.outside[:, None] * alone[k:])
    return jnp.concatenate([busy1, done1], axis=1), jnp.concatenate([busy2, done2], axis=1)


def _layers(basis: Basis, top: Array, bottom: Array, outside: Array) -> tuple[Array, Array]:
    """Rows of the pairs, and those outside the task, which belong to the layer with more of them."""
    if outside.shape[0] == 0:
        return top, bottom
    if basis.v.shape[1] > top.shape[0]:
        return jnp.concatenate([top, outside]), bottom
    return top, jnp.concatenate([bottom, outside])
