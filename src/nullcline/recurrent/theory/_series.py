"""Power series, to any order, of the learning of a linear RNN with given weights."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import lu_factor, lu_solve
from jaxtyping import Array, Float

from ..._order import after
from ._checks import Scalar, checked_target


class Series(eqx.Module):
    """Coefficients in powers of the learning time, from power 0 to the order asked for."""

    readout: Float[Array, " powers"]
    change: Float[Array, "powers n n"]


def series(
    w0: Float[Array, "n n"], m: Float[Array, " n"], w: Float[Array, " n"], target: Scalar, order: int
) -> Series:
    r"""Coefficients of the readout and of the weight change in powers of the learning time.

    :math:`z = \sum_k z_k\tau^k` and :math:`\Delta W = \sum_k D_k\tau^k`, for these very weights (any size,
    any norm). With :math:`X = I - W_0`, :math:`D_0 = 0` and :math:`e_k = [k=0]\hat z - z_k`:

    .. math::
        X q_k = [k=0]\,m + \sum_{j\ge1} D_j q_{k-j}, \quad X^T p_k = [k=0]\,w + \sum_{j\ge1} D_j^T p_{k-j},
        \quad z_k = w\cdot q_k, \quad D_{k+1} = \frac{1}{k+1}\sum_{a+b+c=k} e_a p_b q_c^T

    The coefficients of schuessler2020, Eq. (7), are :math:`W_k = k!\,D_k`.

    Parameters
    ----------
    w0, m, w
        Initial weights, input vector and readout vector, :math:`z = w^T(I-W_0)^{-1}m`.
    target
        The target :math:`\hat z`.
    order
        Highest power, at least 0.
    """
    if order < 0:
        raise ValueError(f"`order` must be at least 0, got {order}.")
    return _coefficients(w0, m, w, checked_target(w0, m, w, target), order)


@functools.partial(jax.jit, static_argnames="order")
def _coefficients(w0: Array, m: Array, w: Array, target: Array, order: int) -> Series:
    dtype = w0.dtype
    x = lu_factor(jnp.eye(w0.shape[0], dtype=dtype) - w0)
    change = [jnp.zeros_like(w0)]
    q, p, z, error = [], [], [], []
    for k in range(order + 1):
        right = sum((change[j] @ q[k - j] for j in range(1, k + 1)), m if k == 0 else jnp.zeros_like(m))
        left = sum((change[j].T @ p[k - j] for j in range(1, k + 1)), w if k == 0 else jnp.zeros_like(w))
        q.append(lu_solve(x, right))
        p.append(lu_solve(x, after(left, q[k]), trans=1))
        z.append(w @ q[k])
        error.append((target if k == 0 else 0.0) - z[k])
        # sum over a + b + c = k of e_a p_b q_c^T: the inner sum over a first, then outer products.
        weighted = [sum((error[a] * p[b - a] for a in range(b + 1)), jnp.zeros_like(w)) for b in range(k + 1)]
        outer = jnp.stack(weighted, axis=1) @ jnp.stack(q[::-1], axis=0)
        change.append(outer / (k + 1))
    return Series(jnp.stack(z), jnp.stack(change[: order + 1]))
