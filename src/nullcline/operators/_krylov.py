"""Krylov spaces with full reorthogonalisation, in coordinates where the inner product is Euclidean."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array

from ._operator import AbstractOperator, check_finite, whitened_mv, whitened_rmv

_CHUNK = 16


class Krylov(eqx.Module):
    """An orthonormal basis (rows), the projected operator and the norm of what leaves the space."""

    basis: Array
    projected: np.ndarray
    leaving: np.ndarray
    block: int = eqx.field(static=True)


def square(operator: AbstractOperator, v: Array) -> Array:
    """Apply A itself if positive semi-definite, else W W*."""
    return whitened_mv(operator, v if operator.is_psd else whitened_rmv(operator, v))


@eqx.filter_jit
def _square_block(operator: AbstractOperator, block: Array) -> Array:
    if len(block) == 1:
        return square(operator, block[0])[None]
    return jax.vmap(lambda v: square(operator, v))(block)


@jax.jit
def _orthogonalize(
    chunks: tuple[Array, ...], recent: Array, block: Array, step: Array
) -> tuple[Array, Array, Array, Array]:
    """Remove first the recent rows, then the whole basis, and orthonormalise; unused rows are zero.

    In exact arithmetic only the last two blocks have a part in the new one: one pass over the rest, which
    is what costs, removes rounding. A single row that the basis holds already gives way to a random one.
    """
    scale = jnp.linalg.norm(block)
    local = recent @ block.T
    block = block - local.T @ recent
    second = [chunk @ block.T for chunk in chunks]
    for chunk, part in zip(chunks, second, strict=True):
        block = block - part.T @ chunk
    coefficients = jnp.concatenate(second)
    if len(block) == 1:
        norm = jnp.linalg.norm(block)
        is_new = norm > 10 * jnp.finfo(norm.dtype).eps * scale
        rows = jax.lax.cond(is_new, lambda: block / norm, lambda: _fresh(chunks, block[:, None], step)[:, 0])
        return local, coefficients, jnp.where(is_new, norm, 0)[None, None], rows
    q, r = jnp.linalg.qr(block.T)
    # Where the block has lost rank QR fills in directions of its own, which may lie in the basis.
    inside = [chunk.T @ (chunk @ q) for chunk in chunks]
    q, again = jnp.linalg.qr(q - sum(inside[1:], inside[0]))
    return local, coefficients, again @ r, q.T


def _fresh(chunks: tuple[Array, ...], like: Array, step: Array) -> Array:
    """Random unit vectors (trials, 1, size) orthogonal to the bases: to go on from a complete space."""
    rows = jr.normal(jr.fold_in(jr.key(1), step), like.shape, like.dtype)
    for _ in range(2):
        for chunk in chunks:
            chunk = chunk[None] if chunk.ndim == 2 else chunk
            rows = rows - jnp.einsum("bim,bms->bis", jnp.einsum("bis,bms->bim", rows, chunk), chunk)
        norm = jnp.linalg.norm(rows, axis=2, keepdims=True)
        rows = rows / jnp.where(norm > 0, norm, 1)
    return rows


@functools.partial(jax.jit, donate_argnums=0)
def _store(chunk: Array, block: Array, row: Array) -> Array:
    return jax.lax.dynamic_update_slice(chunk, block, (row, jnp.zeros_like(row)))


def start_block(operator: AbstractOperator, count: int, key: Any) -> Array:
    """Orthonormal random rows to start from."""
    size = operator.out_space.size
    block = jr.normal(key, (count, size), operator.out_space.dtype)
    nothing = jnp.zeros((1, size), block.dtype)
    return _orthogonalize((nothing,), nothing, block, jnp.zeros((), int))[3]


def expand(operator: AbstractOperator, block: Array, steps: int, is_done: Any = None) -> Krylov:
    """Grow the space by ``steps`` blocks, or until ``is_done(projected, leaving)``."""
    width, size = block.shape
    per_chunk = max(1, _CHUNK // width)
    chunks: list[Array] = []
    recent = jnp.zeros((2 * width, size), block.dtype)
    columns = []
    projected, leaving = np.zeros((0, 0)), np.zeros((width, width))
    for step in range(steps):
        if step % per_chunk == 0:
            chunks.append(jnp.zeros((per_chunk * width, size), block.dtype))
        chunks[-1] = _store(chunks[-1], block, jnp.asarray(step % per_chunk * width))
        recent = jnp.concatenate([recent[width:], block])
        product = _square_block(operator, block)
        local, coefficients, rest, block = _orthogonalize(tuple(chunks), recent, product, jnp.asarray(step))
        columns.append((local, coefficients, rest))
        is_last = step == steps - 1 or (step + 2) * width > size
        if is_last or (is_done is not None and step % 5 == 4):
            projected, leaving = _assemble(columns, width)
            check_finite(projected, block.dtype)
            if is_last or is_done(projected, leaving):
                break
    return Krylov(jnp.concatenate(chunks)[: width * len(columns)], projected, leaving, width)


def _assemble(columns: list[tuple[Array, Array, Array]], width: int) -> tuple[np.ndarray, np.ndarray]:
    size = width * len(columns)
    projected = np.zeros((size, size))
    for i, (local, coefficients, rest) in enumerate(columns):
        stop = (i + 1) * width
        mine = slice(i * width, stop)
        projected[:stop, mine] = np.asarray(coefficients, np.float64)[:stop]
        known = np.asarray(local, np.float64)[max(0, width - i * width) :]
        projected[stop - len(known) : stop, mine] += known
        if stop < size:
            projected[stop : stop + width, mine] = np.asarray(rest, np.float64)
    return (projected + projected.T) / 2, np.asarray(columns[-1][2], np.float64)


class TrialKrylov(eqx.Module):
    """One Krylov space per trial, for an operator that never mixes them.

    ``basis`` (trials, steps, size) is orthonormal in each trial, ``projected`` (trials, steps, steps) what
    the operator is there, ``leaving`` (trials,) the norm of what leaves each space.
    """

    basis: Array
    projected: np.ndarray
    leaving: np.ndarray


def expand_trials(
    operator: AbstractOperator, key: Any, steps: int, is_done: Callable[[np.ndarray, np.ndarray], bool]
) -> TrialKrylov:
    """Grow one Krylov space per trial, all with one product a step.

    Trials have singular values of about the same size, which a space over all of them separates slowly; each
    alone needs a few steps.
    """
    batch = operator.out_space.shape[0]
    start = jr.normal(key, (batch, operator.out_space.size // batch), operator.out_space.dtype)
    now = start / jnp.linalg.norm(start, axis=1, keepdims=True)
    before, beta = jnp.zeros_like(now), jnp.zeros(batch, now.dtype)
    chunks: list[Array] = []
    columns: list[tuple[Array, Array]] = []
    projected, leaving = np.zeros((batch, 0, 0)), np.zeros(batch)
    for step in range(steps):
        if step % _CHUNK == 0:
            chunks.append(jnp.zeros((batch, min(_CHUNK, steps - step), now.shape[1]), now.dtype))
        chunks[-1] = _store_row(chunks[-1], now, jnp.asarray(step % _CHUNK))
        alpha, beta, after = _lanczos(operator, tuple(chunks), before, now, beta, jnp.asarray(step))
        before, now = now, after
        columns.append((alpha, beta))
        if step == steps - 1 or step % 4 == 3:
            projected, leaving = _tridiagonal(columns)
            check_finite(projected, now.dtype)
            if is_done(projected, leaving):
                break
    return TrialKrylov(jnp.concatenate(chunks, axis=1)[:, : len(columns)], projected, leaving)


@functools.partial(jax.jit, donate_argnums=0)
def _store_row(chunk: Array, rows: Array, place: Array) -> Array:
    zero = jnp.zeros_like(place)
    return jax.lax.dynamic_update_slice(chunk, rows[:, None], (zero, place, zero))


@eqx.filter_jit
def _lanczos(
    operator: AbstractOperator, chunks: tuple[Array, ...], before: Array, now: Array, beta: Array, step: Array
) -> tuple[Array, Array, Array]:
    """One step of Lanczos in every trial, with one pass over the whole basis to remove rounding."""
    product = square(operator, now.reshape(-1)).reshape(now.shape)
    scale = jnp.linalg.norm(product, axis=1)
    alpha = jnp.sum(product * now, axis=1)
    rest = product - alpha[:, None] * now - beta[:, None] * before
    for chunk in chunks:
        rest = rest - jnp.einsum("bm,bms->bs", jnp.einsum("bms,bs->bm", chunk, rest), chunk)
    norm = jnp.linalg.norm(rest, axis=1)
    # A space that the operator does not leave is complete: another, from a random vector, stands beside it.
    is_new = norm > 10 * jnp.finfo(norm.dtype).eps * scale
    rows = rest / jnp.where(is_new, norm, 1)[:, None]
    fresh = jax.lax.cond(jnp.all(is_new), lambda: rows, lambda: _fresh(chunks, rest[:, None], step)[:, 0])
    return alpha, jnp.where(is_new, norm, 0), jnp.where(is_new[:, None], rows, fresh)


def _tridiagonal(columns: list[tuple[Array, Array]]) -> tuple[np.ndarray, np.ndarray]:
    alpha = np.stack([np.asarray(a, np.float64) for a, _ in columns], axis=1)
    beta = np.stack([np.asarray(b, np.float64) for _, b in columns], axis=1)
    size = alpha.shape[1]
    projected = np.zeros((len(alpha), size, size))
    rows = np.arange(size)
    projected[:, rows, rows] = alpha
    projected[:, rows[1:], rows[:-1]] = projected[:, rows[:-1], rows[1:]] = beta[:, :-1]
    return projected, beta[:, -1]
