"""Krylov spaces with full reorthogonalisation, in coordinates where the inner product is Euclidean."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array

from ._operator import AbstractOperator, whitened_mv, whitened_rmv

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
def _orthogonalize(basis: Array, block: Array) -> tuple[Array, Array, Array]:
    """Remove the basis from a block of rows twice, then orthonormalise it; unused rows are zero."""
    first = basis @ block.T
    block = block - first.T @ basis
    second = basis @ block.T
    block = block - second.T @ basis
    if len(block) == 1:
        norm = jnp.linalg.norm(block)
        return first + second, norm[None, None], block / jnp.where(norm > 0, norm, 1)
    q, r = jnp.linalg.qr(block.T)
    # Where the block has lost rank QR fills in directions of its own, which may lie in the basis.
    q, again = jnp.linalg.qr(q - basis.T @ (basis @ q))
    return first + second, again @ r, q.T


def start_block(operator: AbstractOperator, count: int, key: Any) -> Array:
    """Orthonormal random rows to start from."""
    size = operator.out_space.size
    block = jr.normal(key, (count, size), operator.out_space.dtype)
    return _orthogonalize(jnp.zeros((1, size), block.dtype), block)[2]


def expand(operator: AbstractOperator, block: Array, steps: int, is_done: Any = None) -> Krylov:
    """Grow the space by ``steps`` blocks, or until ``is_done(projected, leaving)``."""
    width, size = block.shape
    eps = float(jnp.finfo(block.dtype).eps)
    basis = jnp.zeros((max(_CHUNK, 2 * width), size), block.dtype)
    columns, used = [], 0
    projected, leaving = np.zeros((0, 0)), np.zeros((width, width))
    for step in range(steps):
        if used + width > len(basis):
            basis = jnp.concatenate([basis, jnp.zeros((max(_CHUNK, width), size), block.dtype)])
        basis = jax.lax.dynamic_update_slice(basis, block, (used, 0))
        used += width
        coefficients, rest, block = _orthogonalize(basis, _square_block(operator, block))
        columns.append((coefficients, rest))
        is_last = step == steps - 1 or used + width > size
        if is_last or (is_done is not None and (step % 5) == 4):
            projected, leaving = _assemble(columns, width)
            scale = np.abs(projected).max()
            # A space that the operator does not leave holds its eigenvectors exactly.
            if is_last or np.abs(leaving).max() <= 10 * eps * scale or is_done(projected, leaving):
                break
    return Krylov(basis[:used], projected, leaving, width)


def _assemble(columns: list[tuple[Array, Array]], width: int) -> tuple[np.ndarray, np.ndarray]:
    size = width * len(columns)
    projected = np.zeros((size, size))
    for i, (coefficients, _) in enumerate(columns):
        stop = (i + 1) * width
        # Below the band the coefficients are the rest of this step, by symmetry those of the next.
        projected[:stop, i * width : stop] = np.asarray(coefficients, np.float64)[:stop]
    for i, (_, rest) in enumerate(columns[:-1]):
        rows = slice((i + 1) * width, (i + 2) * width)
        projected[rows, i * width : (i + 1) * width] = np.asarray(rest, np.float64)
    return (projected + projected.T) / 2, np.asarray(columns[-1][1], np.float64)
