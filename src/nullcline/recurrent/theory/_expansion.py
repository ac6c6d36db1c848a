r"""Expansion of the learning of a linear RNN in the learning time, for infinitely many neurons.

Notation of schuessler2020: :math:`\beta = 1/(1-g^2)`, :math:`\tau` = learning rate × number of steps,
:math:`\tilde\tau = \beta^2\tau` the effective learning time, :math:`\hat z` the target. Every function
returns the raw polynomial; :func:`beyond_expansion` says where it is no longer to be trusted.
"""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..._checks import require_size
from ._checks import Scalar, require_finite, require_gain, require_network, require_ratio, require_times

Times = float | Float[Array, "*times"]


def _prepare(tau: Times, target: Scalar, g: Scalar) -> tuple[Array, Array, Array]:
    """Checked arrays: effective learning time, target and beta, in one floating type."""
    require_gain(g)
    require_finite(target=target)
    tau = jnp.asarray(tau, dtype=float) if isinstance(tau, float | int) else tau
    require_times(tau, "tau")
    target, g = jnp.asarray(target, tau.dtype), jnp.asarray(g, tau.dtype)
    beta = 1 / (1 - g**2)
    return beta**2 * tau, target, beta


def _readout_terms(tt: Array, target: Array, beta: Array, order: int) -> list[Array]:
    """Terms of the readout in powers 1 .. ``order`` of the effective learning time."""
    a = target**2 * beta
    g2 = 1 - 1 / beta
    coefficients = (
        1.0,
        -1 / 2,
        (1 + 8 * a) / 6,
        -(1 + 56 * a) / 24,
        (1 + 256 * a + (336 + 64 * g2) * a**2) / 120,
    )
    return [target * coefficients[k] * tt ** (k + 1) for k in range(order)]


def readout(tau: Times, target: Scalar, g: Scalar, order: int = 3) -> Float[Array, "*times"]:
    r"""Readout during learning, at infinite width, as a polynomial in the learning time.

    .. math::
        z = \hat z\,[\tilde\tau - \tilde\tau^2/2 + (1 + 8A)\,\tilde\tau^3/6 - (1 + 56A)\,\tilde\tau^4/24
            + (1 + 256A + (336 + 64g^2)A^2)\,\tilde\tau^5/120], \quad A = \hat z^2\beta

    schuessler2020, Eqs. (15) and (63) up to third order; the fourth and fifth continue them.

    Parameters
    ----------
    tau
        Learning times, at least 0.
    target
        The target :math:`\hat z`, of either sign.
    g
        Strength of the initial weights, 0 <= g < 1.
    order
        1 to 5. For higher orders use :func:`series` with :func:`infinite_width_network`.
    """
    if not 1 <= order <= 5:
        raise ValueError(
            f"`order` must be 1 to 5, got {order}. "
            "For more use `series(*infinite_width_network(g), target, order)`."
        )
    tt, target, beta = _prepare(tau, target, g)
    return sum(_readout_terms(tt, target, beta, order), jnp.zeros_like(tt))


def singular_values(tau: Times, target: Scalar, g: Scalar) -> Float[Array, "*times 2"]:
    r"""The two singular values of the weight change to third order, at infinite width.

    .. math::
        s_1 = (|\hat z|/\beta)[\tilde\tau - \tilde\tau^2/2 + (1 + 7A/2)\tilde\tau^3/6], \quad
        s_2 = |\hat z|^3\tilde\tau^3/12

    schuessler2020, Eqs. (14), (80) and (81). The change does not depend on the sign of the target.
    """
    tt, target, beta = _prepare(tau, target, g)
    target = jnp.abs(target)
    first = target / beta * (tt - tt**2 / 2 + (1 + 3.5 * target**2 * beta) * tt**3 / 6)
    return jnp.stack([first, target**3 * tt**3 / 12], axis=-1)


def shuffled_readout(tau: Times, target: Scalar, g: Scalar) -> Float[Array, "*times"]:
    r"""Readout after the entries of the initial weights are shuffled, to third order, at infinite width.

    .. math::
        z^s = (\hat z/\beta^2)[\tilde\tau - \tilde\tau^2/2
              + (1 + 2\hat z^2(1 + 3/\beta))\,\tilde\tau^3/6]

    schuessler2020, Eq. (91).
    """
    tt, target, beta = _prepare(tau, target, g)
    return target / beta**2 * (tt - tt**2 / 2 + (1 + 2 * target**2 * (1 + 3 / beta)) * tt**3 / 6)


def beyond_expansion(tau: Times, target: Scalar, g: Scalar) -> Bool[Array, "*times"]:
    """Flag the times at which the third order is no longer to be trusted.

    True where the readout exceeds the target in size or where the cubic term is larger than half of it.
    """
    tt, target, beta = _prepare(tau, target, g)
    terms = _readout_terms(tt, target, beta, 3)
    z = sum(terms, jnp.zeros_like(tt))
    return (jnp.abs(z) > jnp.abs(target)) | (jnp.abs(terms[2]) > jnp.abs(z) / 2)


def change_factors(
    tau: float | Float[Array, ""],
    w0: Float[Array, "n n"],
    m: Float[Array, " n"],
    w: Float[Array, " n"],
    target: Scalar,
    g: Scalar,
) -> tuple[Float[Array, "n 2"], Float[Array, "n 2"]]:
    r"""Factors U, V of the weight change :math:`UV^T` of a large network to third order, a rank of two.

    schuessler2020, Eqs. (44)-(52), with the erratum that the term of b in Eq. (45) is
    :math:`w^TB`, not :math:`w^TB^T`. The coefficients are those of infinite width: the error at N neurons
    falls as :math:`N^{-1/2}`.
    """
    require_network(w0, m, w)
    return _factors(*_prepare(tau, target, g), w0, m, w)


@jax.jit
def _factors(tt: Array, target: Array, beta: Array, w0: Array, m: Array, w: Array) -> tuple[Array, Array]:
    # The change stays the same when both the target and the readout vector change sign.
    w = jnp.where(target < 0, -w, w)
    target = jnp.abs(target)
    tau = tt / beta**2
    a = jnp.sqrt(target * tau * (1 - tt / 2 + tt**2 / 6))
    inverse_a = jnp.where(a > 0, 1 / jnp.where(a > 0, a, 1.0), 0.0)
    b = inverse_a * target**2 * beta * (tau**2 - beta**2 * tau**3) / 2
    c = inverse_a * target**3 * beta**2 * tau**3 / 6
    b_hat = jnp.sqrt(target**3 * beta**2 * tau**3 / 12)
    big = jnp.linalg.inv(jnp.eye(w0.shape[0], dtype=w0.dtype) - w0)
    bm, bw = big @ m, big.T @ w
    u = jnp.stack([big.T @ (a * w + b * bm + c * (big @ bw)), b_hat * (big.T @ bm)], axis=1)
    v = jnp.stack([big @ (a * m + b * bw + c * (big.T @ bm)), b_hat * (big @ bw)], axis=1)
    return u, v


class FirstOrder(eqx.Module):
    """First-order predictions: how the initial weights speed up learning."""

    learning_time: Float[Array, ""]
    gradient_norm: Float[Array, ""]
    change_norm: Float[Array, ""]
    shuffled_loss: Float[Array, ""]


def first_order(target: Scalar, g: Scalar) -> FirstOrder:
    r"""First-order learning time, gradient, change and loss after shuffling, at infinite width.

    :math:`\tau_1^* = 1/\beta^2`, :math:`\|W_1\| = |\hat z|\beta`, :math:`\|\Delta W\| = |\hat z|/\beta` and
    :math:`L^s/L_0 = g^4(2-g^2)^2`: schuessler2020, Eqs. (12)-(13), (34) and (84).
    """
    require_ratio(target, "the loss after shuffling is relative to the initial one.")
    _, target, beta = _prepare(0.0, target, g)
    g2 = 1 - 1 / beta
    return FirstOrder(beta**-2, jnp.abs(target) * beta, jnp.abs(target) / beta, (g2 * (2 - g2)) ** 2)


def outlier(tau: Times, target: Scalar, g: Scalar) -> Float[Array, "*times"]:
    r"""Low-order estimate of the outlying eigenvalue of the trained weights, at infinite width.

    :math:`\lambda = g^2 + (\epsilon + \sqrt{\epsilon^2 + 4\epsilon g^2})/2` with
    :math:`\epsilon = \hat z^2\beta^3(\tau^2 - \beta^2\tau^3)`. It is an outlier once it exceeds g, and good
    to some 15 % only: take eigenvalues of the weights for anything quantitative. NaN where
    :math:`\epsilon < 0`, past the range of the expansion.
    """
    tt, target, beta = _prepare(tau, target, g)
    g2 = 1 - 1 / beta
    eps = target**2 * (tt**2 - tt**3) / beta
    return g2 + (eps + jnp.sqrt(jnp.where(eps < 0, jnp.nan, eps * (eps + 4 * g2)))) / 2


class Traces(eqx.Module):
    r"""Normalized traces of products of :math:`B = (I - W_0)^{-1}` and its transpose."""

    m: Float[Array, "*gains order"]
    n: Float[Array, "*gains order"]


def traces(g: float | Float[Array, "*gains"], order: int = 4) -> Traces:
    r"""Traces of products of :math:`B = (I - W_0)^{-1}` at infinite width.

    ``m[k-1]`` is :math:`m_k = \mathrm{Tr}(BB^T)^k/N` (from k = 1) and ``n[k]`` is
    :math:`n_k = \mathrm{Tr}\,B^T(BB^T)^k/N` (from k = 0): the power series in t of F and of
    :math:`F/(1+g^2F)`, where :math:`F\,(1 - t(1+g^2F)^2) = 1 + g^2F`. The four traces of schuessler2020,
    section S5, are ``n[0] = 1``, ``m[0] = beta``, ``n[1] = beta**2`` and ``m[1] = beta**4``.
    """
    require_gain(g)
    require_size("order", order)
    return _traces(jnp.asarray(g, dtype=float) if isinstance(g, float | int) else g, order)


@functools.partial(jax.jit, static_argnames="order")
def _traces(g: Array, order: int) -> Traces:
    g2 = g**2
    zero, one = jnp.zeros_like(g2), jnp.ones_like(g2)

    def product(a: list[Array], b: list[Array], k: int) -> Array:
        return sum((a[i] * b[k - i] for i in range(k + 1)), zero)

    f: list[Array] = []  # F, then 1 + g^2 F and its square, F times the square, and n, order by order
    shifted: list[Array] = []
    square: list[Array] = []
    n: list[Array] = []
    for k in range(order):
        f.append((one if k == 0 else product(f, square, k - 1)) / (1 - g2))
        shifted.append(g2 * f[k] + (1.0 if k == 0 else 0.0))
        square.append(product(shifted, shifted, k))
        rest = sum((shifted[k - i] * n[i] for i in range(k)), zero)
        n.append((f[k] - rest) / shifted[0])
    return Traces(jnp.stack(f, axis=-1), jnp.stack(n, axis=-1))
