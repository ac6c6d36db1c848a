"""What training did to the weights: truncation, functional rank, shuffling, spectra."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nullcline import recurrent
from nullcline.recurrent import _decompositions

TASK = recurrent.FlipFlop(duration=20.0)


def network(seed=0, g=0.9, rank=3, size=12):
    """A cell, and the cell after a change of known rank."""
    before = recurrent.rate_cell(2, size, 2, g=g, key=jr.key(seed))
    u, v = (jr.normal(key, (size, rank)) for key in jr.split(jr.key(seed + 100)))
    after = eqx.tree_at(lambda c: c.w, before, before.w + u @ v.T / size)
    return before, eqx.tree_at(lambda c: c.w_out, after, 2 * after.w_out)


def with_w(cell, w):
    return eqx.tree_at(lambda c: c.w, cell, w)


def loss_of(cell, trials):
    return recurrent.loss(recurrent.run(cell, trials.inputs)[1], trials)


def test_truncation_is_the_best_approximation():
    matrix = jr.normal(jr.key(0), (6, 4))
    s = np.linalg.svd(matrix, compute_uv=False)
    for rank in range(5):
        near = recurrent.truncate(matrix, rank)
        assert np.linalg.matrix_rank(near) == rank
        # Eckart-Young: the error is the norm of the singular values left out.
        np.testing.assert_allclose(np.linalg.norm(matrix - near), np.linalg.norm(s[rank:]), atol=1e-13)


def test_truncation_losses_are_those_of_truncated_networks():
    before, after = network()
    trials = TASK.sample(16, key=jr.key(1))
    losses = recurrent.truncation_losses(before, after, trials)[jnp.array([0, 1, 3, 12])]
    u, s, vt = np.linalg.svd(recurrent.weight_change(before, after))
    expected = [
        loss_of(with_w(after, before.w + jnp.asarray((u[:, :rank] * s[:rank]) @ vt[:rank])), trials)
        for rank in (0, 1, 3, 12)
    ]
    np.testing.assert_allclose(losses, np.array(expected), rtol=1e-11)
    np.testing.assert_allclose(losses[2], loss_of(after, trials), rtol=1e-11)


def test_functional_rank_is_the_first_crossing(monkeypatch):
    before, after = network()
    trials = TASK.sample(16, key=jr.key(1))
    losses = recurrent.truncation_losses(before, after, trials, range(13))
    # A fraction between two of the losses: the rank is where they are first below it.
    for fraction in (0.999, 0.9):
        below = np.flatnonzero(losses < fraction * losses[0])
        expected = below[0] if below.size else np.nan
        np.testing.assert_equal(float(recurrent.functional_rank(before, after, trials, fraction)), expected)
    assert np.isnan(recurrent.functional_rank(before, after, trials, 1e-9))


def test_shuffling(key):
    before, after = network()
    trials = TASK.sample(16, key=jr.key(1))
    shuffled = jr.permutation(key, before.w.reshape(-1)).reshape(12, 12)
    expected = loss_of(with_w(after, shuffled + after.w - before.w), trials) / loss_of(before, trials)
    np.testing.assert_allclose(recurrent.shuffle_loss(before, after, trials, key=key), expected, rtol=1e-11)
    # Without initial connectivity there is nothing to shuffle.
    before, after = network(g=0.0)
    expected = loss_of(after, trials) / loss_of(before, trials)
    np.testing.assert_allclose(recurrent.shuffle_loss(before, after, trials, key=key), expected, rtol=1e-12)


def test_shuffling_needs_a_loss_to_compare_with(key):
    silent = recurrent.RateCell(jnp.zeros((2, 3)), jnp.zeros((3, 3)), jnp.zeros((3, 2)))
    zeros = jnp.zeros((1, 4, 2))
    trials = recurrent.Trials(zeros, zeros, jnp.ones((1, 4, 2)))
    with pytest.raises(ValueError, match="The untrained network has no loss"):
        recurrent.shuffle_loss(silent, silent, trials, key=key)


def test_epochs_to_is_strict_and_nan_when_never_met():
    losses = jnp.array([[1.0, 0.05, 0.04, 0.5], [2.0, 0.2, 0.11, 0.1], [1.0, jnp.nan, jnp.nan, jnp.nan]])
    np.testing.assert_array_equal(recurrent.epochs_to(losses), [2.0, np.nan, np.nan])
    assert recurrent.epochs_to(losses[1], 0.051) == 3


@settings(max_examples=25)
@given(st.lists(st.floats(0.01, 10.0), min_size=8, max_size=8), st.floats(0.01, 0.99))
def test_epochs_to_against_a_loop(values, fraction):
    expected = next((k for k, value in enumerate(values) if value < fraction * values[0]), np.nan)
    np.testing.assert_equal(float(recurrent.epochs_to(jnp.array(values), fraction)), float(expected))


def test_spectrum_against_numpy():
    before, after = network()
    spectrum = recurrent.spectrum(after, before)
    change = np.array(after.w - before.w)
    for matrix, values, eigenvalues in (
        (np.array(after.w), spectrum.singular_values, spectrum.eigenvalues),
        (change, spectrum.change_singular_values, spectrum.change_eigenvalues),
    ):
        np.testing.assert_allclose(values, np.linalg.svd(matrix, compute_uv=False), atol=1e-13)
        # Invariants of the matrix that do not depend on the order: traces of the first powers.
        for power in (1, 2, 3):
            trace = np.trace(np.linalg.matrix_power(matrix, power))
            np.testing.assert_allclose(np.sum(np.array(eigenvalues) ** power), trace, atol=1e-11)
        assert np.all(np.diff(np.array(eigenvalues).real) <= 1e-12)
    assert recurrent.spectrum(after).change_eigenvalues is None


def test_decompositions_of_a_batch_by_the_host():
    """What a backend other than the CPU calls: mapped, traced, and NaN for a matrix without decomposition."""
    matrices = jr.normal(jr.key(0), (3, 5, 4)).at[1, 0, 0].set(jnp.nan)
    u, s, vt = jax.vmap(_decompositions.svd_on_host)(matrices)
    np.testing.assert_allclose(((u * s[:, None, :]) @ vt)[::2], matrices[::2], atol=1e-13)
    assert jnp.isnan(s[1]).all()
    values = jax.vmap(_decompositions.eigenvalues_on_host)(matrices[:, :4])
    assert jnp.isnan(values[1]).all()
    np.testing.assert_allclose(values[2], np.linalg.eigvals(matrices[2, :4]), atol=1e-13)


@pytest.mark.usefixtures("own_messages")
def test_refusals(key):
    before, after = network()
    trials = TASK.sample(16, key=key)
    for rank in (-1, 13, 1.5):
        with pytest.raises(ValueError, match=rf"`rank` must be an integer from 0 to 12, .* got {rank}"):
            recurrent.truncate(after.w, rank)
        with pytest.raises(ValueError, match="`ranks` must be integers in 0"):
            recurrent.truncation_losses(before, after, trials, [rank])
    for fraction in (0.0, 1.0, -1.0):
        with pytest.raises(ValueError, match="`fraction` must be in"):
            recurrent.functional_rank(before, after, trials, fraction)
        with pytest.raises(ValueError, match="`fraction` must be in"):
            recurrent.epochs_to(jnp.ones(3), fraction)
    others = recurrent.Trials(jnp.zeros((1, 3, 4)), jnp.zeros((1, 3, 1)), jnp.ones((1, 3, 1)))
    with pytest.raises(ValueError, match="`inputs` have 4 channels, the cell takes 2"):
        recurrent.truncation_losses(before, after, others)
    with pytest.raises(ValueError, match="`losses` has no steps"):
        recurrent.epochs_to(jnp.zeros(0))
    with pytest.raises(ValueError, match="`initial` and `final` must be one network"):
        recurrent.weight_change(before, with_w(after, jnp.zeros((5, 5))))
    with pytest.raises(ValueError, match="gates have no eigenvalues"):
        recurrent.spectrum(with_w(after, jnp.zeros((36, 12))))
