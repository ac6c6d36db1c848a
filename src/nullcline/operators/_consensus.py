"""Consensus of an operator over some axes: three things of this name (hazelden2025 B.3, erratum)."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .._checks import require_integer
from . import _kernels
from ._operator import DENSE_LIMIT, AbstractOperator, check_finite, square_root, whitened_mv
from ._parameter import ParameterOperator
from ._propagator import Propagator
from ._spectrum import Spectrum
from ._symmetric import descending, eigenvalues, gram_of_smaller_side, is_on_host

AXES = ("batch", "time", "hidden")
KINDS = ("trace", "gram", "duplicate")
_EXACT_FLOPS = 2e11
"""Largest number of operations spent on an exact consensus of P before random probes take over."""


class Consensus(eqx.Module):
    """An operator reduced to some of its axes.

    Attributes
    ----------
    standard_error
        Of each entry of the matrix, if it was estimated, else None.
    kind, over, keep
        What was computed, the axes removed, and the axes kept.
    method
        ``"kernel"`` (closed form), ``"recursion"``, ``"dense"``, ``"columns"``, all exact, or ``"probes"``,
        an estimate.
    """

    whole: Array | None
    factor: Array | None
    standard_error: Array | None
    kind: str = eqx.field(static=True)
    over: tuple[str, ...] = eqx.field(static=True)
    keep: tuple[str, ...] = eqx.field(static=True)
    method: str = eqx.field(static=True)
    has_eigenvalues: bool = eqx.field(static=True)

    @property
    def matrix(self) -> Float[Array, "kept kept"]:
        """The matrix on the kept axes (for ``"gram"`` that of W W*), in Euclidean coordinates."""
        if self.whole is not None:
            return self.whole
        assert self.factor is not None
        return self.factor @ self.factor.T

    @property
    def values(self) -> Float[Array, " kept"]:
        """Spectrum, largest first: eigenvalues of a positive semi-definite matrix, else singular values."""
        given = self.factor if self.whole is None else self.whole
        assert given is not None
        values = _values(self) if is_on_host(given) else _compiled_values(self)
        check_finite(values, given.dtype)
        return values

    def modes(self, k: int) -> Float[Array, "k kept"]:
        """The first k modes, as unit vectors on the kept axes."""
        size = self.matrix.shape[0]
        require_integer("k", k, 1, size)
        if self.kind == "duplicate" and not self.has_eigenvalues:
            return jnp.linalg.svd(self.matrix)[0][:, :k].T
        return jnp.linalg.eigh(self.matrix)[1][:, ::-1][:, :k].T

    def top(self, k: int, *, tolerance: int | float | None = None) -> Spectrum:
        """The k largest values with the total of all: much cheaper than ``values`` for a few of many.

        Parameters
        ----------
        k
            How many.
        tolerance
            Largest residual of a mode, as a share of the largest value; by default 1e-8 (1e-4 in float32).
            Where a random space of a few times k vectors does not reach it, all values are computed.
        """
        whole = self.factor if self.whole is None else self.whole
        assert whole is not None
        size = len(whole)
        require_integer("k", k, 1, size)
        if self.kind == "duplicate" and not self.has_eigenvalues:
            raise ValueError("`top` needs a positive semi-definite consensus; use `values` for a duplicate.")
        if tolerance is None:
            tolerance = 1e-8 if whole.dtype == jnp.float64 else 1e-4
        values, residuals = self._few(k, tolerance)
        values = self.values[:k] if values is None else values
        total = jnp.sum(whole**2) if self.whole is None else jnp.trace(whole)
        kind = "singular values" if self.kind == "gram" else "eigenvalues"
        method = "dense" if residuals is None else "krylov"
        return Spectrum(values, None, residuals, total, np.ones(k, bool), method, kind, False, size)

    def _few(self, k: int, tolerance: int | float) -> tuple[Array | None, Array | None]:
        if self.whole is None:
            return None, None  # the small side of the factor has them all
        for blocks in (2, 5):
            if len(self.whole) > 2 * blocks * (k + 20):
                squares, residuals = _largest(self.whole, k, blocks)
                if bool(jnp.all(residuals <= tolerance)):
                    squares = jnp.clip(squares, 0, None)
                    return jnp.sqrt(squares) if self.kind == "gram" else squares, residuals
        return None, None


@functools.partial(jax.jit, static_argnums=(1, 2))
def _largest(matrix: Array, k: int, count: int) -> tuple[Array, Array]:
    """The largest eigenvalues by a Krylov space of some blocks, and residuals as shares of the largest."""
    block = jnp.linalg.qr(matrix @ jr.normal(jr.key(0), (len(matrix), k + 20), matrix.dtype))[0]
    basis, product = block, matrix @ block
    for _ in range(count - 1):
        block = product[:, -block.shape[1] :]
        for _ in range(2):  # the second time for what rounding, or a lost rank, has left of the basis
            block = jnp.linalg.qr(block - basis @ (basis.T @ block))[0]
        basis = jnp.concatenate([basis, block], axis=1)
        product = jnp.concatenate([product, matrix @ block], axis=1)
    small = basis.T @ product
    values, vectors = jnp.linalg.eigh((small + small.T) / 2)
    values, vectors = values[::-1][:k], vectors[:, ::-1][:, :k]
    residuals = jnp.linalg.norm(product @ vectors - (basis @ vectors) * values[None, :], axis=0)
    return values, residuals / jnp.maximum(values[0], jnp.finfo(values.dtype).tiny)


def _values(consensus: Consensus) -> Array:
    if consensus.kind == "duplicate" and not consensus.has_eigenvalues:
        return jnp.linalg.svd(consensus.matrix, compute_uv=False)
    if consensus.factor is not None:
        found, size = eigenvalues(gram_of_smaller_side(consensus.factor)), len(consensus.factor)
    else:
        found, size = eigenvalues(consensus.matrix), len(consensus.matrix)
    values = descending(found, size)
    return jnp.sqrt(values) if consensus.kind == "gram" else values


_compiled_values = eqx.filter_jit(_values)


def consensus(
    operator: AbstractOperator,
    over: Sequence[str] = ("hidden",),
    kind: str | None = None,
    *,
    probes: int = 64,
    key: PRNGKeyArray | None = None,
) -> Consensus:
    r"""Reduce an operator to the axes that are not in ``over``.

    Three different reductions carry the name; N is the size of the axes removed:

    - ``"trace"``: the partial trace :math:`Tr_A(W)/N`, for positive semi-definite W (their default);
    - ``"gram"``: square roots of the eigenvalues of :math:`Tr_A(W W^*)/N`, for any W (the default of others);
    - ``"duplicate"``: the mean over A of W applied to copies along A, the document's own. It sees only
      vectors that are constant along A and depends on the basis and the signs of the hidden units; the
      others do not.

    The three agree for operators :math:`w \otimes I`. For K of unit-local cells over hidden units
    ``"duplicate"`` equals ``"trace"``.

    Parameters
    ----------
    operator
        An operator from trajectories to trajectories.
    over
        Some but not all of ``"batch"``, ``"time"``, ``"hidden"``.
    kind
        Which reduction.
    probes, key
        Beyond what can be computed exactly: number of random trajectories of the estimate, and its random
        key (a fixed one by default).
    """
    over = (over,) if isinstance(over, str) else tuple(over)
    unknown = [axis for axis in over if axis not in AXES]
    if unknown or not over or len(set(over)) != len(over) or len(over) == len(AXES):
        raise ValueError(f"`over` must be some but not all of {AXES}, each once, got {over}.")
    kind = ("trace" if operator.is_psd else "gram") if kind is None else kind
    if kind not in KINDS:
        raise ValueError(f"`kind` must be one of {KINDS}, got {kind!r}.")
    if kind == "trace" and not operator.is_psd:
        raise ValueError(
            "`kind='trace'` needs an operator known to be positive semi-definite; "
            f"{type(operator).__name__} is not marked "
            "so. Use `kind='gram'`."
        )
    from_space, to_space = operator.in_space, operator.out_space
    if from_space.shape != to_space.shape or from_space.kind == "parameters":
        raise ValueError(
            "A consensus needs an operator from trajectories to the same trajectories, got "
            f"{from_space.shape} to {to_space.shape}."
        )
    over = tuple(axis for axis in AXES if axis in over)
    keep = tuple(axis for axis in AXES if axis not in over)
    shape = to_space.shape
    kept = math.prod(shape[AXES.index(axis)] for axis in keep)

    def result(method, whole=None, factor=None, error=None):
        return Consensus(whole, factor, error, kind, over, keep, method, operator.is_psd and kind != "gram")

    if isinstance(operator, ParameterOperator) and kind == "trace" and "hidden" in over:
        form = _kernels.factored(operator)
        if form is not None:
            if form.is_uniform and over == ("hidden",):
                return result("kernel", factor=_kernels.kernel_factor(form))
            return result("kernel", _reduce_kernel(_kernels.kernel(form), shape[:2], over))
    if to_space.size <= DENSE_LIMIT:
        return result("dense", _reduce_dense(operator.whitened(), shape, over, kind))
    if kept > 2 * DENSE_LIMIT:
        raise ValueError(
            f"The kept axes {keep} have size {kept}, beyond the limit of {2 * DENSE_LIMIT} for a matrix: "
            "reduce over more axes."
        )
    if kind == "duplicate":
        return result("columns", _duplicate(operator, over))
    if isinstance(operator, Propagator) and not operator.is_inverse and kind == "gram":
        batch, time, size = shape
        if keep == ("hidden",) and batch * time * 4.0 * size**3 <= _EXACT_FLOPS:
            return result("recursion", _hidden_recursion(operator))
        if keep == ("time",) and batch * time**2 * 6.0 * size**3 <= _EXACT_FLOPS:
            return result("recursion", _time_recursion(operator))
    require_integer("probes", probes, 2)
    mean, error = _probe(operator, over, kind, jr.split(jr.key(0) if key is None else key, probes))
    return result("probes", mean, error=error)


def _letters(over: tuple[str, ...]) -> tuple[str, str, str]:
    row, column = "bth", "BTH"
    for i, axis in enumerate(AXES):
        if axis in over:
            column = column[:i] + row[i] + column[i + 1 :]
    kept = [i for i, axis in enumerate(AXES) if axis not in over]
    return row, column, "".join(row[i] for i in kept) + "".join(column[i] for i in kept)


def _removed(shape: tuple[int, ...], over: tuple[str, ...]) -> int:
    return math.prod(size for size, axis in zip(shape, AXES, strict=True) if axis in over)


def _square(array: Array) -> Array:
    side = math.isqrt(array.size)
    return array.reshape(side, side)


def _reduce_kernel(kernel: Array, shape: tuple[int, ...], over: tuple[str, ...]) -> Array:
    if over == ("hidden",):
        return kernel
    batch, time = shape
    four = kernel.reshape(batch, time, batch, time)
    if "batch" in over:
        return jnp.einsum("btbu->tu", four) / batch
    return jnp.einsum("btct->bc", four) / time


@eqx.filter_jit
def _reduce_dense(matrix: Array, shape: tuple[int, ...], over: tuple[str, ...], kind: str) -> Array:
    if kind == "gram":
        matrix = matrix @ matrix.T
    six = matrix.reshape(*shape, *shape)
    if kind == "duplicate":
        removed = tuple(i for i, axis in enumerate(AXES) if axis in over)
        return _square(jnp.sum(six, axis=removed + tuple(i + 3 for i in removed))) / _removed(shape, over)
    row, column, out = _letters(over)
    return _square(jnp.einsum(f"{row}{column}->{out}", six)) / _removed(shape, over)


@eqx.filter_jit
def _duplicate(operator: AbstractOperator, over: tuple[str, ...]) -> Array:
    shape = operator.out_space.shape
    removed = tuple(i for i, axis in enumerate(AXES) if axis in over)
    small = tuple(1 if i in removed else size for i, size in enumerate(shape))

    def column(v):
        q = jnp.broadcast_to(v.reshape(small), shape)
        return jnp.sum(whitened_mv(operator, q.reshape(-1)).reshape(shape), axis=removed).reshape(-1)

    count = math.prod(small)
    eye = jnp.eye(count, dtype=operator.out_space.dtype)
    return jax.lax.map(column, eye, batch_size=min(8, count)).T / _removed(shape, over)


@eqx.filter_jit
def _hidden_recursion(operator: Propagator) -> Array:
    r"""Mean over trials and times of :math:`C_t = J_t C_{t-1} J_t^T + I`."""
    flow = operator.flow
    size = flow.states.shape[2]
    eye = jnp.eye(size, dtype=flow.states.dtype)

    def step(carry, now):
        c, total = carry
        c = _sandwich(flow, now, c) + eye[None]
        return (c, total + jnp.sum(c, axis=0)), None

    moving = (jnp.swapaxes(flow.states_before, 0, 1), jnp.swapaxes(flow.inputs, 0, 1))
    zero = jnp.zeros((flow.states.shape[0], size, size), flow.states.dtype)
    total = jax.lax.scan(step, (zero, jnp.zeros_like(eye)), moving)[0][1]
    return total / math.prod(flow.states.shape[:2])


def push(flow: Any, now: tuple[Array, Array], columns: Array) -> Array:
    """J_t X for a matrix X (trial, hidden, columns) per trial, by forward differentiation."""

    def one(z, x, matrix):
        _, jvp = jax.linearize(lambda z: flow.model.step({}, z, x), z)
        return jax.vmap(jvp, 1, 1)(matrix)

    return jax.vmap(one)(*now, columns)


def _sandwich(flow: Any, now: tuple[Array, Array], c: Array) -> Array:
    half = push(flow, now, c)
    return push(flow, now, jnp.swapaxes(half, 1, 2))


@eqx.filter_jit
def _time_recursion(operator: Propagator) -> Array:
    r"""Exact :math:`G_{ts} = tr(\Phi(t,s) C_s)/(B S)` for :math:`t \ge s`, one scan per s."""
    flow = operator.flow
    batch, time, size = flow.states.shape
    eye = jnp.eye(size, dtype=flow.states.dtype)
    moving = (jnp.swapaxes(flow.states_before, 0, 1), jnp.swapaxes(flow.inputs, 0, 1), jnp.arange(time))

    def column(s):
        def step(carry, now):
            c, phi = carry
            *now, t = now
            c = jnp.where(t <= s, _sandwich(flow, tuple(now), c) + eye[None], c)
            phi = jnp.where(t <= s, c, push(flow, tuple(now), phi))
            return (c, phi), jnp.where(t >= s, jnp.einsum("bii->", phi), 0)

        zero = jnp.zeros((batch, size, size), flow.states.dtype)
        return jax.lax.scan(step, (zero, zero), moving)[1]

    lower = jax.lax.map(column, jnp.arange(time)).T / (batch * size)
    return lower + jnp.tril(lower, -1).T


@eqx.filter_jit
def _probe(operator: AbstractOperator, over: tuple[str, ...], kind: str, keys: Array) -> tuple[Array, Array]:
    """Mean of r r^T with r = F q, or of (W q) q^T where no factor F is known; and its standard error."""
    shape = operator.out_space.shape
    root = operator if kind == "gram" else square_root(operator)
    row, column, out = _letters(over)
    count = len(keys)

    def one(carry, key):
        q = jr.normal(key, ((root or operator).in_space.size,), operator.out_space.dtype)
        r = whitened_mv(root or operator, q).reshape(shape)
        other = r if root is not None else q.reshape(shape)
        sample = _square(jnp.einsum(f"{row},{column}->{out}", r, other)) / _removed(shape, over)
        sample = (sample + sample.T) / 2
        total, squares = carry
        return (total + sample, squares + sample**2), None

    side = math.prod(size for size, axis in zip(shape, AXES, strict=True) if axis not in over)
    zero = jnp.zeros((side, side), operator.out_space.dtype)
    (total, squares), _ = jax.lax.scan(one, (zero, zero), keys)
    mean = total / count
    variance = jnp.clip(squares / count - mean**2, 0, None) / (count - 1)
    return mean, jnp.sqrt(variance)


def mode_share(
    consensus: Consensus,
    q: Float[Array, "batch time hidden"],
    k: int,
    *,
    weights: Float[Array, " batch"] | None = None,
) -> Float[Array, " k"]:
    """Share of a trajectory's squared norm in each of the first k modes over (batch, time).

    Parameters
    ----------
    consensus
        A consensus over ``("hidden",)``.
    q
        A trajectory; of nonzero norm.
    k
        How many modes.
    weights
        Trial weights of the flow; equal by default.
    """
    if consensus.keep != ("batch", "time"):
        raise ValueError(f"`consensus` must keep batch and time, got one that keeps {consensus.keep}.")
    if q.shape[0] * q.shape[1] != consensus.matrix.shape[0]:
        raise ValueError(
            f"`q` has {q.shape[0]} x {q.shape[1]} rows, the consensus {consensus.matrix.shape[0]}."
        )
    root = jnp.full(len(q), 1 / np.sqrt(len(q)), q.dtype) if weights is None else jnp.sqrt(weights)
    white = (root[:, None, None] * q).reshape(-1, q.shape[2])
    total = jnp.sum(white**2)
    if not float(total) > 0:
        raise ValueError("`q` is zero: its share in a mode is not defined.")
    return jnp.sum((consensus.modes(k) @ white) ** 2, axis=1) / total
