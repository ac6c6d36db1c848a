"""What training did to the recurrent weights, in the notation of schuessler2020."""

from collections.abc import Sequence
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jax import lax
from jax.core import Tracer
from jaxtyping import Array, Complex, Float, PRNGKeyArray

from .._checks import as_float, is_integer, require_integer
from .._order import after
from ._cells import AbstractCell
from ._decompositions import eigenvalues, singular_values, svd
from ._run import trial_outputs
from ._trials import Trials, check_trials, loss

Cell = TypeVar("Cell", bound=AbstractCell)


def check_fraction(fraction: float) -> None:
    """Refuse a share outside (0, 1)."""
    if not 0 < fraction < 1:
        raise ValueError(f"`fraction` must be in (0, 1), got {fraction}.")


def epochs_to(losses: Float[Array, "*networks steps"], fraction: float = 0.05) -> Float[Array, "*networks"]:
    """First step whose loss is below ``fraction`` of the first loss, counted from 0; NaN if there is none.

    ``losses[k]`` is the loss before update k, so the number is also that of the updates needed.
    """
    check_fraction(fraction)
    losses = as_float("losses", losses)
    if losses.ndim == 0 or losses.shape[-1] == 0:
        raise ValueError("`losses` has no steps; give at least one.")
    is_below = losses < fraction * losses[..., :1]
    first = jnp.argmax(is_below, axis=-1).astype(losses.dtype)
    return jnp.where(jnp.any(is_below, axis=-1), first, jnp.asarray(jnp.nan, losses.dtype))


def weight_change(initial: AbstractCell, final: AbstractCell) -> Float[Array, "post pre"]:
    r"""Change of the recurrent weights, :math:`\Delta W = W - W_0`, schuessler2020 (1)."""
    _check_pair(initial, final)
    return final.w - initial.w


def truncate(matrix: Float[Array, "post pre"], rank: int) -> Float[Array, "post pre"]:
    """Best approximation of a given rank, schuessler2020 (4)."""
    full = min(matrix.shape)
    require_integer("rank", rank, 0, full, f"for a matrix of shape {matrix.shape}")
    u, s, vt = svd(matrix)
    return (u[:, :rank] * s[None, :rank]) @ vt[:rank]


@eqx.filter_jit
def _truncation_losses(initial, final, trials, ranks):
    u, s, vt = svd(final.w - initial.w)
    modes = jnp.arange(len(s))

    def at_rank(rank):
        kept = jnp.where(modes < rank, s, jnp.zeros_like(s))
        cell = with_recurrent(final, initial.w + (u * kept[None, :]) @ vt)
        return loss(trial_outputs(cell, trials), trials)

    # All digits of float32, as in training; a GPU does not give them by default.
    with jax.default_matmul_precision("highest"):
        return lax.map(at_rank, ranks)


def truncation_losses(
    initial: Cell, final: Cell, trials: Trials, ranks: Sequence[int] | range | None = None
) -> Float[Array, " ranks"]:
    r"""Loss of the network with :math:`W_0 + \Delta W^{(R)}` and trained in- and outputs, for each rank R.

    Parameters
    ----------
    initial, final
        The network before and after training.
    trials
        One fixed batch for all ranks (512 trials in the document).
    ranks
        Ranks to keep, each in 0..N; by default 0..25, or 0..N in a smaller network.
    """
    _check_pair(initial, final)
    check_trials(final, trials)
    full = min(final.w.shape)
    ranks = range(min(25, full) + 1) if ranks is None else ranks
    if len(ranks) == 0 or not all(is_integer(rank) and 0 <= rank <= full for rank in ranks):
        raise ValueError(
            f"`ranks` must be integers in 0..{full}, the rank of the change at most, got {list(ranks)}."
        )
    return _truncation_losses(initial, final, trials, jnp.asarray(list(ranks)))


def functional_rank(
    initial: Cell, final: Cell, trials: Trials, fraction: float = 0.05, max_rank: int = 25
) -> Float[Array, ""]:
    """Smallest rank whose truncation loss is below ``fraction`` of that at rank 0; NaN if none up to
    ``max_rank``.

    Rank 0 is :math:`W_0` with the trained in- and outputs. The loss need not fall monotonically: the first
    crossing counts.
    """
    check_fraction(fraction)
    require_integer("max_rank", max_rank, 0)
    losses = truncation_losses(initial, final, trials, range(min(max_rank, *final.w.shape) + 1))
    return epochs_to(losses, fraction)


@eqx.filter_jit
def _shuffle_loss(initial, final, trials, key):
    shuffled = jr.permutation(key, initial.w.reshape(-1)).reshape(initial.w.shape)
    cell = with_recurrent(final, shuffled + (final.w - initial.w))
    with jax.default_matmul_precision("highest"):
        before = loss(trial_outputs(initial, trials), trials)
        return loss(trial_outputs(cell, trials), trials) / before, before


def shuffle_loss(initial: Cell, final: Cell, trials: Trials, *, key: PRNGKeyArray) -> Float[Array, ""]:
    r"""Loss after the entries of :math:`W_0` are permuted, over the loss of the untrained network.

    The network has :math:`W_0^{shuffled} + \Delta W` and trained in- and outputs; both losses are on
    ``trials``.
    """
    _check_pair(initial, final)
    check_trials(final, trials)
    ratio, before = _shuffle_loss(initial, final, trials, key)
    if not isinstance(before, Tracer) and before == 0:
        raise ValueError("The untrained network has no loss on these trials: a ratio to it is undefined.")
    return ratio


class Spectrum(eqx.Module):
    """Singular values and eigenvalues (by falling real part) of W, and of the change if known."""

    singular_values: Float[Array, " hidden"]
    eigenvalues: Complex[Array, " hidden"]
    change_singular_values: Float[Array, " hidden"] | None = None
    change_eigenvalues: Complex[Array, " hidden"] | None = None


@eqx.filter_jit
def _spectrum(w):
    values = singular_values(w)
    return values, eigenvalues(after(w, values))


def spectrum(cell: AbstractCell, initial: AbstractCell | None = None) -> Spectrum:
    """Spectra of the recurrent weights, and of their change if the network before training is given."""
    if cell.w.shape[0] != cell.w.shape[1]:
        raise ValueError(
            f"`cell` must have square recurrent weights, got {cell.w.shape}: gates have no eigenvalues."
        )
    if initial is None:
        return Spectrum(*_spectrum(cell.w))
    return Spectrum(*_spectrum(cell.w), *_spectrum(weight_change(initial, cell)))


def with_recurrent(cell: Cell, w: Array) -> Cell:
    """The same network with other recurrent weights."""
    return eqx.tree_at(lambda tree: tree.w, cell, w)


def _check_pair(initial: AbstractCell, final: AbstractCell) -> None:
    if initial.w.shape != final.w.shape:
        raise ValueError(
            "`initial` and `final` must be one network before and after training; their recurrent weights "
            f"have shapes {initial.w.shape} and {final.w.shape}."
        )
