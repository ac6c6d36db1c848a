r"""The law of the singular values of :math:`B = (I - W_0)^{-1}` for infinitely many neurons.

In the singular basis of B, the input and readout vectors are random and independent, so that everything
the learning dynamics sees of B is the law of y, the eigenvalues of :math:`BB^T`. A Gauss quadrature of that
law is a small deterministic network with the learning dynamics of the infinite one.
"""

import functools

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..._checks import is_concrete, require_size
from ._checks import Scalar, require_gain

_POINTS = 4000
# Below this the law is a point to rounding: its relative width is of order g, its effect of order g^2.
_POINT_LAW = 1e-6


@functools.lru_cache(maxsize=256)
def quadrature(g: float, nodes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    r"""Gauss nodes and weights of the law of the singular values of B, in NumPy float64.

    Returns
    -------
    The singular values :math:`s_k`, the weights :math:`\omega_k` and :math:`r_k = n(y_k)/s_k`, which replaces
    :math:`s_k` once :math:`W_0` is shuffled. For g = 0 all but the first weight are zero.
    """
    if g < _POINT_LAW:
        ones = np.ones(nodes)
        return ones, np.eye(nodes)[0], ones
    # Support of x = 1/y, the squared singular values of I - W_0: Chebyshev points in log x, because the
    # lower edge goes to 0 with (1 - g)^3, and log x from log1p, because the law shrinks to a point with g.
    c = (g + np.array([-1.0, 1.0]) * np.sqrt(g**2 + 8)) / 2
    low, high = np.log1p(g * c) + 2 * np.log1p(g / c)
    theta = (np.arange(_POINTS) + 0.5) * np.pi / _POINTS
    t = (low + high) / 2 - (high - low) / 2 * np.cos(theta)
    dx = np.exp(t) * (high - low) / 2 * np.sin(theta) * np.pi / _POINTS
    root = np.exp(t / 2)
    # v^3 - omega v^2 - (1 - g^2) v + omega = 0 with omega = sqrt(x), written for k = g/(v - 1): the two
    # roots v that meet at 1 as g goes to 0 stay apart in k.
    d = np.expm1(t / 2) / g
    companion = np.zeros((_POINTS, 3, 3), dtype=complex)
    companion[:, 0, 0], companion[:, 0, 1], companion[:, 0, 2] = 2 * d - g, g * d - 2, -g
    companion[:, 1, 0] = companion[:, 2, 1] = 1
    k = np.linalg.eigvals(companion)
    v = 1 + g / k
    inverse = k**2 / (g * (2 * k + g))  # 1/(v^2 - 1)
    physical = np.argmin(np.imag(v * inverse), axis=1)[:, None]  # the root with Im v/(v^2 - 1) < 0
    v = np.take_along_axis(v, physical, axis=1)[:, 0]
    inverse = np.take_along_axis(inverse, physical, axis=1)[:, 0]
    rho = -np.imag(v * inverse) / (np.pi * root) * dx
    kappa = -np.imag(inverse) / np.pi * dx
    # Lanczos on (y - 1)/g; the orthonormal polynomials at the points are the Lanczos vectors / sqrt(rho).
    shifted, scale = np.expm1(-t) / g, np.sqrt(rho)
    basis = np.zeros((nodes, _POINTS))
    diagonal, beside = np.zeros(nodes), np.zeros(max(nodes - 1, 0))
    vector = scale / np.linalg.norm(scale)
    for j in range(nodes):
        basis[j] = vector
        diagonal[j] = vector @ (shifted * vector)
        vector = shifted * vector
        for _ in range(2):
            vector = vector - basis[: j + 1].T @ (basis[: j + 1] @ vector)
        if j + 1 < nodes:
            beside[j] = np.linalg.norm(vector)
            vector = vector / beside[j]
    where, first = np.linalg.eigh(np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1))
    weights = first[0] ** 2
    coefficients = basis @ (kappa * np.exp(-t) / scale)
    shuffled = coefficients @ first / first[0]
    s = np.sqrt(1 + g * where)
    return s, weights, shuffled / s


def infinite_width_network(
    g: Scalar, nodes: int = 12
) -> tuple[Float[Array, "n n"], Float[Array, " n"], Float[Array, " n"]]:
    r"""A small network with the learning dynamics of an infinitely wide one.

    :math:`I - W_0 = \mathrm{diag}(1/s, 1/s)`, :math:`w = (\sqrt\omega, 0)` and :math:`m = (0, \sqrt\omega)`
    with the Gauss nodes s and weights of the law of the singular values of
    :math:`(I - W_0)^{-1}`. Feed it to :func:`series`, :func:`exact_flow` or :func:`descent`.

    Parameters
    ----------
    g
        Strength of the initial weights, 0 <= g < 1; a number, not a traced value.
    nodes
        Number of nodes; the network has twice as many neurons. Four give the readout to 1e-6.

    Returns
    -------
    The triple ``w0, m, w``.
    """
    s, weights, _ = checked_quadrature(g, nodes)
    root = np.sqrt(weights)
    w0 = np.diag(1 - 1 / np.concatenate([s, s]))
    return (
        jnp.asarray(w0, dtype=float),
        jnp.asarray(np.concatenate([0 * root, root]), dtype=float),
        jnp.asarray(np.concatenate([root, 0 * root]), dtype=float),
    )


def checked_quadrature(g: Scalar, nodes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Quadrature of a gain and a number of nodes that were checked first."""
    if not is_concrete(g):
        raise ValueError(
            "`g` must be a number at infinite width, got a traced value: its quadrature is computed on the "
            "host. Loop over `g` and vmap over the target."
        )
    require_gain(g)
    require_size("nodes", nodes)
    return quadrature(float(g), nodes)
