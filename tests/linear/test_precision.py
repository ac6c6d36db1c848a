"""What all functions of the room do alike.

Matrix products keep all digits of float32, which a GPU does not give unless it is asked; and values that are
known may be used inside a compiled program, where JAX traces every operation on them.
"""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from nullcline import linear

TIMES = jnp.asarray([0.0, 1.0], jnp.float32)


def products(jaxpr):
    """The precision of every matrix product of a program."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield equation.params["precision"]
        for value in jax.tree.leaves(
            equation.params, is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")
        ):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from products(inner)


CALLS = {
    "exact_flow": lambda n, t: linear.exact_flow(n, t, TIMES),
    "observe_flow": lambda n, t: linear.observe_flow(n, t, TIMES, linear.loss),
    "integrate_flow": lambda n, t: linear.integrate_flow(n, t, TIMES),
    "gradient_descent": lambda n, t: linear.gradient_descent(n, t, 0.1, 2),
    "nonlinear_descent": lambda n, t: linear.nonlinear_descent(n, t, steps=2, every=1),
    "exact_weights": lambda n, t: linear.exact_weights(n, t, TIMES, steps=1),
    "exact_sequence": lambda n, t: linear.exact_sequence(n, [t, t], [1.0, 1.0], points=2).loss_rates,
    "lora_flow": lambda n, t: linear.lora_flow(jnp.eye(3, dtype=jnp.float32), n, t, TIMES).loss,
    "aligned_flow": lambda n, t: linear.aligned_flow(n, t, TIMES).function,
    "shallow_flow": lambda n, t: linear.shallow_flow(n.w1, t, TIMES),
    "lazy_limit": lambda n, t: linear.lazy_limit(n, t, TIMES),
    "limit": lambda n, t: linear.limit(n, t).qqt,
    "loss": lambda n, t: (
        linear.loss(n, t),
        linear.function_loss(n.function, t),
        linear.nonlinear_loss(n, t),
    ),
    "kernels": lambda n, t: (linear.ntk(n, t), linear.ntk_inner(n, n, t), linear.rsm(n, t)),
    "score": lambda n, t: linear.task_specific_score(n, t),
    "balance": lambda n, t: (linear.balance_residual(n), linear.balance_distance(n)),
    "whiten": lambda n, t: linear.whiten(t.data[0]),
    "weights": lambda n, t: (
        linear.lambda_balanced(3, 3, 3, n.w1[0, 0], key=jr.key(0)),
        linear.aligned(t, 3, key=jr.key(0)),
        linear.random_regression(3, 3, 9, key=jr.key(0)),
    ),
    "distance": lambda n, t: linear.ntk_distance(linear.gradient_descent(n, t, 0.1, 2), t),
    "trajectory": lambda n, t: (
        lambda flow: (flow.qqt, flow.function, flow.input_gram, flow.output_gram, flow.w1t, flow.w2)
    )(linear.exact_flow(n, t, TIMES)),
}


@pytest.mark.parametrize("name", CALLS)
def test_products_are_in_full_precision(name):
    network = linear.lambda_balanced(3, 3, 3, 1.0, key=jr.key(0))
    task = linear.random_regression(3, 3, 9, key=jr.key(1))

    # The task is known to be white, its numbers are not known: nothing is computed before the program runs.
    def call(w1, w2, x, y):
        task = linear.Task(x, y, is_isotropic=True, is_spanning=True)
        return jax.tree.leaves(CALLS[name](linear.Network(w1, w2), task))

    arrays = [a.astype(jnp.float32) for a in (network.w1, network.w2, *task.data)]
    seen = list(products(jax.make_jaxpr(call)(*arrays).jaxpr))
    highest = jax.lax.Precision.HIGHEST
    assert seen and all(precision == (highest, highest) for precision in seen)


MODES = jnp.asarray([0.5, 1.0], jnp.float32)
LAYERS = jnp.asarray([[0.5, 1.0], [0.6, 1.1], [0.7, 1.2]], jnp.float32)
KNOWN = CALLS | {
    "mode_flow": lambda n, t: linear.mode_flow(MODES, MODES, TIMES, lam=1.0),
    "deep_mode_flow": lambda n, t: linear.deep_mode_flow(MODES, MODES, TIMES, depth=3),
    "layer_flow": lambda n, t: linear.layer_flow(MODES, LAYERS, TIMES),
    "rotation_time": lambda n, t: linear.rotation_time(t, 3.0),
    "gaussian": lambda n, t: linear.gaussian(3, 3, 3, "scaled", alphas=tuple(jnp.ones(2)), key=jr.key(0)),
    "autoencoder_task": lambda n, t: linear.autoencoder_task(t.data[0]),
    "forgetting": lambda n, t: linear.forgetting(t, n.function, n.function),
    "weights": lambda n, t: linear.lambda_balanced(
        3, 3, 3, jnp.asarray(0.5), strengths=jnp.ones(3), key=jr.key(0)
    ),
}


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("kind", [jnp.asarray, np.asarray])
def test_known_values_inside_jit(name, kind):
    """Whoever compiles a loss of some parameter uses networks, tasks and times that are constants of it."""
    matrix, x = (kind(np.float32(m)) for m in (1.0 + np.diag([1.0, 2.0, 3.0]), 3**0.5 * np.eye(3)))
    network, task = linear.Network(matrix, matrix), linear.Task(x, 2 * x)
    jax.eval_shape(lambda unused: jax.tree.leaves(KNOWN[name](network, task)), 0.0)
