"""Two-layer linear networks and how far they are from balance."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._checks import as_float, require_finite, require_matrix
from .._precision import full_precision


class Network(eqx.Module):
    r"""Two-layer linear network :math:`\hat y = W_2 W_1 x`.

    ``w1`` has shape (hidden, inputs), ``w2`` (outputs, hidden).
    """

    w1: Float[Array, "hidden inputs"]
    w2: Float[Array, "outputs hidden"]

    def __init__(self, w1, w2):
        """Make a network of two weight matrices whose hidden sizes agree."""
        w1, w2 = as_float("w1", w1), as_float("w2", w2)
        require_matrix("w1", w1, "hidden", "inputs")
        require_matrix("w2", w2, "outputs", "hidden")
        if w1.shape[0] != w2.shape[1]:
            raise ValueError(
                "`w1` (hidden, inputs) and `w2` (outputs, hidden) must share the hidden size, got shapes "
                f"{w1.shape} and {w2.shape}: {w1.shape[0]} and {w2.shape[1]} hidden units."
            )
        require_finite("w1", w1)
        require_finite("w2", w2)
        # Layers of two precisions become one network of the higher one.
        dtype = jnp.promote_types(w1.dtype, w2.dtype)
        self.w1, self.w2 = w1.astype(dtype), w2.astype(dtype)

    @property
    def n_in(self) -> int:
        """Number of inputs."""
        return self.w1.shape[-1]

    @property
    def n_hidden(self) -> int:
        """Number of hidden units."""
        return self.w1.shape[-2]

    @property
    def n_out(self) -> int:
        """Number of outputs."""
        return self.w2.shape[-2]

    @property
    def q(self) -> Float[Array, "inputs_and_outputs hidden"]:
        r"""Both layers stacked, :math:`Q = [W_1^\top; W_2]`."""
        return jnp.concatenate([jnp.swapaxes(self.w1, -1, -2), self.w2], axis=-2)

    @property
    @full_precision
    def function(self) -> Float[Array, "outputs inputs"]:
        r"""The linear map that the network computes, :math:`W_2 W_1`."""
        return self.w2 @ self.w1


def _require_network(network: object) -> Network:
    if not isinstance(network, Network):
        raise ValueError(
            f"`network` must be a `linear.Network`, got a {type(network).__name__}: make it from weights, "
            "`linear.Network(w1, w2)`, or take a state of a trajectory by `.network_at(index)`."
        )
    return network


@full_precision
def balance(network: Network) -> Float[Array, "*batch hidden hidden"]:
    r"""The matrix :math:`D = W_2^\top W_2 - W_1 W_1^\top` that gradient flow conserves.

    Weights are λ-balanced when :math:`Q D = \lambda Q` with :math:`Q = [W_1^\top; W_2]`; strictly, when
    :math:`D = \lambda I`. This and the measures below take a batch of networks (``vmap``) as well.
    """
    w1, w2 = _require_network(network).w1, network.w2
    return jnp.swapaxes(w2, -1, -2) @ w2 - w1 @ jnp.swapaxes(w1, -1, -2)


def fitted_lambda(network: Network) -> Float[Array, "*batch"]:
    r"""Best λ of any weights, :math:`\lambda^* = \mathrm{tr}(D) / N_h`.

    The least-squares fit of :math:`D = \lambda I`.
    For weights balanced on a projector of rank r it is :math:`\lambda r / N_h`; the λ that the exact solution
    uses comes from ``balance_residual``.
    """
    return jnp.trace(balance(network), axis1=-2, axis2=-1) / network.n_hidden


def balance_distance(network: Network) -> Float[Array, "*batch"]:
    r"""Distance from strict balance, :math:`\|D - \lambda^* I\|_F`."""
    d, lam = balance(network), fitted_lambda(network)
    identity = jnp.eye(network.n_hidden, dtype=d.dtype).reshape((1,) * lam.ndim + d.shape[-2:])
    return jnp.linalg.norm(d - lam[..., None, None] * identity, axis=(-2, -1))


def balance_residual(network: Network) -> tuple[Float[Array, "*batch"], Float[Array, "*batch"]]:
    r"""The λ of λ-balanced weights and how badly it fits.

    Returns
    -------
    :math:`\hat\lambda = \langle Q, QD\rangle / \langle Q, Q\rangle` and the residual
    :math:`\|QD - \hat\lambda Q\|_F / (\|Q\|_F \|Q\|_2^2)`; both zero for zero weights. (:math:`\|D\|` would
    be the natural scale but vanishes at λ = 0.)
    """
    if _require_network(network).w1.ndim > 2:
        return jax.vmap(balance_residual)(network)
    return fit_balance(network)[:2]


@full_precision
def fit_balance(network: Network) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
    r"""λ, its residual and about :math:`\|Q\|_2^2`, of one network."""
    # Fourth powers of weights overflow, or vanish, at scales that their squares allow. Dividing by a power of
    # two, that next to the largest weight, changes no digit.
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(network.q)))
    unit = jnp.ldexp(jnp.ones_like(largest), jnp.frexp(largest)[1] - 1)
    network = Network(network.w1 / unit, network.w2 / unit)
    q, d = network.q, balance(network)
    qd, top, total = q @ d, _largest_square(q), jnp.sum(q * q)
    safe = jnp.where(total > 0, total, 1)
    lam = jnp.sum(q * qd) / safe
    residual = jnp.linalg.norm(qd - lam * q) / (jnp.sqrt(safe) * jnp.where(top > 0, top, 1))
    return lam * unit**2, residual, top * unit**2


def _largest_square(q: Float[Array, "rows hidden"]) -> Float[Array, ""]:
    r"""About :math:`\|Q\|_2^2`, by a few power iterations."""
    gram = q.T @ q
    # The derivative of an eigenvalue needs none of its eigenvector.
    fixed = jax.lax.stop_gradient(gram)

    def iterate(_, direction):
        direction = fixed @ direction
        return direction / jnp.maximum(jnp.linalg.norm(direction), jnp.finfo(q.dtype).tiny)

    # A loop: eight copies would take a tenth of the time to compile the exact flow.
    start = jnp.sum(fixed, axis=1) + jnp.max(jnp.abs(fixed), axis=1)
    direction = jax.lax.fori_loop(0, 8, iterate, start)
    return jnp.linalg.norm(gram @ direction)
