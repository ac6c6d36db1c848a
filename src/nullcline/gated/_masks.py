"""Masks of trained pairs: ``mask[o, i]`` is True where the pair input ``i`` -> output ``o`` is trained."""

import warnings
from collections.abc import Sequence

import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped

from .._checks import is_concrete, is_integer, require_integer, require_size

MaskLike = Shaped[Array | np.ndarray, "..."]


class MaskWarning(UserWarning):
    """A mask that trains, but cannot teach the whole task."""


def as_mask(mask: MaskLike, n_languages: int | None = None) -> Bool[Array, "outputs inputs"]:
    """Give ``mask`` as a checked boolean array; zeros and ones of any type are accepted.

    Parameters
    ----------
    mask
        Square, ``mask[o, i]`` nonzero where input ``i`` -> output ``o`` is trained.
    n_languages
        The number of languages it must have, when known.
    """
    mask = as_array("mask", mask)
    if mask.ndim != 2 or mask.shape[0] != mask.shape[1] or mask.shape[0] < 1:
        raise ValueError(f"`mask` must be square, (languages, languages), got shape {mask.shape}.")
    if n_languages is not None and mask.shape[0] != n_languages:
        raise ValueError(
            f"`mask` has shape {mask.shape}, but the network has {n_languages} languages: it must be "
            f"{(n_languages, n_languages)}."
        )
    if is_concrete(mask):
        check_values(np.asarray(mask), "mask")
    return jnp.asarray(mask).astype(bool)


def as_array(name: str, mask: object) -> Array | np.ndarray:
    """``mask`` with a shape, from nested lists too."""
    if isinstance(mask, Array | np.ndarray):
        return mask
    try:
        return np.asarray(mask, dtype=float)
    except (TypeError, ValueError):
        raise ValueError(f"`{name}` must be an array of 0 and 1, got {type(mask).__name__}.") from None


def check_values(values: np.ndarray, name: str) -> None:
    """Raise on other values than 0 and 1, and on a mask that trains nothing."""
    strange = values[(values != 0) & (values != 1)]
    if strange.size:
        raise ValueError(f"`{name}` must hold only 0 and 1 (or booleans), got {strange[0]!r}.")
    if not values.any(axis=(-1, -2)).all():
        raise ValueError(f"`{name}` has no trained pair; at least one entry must be True.")


def warn_if_full(mask: Bool[Array, "outputs inputs"]) -> None:
    """Warn, for the caller of the caller, that there is no pair to test."""
    if is_concrete(mask) and bool(mask.all()):
        warnings.warn("Every pair is trained: the test loss is NaN.", MaskWarning, stacklevel=3)


def warn_about(masks: Bool[np.ndarray, "batch languages languages"]) -> None:
    """Warn of masks with nothing to test, with an untrained language, or with too few pairs to connect."""
    languages = masks.shape[-1]
    pairs = masks.sum((-1, -2))

    def which(found):
        return "the mask" if len(masks) == 1 else f"{int(found.sum())} of {len(masks)} masks"

    full = pairs == languages**2
    if full.any():
        warnings.warn(
            f"Every pair is trained in {which(full)}: there is no pair to test, and the test loss is NaN.",
            MaskWarning,
            stacklevel=4,
        )
    silent = ~masks.any(-1).all(-1) | ~masks.any(-2).all(-1)
    if silent.any():
        warnings.warn(
            f"A language has no trained pair in {which(silent)}: its weights keep their initial values.",
            MaskWarning,
            stacklevel=4,
        )
    few = pairs < 2 * languages - 1
    if few.any():
        warnings.warn(
            f"Fewer than 2L - 1 = {2 * languages - 1} pairs are trained in {which(few)}: the languages are "
            "not connected, and pairs across components cannot be learnt.",
            MaskWarning,
            stacklevel=4,
        )


def _pair_ranks(n_languages: int, diagonal: bool, key: PRNGKeyArray) -> Int[Array, "languages languages"]:
    """Position of each pair in one random order of all pairs, the diagonal first when it is fixed."""
    draw = jr.uniform(key, (n_languages, n_languages))
    if diagonal:
        draw = draw - jnp.eye(n_languages)
    return jnp.argsort(jnp.argsort(draw.ravel())).reshape(draw.shape)


def nested_mask(
    n_languages: int, n_pairs: int | Int[Array, ""], diagonal: bool = True, *, key: PRNGKeyArray
) -> Bool[Array, "languages languages"]:
    """Train the first ``n_pairs`` pairs of one random order: nested in ``n_pairs`` for a fixed key.

    Parameters
    ----------
    n_languages
        Number of languages ``L``.
    n_pairs
        Number of trained pairs: L … L² with the diagonal fixed, 1 … L² without. May be traced.
    diagonal
        Whether the diagonal (a language with itself) comes first.
    key
        Key of the order.
    """
    require_size("n_languages", n_languages)
    low = n_languages if diagonal else 1
    if not jnp.issubdtype(jnp.result_type(n_pairs), jnp.integer):
        raise ValueError(f"`n_pairs` must be an integer, got {n_pairs}.")
    if is_concrete(n_pairs) and not low <= n_pairs <= n_languages**2:
        raise ValueError(
            f"`n_pairs` must be in [{low}, {n_languages**2}] for {n_languages} languages"
            f"{' with the diagonal trained' if diagonal else ''}, got {n_pairs}."
        )
    return _pair_ranks(n_languages, diagonal, key) < n_pairs


def nested_masks(
    n_languages: int, diagonal: bool = True, *, key: PRNGKeyArray
) -> Bool[Array, "masks languages languages"]:
    """All nested masks that leave a pair to test, each with one trained pair more than the one before.

    From ``L`` pairs (one with ``diagonal=False``) to ``L**2 - 1``.
    """
    require_size("n_languages", n_languages)
    low = n_languages if diagonal else 1
    counts = jnp.arange(low, n_languages**2)
    return _pair_ranks(n_languages, diagonal, key)[None] < counts[:, None, None]


def bernoulli_mask(
    n_languages: int, p: float | Float[Array, ""], diagonal: bool = False, *, key: PRNGKeyArray
) -> Bool[Array, "languages languages"]:
    """Train each pair independently with probability ``p``; nested in ``p`` for a fixed key.

    ``diagonal=True`` then adds the diagonal.
    """
    require_size("n_languages", n_languages)
    if is_concrete(p) and not 0 <= p <= 1:
        raise ValueError(f"`p` must be in [0, 1], got {p}.")
    mask = jr.uniform(key, (n_languages, n_languages)) < p
    return mask | jnp.eye(n_languages, dtype=bool) if diagonal else mask


def circulant_mask(
    n_languages: int, width: int | None = None, *, offsets: Sequence[int] | None = None
) -> Bool[Array, "languages languages"]:
    """Train the pairs ``mask[o, (o + s) % L]`` for ``s`` in ``offsets``, by default ``0 … width - 1``.

    The bipartite graph has ``gcd(L, differences of offsets)`` components: every width of two and more is
    connected, a shifted identity is not.
    """
    require_size("n_languages", n_languages)
    if (width is None) == (offsets is None):
        raise ValueError(f"Give either `width` or `offsets`, got width = {width} and offsets = {offsets}.")
    if offsets is None:
        assert width is not None
        require_integer("width", width, 1, n_languages)
        offsets = range(width)
    if not all(is_integer(offset) for offset in offsets):
        raise ValueError(f"`offsets` must be integers, got {list(offsets)}.")
    shifts = [int(s) % n_languages for s in offsets]
    if not shifts or len(set(shifts)) < len(shifts):
        raise ValueError(
            f"`offsets` must hold at least one value and none twice modulo {n_languages}, got "
            f"{list(offsets)}."
        )
    lag = (np.arange(n_languages)[None, :] - np.arange(n_languages)[:, None]) % n_languages
    return jnp.asarray(np.isin(lag, shifts))
