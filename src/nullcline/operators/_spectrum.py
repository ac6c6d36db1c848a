"""Spectra of operators: exact by factorisation or dense where possible, else matrix-free."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .._checks import require_integer
from ..measures import participation_ratio
from . import _kernels
from ._krylov import Krylov, TrialKrylov, expand, expand_trials, start_block
from ._operator import (
    DENSE_LIMIT,
    AbstractOperator,
    check_finite,
    check_values,
    is_printable,
    square_root,
    whitened_mv,
    whitened_rmv,
)
from ._parameter import ParameterOperator
from ._propagator import acts_by_trial
from ._symmetric import eigenvalues

METHODS = ("auto", "units", "dense", "krylov")


class Spectrum(eqx.Module):
    """Eigenvalues of a positive semi-definite operator, or singular values of any other, largest first.

    Attributes
    ----------
    values
        The largest values, or all of them.
    modes
        Unit trajectories, one per value (eigenvectors, or left singular vectors); None where not asked for.
    residuals
        Norm of W v - value u for each mode, as a share of the largest value; None without modes.
    total
        Sum of all eigenvalues, or of all squared singular values; None where not known exactly.
    method
        ``"units"`` (factored exactly, unit by unit), ``"dense"`` (exactly, from a matrix) or ``"krylov"``
        (matrix-free).
    kind
        ``"eigenvalues"`` or ``"singular values"``.
    is_complete
        Whether ``values`` hold every nonzero value; there are ``dimension`` in all.
    is_converged
        For each value, whether its residual is below the tolerance asked for.
    """

    values: Float[Array, " modes"]
    modes: Array | None
    residuals: Float[Array, " modes"] | None
    total: Array | None
    is_converged: np.ndarray
    method: str = eqx.field(static=True)
    kind: str = eqx.field(static=True)
    is_complete: bool = eqx.field(static=True)
    dimension: int = eqx.field(static=True)

    def __repr__(self) -> str:
        if not is_printable(self.values, 1):
            return eqx.tree_pformat(vars(self))
        first, last = float(self.values[0]), float(self.values[-1])
        residual = "" if self.residuals is None else f", residuals up to {float(self.residuals.max()):.1e}"
        late = int(np.sum(~np.asarray(self.is_converged)))
        return (
            f"Spectrum({len(self.values)} of {self.dimension} {self.kind}, {first:.4g} to {last:.4g}, "
            f"method={self.method!r}{residual}{f', {late} not converged' if late else ''})"
        )

    @property
    def participation_ratio(self) -> Array:
        """Participation ratio of the eigenvalues or squared singular values, all of which are needed."""
        if not self.is_complete:
            raise ValueError(
                f"The participation ratio needs the whole spectrum, this one has {len(self.values)} of "
                f"{self.dimension} "
                "values. Call `spectrum` without `k`."
            )
        v = self.values if self.kind == "eigenvalues" else self.values**2
        return participation_ratio(v)


def spectrum(
    operator: AbstractOperator,
    k: int | None = None,
    *,
    method: str = "auto",
    with_modes: bool | None = None,
    tolerance: int | float | None = None,
    max_basis: int | None = None,
    block: int | None = None,
    key: PRNGKeyArray | None = None,
) -> Spectrum:
    """The largest eigenvalues of a positive semi-definite operator, or singular values of any other.

    Parameters
    ----------
    operator
        K, P, or anything made of them.
    k
        How many; all by default, which needs an exact method.
    method
        ``"units"`` for K of cells whose units own their weights, ``"dense"`` up to 5000 rows (or parameters),
        ``"krylov"`` for anything. ``"auto"`` takes the first that applies. A single-vector Krylov space
        cannot see multiplicities, and every eigenvalue of K for a rate network has multiplicity ``hidden``.
    with_modes
        Whether to return the modes and their residuals; by default where ``k`` is given.
    tolerance
        Krylov only: largest residual, as a share of the largest value; by default 1e-8 (1e-3 in float32).
    max_basis
        Krylov only: at most so many vectors are kept; ``4 k + 30`` by default.
    block
        Krylov only: how many vectors at a time: at least the multiplicity expected. By default k for K
        itself, one per trial for P and what else never mixes trials, 4 for other positive semi-definite
        operators and 1 for the rest.
    key
        Krylov only: for the random start; a fixed one by default.
    """
    check_values(operator, "spectrum")
    space = operator.out_space
    dimension = min(space.size, operator.in_space.size)
    if method not in METHODS:
        raise ValueError(f"`method` must be one of {METHODS}, got {method!r}.")
    if k is not None:
        require_integer("k", k, 1, dimension, "the dimension")
    with_modes = k is not None if with_modes is None else with_modes
    if with_modes and k is None:
        raise ValueError(
            "Modes of a whole spectrum are a dense matrix: give `k`, or use `operator.whitened()`."
        )
    if isinstance(operator, ParameterOperator) and method in ("auto", "units"):
        form = _kernels.factored(operator)
        if form is not None:
            return _by_units(operator, form, k, with_modes, dimension)
    if method == "units":
        raise ValueError(
            "`method='units'` needs K of a cell whose units own their weights; use 'dense' or 'krylov'."
        )
    root = square_root(operator) if operator.is_psd else operator
    side = min(
        space.size, operator.in_space.size if root is None else min(root.in_space.size, root.out_space.size)
    )
    if method == "dense" or (method == "auto" and side <= DENSE_LIMIT):
        return _by_matrix(operator, root, k, with_modes, side, dimension)
    if k is None:
        raise ValueError(
            f"The whole spectrum of an operator of dimension {dimension} is beyond the dense limit "
            f"{DENSE_LIMIT}: give "
            "`k`, or ask for `effective_rank`, which needs no whole spectrum."
        )
    return _by_krylov(operator, k, with_modes, tolerance, max_basis, block, key, dimension)


def whole_spectrum(operator: AbstractOperator) -> Spectrum | None:
    """All values, where they can be had exactly; else None."""
    dimension = min(operator.out_space.size, operator.in_space.size)
    if isinstance(operator, ParameterOperator):
        form = _kernels.factored(operator)
        if form is not None:
            return _by_units(operator, form, None, False, dimension)
    root = square_root(operator) if operator.is_psd else operator
    sizes = [operator.out_space.size] if root is None else [root.in_space.size, root.out_space.size]
    if min(sizes) > DENSE_LIMIT:
        return None
    return _by_matrix(operator, root, None, False, min(sizes), dimension)


def _kind(operator: AbstractOperator) -> str:
    return "eigenvalues" if operator.is_psd else "singular values"


def _by_units(
    operator: ParameterOperator, form: _kernels.Factored, k: int | None, with_modes: bool, dimension: int
) -> Spectrum:
    rows = _kernels.unit_eigenvalues(form)
    units, width = form.units, rows.shape[1]
    each = np.repeat(rows, units, axis=0) if form.is_uniform else rows
    flat = np.clip(each[:, ::-1].reshape(-1), 0, None)
    order = np.argsort(-flat, kind="stable")[: dimension if k is None else k]
    values = flat[order]
    if k is not None and len(values) < k:
        values = np.concatenate([values, np.zeros(k - len(values))])
    modes = None
    if with_modes:
        unit, rank = np.divmod(order, width)
        modes = _kernels.unit_modes(form, jnp.asarray(unit), jnp.asarray(rank))
        if len(order) < len(values):
            modes = jnp.concatenate(
                [modes, jnp.zeros((len(values) - len(order), *modes.shape[1:]), modes.dtype)]
            )
    return _result(operator, jnp.asarray(values), modes, _kernels.trace(form), "units", k is None, dimension)


def _by_matrix(
    operator: AbstractOperator,
    root: AbstractOperator | None,
    k: int | None,
    with_modes: bool,
    side: int,
    dimension: int,
) -> Spectrum:
    if side > DENSE_LIMIT:
        raise ValueError(
            f"A dense spectrum needs a matrix of side {side}, beyond the limit of {DENSE_LIMIT}; use "
            "`method='krylov'`."
        )
    is_wide = root is None or root.out_space.size <= root.in_space.size
    matrix = np.asarray(operator.whitened() if root is None else _gram(root, is_wide))
    check_finite(matrix, matrix.dtype)
    if with_modes:
        squares, vectors = np.linalg.eigh(matrix)
        vectors = vectors[:, ::-1][:, :k].T
        if root is not None and not is_wide:
            vectors = np.asarray(_lift(root, jnp.asarray(vectors)))
            norms = np.linalg.norm(vectors, axis=1, keepdims=True)
            vectors = vectors / np.where(norms > 0, norms, 1)
    else:
        squares, vectors = np.asarray(eigenvalues(matrix)), None
    squares = np.clip(squares[::-1], 0, None)
    total = jnp.asarray(squares.sum())
    values = squares if operator.is_psd else np.sqrt(squares)
    modes = None if vectors is None else jnp.asarray(vectors)
    short = 0 if k is None else max(0, k - len(values))
    values = np.concatenate([values[:k], np.zeros(short)])
    if modes is not None and len(modes) < len(values):
        modes = jnp.concatenate([modes, jnp.zeros((len(values) - len(modes), modes.shape[1]), modes.dtype)])
    return _result(operator, jnp.asarray(values), modes, total, "dense", k is None, dimension)


@eqx.filter_jit
def _gram(root: AbstractOperator, is_wide: bool) -> Array:
    """The Gram matrix of the smaller side of F, in Euclidean coordinates."""
    if is_wide:
        size = root.out_space.size
        column = lambda v: whitened_mv(root, whitened_rmv(root, v))  # noqa: E731
    else:
        size = root.in_space.size
        column = lambda v: whitened_rmv(root, whitened_mv(root, v))  # noqa: E731
    eye = jnp.eye(size, dtype=root.out_space.dtype)
    gram = jax.lax.map(column, eye, batch_size=min(64, size))
    return (gram + gram.T) / 2


@eqx.filter_jit
def _lift(root: AbstractOperator, vectors: Array) -> Array:
    return jax.lax.map(lambda v: whitened_mv(root, v), vectors)


def _by_krylov(
    operator: AbstractOperator,
    k: int,
    with_modes: bool,
    tolerance: int | float | None,
    max_basis: int | None,
    block: int | None,
    key: Any,
    dimension: int,
) -> Spectrum:
    size = operator.out_space.size
    if tolerance is None:
        tolerance = 1e-8 if operator.out_space.dtype == jnp.float64 else 1e-3
    limit = 4 * k + 30 if max_basis is None else max_basis
    if limit < k:
        raise ValueError(f"`max_basis` must be at least k = {k}, got {limit}.")
    key = jr.key(0) if key is None else key
    if block is None and operator.out_space.shape[0] > 1 and acts_by_trial(operator):
        return _by_trials(operator, k, with_modes, tolerance, limit, key, dimension)
    if block is None:
        block = k if isinstance(operator, ParameterOperator) else 4 if operator.is_psd else 1
    block = min(block, size)
    steps = max(1, -(-min(limit, size) // block))

    def is_done(projected, leaving):
        return len(projected) >= k and bool(
            np.all(_ritz(projected, leaving, k, operator.is_psd)[2] <= tolerance)
        )

    space = expand(operator, start_block(operator, block, key), steps, is_done)
    values, vectors, residuals = _ritz(space.projected, space.leaving, k, operator.is_psd)
    is_converged = residuals <= tolerance
    modes = _combine(space, vectors) if with_modes else None
    spectrum = _result(operator, jnp.asarray(values), modes, None, "krylov", False, dimension)
    return eqx.tree_at(lambda s: s.is_converged, spectrum, is_converged)


def _by_trials(
    operator: AbstractOperator,
    k: int,
    with_modes: bool,
    tolerance: int | float,
    limit: int,
    key: Any,
    dimension: int,
) -> Spectrum:
    batch = operator.out_space.shape[0]
    steps = min(limit, operator.out_space.size // batch)

    def is_done(projected, leaving):
        values, _, residuals = _trial_ritz(projected, leaving, k, operator.is_psd)
        return len(values) == k and bool(np.all(residuals <= tolerance))

    space = expand_trials(operator, key, steps, is_done)
    values, (trials, vectors), residuals = _trial_ritz(space.projected, space.leaving, k, operator.is_psd)
    modes = _combine_trials(space, trials, vectors) if with_modes else None
    spectrum = _result(operator, jnp.asarray(values), modes, None, "krylov", False, dimension)
    return eqx.tree_at(lambda s: s.is_converged, spectrum, residuals <= tolerance)


def _trial_ritz(
    projected: np.ndarray, leaving: np.ndarray, k: int, is_psd: bool
) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray], np.ndarray]:
    """The largest Ritz values of all trials, with their trials, vectors and residuals."""
    values, vectors = np.linalg.eigh(projected)
    residuals = np.abs(leaving[:, None] * vectors[:, -1])
    order = np.argsort(-values, axis=None, kind="stable")[:k]
    trials, ranks = np.unravel_index(order, values.shape)
    values = np.clip(values[trials, ranks], 0, None)
    sigma, residuals = _scaled(values, residuals[trials, ranks], is_psd)
    return sigma, (trials, vectors[trials, :, ranks]), residuals


def _combine_trials(space: TrialKrylov, trials: np.ndarray, vectors: np.ndarray) -> Array:
    batch, _, size = space.basis.shape
    parts = jnp.einsum("km,kms->ks", jnp.asarray(vectors, space.basis.dtype), space.basis[trials])
    return jnp.zeros((len(trials), batch, size), parts.dtype).at[np.arange(len(trials)), trials].set(parts)


def _ritz(projected: np.ndarray, leaving: np.ndarray, k: int, is_psd: bool) -> tuple[np.ndarray, ...]:
    """Ritz values, vectors and residuals relative to the largest value."""
    values, vectors = np.linalg.eigh(projected)
    values, vectors = np.clip(values[::-1][:k], 0, None), vectors[:, ::-1][:, :k]
    residuals = np.linalg.norm(leaving @ vectors[-len(leaving) :], axis=0)
    values, residuals = _scaled(values, residuals, is_psd)
    return values, vectors, residuals


def _scaled(squares: np.ndarray, residuals: np.ndarray, is_psd: bool) -> tuple[np.ndarray, np.ndarray]:
    """Values and residuals as shares of the largest, from eigenvalues of A, or of W W* for any other."""
    top = max(squares[0], np.finfo(float).tiny)
    if is_psd:
        return squares, residuals / top
    sigma = np.sqrt(squares)
    return sigma, residuals / np.where(sigma > 0, sigma, 1) / np.sqrt(top)


def _combine(space: Krylov, vectors: np.ndarray) -> Array:
    return jnp.asarray(vectors.T, space.basis.dtype) @ space.basis


def _result(
    operator: AbstractOperator,
    values: Array,
    modes: Array | None,
    total: Array | None,
    method: str,
    is_complete: bool,
    dimension: int,
) -> Spectrum:
    check_finite(values, operator.out_space.dtype)
    residuals = None
    if modes is not None:
        space = operator.out_space
        residuals = _residuals(operator, values.astype(space.dtype), modes.reshape(len(modes), -1))
        modes = _to_space(operator, modes.reshape(len(modes), -1))
    converged = np.ones(len(values), bool)
    return Spectrum(
        values, modes, residuals, total, converged, method, _kind(operator), is_complete, dimension
    )


@eqx.filter_jit
def _residuals(operator: AbstractOperator, values: Array, vectors: Array) -> Array:
    def one(pair):
        value, u = pair
        if operator.is_psd:
            return jnp.linalg.norm(whitened_mv(operator, u) - value * u)
        v = whitened_rmv(operator, u)
        norm = jnp.linalg.norm(v)
        return jnp.linalg.norm(whitened_mv(operator, v / jnp.where(norm > 0, norm, 1)) - value * u)

    return jax.lax.map(one, (values, vectors)) / jnp.maximum(values[0], jnp.finfo(values.dtype).tiny)


@eqx.filter_jit
def _to_space(operator: AbstractOperator, vectors: Array) -> Array:
    return jax.vmap(operator.out_space.from_vector)(vectors)
