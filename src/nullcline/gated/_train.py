"""Training: gradient flow of one network or of a batch, until the training loss is below a tolerance."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Shaped

from ._flow import check_limits, check_masks, default_batch, flow, only, status_names
from ._loss import Losses, gram_value_and_gradient, pair_losses, split_losses
from ._masks import MaskLike, as_mask
from ._network import Network, Permutations, fold, unfold


class Run(eqx.Module):
    r"""Where training ended, and whether to trust it; a batch carries its axis in front of every array.

    Attributes
    ----------
    network
        The final weights.
    train_loss, test_loss
        Final mean losses over the trained and the untrained pairs.
    within_loss, cross_loss
        The test loss split: untrained pairs inside a connected component of the mask, and across components.
        NaN where there is no such pair.
    time
        Time of gradient flow, unit learning rate. A converged run ends exactly where it crosses the
        tolerance.
    evaluations
        Gradient evaluations spent.
    status
        ``"converged"``; ``"budget"`` when evaluations or time ran out, as for a frustrated run;
        ``"diverged"`` when the loss was not finite. Only converged runs belong in averages.
    frustration
        :math:`m = 2DT\,\mathrm{train}`, near the number of frustrated pair-directions in a stuck run.
    growth
        Norm of the weights over its initial value.
    networks
        Weights at ``times``, with an axis of times in front (after the batch axis); None without ``times``.
    """

    network: Network
    train_loss: Float[Array, "*batch"]
    test_loss: Float[Array, "*batch"]
    within_loss: Float[Array, "*batch"]
    cross_loss: Float[Array, "*batch"]
    time: Float[Array, "*batch"]
    evaluations: Int[Array, "*batch"]
    status: str | Shaped[np.ndarray, "*batch"]
    frustration: Float[Array, "*batch"]
    growth: Float[Array, "*batch"]
    networks: Network | None

    @property
    def is_converged(self) -> bool | Bool[np.ndarray, "*batch"]:
        """Whether the training loss went below the tolerance."""
        return self.status == "converged"


def _flatten(network: Network) -> Float[Array, "... size"]:
    batch = network.w_hidden.shape[:-2]
    parts = (network.w_out, jnp.swapaxes(network.w_in, -1, -2), network.w_hidden)
    return jnp.concatenate([part.reshape(*batch, -1) for part in parts], axis=-1)


def _blocks(y: Float[Array, "... size"], shape: tuple[int, int, int]) -> tuple[Array, Array, Array]:
    """Output blocks, transposed input blocks and hidden layer of flat weights: plain slices, no copies."""
    languages, words, hidden = shape
    batch, rows = y.shape[:-1], languages * words
    matrix = y.reshape(*batch, 2 * rows + hidden, hidden)
    blocks = (*batch, languages, words, hidden)
    return (
        matrix[..., :rows, :].reshape(blocks),
        matrix[..., rows : 2 * rows, :].reshape(blocks),
        matrix[..., 2 * rows :, :],
    )


def _unflatten(y: Float[Array, "... size"], shape: tuple[int, int, int]) -> Network:
    w_out, w_in_t, w_hidden = _blocks(y, shape)
    return Network(w_in=jnp.swapaxes(w_in_t, -1, -2), w_hidden=w_hidden, w_out=w_out)


class _Field(eqx.Module):
    """Loss and Gram gradient of flat weights; compared by shape, so that equal sizes share programs."""

    shape: tuple[int, int, int] = eqx.field(static=True)

    def __call__(self, y: Float[Array, "batch size"], mask: Bool[Array, "batch languages languages"]):
        def one(y: Array, mask: Array) -> tuple[Array, Array]:
            w_out, w_in_t, w_hidden = _blocks(y, self.shape)
            value, parts = gram_value_and_gradient(w_out, w_hidden, w_in_t, mask.astype(y.dtype))
            d_out, d_hidden, d_in_t = parts
            return value, jnp.concatenate([d_out.ravel(), d_in_t.ravel(), d_hidden.ravel()])

        return jax.vmap(one)(y, mask)


class _Exact(eqx.Module):
    """Training loss from the residuals, which does not cancel."""

    shape: tuple[int, int, int] = eqx.field(static=True)

    def __call__(self, y: Float[Array, "batch size"], mask: Bool[Array, "batch languages languages"]):
        def one(y: Array, mask: Array) -> Array:
            weight = mask.astype(y.dtype)
            return jnp.sum(weight * pair_losses(_unflatten(y, self.shape))) / jnp.sum(weight)

        return jax.vmap(one)(y, mask)


@eqx.filter_jit
def _final_losses(
    y: Float[Array, "runs size"], masks: Bool[Array, "runs languages languages"], shape: tuple, batch: int
) -> Losses:
    def one(pair: tuple[Array, Array]) -> Losses:
        return split_losses(pair_losses(_unflatten(pair[0], shape)), pair[1])

    return lax.map(one, (y, masks), batch_size=batch)


def _check_weights(networks: Network, tolerance: float) -> None:
    words, hidden = networks.n_words, networks.n_hidden
    floor = (words - hidden) / (2 * words)
    if tolerance <= floor:
        raise ValueError(
            f"`tolerance` = {tolerance} cannot be reached: with {hidden} hidden units and {words} words "
            f"every translation has rank at most {hidden}, and the loss stays above (D - H) / (2 D) = "
            f"{floor:.4g}. Use more hidden units or a larger tolerance."
        )
    for name in ("w_in", "w_hidden", "w_out"):
        if not bool(jnp.isfinite(getattr(networks, name)).all()):
            raise ValueError(f"`{name}` holds values that are not finite.")


def train_batch(
    networks: Network,
    masks: MaskLike,
    *,
    tolerance: float = 1e-6,
    max_evaluations: int | Int[np.ndarray, " runs"] = 12_000,
    max_time: float | None = None,
    times: Float[Array | np.ndarray, " times"] | None = None,
    permutations: Permutations | None = None,
    rtol: float = 1e-3,
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Run:
    """Train many networks by gradient flow, each until its training loss is below ``tolerance``.

    Runs share one batched program on the default device. Each takes steps of its own (Runge–Kutta–Chebyshev,
    Gram gradient); a finished run leaves and the next one enters, so that slow runs hold nobody up.

    Parameters
    ----------
    networks
        Initial weights with one leading axis of runs. Their precision is that of the computation.
    masks
        Trained pairs of each run, (runs, outputs, inputs), or one mask for all.
    tolerance
        Training loss at which a run is finished.
    max_evaluations
        Budget of gradient evaluations, for all runs or for each. Frustrated runs never converge and need it.
    max_time
        Time of gradient flow at which a run is ended.
    times
        Times at which to record the weights in ``networks``. The flow is then followed (by Tsit5, to at least
        1e-6) to the last of them at least.
    permutations
        Dictionaries of the languages, integers (L, D) or orthogonal matrices (L, D, D); default identity.
        Shared by all runs, and folded in and out exactly.
    rtol
        Relative tolerance of the steps. The absolute one is ``rtol`` times the root mean square of the
        initial weights.
    batch_size
        Number of runs computed together; by default what suits the device.
    progress
        Called with (finished, total) as runs finish.

    Warns
    -----
    MaskWarning
        If a mask trains every pair, leaves a language without a trained pair, or cannot be connected.
    """
    if networks.w_in.ndim != 4:
        raise ValueError(
            f"`networks` must have exactly one leading axis of runs, got `w_in` of shape "
            f"{networks.w_in.shape}. Use `train` for one network."
        )
    runs, languages = networks.w_in.shape[:2]
    check_limits(runs, tolerance, rtol, max_evaluations, max_time, times, batch_size)
    _check_weights(networks, tolerance)
    masks = check_masks(masks, runs, languages)

    folded = networks if permutations is None else fold(networks, permutations)
    shape = (languages, networks.n_words, networks.n_hidden)
    start = _flatten(folded)
    batch = batch_size or default_batch(start.shape[1])
    outcome, states = flow(
        _Field(shape), _Exact(shape), start, masks, tolerance=tolerance, max_evaluations=max_evaluations,
        max_time=max_time, times=times, rtol=rtol, batch=batch, is_stiff=False, progress=progress,
    )  # fmt: skip
    final = _final_losses(outcome.y, masks, shape, min(batch, runs))
    network = _unflatten(outcome.y, shape)
    networks_at = None if states is None else _unflatten(states, shape)
    if permutations is not None:
        network = unfold(network, permutations)
        networks_at = None if networks_at is None else unfold(networks_at, permutations)
    pairs = masks.sum((-1, -2)).astype(start.dtype)
    return Run(
        network=network,
        train_loss=final.train,
        test_loss=final.test,
        within_loss=final.within,
        cross_loss=final.cross,
        time=outcome.time,
        evaluations=outcome.evaluations,
        status=status_names(outcome.status),
        frustration=2 * networks.n_words * pairs * final.train,
        growth=jnp.sqrt(jnp.mean(outcome.y**2, axis=1) / jnp.mean(start**2, axis=1)),
        networks=networks_at,
    )


def train(
    network: Network,
    mask: MaskLike,
    *,
    tolerance: float = 1e-6,
    max_evaluations: int = 12_000,
    max_time: float | None = None,
    times: Float[Array | np.ndarray, " times"] | None = None,
    permutations: Permutations | None = None,
    rtol: float = 1e-3,
) -> Run:
    """Train one network by gradient flow until its training loss is below ``tolerance``.

    See :func:`train_batch` for the parameters, and :class:`Run` for what comes back.
    """
    if network.w_in.ndim != 3:
        raise ValueError(
            f"`network` must be a single network, got `w_in` of shape {network.w_in.shape}. Use "
            "`train_batch`."
        )
    mask = as_mask(mask, network.n_languages)
    run = train_batch(
        jax.tree.map(lambda w: w[None], network),
        mask,
        tolerance=tolerance,
        max_evaluations=max_evaluations,
        max_time=max_time,
        times=times,
        permutations=permutations,
        rtol=rtol,
    )
    return only(run)
