"""The exact gradient flow of λ-balanced networks."""

import math
import operator
import warnings
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from .._checks import (
    are_sorted,
    as_float,
    is_concrete,
    require_finite,
    require_positive,
    require_scalar,
    require_times,
)
from .._order import after
from .._precision import full_precision
from ._basis import rounding_floor, task_basis
from ._charts import factors, leading_factors, make_chart, scales_at
from ._network import Network, balance_residual, fit_balance
from ._task import Task, isotropy_tolerance, require_task
from ._trajectory import BAD_TIMES, FAILED, NOT_WHITE, OK, UNBALANCED, Trajectory

# A chart serves times down to a quarter of its last one, and all with l·t up to a reach. Of 4000 networks
# 2-7-3 from λ = 0, some of which hardly overlap with a mode, the worst was off by 4e-7, 1 % by 2e-10, when
# one chart, made for its last time, served l·t ≤ 16. Like this the worst is off by 1e-10, 1 % by 8e-14.
_RATIO = 4.0
# Few units in double precision lose less to a chart that is shared.
_REACH, _REACH_OF_FEW, _FEW = 0.25, 3.5, 32
# Beyond the rounding of half precision it would not be rounding any more.
_LARGEST_TOLERANCE = 1e-3
# Charts of times that cannot be inspected: those below a share of 4**-7 of the last have one in common.
_CHARTS_UNDER_TRACE = 8
# Entries of the states that one turn of the loop over times works on, few enough for the cache of a core: of
# one network, and under a trace, where there may be many (`vmap`).
_ENTRIES, _ENTRIES_UNDER_TRACE = 8192, 1024
# Once an eighth of the columns of a large network is left to learn, only these are solved for.
_SHARE_LEFT = 8
# Multiply-adds of one batched LAPACK call where several devices share a CPU: before JAX 0.11.2 larger calls
# are split over the thread pool of all devices and wait for it, each for the others (from 250,000 on).
_WORK_OF_A_CALL = 65536


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
    1e-14 in float64 from :math:`t = 0` to any time. A mode with no overlap stays a saddle at all times,
    unless its singular value is within some thousandths of another's, whose weights rounding then mixes in.

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
        their precision. Give ``1e-7`` for float32 weights cast to float64; 0 switches exact saddles off,
        and more than 1e-3 is refused.

    Returns
    -------
    The trajectory. Where values cannot be inspected (``jit``, ``vmap``, ``grad``) nothing raises: weights
    that are not balanced, inputs that are not isotropic and times that are negative or not sorted give NaN
    and a nonzero ``status``.

    Notes
    -----
    Derivatives with respect to the weights make sense along balanced weights only: differentiate through
    ``lambda_balanced``. Those with respect to the task need distinct, nonzero singular values.

    References
    ----------
    domine2025, Theorem A.3, and anguita2024, Theorem 3.3.1, with errata (the bracket is inverted; rates
    of directions outside the task).
    """
    return _evaluate(network, task, times, tau, lam, tolerance, None)


def observe_flow(
    network: Network,
    task: Task,
    times,
    observe: Callable[[Trajectory, Task], PyTree],
    tau: float | Float[Array, ""] = 1.0,
    *,
    lam: float | Float[Array, ""] | None = None,
    tolerance: float | None = None,
) -> PyTree:
    """What one sees along the exact flow, without keeping its states: the way to sweep many networks.

    ``linear.observe_flow(network, task, times, linear.loss)`` gives the numbers of
    ``linear.loss(linear.exact_flow(network, task, times), task)``. For a hundred networks, whose states would
    not fit the cache, it takes half the time.

    Parameters
    ----------
    network
        One network, or a batch as ``jax.vmap`` of an initializer returns it. A batch is shared out among the
        devices that JAX has: GPUs, or the cores of a CPU if a script begins with
        ``jax.config.update("jax_num_cpu_devices", 4)`` (measured for 20 units: two cores are 1.6 times as
        fast as one, sixteen of another machine less than 3 times).
    task, times, tau, lam, tolerance
        As in ``exact_flow``, with the same errors; one ``lam`` for a batch. Give ``lam`` if it is known: what
        depends on it alone is then computed once for all networks (a tenth of the time for 20 units), and
        under ``vmap`` times share more charts.
    observe
        A function of a trajectory of one time and of the task, such as ``linear.loss``: called once for each
        time. For the kernel distance name its reference,
        ``lambda now, task: linear.ntk_distance(now, task, start=network)``, and map over a batch with
        ``jax.vmap``. Outside ``jit`` define it once: each new function is compiled anew.

    Returns
    -------
    What ``observe`` returns, networks (of a batch) and times in front; NaN, where nothing can raise, if the
    flow is not defined.
    """
    if not callable(observe):
        raise ValueError(
            "`observe` must be a function of a trajectory and a task, such as `linear.loss`, got "
            f"{observe!r}."
        )
    return _evaluate(network, task, times, tau, lam, tolerance, observe)


def _evaluate(network, task, times, tau, lam, tolerance, observe):
    """Check the arguments, choose the charts, solve."""
    times = require_times(times)
    is_batch = observe is not None and isinstance(network, Network) and network.w1.ndim == 3
    check_fit(network, task, ndim=3 if is_batch else 2)
    w1, w2 = network.w1, network.w2
    if is_batch and w1.shape[0] == 0:
        raise ValueError(f"`network` is a batch without networks, w1 has shape {w1.shape}.")
    tau = require_positive("tau", tau)
    if lam is not None:
        lam = require_scalar("lam", lam)
        require_finite("lam", as_float("lam", lam))
    dtype = jnp.result_type(w1.dtype, w2.dtype)
    if tolerance is None:
        tolerance = float(jnp.finfo(dtype).eps)
    tolerance = require_scalar("tolerance", tolerance)
    if not (is_concrete(tolerance) and 0 <= tolerance <= _LARGEST_TOLERANCE):
        raise ValueError(
            f"`tolerance` must be a number from 0 to {_LARGEST_TOLERANCE:g}, the rounding error of the "
            f"weights, got {tolerance}. Weights that are not balanced need `linear.integrate_flow`."
        )
    if task.is_isotropic is False:
        raise ValueError(
            "The exact solution needs isotropic inputs, XXᵀ/P = κ·(projector), and those of `task` are not. "
            "Whiten them with `linear.whiten(x)`, or use `linear.integrate_flow`, which takes any inputs."
        )
    data = (task.x, task.y, task.correlation)
    is_tolerant = jnp.finfo(dtype).bits == 64 and min(w1.shape[-2], task.n_in + task.n_out) <= _FEW
    window = 0.0  # all times up to here share a chart
    entries, svd, span, kappa = _ENTRIES_UNDER_TRACE, None, None, 1.0
    if is_concrete(*data):
        # Decomposed here: once for all networks of a `vmap`, and faster than on a GPU.
        svd, span, kappa = _concrete_task(task, dtype)
    if svd is not None and is_concrete(times, lam, tau):
        # A λ that is given tells which times may share a chart, as weights do that can be inspected.
        balance = lam
        if is_concrete(w1, w2):
            check = _check_batch if is_batch else _check_values
            balance = check(network, span, lam, tolerance)
            entries = _ENTRIES_UNDER_TRACE if is_batch else _ENTRIES
        if balance is not None:
            rate = float(np.hypot(svd[1][0], float(balance) / 2))
            if not math.isfinite(rate):
                raise _too_large("network", w1, w2)
            reach = _REACH_OF_FEW if is_tolerant else _REACH
            window = reach * float(tau) / max(rate * kappa, 1e-300)
    ends = _share_charts(np.asarray(times), window) if is_concrete(times) else _share_under_trace(times)
    arrays = (w1, w2, data, svd, times, ends, tau, lam, tolerance)
    known = (task.is_isotropic, task.is_spanning)
    if is_batch:
        return _solve_batch(*arrays, known, entries, observe, _devices_for(network))
    return _solve(*arrays, known, entries, observe)


@full_precision
def on_span(network: Network, task: Task) -> Network:
    """The network as the inputs see it: the first layer on their span, where they have less than all."""
    if task.is_spanning:
        return network
    return Network(network.w1 @ task.span.astype(network.w1.dtype), network.w2)


def read_balance(network: Network, tolerance) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The λ that the exact flow takes weights to have, and how badly it fits."""
    lam, residual, top = fit_balance(network)
    # A λ that is rounding noise of zero would turn the saddles of zero-balanced weights into escapes. Seen of
    # weights from 4 to 256 units: at most 1.6 roundings of the largest square.
    return jnp.where(jnp.abs(lam) <= 16 * tolerance * top, lam - jax.lax.stop_gradient(lam), lam), residual


def balance_tolerance(dtype) -> float:
    """Largest residual of weights that count as balanced."""
    return 1e-8 if jnp.finfo(dtype).bits == 64 else 1e-4


def check_fit(network: Network, task: Task, ndim: int = 2, name: str = "network") -> None:
    """Raise unless this is one network (``ndim=3``: one batch) whose sizes agree with those of the task."""
    if not isinstance(network, Network):
        raise ValueError(
            f"`{name}` must be a `linear.Network`, got a {type(network).__name__}: make it from weights, "
            "`linear.Network(w1, w2)`."
        )
    require_task("task", task)
    if network.w1.ndim != ndim:
        raise ValueError(
            f"`{name}` holds a batch of networks, w1 has shape {network.w1.shape}: use "
            "`jax.vmap(lambda network: …)(networks)`."
        )
    if (network.n_in, network.n_out) != (task.n_in, task.n_out):
        raise ValueError(
            f"`{name}` maps {network.n_in} inputs to {network.n_out} outputs, but `task` has "
            f"{task.n_in} inputs and {task.n_out} outputs."
        )


@partial(jax.jit, static_argnums=(9, 10, 11))
@full_precision
def _solve(w1, w2, data, svd, times, ends, tau, lam, tolerance, known, entries, observe):
    """One program for the whole solution, on arrays; ``known`` of the task: isotropic, spanning."""
    is_isotropic, is_spanning = known
    dtype = jnp.result_type(w1.dtype, w2.dtype)
    w1, w2, times, tau = w1.astype(dtype), w2.astype(dtype), times.astype(dtype), jnp.asarray(tau, dtype)
    tolerance = jnp.asarray(tolerance, dtype)
    task = (
        Task.from_correlation(data[2])
        if data[0] is None
        else Task(*data[:2], is_isotropic=is_isotropic, is_spanning=is_spanning)
    )
    status = jnp.where(are_sorted(times) & (tau > 0), OK, BAD_TIMES).astype(jnp.int32)
    w1t, target, clock = w1.T, task.sigma_yx.astype(dtype), times / tau
    if task.x is not None:
        sigma_xx, kappa = task.sigma_xx.astype(dtype), task.kappa.astype(dtype)
        target, clock = target / kappa, clock * kappa
        span = sigma_xx / kappa
        gap = jnp.linalg.norm(span @ span - span) / jnp.linalg.norm(span)
        is_white = gap <= max(isotropy_tolerance(dtype), isotropy_tolerance(task.x.dtype))
        status = jnp.where((status == OK) & ~is_white, NOT_WHITE, status)
        # The projector of inputs that span their space is the identity, up to the precision of the data.
        if not is_spanning:
            w1t = span @ w1t
            # What the inputs do not see leaves its rounding in what they do.
            whole, part = jnp.linalg.norm(w1), jnp.linalg.norm(w1t) + jnp.linalg.norm(w2)
            times_larger = jnp.clip(whole / jnp.maximum(part, jnp.finfo(dtype).tiny), 1, 1e12)
            tolerance = jnp.minimum(tolerance * times_larger, _LARGEST_TOLERANCE)
    seen, residual = read_balance(Network(w1t.T, w2), tolerance)
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
    if svd is None:
        u, s, vt = jnp.linalg.svd(after(target, q), full_matrices=False)
    else:
        u, s, vt = svd
    basis = task_basis(q[: w1t.shape[0]], q[w1t.shape[0] :], (u, s, vt), lam, tolerance)

    nan = jnp.where(status == OK, 0, jnp.nan).astype(dtype)
    # On CPU few charts and few times at once, few enough that their matrices stay in the cache.
    batch = max(1, entries // (n * hidden)) if jax.default_backend() == "cpu" else None
    starts = jnp.minimum(jnp.append(0, ends[:-1]), ends - 1)
    blocks = clock[starts], clock[ends - 1]
    charts = _each(lambda block: make_chart(basis, block[0], block[1], tolerance), blocks, batch)
    # Through the matrix that is factorized, NaN reaches every entry without another pass over them.
    charts = charts._replace(identity_gram=charts.identity_gram + nan)

    def chart_of(index):
        if len(ends) == 1:  # nothing to copy at every time
            return jax.tree.map(lambda leaf: leaf[0], charts)
        return jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, index, keepdims=False), charts)

    def factors_at(index, scales):
        if scales.busy is None or batch != 1 or entries != _ENTRIES:
            return factors(basis, chart_of(index), scales)
        # One large network, time by time: what has been learned need not be solved for again.
        few = max(1, basis.down.shape[1] // _SHARE_LEFT)
        return jax.lax.cond(
            (scales.busy <= few) & (status == OK),
            lambda: leading_factors(basis, chart_of(index), scales, few),
            lambda: factors(basis, chart_of(index), scales),
        )

    def at(step):
        time, index, scales = step
        g1, g2 = factors_at(index, scales)
        if observe is None:
            return g1, g2
        now = Trajectory(time[None], g1[None], g2[None], basis.v, basis.u, status, hidden)
        return jax.tree.map(lambda seen: seen[0], observe(now, task))

    count = clock.shape[0]
    index = jnp.searchsorted(ends, jnp.arange(count), side="right", method="compare_all")
    # All vectors first, for all times at once: only matrices are left for the loop over times.
    scales = jax.vmap(lambda time, index: scales_at(basis, chart_of(index), time))(clock, index)
    seen = _each(at, (times, index, scales), batch)
    if observe is not None:
        return seen
    g1, g2 = seen
    # A factorization that failed is NaN in every entry.
    status = jnp.where((status == OK) & ~jnp.isfinite(g1[:, 0, 0]).all(), FAILED, status)
    return Trajectory(times, g1, g2, basis.v, basis.u, status, hidden)


@partial(jax.jit, static_argnums=(9, 10, 11, 12))
def _solve_batch(w1, w2, data, svd, times, ends, tau, lam, tolerance, known, entries, observe, devices):
    """The solutions of many networks, the same number on each device."""
    rest = (data, svd, times, ends, tau, lam, tolerance)

    def solve(weights, rest):
        return _solve(*weights, *rest, known, entries, observe)

    if devices == 1:
        return jax.vmap(lambda *weights: solve(weights, rest))(w1, w2)

    group = None
    if jax.default_backend() == "cpu" and jax.__version_info__ < (0, 11, 2):
        hidden, n = w1.shape[1], w1.shape[2] + w2.shape[1]
        times_of_a_call = max(1, entries // (n * hidden))
        group = max(1, _WORK_OF_A_CALL // (hidden**2 * n * times_of_a_call))

    def share(weights, rest):
        return _each(lambda weights: solve(weights, rest), weights, group)

    members = w1.shape[0]
    # The last network is repeated until every device has as many.
    fill = np.minimum(np.arange(-(-members // devices) * devices), members - 1)
    mesh = jax.sharding.Mesh(np.array(jax.local_devices()[:devices]), ("members",))
    split, whole = jax.sharding.PartitionSpec("members"), jax.sharding.PartitionSpec()
    run = jax.shard_map(share, mesh=mesh, in_specs=(split, whole), out_specs=split, check_vma=False)
    return jax.tree.map(lambda seen: seen[:members], run((w1[fill], w2[fill]), rest))


def _devices_for(network: Network) -> int:
    """How many devices share a batch: all, or one if the batch is traced or was put on one."""
    w1 = network.w1
    if not is_concrete(w1, network.w2) or (w1.committed and len(w1.sharding.device_set) == 1):
        return 1
    return min(jax.local_device_count(), w1.shape[0])


def _each(function, values, batch: int | None):
    """``vmap`` in batches of equal size, at most that many at once; None for all."""
    count = len(jax.tree.leaves(values)[0])
    steps = 1 if batch is None else -(-count // batch)
    if steps == 1:
        return jax.vmap(function)(values)
    batch = -(-count // steps)
    # The last entry is repeated: a rest that fills no batch would be compiled a second time.
    fill = [*range(count), *[count - 1] * (steps * batch - count)]
    values = values if len(fill) == count else jax.tree.map(lambda x: x[np.array(fill)], values)
    results = jax.lax.map(function, values, batch_size=batch if batch > 1 else None)
    return jax.tree.map(lambda x: x[:count], results)


@np.errstate(over="ignore", invalid="ignore")
def _concrete_task(task: Task, dtype) -> tuple[tuple[np.ndarray, ...], np.ndarray | None, float]:
    """SVD of the target, projector on the inputs (None: identity) and their variance κ, the speed of time."""
    span, kappa = None, 1.0
    if task.x is None:
        target = np.asarray(task.correlation)
    else:
        x = np.asarray(task.x)
        sigma_xx = x @ x.T / x.shape[1]
        kappa = float(np.sum(sigma_xx**2) / np.trace(sigma_xx))
        target = np.asarray(task.y) @ x.T / (x.shape[1] * kappa)
        span = None if task.is_spanning else sigma_xx / kappa
    if np.isnan(target).any():
        raise ValueError("`task` must be finite, got NaN or infinite entries.")
    target = target.astype(dtype)
    if not math.isfinite(_norm2(target)):
        raise _too_large("task", target)
    return tuple(np.linalg.svd(target, full_matrices=False)), span, kappa


def _too_large(name: str, *parts) -> ValueError:
    largest = max(float(np.max(np.abs(part))) for part in parts)
    return ValueError(
        f"`{name}` is too large, with entries up to {largest:.3g}, whose products overflow "
        f"{parts[0].dtype}: rescale it."
    )


@np.errstate(over="ignore", invalid="ignore")
def _check_values(network: Network, span: np.ndarray | None, lam, tolerance: float) -> float:
    """Raise on weights that are not balanced; return their λ."""
    w1, w2 = np.asarray(network.w1), np.asarray(network.w2)
    w1 = w1 if span is None else w1 @ span
    for name, value in (("w1", w1), ("w2", w2)):
        if not np.isfinite(value).all():
            raise ValueError(f"`{name}` must be finite, got NaN or infinite entries.")
    # As in `fit_balance`: a power of two, so that fourth powers neither overflow nor vanish.
    unit = np.ldexp(w1.dtype.type(1), np.frexp(max(np.max(np.abs(w1)), np.max(np.abs(w2))))[1] - 1)
    square = np.float64(unit) ** 2
    w1, w2 = w1 / unit, w2 / unit
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
        # What `tolerance=1e-7` would allow.
        is_rounding = residual <= 1e-6 and w1.dtype == np.float64
        hint = (
            " If they once were float32, give them as such, or tell `exact_flow`: `tolerance=1e-7`."
            if is_rounding
            else ""
        )
        raise ValueError(
            f"`network` is not λ-balanced: the best λ is {square * seen:.6g} (tr(D)/n_hidden = "
            f"{square * np.trace(d) / len(d):.6g}) with relative residual {residual:.3g}, allowed "
            f"{bound:.0e}. The exact solution does not hold: use `linear.integrate_flow`, or draw weights "
            f"with `linear.lambda_balanced`.{hint}"
        )
    _warn_of_float32(w1 * unit, w2 * unit)
    seen, top = square * seen, square * top
    if lam is not None and abs(float(lam) - seen) > bound * max(1.0, top):
        raise ValueError(
            f"`lam` = {float(lam):.9g} contradicts the weights, which are balanced with λ = {seen:.9g}. "
            "Omit `lam`."
        )
    return seen


def _check_batch(network: Network, span: np.ndarray | None, lam, tolerance: float) -> float:
    """Raise on a batch with weights that are not balanced; return the largest |λ|."""
    bound = max(balance_tolerance(network.w1.dtype), 10 * tolerance)
    seen, residual = (np.asarray(each) for each in _balances(network, span))
    # In this form a NaN is suspicious, too. All suspects are asked one by one, which tells what is wrong.
    suspects = ~(residual <= bound) | (False if lam is None else ~(np.abs(seen - float(lam)) <= bound))
    if network.w1.dtype == np.float32:
        suspects[:] = True
    for index in np.flatnonzero(suspects):
        try:
            _check_values(jax.tree.map(operator.itemgetter(index), network), span, lam, tolerance)
        except ValueError as error:
            raise ValueError(f"Network {index} of the batch: {error}") from None
    return float(np.max(np.abs(seen)))


@jax.jit
@full_precision
def _balances(network: Network, span: np.ndarray | None):
    """λ and residual of every network of a batch."""
    w1 = network.w1 if span is None else network.w1 @ span
    return jax.vmap(lambda w1, w2: balance_residual(Network(w1, w2)))(w1, network.w2)


def _warn_of_float32(w1: np.ndarray, w2: np.ndarray) -> None:
    """Warn where single precision cannot hold a layer that is weak, or a mode of a network that is large.

    Rows below the rounding floor of ``task_basis`` count as zeros; late times are safe at any λ.
    """
    if np.result_type(w1, w2) != np.float32:
        return
    size = w1.shape[1] + w2.shape[0]
    weak, strong = sorted(float(np.sqrt(_norm2(w))) for w in (w1, w2))
    floor = rounding_floor(size, np.finfo(np.float32).eps, np.hypot(weak, strong))
    # Measured for sizes from 4 to 200 and λ from 0 to 1000: beyond these, early states lose their digits.
    if (
        0 < 0.3 * weak / np.sqrt(min(w1.shape)) < floor
        or rounding_floor(size, np.finfo(np.float32).eps, 1) > 1e-4
    ):
        warnings.warn(
            "In float32 the solution may be off by more than 1e-4 at early times: the weaker layer has norm "
            f"{weak:.3g}, and rounding, at a norm of {strong:.3g} of the other, reaches {floor:.1g}. "
            'Use float64: `jax.config.update("jax_enable_x64", True)`.',
            stacklevel=5,
        )


def _norm2(matrix: np.ndarray) -> float:
    return float(np.vdot(matrix, matrix))


def _share_under_trace(times: Array) -> np.ndarray | Array:
    """Ends of the groups that share a chart, for times that cannot be inspected; some may be empty."""
    count = times.shape[0]
    if count <= _CHARTS_UNDER_TRACE:
        return np.arange(1, count + 1)
    shares = jnp.asarray(_RATIO ** -np.arange(_CHARTS_UNDER_TRACE - 1.0, 0.0, -1.0), times.dtype)
    return jnp.append(jnp.searchsorted(times, times[-1] * shares).astype(int), count)


def _share_charts(times: np.ndarray, window: float) -> np.ndarray:
    """Ends of the fewest groups of sorted times such that one chart serves each group."""
    ends = [len(times)]
    while (last := times[ends[0] - 1]) > window and (first := int(np.searchsorted(times, last / _RATIO))) > 0:
        ends.insert(0, first)
    # Rounded up to a power of two by groups that are empty: few sizes, few compilations.
    return np.array([ends[0]] * (2 ** math.ceil(math.log2(len(ends))) - len(ends)) + ends)
