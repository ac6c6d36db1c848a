r"""Losses of a gated network and their gradient in Gram form.

Everything is built on the pair losses :math:`\ell_{oi} = \|W_o^o W_h W_i^i - \Pi_o\Pi_i^\top\|_F^2 / (2D)`.
The zero network has :math:`\ell = 1/2`, a random orthogonal translation :math:`\ell \approx 1`.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ._connectivity import components
from ._masks import MaskLike, as_mask, warn_if_full
from ._network import Network, Permutations, fold, unfold


def pair_losses(
    network: Network, *, permutations: Permutations | None = None
) -> Float[Array, "outputs inputs"]:
    r"""Loss :math:`\ell_{oi}` of every pair, trained or not; the mean squared error is twice it.

    Parameters
    ----------
    network
        One network; use ``jax.vmap`` for more.
    permutations
        Dictionaries :math:`\Pi_k`, integers (L, D) or orthogonal matrices (L, D, D); default identity.
    """
    if network.w_hidden.ndim != 2:
        raise ValueError(
            f"`network` must be one network, got `w_hidden` of shape {network.w_hidden.shape}. Use "
            "`jax.vmap` for more."
        )
    if permutations is not None:
        network = fold(network, permutations)
    return _pair_losses(network)


@jax.jit
def _pair_losses(network: Network) -> Float[Array, "outputs inputs"]:
    through = jnp.matmul(network.w_out, network.w_hidden, precision="highest")
    maps = jnp.einsum("owh,ihx->oiwx", through, network.w_in, precision="highest")
    error = maps - jnp.eye(network.n_words, dtype=maps.dtype)[None, None]
    return jnp.sum(error**2, axis=(-1, -2)) / (2 * network.n_words)


class Losses(eqx.Module):
    """Means of the pair losses: trained pairs, untrained pairs, and the untrained ones split in two.

    A mean over no pair is NaN.

    Attributes
    ----------
    train
        Mean over the trained pairs, eq. (1) of the note.
    test
        Mean over the untrained pairs.
    within
        Mean over the untrained pairs inside a connected component of the mask.
    cross
        Mean over the pairs across components.
    """

    train: Float[Array, "*batch"]
    test: Float[Array, "*batch"]
    within: Float[Array, "*batch"]
    cross: Float[Array, "*batch"]


@jax.jit
def masked_mean(values: Float[Array, "..."], where: Bool[Array, "..."]) -> Float[Array, ""]:
    """Mean over the selected entries; NaN when there is none."""
    weight = where.astype(values.dtype)
    return jnp.sum(jnp.where(where, values, 0)) / jnp.sum(weight)


@jax.jit
def split_losses(pairs: Float[Array, "outputs inputs"], mask: Bool[Array, "outputs inputs"]) -> Losses:
    """Average pair losses over the trained, the untrained, the within and the cross pairs."""
    outputs, inputs = components(mask)
    same = outputs[:, None] == inputs[None, :]
    return Losses(
        train=masked_mean(pairs, mask),
        test=masked_mean(pairs, ~mask),
        within=masked_mean(pairs, ~mask & same),
        cross=masked_mean(pairs, ~mask & ~same),
    )


def losses(network: Network, mask: MaskLike, *, permutations: Permutations | None = None) -> Losses:
    """All mean losses of ``network`` at once; see :class:`Losses`. Warns when every pair is trained."""
    mask = as_mask(mask, network.n_languages)
    warn_if_full(mask)
    return split_losses(pair_losses(network, permutations=permutations), mask)


def train_loss(
    network: Network, mask: MaskLike, *, permutations: Permutations | None = None
) -> Float[Array, ""]:
    r"""Mean loss over the trained pairs, :math:`\sum M\ell / T`: eq. (1) of the note.

    Erratum: the note's :math:`T \otimes J_D` must be transposed, since its rows are inputs.
    """
    mask = as_mask(mask, network.n_languages)
    return masked_mean(pair_losses(network, permutations=permutations), mask)


def test_loss(
    network: Network,
    mask: MaskLike,
    *,
    permutations: Permutations | None = None,  # noqa: PT028 (not a test)
) -> Float[Array, ""]:
    """Mean loss over the untrained pairs; NaN, with a warning, when every pair is trained."""
    mask = as_mask(mask, network.n_languages)
    warn_if_full(mask)
    return masked_mean(pair_losses(network, permutations=permutations), ~mask)


@jax.jit
def gram_value_and_gradient(
    w_out: Float[Array, "languages words hidden"],
    w_hidden: Float[Array, "hidden hidden"],
    w_in_t: Float[Array, "languages words hidden"],
    mask: Float[Array, "languages languages"],
) -> tuple[
    Float[Array, ""],
    tuple[
        Float[Array, "languages words hidden"],
        Float[Array, "hidden hidden"],
        Float[Array, "languages words hidden"],
    ],
]:
    r"""Training loss and gradient for identity targets, without the LD×LD product.

    With :math:`B_i = W_h W_i^i`, :math:`G_i = B_i B_i^\top`, :math:`F_o = W_o^{o\top} W_o^o`,
    :math:`c = 1/(DT)`:

    .. math::
        \partial W_o^o &= c (W_o^o \textstyle\sum_i M_{oi} G_i - \sum_i M_{oi} B_i^\top) \\
        C_i &= (\textstyle\sum_o M_{oi} F_o) B_i - \sum_o M_{oi} W_o^{o\top} \\
        \partial W_h &= c \textstyle\sum_i C_i W_i^{i\top}, \qquad \partial W_i^i = c W_h^\top C_i

    The input blocks come and go transposed, (L, D, H). The loss cancels: its absolute error is a few units of
    rounding, 1e-7 in float32.
    """
    languages, words, hidden = w_out.shape
    c = 1 / (words * jnp.sum(mask))

    def stack(blocks):
        return blocks.reshape(languages * words, hidden)

    def flat(blocks):
        return blocks.reshape(languages, -1)

    def dot(a, b):
        return jnp.matmul(a, b, precision="highest")

    b_t = dot(stack(w_in_t), w_hidden.T).reshape(w_in_t.shape)
    gram_b = jnp.einsum("lwh,lwk->lhk", b_t, b_t, precision="highest")
    gram_out = jnp.einsum("lwh,lwk->lhk", w_out, w_out, precision="highest")
    seen_b = dot(mask, flat(gram_b)).reshape(gram_b.shape)
    sum_b = dot(mask, flat(b_t)).reshape(b_t.shape)
    seen_out = dot(mask.T, flat(gram_out)).reshape(gram_out.shape)
    sum_out = dot(mask.T, flat(w_out)).reshape(w_out.shape)
    # seen_b and seen_out are symmetric, so products with them need no transpose.
    d_out = dot(w_out, seen_b) - sum_b
    c_t = dot(b_t, seen_out) - sum_out
    d_hidden = dot(stack(c_t).T, stack(w_in_t))
    d_in_t = dot(stack(c_t), w_hidden).reshape(w_in_t.shape)
    # <F, sum M G> - <W, sum M B'> = <W, d_out>, so the loss needs no product of its own.
    value = 0.5 * c * (jnp.sum(w_out * (d_out - sum_b))) + 0.5
    return value, (c * d_out, c * d_hidden, c * d_in_t)


def gradient(network: Network, mask: MaskLike, *, permutations: Permutations | None = None) -> Network:
    r"""Gradient of the training loss as a :class:`Network`, in Gram form.

    Exact, in :math:`14H^2LD + 8L^2H^2` operations instead of :math:`6H(LD)^2 + 6H^2LD`. Erratum: the note's
    :math:`\nabla_{W_h}` carries a stray factor; it is :math:`c\,W_o^\top E W_i^\top`.

    Parameters
    ----------
    network
        One network; use ``jax.vmap`` for more.
    mask
        Trained pairs, (outputs, inputs).
    permutations
        Dictionaries, default identity; folded in and out exactly.
    """
    mask = as_mask(mask, network.n_languages)
    folded = network if permutations is None else fold(network, permutations)
    w_in_t = jnp.swapaxes(folded.w_in, -1, -2)
    _, (d_out, d_hidden, d_in_t) = gram_value_and_gradient(
        folded.w_out, folded.w_hidden, w_in_t, mask.astype(w_in_t.dtype)
    )
    result = Network(w_in=jnp.swapaxes(d_in_t, -1, -2), w_hidden=d_hidden, w_out=d_out)
    if permutations is None:
        return result
    return unfold(result, permutations)
