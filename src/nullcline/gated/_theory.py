"""What can be said before training: which pairs generalize, the end state, spectra of random masks."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._checks import require_size
from ._connectivity import components, connectivity
from ._masks import MaskLike, as_mask


def resistance_bound(mask: MaskLike, train_loss: float | Float[Array, ""]) -> Float[Array, "outputs inputs"]:
    r"""Bound :math:`\ell_{oi} \le R_{oi}\,T\,\mathrm{train}` on every pair loss at small training loss.

    First order in the residuals, for ``H = D`` (or a product of rank ``D``); infinite across components.
    """
    graph = connectivity(mask)
    return graph.resistance * graph.n_pairs.astype(graph.resistance.dtype) * train_loss


def typical_ratio(mask: MaskLike) -> Float[Array, ""]:
    r"""Typical test loss over training loss of a converged run, :math:`T(L-\lambda_2)/(\lambda_2(L^2-T))`.

    From the slowest mode of a connected mask; infinite when it is disconnected.
    """
    mask = as_mask(mask)
    graph = connectivity(mask)
    slow = graph.algebraic_connectivity
    pairs = graph.n_pairs.astype(slow.dtype)
    return pairs * (mask.shape[0] - slow) / (slow * (mask.shape[0] ** 2 - pairs))


def small_scale_losses(mask: MaskLike) -> Float[Array, "outputs inputs"]:
    r"""Pair losses at the end of training as :math:`\sigma \to 0`, for ``H = D`` and many words.

    Zero within a component. Across components :math:`(1 + \rho^2)/2`, where the translation is :math:`\rho`
    times a random orthogonal matrix, :math:`\rho^4 = (a_c/b_c)/(a_{c'}/b_{c'})` for output in ``c`` and input
    in ``c'``, and component ``c`` has :math:`a_c` inputs and :math:`b_c` outputs. One half where a language
    has no trained pair. With a fixed diagonal every cross loss is 1, and the test loss is
    :math:`n_\mathrm{cross}/(L^2 - T)`.
    """
    return _small_scale_losses(as_mask(mask))


@jax.jit
def _small_scale_losses(mask: Bool[Array, "outputs inputs"]) -> Float[Array, "outputs inputs"]:
    outputs, inputs = components(mask)
    real = jnp.zeros(()).dtype

    def count(labels, whose):
        return jnp.sum(labels[None, :] == whose[:, None], axis=1).astype(real)

    # Inputs over outputs, in the component of each output and of each input.
    of_output = count(inputs, outputs) / count(outputs, outputs)
    of_input = count(inputs, inputs) / count(outputs, inputs)
    rho = (of_output[:, None] / of_input[None, :]) ** 0.25
    is_silent = (~mask.any(1))[:, None] | (~mask.any(0))[None, :]
    cross = jnp.where(is_silent, 0.5, (1 + rho**2) / 2)
    return jnp.where(outputs[:, None] == inputs[None, :], 0.0, cross)


def final_singular_value(n_languages: int) -> float:
    r"""Common value :math:`L^{1/3}` of the ``D`` singular values of each layer at the end of training.

    For :math:`\sigma \to 0` on a connected mask: of ``w_hidden``, and of the stacked ``w_out`` and ``w_in``.
    """
    require_size("n_languages", n_languages)
    return n_languages ** (1 / 3)


def final_hessian_eigenvalues(mask: MaskLike, n_words: int) -> Float[Array, " pairs"]:
    r"""Eigenvalues of the Hessian of the training loss at the end state of :math:`\sigma \to 0`, ascending.

    :math:`(L^{1/3}/(DT))\,\mathrm{eig}(K)` with :math:`K = [o=o'] + [i=i'] + 1/L` over trained pairs, each
    with multiplicity :math:`D^2`. The largest bounds the step of gradient descent (stable below 2 over it);
    the smallest positive one is close to :math:`L^{1/3}\lambda_2/(DT)` and sets the final rate.

    Parameters
    ----------
    mask
        A connected mask, concrete (the number of eigenvalues is that of its trained pairs).
    n_words
        Number of words ``D``.
    """
    require_size("n_words", n_words)
    mask = as_mask(mask)
    languages = mask.shape[0]
    output, input_ = jnp.nonzero(mask)

    def same(label):
        return (label[:, None] == label[None, :]).astype(float)

    overlap = same(output) + same(input_) + 1 / languages
    pairs = output.shape[0]
    return languages ** (1 / 3) / (n_words * pairs) * jnp.linalg.eigvalsh(overlap)


def final_rate(mask: MaskLike, n_words: int) -> Float[Array, ""]:
    r"""Rate at which the training loss falls at last, :math:`2L^{1/3}\lambda_2/(DT)`, from small weights."""
    require_size("n_words", n_words)
    mask = as_mask(mask)
    graph = connectivity(mask)
    slow = graph.algebraic_connectivity
    return 2 * mask.shape[0] ** (1 / 3) * slow / (n_words * graph.n_pairs.astype(slow.dtype))


class BernoulliSpectrum(eqx.Module):
    """Singular values of a large random mask: one outlier above a quarter-circle bulk."""

    outlier: float
    edge: float


def bernoulli_spectrum(n_languages: int, p: float) -> BernoulliSpectrum:
    r"""Expected outlier :math:`pn + 1 - p` and bulk edge :math:`2\sqrt{np(1-p)}` of a Bernoulli mask.

    Erratum: the note's edge lacks the factor :math:`\sqrt n`, and for square masks the bulk is a quarter
    circle.
    """
    require_size("n_languages", n_languages)
    if not 0 <= p <= 1:
        raise ValueError(f"`p` must be in [0, 1], got {p}.")
    return BernoulliSpectrum(outlier=p * n_languages + 1 - p, edge=2 * (n_languages * p * (1 - p)) ** 0.5)


def bulk_distribution(s: Float[Array, " values"], edge: float) -> Float[Array, " values"]:
    r"""Cumulative quarter-circle law, :math:`\tfrac2\pi[x\sqrt{1-x^2} + \arcsin x]` with x = s/edge."""
    if not edge > 0:
        raise ValueError(f"`edge` must be positive, got {edge}.")
    x = jnp.clip(s / edge, 0, 1)
    return 2 / jnp.pi * (x * jnp.sqrt(1 - x**2) + jnp.arcsin(x))
