"""Many networks in one call: the numbers of each alone, on one device and on several."""

import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from helpers import environment_of_a_user

from nullcline import linear
from nullcline.linear._exact import _devices_for

# A loss is a sum of squares: its error is that of the residuals, of which 1e-13 (squared) is rounding of the
# function, and relative to a loss that is not yet tiny a few digits more than their 1e-14.
CLOSE = {"rtol": 1e-11, "atol": 1e-26}
TIMES = jnp.asarray([0.0, 0.3, 2.0, 9.0, 40.0, 1e3])


def some_networks(count, lam=0.7, size=(3, 4, 5)):
    return jax.vmap(lambda key: linear.lambda_balanced(*size, lam, 0.4, key=key))(jr.split(jr.key(0), count))


def member(networks, index):
    return jax.tree.map(lambda weights: weights[index], networks)


@pytest.fixture(scope="module")
def task():
    return linear.random_regression(3, 5, 12, key=jr.key(1))


def test_a_batch_is_each_of_its_networks(task):
    networks = some_networks(3)
    batch = linear.observe_flow(networks, task, TIMES, linear.loss, tau=2.0)
    assert batch.shape == (3, len(TIMES))
    for index, seen in enumerate(batch):
        alone = linear.loss(linear.exact_flow(member(networks, index), task, TIMES, tau=2.0), task)
        np.testing.assert_allclose(seen, alone, **CLOSE)
    traced = jax.jit(lambda many: linear.observe_flow(many, task, TIMES, linear.loss, tau=2.0))(networks)
    np.testing.assert_allclose(traced, batch, **CLOSE)


def test_a_known_balance_changes_nothing_but_the_charts(task):
    """λ given under ``vmap``: times share charts as if the weights could be inspected."""
    networks = some_networks(2)

    def functions(lam):
        return jax.vmap(lambda n: linear.exact_flow(n, task, TIMES, lam=lam).function)(networks)

    for found in (functions(0.7), functions(None)):
        for index in range(2):
            alone = linear.exact_flow(member(networks, index), task, TIMES).function
            # The accuracy of either, ten times the 1e-14 that the solution is accurate to.
            np.testing.assert_allclose(found[index], alone, rtol=0, atol=1e-13)
    # A λ that contradicts the weights cannot raise here: it shows as NaN.
    assert np.isnan(np.asarray(functions(0.3))).all()


def test_what_is_wrong_in_a_batch_names_the_network(task):
    networks = some_networks(3)
    spoiled = eqx.tree_at(lambda n: n.w1, networks, networks.w1.at[1].multiply(2))
    with pytest.raises(ValueError, match="Network 1 of the batch: `network` is not λ-balanced"):
        linear.observe_flow(spoiled, task, TIMES, linear.loss)
    spoiled = eqx.tree_at(lambda n: n.w1, networks, networks.w1.at[2, 0, 0].set(jnp.nan))
    with pytest.raises(ValueError, match="Network 2 of the batch: `w1` must be finite"):
        linear.observe_flow(spoiled, task, TIMES, linear.loss)
    with pytest.raises(ValueError, match=r"Network 0 of the batch: `lam` = 0\.3 contradicts"):
        linear.observe_flow(networks, task, TIMES, linear.loss, lam=0.3)
    with pytest.raises(ValueError, match="without networks"):
        linear.observe_flow(jax.tree.map(lambda w: w[:0], networks), task, TIMES, linear.loss)
    with pytest.raises(ValueError, match="batch of networks"):
        linear.exact_flow(networks, task, TIMES)


def test_a_batch_uses_all_devices_unless_it_was_put_on_one(monkeypatch):
    monkeypatch.setattr(jax, "local_device_count", lambda: 4)
    weights = jnp.ones((9, 2, 2))
    many = jax.vmap(linear.Network)(weights, weights)
    put = jax.device_put(many, jax.devices()[0])
    few = jax.tree.map(lambda w: w[:3], many)
    assert [_devices_for(each) for each in (many, put, few)] == [4, 1, 3]


ON_TWO_CORES = """
import jax
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_num_cpu_devices", 2)
import jax.numpy as jnp, jax.random as jr, numpy as np
from nullcline import linear

times = jnp.linspace(0.0, 30.0, 40)
# The second has more hidden units than directions, which takes another decomposition.
for size in ((20, 20, 20), (10, 30, 10)):
    task = linear.random_regression(size[0], size[2], 100, key=jr.key(1))
    draw = lambda key: linear.lambda_balanced(*size, 1.0, 0.3, rank=min(size), key=key)
    networks = jax.vmap(draw)(jr.split(jr.key(0), 5))
    seen = linear.observe_flow(networks, task, times, linear.loss)
    assert len(seen.sharding.device_set) == 2
    # What was put on one device stays there.
    there = linear.observe_flow(jax.device_put(networks, jax.devices()[1]), task, times, linear.loss)
    assert there.devices() == {jax.devices()[1]}
    # Other orders of summation at 20 units: residuals differ by rounding, here squared, at late times.
    np.testing.assert_allclose(seen, np.asarray(there), rtol=1e-9, atol=1e-24)
"""


@pytest.mark.slow
def test_a_batch_is_shared_out_among_devices():
    """In a process of its own: the number of devices is fixed once JAX has started. It must not hang."""
    done = subprocess.run(
        [sys.executable, "-c", ON_TWO_CORES],
        env=environment_of_a_user(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
