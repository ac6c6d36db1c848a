"""The gated deep linear network of the shared-representations note: weights, initial states, permutations.

``w_out[o] @ w_hidden @ w_in[i]`` translates a word of language ``i`` into language ``o``.
"""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, Shaped

from .._checks import is_concrete, require_sizes

Permutations = Int[Array | np.ndarray, "..."] | Float[Array | np.ndarray, "..."]


class Network(eqx.Module):
    """Weights of a gated deep linear network over ``L`` languages, ``D`` words and ``H`` hidden units.

    Batches of networks carry their axes in front of each array.

    Attributes
    ----------
    w_in
        Input block of each language, (L, H, D).
    w_hidden
        The shared layer, (H, H).
    w_out
        Output block of each language, (L, D, H).
    """

    w_in: Float[Array, "*batch languages hidden words"]
    w_hidden: Float[Array, "*batch hidden hidden"]
    w_out: Float[Array, "*batch languages words hidden"]

    def __init__(
        self,
        w_in: Shaped[Array | np.ndarray, "..."],
        w_hidden: Shaped[Array | np.ndarray, "..."],
        w_out: Shaped[Array | np.ndarray, "..."],
    ):
        arrays = {"w_in": w_in, "w_hidden": w_hidden, "w_out": w_out}
        for name, array in arrays.items():
            if not jnp.issubdtype(array.dtype, jnp.floating):
                raise ValueError(f"`{name}` must hold floating-point numbers, got dtype {array.dtype}.")
            if array.ndim < (rank := 2 if name == "w_hidden" else 3):
                raise ValueError(f"`{name}` must have at least {rank} axes, got shape {array.shape}.")
        *batch, languages, hidden, words = w_in.shape
        expected = {
            "w_hidden": (*batch, hidden, hidden),
            "w_out": (*batch, languages, words, hidden),
        }
        for name, shape in expected.items():
            if arrays[name].shape != shape:
                raise ValueError(
                    f"`{name}` must have shape {shape} to match `w_in` of shape {w_in.shape} (languages, "
                    f"hidden, words), got {arrays[name].shape}."
                )
        if min(languages, hidden, words) < 1:
            raise ValueError(f"`w_in` must have at least one of each, got shape {w_in.shape}.")
        if len({array.dtype for array in arrays.values()}) > 1:
            raise ValueError(f"Weights must share one dtype, got {[str(a.dtype) for a in arrays.values()]}.")
        self.w_in = jnp.asarray(w_in)
        self.w_hidden = jnp.asarray(w_hidden)
        self.w_out = jnp.asarray(w_out)

    @property
    def n_languages(self) -> int:
        """Number of languages ``L``."""
        return self.w_in.shape[-3]

    @property
    def n_hidden(self) -> int:
        """Number of hidden units ``H``."""
        return self.w_in.shape[-2]

    @property
    def n_words(self) -> int:
        """Number of words ``D``."""
        return self.w_in.shape[-1]

    def astype(self, dtype: jnp.dtype | type) -> "Network":
        """Copy with weights of another precision."""
        return jax.tree.map(lambda w: w.astype(dtype), self)


def initialize(
    n_languages: int,
    n_words: int,
    n_hidden: int,
    scale: float | Float[Array, ""] = 0.1,
    *,
    convention: str = "std",
    key: PRNGKeyArray,
) -> Network:
    r"""Draw Gaussian weights :math:`W = \sigma Z`; the same key at another scale is the same draw rescaled.

    Parameters
    ----------
    n_languages, n_words, n_hidden
        Sizes ``L``, ``D`` and ``H``.
    scale
        The initial scale :math:`\sigma`, positive.
    convention
        ``"std"``: every weight has standard deviation :math:`\sigma`. ``"fan_in"``: ``w_out`` and
        ``w_hidden`` are divided by :math:`\sqrt H`, ``w_in`` by :math:`\sqrt D`. The note does not state its
        own; all numbers of the studies use ``"std"``.
    key
        Key of the draw.
    """
    require_sizes(n_languages=n_languages, n_words=n_words, n_hidden=n_hidden)
    if is_concrete(scale) and not (np.isfinite(scale) and scale > 0):
        raise ValueError(f"`scale` must be positive and finite, got {scale}.")
    if convention not in ("std", "fan_in"):
        raise ValueError(f"`convention` must be 'std' or 'fan_in', got {convention!r}.")
    fan = convention == "fan_in"
    by_hidden, by_words = (n_hidden**-0.5, n_words**-0.5) if fan else (1.0, 1.0)
    z_in, z_hidden, z_out = _draw(n_languages, n_words, n_hidden, key)
    return Network(
        w_in=z_in * by_words * scale,
        w_hidden=z_hidden * by_hidden * scale,
        w_out=z_out * by_hidden * scale,
    )


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _draw(n_languages: int, n_words: int, n_hidden: int, key: PRNGKeyArray) -> tuple[Array, Array, Array]:
    out_key, hidden_key, in_key = jr.split(key, 3)
    return (
        jr.normal(in_key, (n_languages, n_hidden, n_words)),
        jr.normal(hidden_key, (n_hidden, n_hidden)),
        jr.normal(out_key, (n_languages, n_words, n_hidden)),
    )


def permutation_matrices(
    permutations: Permutations, n_languages: int, n_words: int
) -> Float[Array, "languages words words"]:
    r"""Dictionaries :math:`\Pi_k` as matrices, checked.

    Parameters
    ----------
    permutations
        Integers (L, D), where ``p[k, j]`` is the word of concept ``j`` in language ``k``, that is
        :math:`\Pi_k[p_{kj}, j] = 1`; or orthogonal matrices (L, D, D).
    n_languages, n_words
        Sizes that the permutations must match.
    """
    if permutations.ndim == 2 and jnp.issubdtype(permutations.dtype, jnp.integer):
        if permutations.shape != (n_languages, n_words):
            raise ValueError(
                f"`permutations` must have shape {(n_languages, n_words)}, got {permutations.shape}."
            )
        rows = np.arange(n_words) if is_concrete(permutations) else None
        if rows is not None and (np.sort(np.asarray(permutations), axis=-1) != rows).any():
            raise ValueError(
                f"`permutations` must hold a permutation of 0…{n_words - 1} in every row, got "
                f"{np.asarray(permutations).tolist()}."
            )
        return jnp.swapaxes(jax.nn.one_hot(jnp.asarray(permutations), n_words, dtype=float), -1, -2)
    if permutations.ndim == 3 and jnp.issubdtype(permutations.dtype, jnp.floating):
        if permutations.shape != (n_languages, n_words, n_words):
            raise ValueError(
                f"`permutations` must have shape {(n_languages, n_words, n_words)}, got {permutations.shape}."
            )
        if is_concrete(permutations):
            matrices = np.asarray(permutations)
            error = np.abs(np.swapaxes(matrices, -1, -2) @ matrices - np.eye(n_words)).max()
            if not error <= 100 * np.finfo(matrices.dtype).eps * n_words:
                raise ValueError(
                    f"`permutations` must hold orthogonal matrices; ΠᵀΠ differs from the identity by "
                    f"{error:.2g}."
                )
        return jnp.asarray(permutations)
    raise ValueError(
        "`permutations` must be integers (languages, words) or matrices (languages, words, words), got "
        f"shape {permutations.shape} and dtype {permutations.dtype}."
    )


def fold(network: Network, permutations: Permutations) -> Network:
    r"""Absorb the dictionaries: :math:`W_o^o \to \Pi_o^\top W_o^o`, :math:`W_i^i \to W_i^i \Pi_i`.

    The folded network has, with identity targets, the same losses and equivariant gradients: flow and descent
    commute with folding (Assumption 2 of the note is no restriction).
    """
    pi = permutation_matrices(permutations, network.n_languages, network.n_words).astype(network.w_in.dtype)
    return Network(
        w_in=jnp.einsum("...lhw,lwc->...lhc", network.w_in, pi, precision="highest"),
        w_hidden=network.w_hidden,
        w_out=jnp.einsum("lwc,...lwh->...lch", pi, network.w_out, precision="highest"),
    )


def unfold(network: Network, permutations: Permutations) -> Network:
    """Undo :func:`fold`."""
    pi = permutation_matrices(permutations, network.n_languages, network.n_words)
    return fold(network, jnp.swapaxes(pi, -1, -2))


def conserved(
    network: Network,
) -> tuple[Float[Array, "hidden hidden"], Float[Array, "hidden hidden"]]:
    r"""Matrices that gradient flow conserves, whatever the mask.

    :math:`\sum_o W_o^{o\top} W_o^o - W_h W_h^\top` and :math:`W_h^\top W_h - \sum_i W_i^i W_i^{i\top}`.
    Gradient descent drifts from them at first order in its step, a useful diagnostic.
    """
    w_in, w_hidden, w_out = network.w_in, network.w_hidden, network.w_out
    left = jnp.einsum("owh,owk->hk", w_out, w_out, precision="highest")
    right = jnp.einsum("ihw,ikw->hk", w_in, w_in, precision="highest")
    square = jnp.matmul(w_hidden, w_hidden.T, precision="highest")
    other = jnp.matmul(w_hidden.T, w_hidden, precision="highest")
    return left - square, other - right


def decoupled_network(
    u: Float[Array, "languages words"],
    s: Float[Array, " words"],
    v: Float[Array, "languages words"],
    *,
    key: PRNGKeyArray,
) -> Network:
    r"""Embed ``D`` scalar networks in one block network, exactly.

    :math:`W_o^o = R\,\mathrm{diag}(u_o) P_o^\top`, :math:`W_h = P_o\,\mathrm{diag}(s) P_i^\top`,
    :math:`W_i^i = P_i\,\mathrm{diag}(v_i) R^\top` with random orthogonal matrices (``H = D``). This manifold
    is invariant: each word then follows :class:`nullcline.gated.scalar.Network` at its own time
    :math:`t_\mathrm{scalar} = t / (D T)`.
    """
    words = s.shape[0]
    if u.shape != v.shape or u.shape[1] != words:
        raise ValueError(
            f"`u` and `v` must both have shape (languages, {words}) to match `s`, got {u.shape} and "
            f"{v.shape}."
        )
    r, p_out, p_in = (jr.orthogonal(k, words, dtype=s.dtype) for k in jr.split(key, 3))

    def product(a, b, c):
        return jnp.einsum("ab,lb,cb->lac", a, b, c, precision="highest")

    return Network(
        w_in=product(p_in, v, r),
        w_hidden=product(p_out, s[None, :], p_in)[0],
        w_out=product(r, u, p_out),
    )
