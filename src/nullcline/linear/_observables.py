r"""What one measures along training: loss, tangent kernel, similarity matrices, task specificity.

Everything is taken of the factors of a trajectory in the basis of the task; the Kronecker products of the
tangent kernel are formed only by ``ntk``. A ``Network`` may take the place of a trajectory: results then have
no axis of times. Of a batch of trajectories (``vmap``) the results have the axes of the batch in front.
"""

import math
from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._checks import require_nonnegative, require_positive
from .._order import after
from .._precision import full_precision
from ._exact import check_fit
from ._network import Network
from ._task import Task, require_task
from ._trajectory import Trajectory


class Similarity(NamedTuple):
    """Representational similarity of samples, of the input and of the output representation."""

    inputs: Float[Array, "*time samples samples"]
    outputs: Float[Array, "*time samples samples"]


class Specificity(NamedTuple):
    """Task-specific scores of the input and of the output representation."""

    inputs: Float[Array, "*time"]
    outputs: Float[Array, "*time"]


class _Factors(NamedTuple):
    g1: Array
    g2: Array
    v: Array | None
    u: Array | None


def _factors(state: Trajectory | Network, task: Task) -> _Factors:
    require_task("task", task)
    if not isinstance(state, Trajectory | Network):
        raise ValueError(
            f"The state must be a `linear.Trajectory` or a `linear.Network`, got a {type(state).__name__}. "
            "A `LoraFlow` has a `.loss` of its own, a `Sequence` its `.losses` and `.stages`; maps have "
            "`linear.function_loss`."
        )
    factors = (
        _Factors(jnp.swapaxes(state.w1, -1, -2), state.w2, None, None)
        if isinstance(state, Network)
        else _Factors(state.g1, state.g2, state.v, state.u)
    )
    sizes = tuple(
        (g if b is None else b).shape[-2] for g, b in ((factors.g1, factors.v), (factors.g2, factors.u))
    )
    if sizes != (task.n_in, task.n_out):
        raise ValueError(
            f"The state maps {sizes[0]} inputs to {sizes[1]} outputs, but `task` has {task.n_in} inputs and "
            f"{task.n_out} outputs."
        )
    return factors


def _t(matrix: Array) -> Array:
    return jnp.swapaxes(matrix, -1, -2)


def _in_basis(basis: Array | None, matrix: Array) -> Array:
    """Coordinates of the columns of ``matrix``."""
    return matrix if basis is None else basis.T @ matrix


def _grow(matrix: Array, like: Array) -> Array:
    """``matrix`` with axes of size one in front, to meet a stack of matrices."""
    return matrix.reshape((1,) * (like.ndim - matrix.ndim) + matrix.shape)


def _on_span(g1: Array, v: Array | None, task: Task) -> Array:
    """The factor of the first layer as isotropic inputs see it."""
    if task.is_spanning:
        return g1
    return _grow(_in_basis(v, task.span if v is None else task.span @ v), g1) @ g1


_Observable = TypeVar("_Observable", bound=Callable)


def _over_batch(observe: _Observable) -> _Observable:
    """Let an observable take a batch of trajectories, as ``vmap`` returns it: one result for each."""
    name = next(iter(signature(observe).parameters))

    @wraps(observe)
    def each(*args: Any, **options: Any) -> Any:
        if name in options:  # a batch must not pass for one trajectory because it is named
            args = (options.pop(name), *args)
        if args and isinstance(args[0], Trajectory) and args[0].status.ndim > 0:
            return jax.vmap(lambda one: each(one, *args[1:], **options))(args[0])
        return observe(*args, **options)

    return cast(_Observable, each)


@_over_batch
@full_precision
def loss(state: Trajectory | Network, task: Task, *, excess: bool = False) -> Float[Array, "*time"]:
    r"""Loss :math:`\|W_2W_1X - Y\|_F^2/(2P)` at each time.

    Parameters
    ----------
    state
        A trajectory, trained on this task or on another one, or a network.
    task
        The task whose loss is asked for.
    excess
        Without the irreducible part: :math:`\frac\kappa2\|W_2W_1 - \Sigma_{yx}/\kappa\|_F^2` on the span of
        isotropic inputs.
    """
    g1, g2, v, u = _factors(state, task)
    if task.is_isotropic:
        g1 = _on_span(g1, v, task)
        target = _t(_in_basis(v, _t(_in_basis(u, task.target))))
        gap = g2 @ _t(g1) - _grow(target, g1)
        learned = 0.5 * task.kappa * jnp.sum(gap**2, axis=(-2, -1))
        return learned if excess else learned + task.constant
    if excess:
        raise ValueError("`excess` needs a task that is known to have isotropic inputs; see `linear.whiten`.")
    x, y = task.data
    gap = g2 @ (_t(g1) @ _grow(_in_basis(v, x), g1)) - _grow(_in_basis(u, y), g1)
    return 0.5 * jnp.sum(gap**2, axis=(-2, -1)) / x.shape[1]


def ntk(
    state: Trajectory | Network, task: Task, *, max_bytes: int = 2**30
) -> Float[Array, "*time kernel kernel"]:
    r"""Neural tangent kernel on the samples, :math:`I \otimes X^\top C X + B \otimes X^\top X`.

    Rows and columns run over (output, sample), output-major, with :math:`C = W_1^\top W_1`,
    :math:`B = W_2W_2^\top`. It is :math:`JJ^\top` with :math:`J = \partial \hat Y/\partial\theta` (erratum to
    anguita2024, equations 2.32-2.36), and has :math:`(N_oP)^2` entries at each time.

    Parameters
    ----------
    state
        A trajectory or a network.
    task
        A task with samples.
    max_bytes
        Largest kernels to form, all times and networks of a batch together. ``ntk_distance`` and
        ``ntk_inner`` never form them.
    """
    g1 = _factors(state, task).g1
    max_bytes = require_positive("max_bytes", max_bytes)
    samples, outputs = task.data[0].shape[1], task.n_out
    count = math.prod(g1.shape[:-2])
    size = count * (samples * outputs) ** 2 * g1.dtype.itemsize
    if size > max_bytes:
        raise ValueError(
            f"The kernel of {outputs} outputs and {samples} samples at {count} times and networks takes "
            f"{size / 2**30:.3g} GiB, over `max_bytes` = {max_bytes}. Use `linear.ntk_distance` or "
            "`linear.ntk_inner`, which never form it, or ask for fewer times."
        )
    return _ntk(state, task)


@_over_batch
@full_precision
def _ntk(state: Trajectory | Network, task: Task) -> Array:
    g1, g2, v, u = _factors(state, task)
    x, _ = task.data
    samples, outputs = x.shape[1], task.n_out
    hidden = _t(g1) @ _grow(_in_basis(v, x), g1)
    w2 = g2 if u is None else _grow(u, g2) @ g2
    inner, outer = _t(hidden) @ hidden, w2 @ _t(w2)
    identity = jnp.eye(outputs, dtype=inner.dtype)
    kernel = jnp.einsum("ab,...pq->...apbq", identity, inner) + jnp.einsum(
        "...ab,pq->...apbq", outer, x.T @ x
    )
    return kernel.reshape(*kernel.shape[:-4], samples * outputs, samples * outputs)


def _kernel_parts(factors: _Factors, task: Task) -> tuple[Array, Array, Array, Array, Array]:
    """Factors of C and ΞC, of B, tr(CΞ²) and tr Ξ², in units in which white inputs have Ξ = I."""
    g1, g2, v, _ = factors
    if task.is_isotropic and task.is_spanning:
        seen, square = g1, jnp.asarray(task.n_in, g1.dtype)
    else:
        sigma = task.sigma_xx / task.kappa
        seen = _grow(_in_basis(v, sigma if v is None else sigma @ v), g1) @ g1
        square = jnp.sum(sigma**2)
    return g1, seen, g2, jnp.sum(seen**2, axis=(-2, -1)), square


def _inner(first, second, outputs: int) -> Array:
    g1, _, g2, trace1, square = first
    _, seen, h2, trace2, _ = second
    trace_b1, trace_b2 = (jnp.sum(b**2, axis=(-2, -1)) for b in (g2, h2))
    return (
        outputs * jnp.sum((_t(g1) @ seen) ** 2, axis=(-2, -1))
        + trace_b1 * trace2
        + trace_b2 * trace1
        + square * jnp.sum((_t(g2) @ h2) ** 2, axis=(-2, -1))
    )


def _rescale(factors: _Factors) -> _Factors:
    """The same directions at unit size: kernels are of second order in the weights, their norms of eighth."""
    size = jnp.maximum(*(jnp.max(jnp.abs(g), axis=(-2, -1), keepdims=True) for g in factors[:2]))
    size = jax.lax.stop_gradient(size)
    return factors._replace(g1=factors.g1 / size, g2=factors.g2 / size)


@full_precision
def ntk_inner(first: Network, second: Network, task: Task) -> Float[Array, ""]:
    r"""Inner product :math:`\langle K_1, K_2\rangle` of two tangent kernels, without forming them.

    :math:`P^2[N_o\,\mathrm{tr}(C_1ΞC_2Ξ) + \mathrm{tr}B_1\,\mathrm{tr}(C_2Ξ^2)
    + \mathrm{tr}B_2\,\mathrm{tr}(C_1Ξ^2) + \mathrm{tr}(B_1B_2)\,\mathrm{tr}Ξ^2]` with
    :math:`Ξ = XX^\top/P`.
    """
    for name, network in (("first", first), ("second", second)):
        if not isinstance(network, Network):
            raise ValueError(
                f"`{name}` must be a `linear.Network`, got a {type(network).__name__}: take a state of a "
                "trajectory by `.network_at(index)`."
            )
    one, two = (_kernel_parts(_factors(network, task), task) for network in (first, second))
    return (task.data[0].shape[1] * task.kappa) ** 2 * _inner(one, two, task.n_out)


@_over_batch
@full_precision
def ntk_distance(
    trajectory: Trajectory, task: Task, *, start: Network | None = None
) -> Float[Array, " time"]:
    r"""Kernel distance from the start, :math:`S(t) = 1 - \langle K_0, K_t\rangle/(\|K_0\|\|K_t\|)`.

    0 for a lazy network, whose tangent kernel keeps its direction. On whitened inputs it depends on the
    weights alone; samples are not needed. A network of zero weights has no kernel: distances are NaN.

    Parameters
    ----------
    trajectory
        A trajectory.
    task
        The task whose inputs the kernel is taken on.
    start
        The network whose kernel is the reference; by default the state at ``times[0]``.
    """
    factors = _factors(trajectory, task)
    if isinstance(trajectory, Network):
        raise ValueError(
            "`trajectory` must be a `linear.Trajectory`, got a network, which has no times: give it to "
            "`linear.exact_flow`, or compare two networks by `linear.ntk_inner`."
        )
    g1, g2, v, u = factors
    if start is not None:
        check_fit(start, task, name="start")
        g1, g2 = _in_basis(v, start.w1.T)[None], _in_basis(u, start.w2)[None]
    elif g1.shape[0] == 1:
        raise ValueError(
            "`trajectory` has one time only, and its distance from itself is 0. Ask for more times, or name "
            "the network to compare with: `start=network`."
        )
    now = _kernel_parts(_rescale(factors), task)
    start_parts = _kernel_parts(_rescale(factors._replace(g1=g1[:1], g2=g2[:1])), task)
    cross, norm = _inner(start_parts, now, task.n_out), _inner(now, now, task.n_out)
    first = norm[:1] if start is None else _inner(start_parts, start_parts, task.n_out)
    return 1 - cross / jnp.sqrt(first * norm)


@_over_batch
@full_precision
def rsm(state: Trajectory | Network, task: Task, *, cutoff: float = 1e-10) -> Similarity:
    r"""Representational similarity matrices :math:`X^\top W_1^\top W_1X` and :math:`Y^\top(W_2W_2^\top)^+Y`.

    Parameters
    ----------
    state
        A trajectory or a network.
    task
        A task with samples.
    cutoff
        Eigenvalues of :math:`W_2W_2^\top` below this share of the largest count as zero in its inverse.
    """
    g1, g2, v, u = _factors(state, task)
    cutoff = require_nonnegative("cutoff", cutoff)
    if not cutoff < 1:
        raise ValueError(f"`cutoff` must be a share from 0 to below 1, got {cutoff}.")
    x, y = task.data
    hidden = _t(g1) @ _grow(_in_basis(v, x), g1)
    back = jnp.linalg.pinv(g2, rtol=cutoff**0.5) @ _grow(_in_basis(u, y), g2)
    return Similarity(_t(hidden) @ hidden, _t(back) @ back)


@_over_batch
@full_precision
def task_specific_score(state: Trajectory | Network, task: Task) -> Specificity:
    r"""How much the representations are those of the task, 1 at most.

    With the SVD :math:`USV^\top` of the target: the larger Frobenius cosine of :math:`W_1^\top W_1` with
    :math:`VSV^\top` and :math:`VS^2V^\top`, and likewise of :math:`W_2W_2^\top` with :math:`USU^\top` and
    :math:`US^2U^\top`. NaN for a target or a layer of zeros, which has no direction. Of isotropic inputs
    that span a subspace only, :math:`W_1` counts as they see it.
    """
    g1, g2, v, u = _factors(state, task)
    if task.is_isotropic:
        g1 = _on_span(g1, v, task)
    left, s, right = jnp.linalg.svd(after(task.target, g1), full_matrices=False)

    def score(g, basis, vectors):
        modes = jnp.sum((_grow(_in_basis(basis, vectors).T, g) @ g) ** 2, axis=-1)
        size = jnp.sqrt(jnp.sum((_t(g) @ g) ** 2, axis=(-2, -1)))
        powers = [p / jnp.linalg.norm(p) for p in (s, s**2)]
        return jnp.maximum(*((modes @ p) / size for p in powers))

    return Specificity(score(g1, v, right.T), score(g2, u, left))
