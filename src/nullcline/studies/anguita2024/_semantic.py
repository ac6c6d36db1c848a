"""The semantic task and its initial weights: what figures 4.2 to 4.5 share."""

from .._lazy import jax, jnp, jr
from ._common import linear, match_sign

RATE = 0.01
# Name of an initialization: the standard deviation of Gaussian weights, or the balance λ.
GAUSSIAN = {"Gaussian small": 0.001, "Gaussian large": 0.42}
ZERO = "0-balanced"


def initial(init: str, task, key):
    """Weights of the initialization called ``init``: a name above, or ``"λ = 10"`` and the like."""
    if init in GAUSSIAN:
        first, second = jr.split(key)
        return linear.Network(*(GAUSSIAN[init] * jr.normal(k, (8, 8)) for k in (first, second)))
    if init == ZERO:
        return match_sign(linear.lambda_balanced(8, 8, 8, lam=0.0, scale=0.42, key=key), task)
    return linear.lambda_balanced(8, 8, 8, lam=float(init.removeprefix("λ = ")), key=key)


def draws(init: str, seed):
    """A batch of networks, one for each seed; drawn eagerly, as the initializations share every operation."""
    task = linear.semantic_hierarchy()
    networks = [initial(init, task, jr.fold_in(jr.key(42), s)) for s in seed]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *networks)
