"""Losses, the Gram gradient, permutations, conserved quantities."""

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given, settings

from nullcline import gated

SHAPES = [(3, 2, 4), (4, 5, 3)]


def plain_loss(network, mask, pi=None):
    """Eq. (1) with stacked matrices and the Kronecker mask, in NumPy."""
    words, languages = network.n_words, network.n_languages
    w_out = np.concatenate(list(np.asarray(network.w_out)), axis=0)
    w_in = np.concatenate(list(np.asarray(network.w_in)), axis=1)
    pi = np.stack([np.eye(words)] * languages) if pi is None else np.asarray(pi)
    stacked = np.concatenate(list(pi), axis=0)
    error = w_out @ np.asarray(network.w_hidden) @ w_in - stacked @ stacked.T
    masked = error * np.kron(np.asarray(mask, float), np.ones((words, words)))
    return np.sum(masked**2) / (2 * words * np.sum(np.asarray(mask)))


def case(shape, seed, p=0.5):
    languages, words, hidden = shape
    network = gated.initialize(languages, words, hidden, 0.7, key=jr.key(seed))
    mask = gated.bernoulli_mask(languages, p, key=jr.key(seed + 1)).at[0, -1].set(True)
    return network, mask


@pytest.mark.parametrize("shape", SHAPES)
def test_losses_are_the_stacked_formula(shape):
    network, mask = case(shape, 3)
    np.testing.assert_allclose(gated.train_loss(network, mask), plain_loss(network, mask), rtol=1e-13)
    if not mask.all():
        np.testing.assert_allclose(gated.test_loss(network, mask), plain_loss(network, ~mask), rtol=1e-13)
        both = gated.losses(network, mask)
        np.testing.assert_allclose(both.train, gated.train_loss(network, mask), rtol=1e-14)
        np.testing.assert_allclose(both.test, gated.test_loss(network, mask), rtol=1e-14)


def test_mask_rows_are_outputs():
    network, _ = case((3, 2, 4), 0)
    mask = jnp.zeros((3, 3), bool).at[2, 0].set(True)
    by_hand = network.w_out[2] @ network.w_hidden @ network.w_in[0] - jnp.eye(2)
    np.testing.assert_allclose(gated.train_loss(network, mask), jnp.sum(by_hand**2) / 4, rtol=1e-14)
    # Only the trained output and input feel the gradient.
    slope = gated.gradient(network, mask)
    moved = [bool(jnp.any(slope.w_out[k] != 0)) for k in range(3)]
    assert moved == [False, False, True]
    assert [bool(jnp.any(slope.w_in[k] != 0)) for k in range(3)] == [True, False, False]


@pytest.mark.parametrize("shape", SHAPES)
def test_gradient_is_autodiff(shape):
    @jax.jit
    def both(network, mask):
        return gated.gradient(network, mask), jax.grad(gated.train_loss)(network, mask)

    for seed in range(5):
        ours, theirs = both(*case(shape, seed))
        for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            np.testing.assert_allclose(a, b, atol=2e-14 * float(jnp.abs(b).max()), rtol=0)


def test_gradient_of_permuted_dictionaries_is_autodiff():
    network, mask = case((4, 5, 3), 1)
    perms = jax.vmap(lambda k: jr.permutation(k, 5))(jr.split(jr.key(5), 4))
    ours = gated.gradient(network, mask, permutations=perms)
    theirs = jax.grad(lambda n: gated.train_loss(n, mask, permutations=perms))(network)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-14)


def test_permutation_convention_and_loss():
    network, mask = case((4, 5, 3), 2)
    perms = np.array([np.random.default_rng(k).permutation(5) for k in range(4)])
    pi = np.zeros((4, 5, 5))
    for k in range(4):
        for concept in range(5):
            pi[k, perms[k, concept], concept] = 1
    np.testing.assert_array_equal(gated.permutation_matrices(perms, 4, 5), pi)
    expected = plain_loss(network, mask, pi)
    assert not np.isclose(expected, plain_loss(network, mask))
    for given_as in (perms, jnp.asarray(perms), jnp.asarray(pi)):
        loss = gated.train_loss(network, mask, permutations=given_as)
        np.testing.assert_allclose(loss, expected, rtol=1e-13)
    folded = gated.fold(network, perms)
    np.testing.assert_allclose(gated.train_loss(folded, mask), expected, rtol=1e-13)
    back = gated.unfold(folded, perms)
    for a, b in zip(jax.tree.leaves(back), jax.tree.leaves(network), strict=True):
        np.testing.assert_array_equal(a, b)


def test_orthogonal_dictionaries_fold_too():
    network, mask = case((4, 5, 3), 2)
    pi = jr.orthogonal(jr.key(4), 5, (4,))
    loss = gated.train_loss(network, mask, permutations=pi)
    np.testing.assert_allclose(loss, plain_loss(network, mask, pi), rtol=1e-12)


def test_yardsticks():
    zero = gated.Network(jnp.zeros((3, 4, 4)), jnp.zeros((4, 4)), jnp.zeros((3, 4, 4)))
    np.testing.assert_array_equal(gated.pair_losses(zero), np.full((3, 3), 0.5))
    eye = jnp.broadcast_to(jnp.eye(4)[None], (3, 4, 4))
    np.testing.assert_array_equal(gated.pair_losses(gated.Network(eye, jnp.eye(4), eye)), np.zeros((3, 3)))


def test_within_and_cross_pairs():
    network, _ = case((4, 5, 3), 8)
    # Two components: {0, 1} and {2, 3}, with (1, 0) and (3, 2) untrained inside them.
    mask = jnp.asarray([[1, 1, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1], [0, 0, 0, 1]], bool)
    pairs = np.asarray(gated.pair_losses(network))
    found = gated.losses(network, mask)
    np.testing.assert_allclose(found.within, (pairs[1, 0] + pairs[3, 2]) / 2, rtol=1e-14)
    np.testing.assert_allclose(found.cross, (pairs[:2, 2:].sum() + pairs[2:, :2].sum()) / 8, rtol=1e-14)
    assert np.isnan(gated.losses(network, mask | gated.circulant_mask(4, 2)).cross)


def test_the_loss_of_the_gram_form():
    from nullcline.gated._loss import gram_value_and_gradient

    network, mask = case((4, 5, 3), 7)
    value, _ = gram_value_and_gradient(
        network.w_out, network.w_hidden, jnp.swapaxes(network.w_in, -1, -2), mask.astype(float)
    )
    np.testing.assert_allclose(value, gated.train_loss(network, mask), rtol=1e-13)


@given(seed=st.integers(0, 999), eta=st.sampled_from([0.1, 1.0]))
@settings(max_examples=10)
def test_descent_drifts_from_the_conserved_matrices_at_second_order(seed, eta):
    # They are quadratic: without a term of first order, a step of size eta changes them by eta² times
    # their value at the gradient, exactly.
    network, mask = case((3, 2, 4), seed)
    slope = gated.gradient(network, mask)
    moved = jax.tree.map(lambda w, g: w - eta * g, network, slope)
    before, after, scale = gated.conserved(network), gated.conserved(moved), gated.conserved(slope)
    for a, b, g in zip(before, after, scale, strict=True):
        np.testing.assert_allclose(b - a, eta**2 * g, atol=1e-13)


def test_initial_weights():
    key = jr.key(1)
    small, large = (gated.initialize(4, 5, 3, scale, key=key) for scale in (0.01, 1.0))
    for a, b in zip(jax.tree.leaves(small), jax.tree.leaves(large), strict=True):
        np.testing.assert_allclose(a, 0.01 * b, rtol=1e-14)
    assert small.w_in.shape == (4, 3, 5) and small.w_out.shape == (4, 5, 3) and small.w_hidden.shape == (3, 3)
    fan = gated.initialize(4, 5, 3, 1.0, convention="fan_in", key=key)
    np.testing.assert_allclose(fan.w_out, large.w_out / 3**0.5, rtol=1e-14)
    np.testing.assert_allclose(fan.w_in, large.w_in / 5**0.5, rtol=1e-14)
    np.testing.assert_allclose(fan.w_hidden, large.w_hidden / 3**0.5, rtol=1e-14)
    # The standard error of a standard deviation is 1/sqrt(2 n); four of them, 6e-5 false alarms.
    wide = gated.initialize(4, 5, 3, 1.0, key=key)
    many = jax.jit(jax.vmap(lambda k: gated.initialize(4, 5, 3, 1.0, key=k).w_in))(jr.split(key, 200))
    assert abs(float(jnp.std(many)) - 1) < 4 / (2 * many.size) ** 0.5
    assert wide.n_words == 5 and wide.n_hidden == 3


def test_word_decoupled_networks_multiply_as_scalars():
    u, v = jr.normal(jr.key(0), (3, 4)), jr.normal(jr.key(1), (3, 4))
    s = jr.normal(jr.key(2), (4,))
    network = gated.decoupled_network(u, s, v, key=jr.key(3))
    mask = gated.circulant_mask(3, 2)
    simple = [gated.scalar.Network(u[:, d], s[d], v[:, d]) for d in range(4)]
    expected = np.mean([gated.scalar.train_loss(x, mask) for x in simple])
    np.testing.assert_allclose(gated.train_loss(network, mask), expected, rtol=1e-12)
    # The gradient is D independent scalar gradients over D T, in the same frame.
    slope = gated.gradient(network, mask)
    moved = jax.tree.map(lambda w, g: w - 0.5 * g, network, slope)
    rate = 0.5 / (4 * 6)
    stepped = [jax.tree.map(lambda w, g: w - rate * g, x, gated.scalar.gradient(x, mask)) for x in simple]
    expected = np.mean([gated.scalar.test_loss(x, mask) for x in stepped])
    np.testing.assert_allclose(gated.test_loss(moved, mask), expected, rtol=1e-12)
