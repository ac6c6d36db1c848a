"""Singular values and eigenvalues of the matrices of trained networks, on any backend.

A GPU decomposes the square matrices of a batch one after the other, each more slowly than a core of its host,
and not every accelerator knows nonsymmetric eigenvalues. Where the backend is not a CPU the host does it, all
matrices of a batch at once. As with JAX's own routines, a matrix that has no decomposition gives NaN.
"""

import concurrent.futures
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Complex, Float


def svd(
    matrix: Float[Array, "m n"],
) -> tuple[Float[Array, "m k"], Float[Array, " k"], Float[Array, "k n"]]:
    """Thin singular value decomposition."""
    if jax.default_backend() == "cpu":
        u, s, vt = jnp.linalg.svd(matrix, full_matrices=False)
        return u, s, vt
    return svd_on_host(matrix)


def singular_values(matrix: Float[Array, "m n"]) -> Float[Array, " k"]:
    """Singular values, the largest first."""
    if jax.default_backend() == "cpu":
        return jnp.linalg.svd(matrix, compute_uv=False)
    return svd_on_host(matrix)[1]


def eigenvalues(matrix: Float[Array, "n n"]) -> Complex[Array, " n"]:
    """Eigenvalues by falling real part."""
    is_on_cpu = jax.default_backend() == "cpu"
    values = jnp.linalg.eigvals(matrix) if is_on_cpu else eigenvalues_on_host(matrix)
    return values[jnp.argsort(-values.real)]


def svd_on_host(
    matrix: Float[Array, "m n"],
) -> tuple[Float[Array, "m k"], Float[Array, " k"], Float[Array, "k n"]]:
    """Thin singular value decomposition by NumPy; may be traced and mapped over a batch."""
    (m, n), dtype = matrix.shape, matrix.dtype
    k = min(m, n)
    form = tuple(jax.ShapeDtypeStruct(shape, dtype) for shape in ((m, k), (k,), (k, n)))

    def decompose(one):
        return np.linalg.svd(one, full_matrices=False)

    u, s, vt = _on_host(decompose, form, matrix)
    return u, s, vt


def eigenvalues_on_host(matrix: Float[Array, "n n"]) -> Complex[Array, " n"]:
    """Eigenvalues by NumPy, in its order; may be traced and mapped over a batch."""
    form = jax.ShapeDtypeStruct(matrix.shape[:1], np.result_type(matrix.dtype, np.complex64))
    return _on_host(lambda one: (np.linalg.eigvals(one),), (form,), matrix)[0]


def _on_host(
    function: Callable[[np.ndarray], Sequence[np.ndarray]],
    form: tuple[jax.ShapeDtypeStruct, ...],
    matrix: Array,
) -> tuple[Array, ...]:
    def one(matrix):
        try:
            return function(matrix)
        except np.linalg.LinAlgError:
            return [np.full(part.shape, np.nan) for part in form]

    def every(matrices):
        matrices = np.asarray(matrices)
        flat = matrices.reshape(-1, *matrices.shape[-2:])
        # LAPACK runs without Python's lock, so threads are cores.
        with concurrent.futures.ThreadPoolExecutor() as pool:
            found = zip(*pool.map(one, flat), strict=True)
        return tuple(
            np.stack(values).astype(part.dtype).reshape(*matrices.shape[:-2], *part.shape)
            for values, part in zip(found, form, strict=True)
        )

    return jax.pure_callback(every, form, matrix, vmap_method="expand_dims")
