"""Gradient flow of scalar networks, one or many."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from .._flow import check_limits, check_masks, default_batch, flow, only, status_names
from .._masks import MaskLike, as_mask
from ._model import Network


class Run(eqx.Module):
    r"""Where the flow of a scalar network ended; a batch carries its axis in front of every array.

    Attributes
    ----------
    network
        The final weights.
    train_loss, test_loss
        Mean of :math:`E^2/2` over trained and over untrained entries.
    time
        Time of the flow of :math:`\tfrac12\|E\|^2`, unit learning rate.
    evaluations
        Gradient evaluations spent.
    status
        ``"converged"``, ``"budget"`` or ``"diverged"``.
    frustration
        :math:`m = \sum E^2` over trained entries, near an integer in the valley of a frustrated run.
    networks
        Weights at ``times``, with an axis of times; None without ``times``.
    """

    network: Network
    train_loss: Float[Array, "*batch"]
    test_loss: Float[Array, "*batch"]
    time: Float[Array, "*batch"]
    evaluations: Int[Array, "*batch"]
    status: str | Shaped[np.ndarray, "*batch"]
    frustration: Float[Array, "*batch"]
    networks: Network | None

    @property
    def is_converged(self) -> bool | Bool[np.ndarray, "*batch"]:
        """Whether the training loss went below the tolerance."""
        return self.status == "converged"


def _unflatten(y: Float[Array, "... size"]) -> Network:
    n = (y.shape[-1] - 1) // 2
    return Network(u=y[..., :n], s=y[..., -1], v=y[..., n : 2 * n])


def _residuals(y: Float[Array, "batch size"]) -> Float[Array, "batch outputs inputs"]:
    simple = _unflatten(y)
    return simple.s[:, None, None] * simple.u[:, :, None] * simple.v[:, None, :] - 1


def _mean_loss(
    square: Float[Array, "batch outputs inputs"], where: Bool[Array, "batch outputs inputs"]
) -> Float[Array, " batch"]:
    count = jnp.sum(where, axis=(1, 2)).astype(square.dtype)
    return jnp.sum(jnp.where(where, square, 0), axis=(1, 2)) / (2 * count)


def _exact(
    y: Float[Array, "batch size"], mask: Bool[Array, "batch outputs inputs"]
) -> Float[Array, " batch"]:
    return _mean_loss(_residuals(y) ** 2, mask)


def _field(
    y: Float[Array, "batch size"], mask: Bool[Array, "batch outputs inputs"]
) -> tuple[Float[Array, " batch"], Float[Array, "batch size"]]:
    """Mean loss per trained entry, which the tolerance is about, and gradient of the whole sum."""
    simple = _unflatten(y)
    error = jnp.where(mask, _residuals(y), 0)
    # Sums, not products: XLA fuses them over the batch, where 10×10 matrix products would be called one by
    # one.
    forward = jnp.sum(error * simple.v[:, None, :], axis=2)
    backward = jnp.sum(error * simple.u[:, :, None], axis=1)
    s = simple.s[:, None]
    slope = jnp.concatenate([s * forward, s * backward, jnp.sum(simple.u * forward, axis=1)[:, None]], axis=1)
    return _mean_loss(error**2, mask), slope


def train_batch(
    networks: Network,
    masks: MaskLike,
    *,
    tolerance: float = 1e-6,
    max_evaluations: int = 12_000,
    max_time: float | None = None,
    times: Float[Array | np.ndarray, " times"] | None = None,
    rtol: float = 1e-3,
    batch_size: int | None = None,
) -> Run:
    """Follow many scalar networks until their training losses are below ``tolerance``.

    Parameters
    ----------
    networks
        Initial weights with one leading axis of runs.
    masks
        Trained entries of each run, (runs, outputs, inputs), or one mask for all.
    tolerance, max_evaluations, max_time, rtol, batch_size
        As in :func:`nullcline.gated.train_batch`.
    times
        Times at which to record the weights. The flow is then followed (by the implicit Kvaerno5, which stuck
        runs need, to at least 1e-8) to the last of them at least.
    """
    if networks.u.ndim != 2:
        raise ValueError(
            f"`networks` must have exactly one leading axis of runs, got `u` of shape {networks.u.shape}."
        )
    runs, n = networks.u.shape
    check_limits(runs, tolerance, rtol, max_evaluations, max_time, times, batch_size)
    start = jnp.concatenate([networks.u, networks.v, networks.s[:, None]], axis=1)
    if not bool(jnp.isfinite(start).all()):
        raise ValueError("`networks` hold weights that are not finite.")
    masks = check_masks(masks, runs, n)
    batch = batch_size or default_batch(start.shape[1])
    outcome, states = flow(
        _field, _exact, start, masks, tolerance=tolerance, max_evaluations=max_evaluations,
        max_time=max_time, times=times, rtol=rtol, batch=batch, is_stiff=True,
    )  # fmt: skip
    square = _residuals(outcome.y) ** 2
    return Run(
        network=_unflatten(outcome.y),
        train_loss=_mean_loss(square, masks),
        test_loss=_mean_loss(square, ~masks),
        time=outcome.time,
        evaluations=outcome.evaluations,
        status=status_names(outcome.status),
        frustration=jnp.sum(jnp.where(masks, square, 0), axis=(1, 2)),
        networks=None if states is None else _unflatten(states),
    )


def train(
    simple: Network,
    mask: MaskLike,
    *,
    times: Float[Array | np.ndarray, " times"] | None = None,
    max_time: float | None = None,
    tolerance: float = 1e-6,
    max_evaluations: int = 12_000,
    rtol: float = 1e-3,
) -> Run:
    """Follow one scalar network until its training loss is below ``tolerance``; see :func:`train_batch`."""
    if simple.u.ndim != 1:
        raise ValueError(
            f"`simple` must be one network, got `u` of shape {simple.u.shape}. Use `train_batch`."
        )
    mask = as_mask(mask, simple.n_languages)
    run = train_batch(
        jax.tree.map(lambda w: w[None], simple),
        mask,
        tolerance=tolerance,
        max_evaluations=max_evaluations,
        max_time=max_time,
        times=times,
        rtol=rtol,
    )
    return only(run)
