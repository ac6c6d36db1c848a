"""How well an operator fits a direction, and parametrised learning against parameter-free learning (B.4)."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .._checks import as_float, is_concrete, require_finite, require_integer
from ..measures import effective_rank
from ._flow import Flow
from ._operator import DENSE_LIMIT, AbstractOperator
from ._rank import Estimate
from ._spectrum import spectrum


def _refuse_zero(value: Array, what: str) -> None:
    if is_concrete(value) and not float(value) > 0:
        raise ValueError(f"{what} is zero: the quotient is not defined.")


def rayleigh(
    operator: AbstractOperator, q: Float[Array, "..."], *, relative: bool = False
) -> Float[Array, ""]:
    r"""Rayleigh quotient :math:`R(W, q) = \langle W q, q\rangle / \langle q, q\rangle`.

    For the adjoint a = P* Err, :math:`R(K, a) = |\nabla_\theta L|^2 / |a|^2`.

    Parameters
    ----------
    operator
        An operator from a space to itself.
    q
        A nonzero element of it.
    relative
        Divide by the largest eigenvalue, which gives a number in [0, 1]; for positive semi-definite
        operators.
    """
    if operator.in_space.shape != operator.out_space.shape:
        raise ValueError(
            "A Rayleigh quotient needs an operator from a space to itself, got "
            f"{operator.in_space.shape} to {operator.out_space.shape}; tasks of different size are not "
            "paired."
        )
    space = operator.in_space
    space.check(q, type(operator).__name__)
    norm = space.inner(q, q)
    _refuse_zero(norm, "`q`")
    quotient = space.inner(operator @ q, q) / norm
    if not relative:
        return quotient
    if not operator.is_psd:
        raise ValueError("`relative=True` needs an operator known to be positive semi-definite.")
    return quotient / spectrum(operator, 1, with_modes=False).values[0].astype(quotient.dtype)


def misdirection(
    flow: Flow, targets: Float[Array, "..."], mask: Float[Array, "..."] | None = None
) -> Float[Array, ""]:
    r"""Cosine between the change that training makes and the one it would make without parameters.

    :math:`\cos(P K P^* Err, P P^* Err)` in the inner product of trajectories (hazelden2025 B.4).
    """
    error = flow.error(targets, mask)
    P, K, space = flow.propagator, flow.parameter_operator, flow.space
    adjoint = P.T @ error
    ours, free = P @ (K @ adjoint), P @ adjoint
    sizes = space.inner(ours, ours) * space.inner(free, free)
    _refuse_zero(sizes, "The change of the states")
    return space.inner(ours, free) / jnp.sqrt(sizes)


def operator_misdirection(
    flow: Flow, modes: int | None = None, *, probes: int = 64, key: PRNGKeyArray | None = None
) -> Estimate:
    r"""Cosine between the operators P K P* and P P*, :math:`tr(PKP^* PP^*)/(|PKP^*| |PP^*|)`.

    Parameters
    ----------
    flow
        The model along its trajectories.
    modes
        Compare only in the space of the first so many left singular vectors of P:
        :math:`B_k = \Sigma V^T K V \Sigma` against :math:`\Sigma^2`. The whole space by default.
    probes, key
        Beyond the dense limit: number of random trajectories, and the random key (a fixed one by default).
    """
    P, K = flow.propagator, flow.parameter_operator
    zero = jnp.zeros(())
    if modes is not None:
        top = spectrum(P, modes)
        assert top.modes is not None
        pulled = jax.lax.map(lambda u: P.rmv(u), top.modes)  # rows are Sigma v
        kicked = jax.lax.map(lambda v: K.mv(v), pulled)
        b = jax.vmap(lambda a: jax.vmap(lambda c: flow.space.inner(a, c))(kicked))(pulled)
        squares = top.values**2
        cosine = jnp.sum(jnp.diagonal(b) * squares) / jnp.linalg.norm(b) / jnp.linalg.norm(squares)
        return Estimate(cosine, zero)
    if flow.space.size <= DENSE_LIMIT:
        p, k = np.asarray(P.whitened()), np.asarray(K.whitened())
        ours, free = p @ k @ p.T, p @ p.T
        return Estimate(jnp.asarray(np.sum(ours * free) / np.linalg.norm(ours) / np.linalg.norm(free)), zero)
    require_integer("probes", probes, 2)
    samples = np.asarray(_probe(flow, jr.split(jr.key(0) if key is None else key, probes)), np.float64)
    whole = _cosine(samples)
    left = np.array([_cosine(np.delete(samples, i, axis=0)) for i in range(probes)])
    error = np.sqrt((probes - 1) / probes * np.sum((left - left.mean()) ** 2))
    return Estimate(jnp.asarray(whole), jnp.asarray(error))


def _cosine(samples: np.ndarray) -> float:
    cross, ours, free = samples.mean(axis=0)
    return float(cross / np.sqrt(ours * free))


@eqx.filter_jit
def _probe(flow: Flow, keys: Array) -> Array:
    P, K = flow.propagator, flow.parameter_operator

    def one(key):
        q = jr.rademacher(key, (flow.space.size,), flow.states.dtype)
        pulled = P.rmv(flow.space.from_vector(q))
        ours = flow.space.to_vector(P.mv(K.mv(pulled)))
        free = flow.space.to_vector(P.mv(pulled))
        return jnp.stack([jnp.sum(ours * free), jnp.sum(ours**2), jnp.sum(free**2)])

    return jax.lax.map(one, keys)


def activity_dimension(states: Float[Array, "batch time hidden"], fraction: int | float = 0.95) -> int:
    """Number of principal components over all trials and times that hold a share of the variance."""
    states = as_float("states", states)
    if states.ndim != 3 or states.size == 0:
        raise ValueError(f"`states` must have shape (batch, time, hidden), none empty, got {states.shape}.")
    require_finite("states", states)
    rows = np.asarray(states, np.float64).reshape(-1, states.shape[2])
    deviations = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False)
    if not deviations.max() > 0:
        raise ValueError("`states` do not vary: their dimension is not defined.")
    return int(effective_rank(jnp.asarray(deviations), fraction=fraction, power=2))
