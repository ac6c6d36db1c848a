"""Similarity and effective rank against hand-made cases."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from nullcline import measures


def test_cosine_is_that_of_numpy_and_scale_free(key):
    a, b = np.asarray(jr.normal(key, (2, 4, 5)))
    expected = np.sum(a * b) / np.linalg.norm(a) / np.linalg.norm(b)
    for scale in (1.0, 1e-200, 1e200):
        np.testing.assert_allclose(measures.cosine(jnp.array(scale * a), jnp.array(b)), expected, rtol=1e-14)


def test_cosine_of_zero_is_not_a_number():
    assert np.isnan(measures.cosine(jnp.zeros(3), jnp.ones(3)))


def test_largest_keeps_nan_however_many_values_there_are(key):
    values = np.array(jr.normal(key, (300, 200)))
    np.testing.assert_array_equal(measures.largest(jnp.array(values)), np.abs(values).max())
    np.testing.assert_array_equal(measures.largest(jnp.array(values), 1), np.abs(values).max(1))
    values[7, 5] = np.nan
    assert np.isnan(measures.largest(jnp.array(values)))
    np.testing.assert_array_equal(np.flatnonzero(np.isnan(measures.largest(jnp.array(values), 1))), [7])


@pytest.mark.parametrize(
    ("values", "fraction", "power", "rank"),
    [
        ([1.0, 1.0, 1.0, 1.0], 0.5, 1, 2),  # met exactly: no extra mode
        ([1.0, 1.0, 1.0, 1.0], 0.51, 1, 3),
        ([0.1, 10.0, 0.1], 0.95, 1, 1),  # order does not matter
        ([3.0, 2.0, 1.0], 0.9, 1, 3),
        ([3.0, 2.0, 1.0], 0.9, 2, 2),  # 13/14 of the squares
        ([0.1] * 10, 1.0, 1, 10),
    ],
)
def test_effective_rank(values, fraction, power, rank):
    assert measures.effective_rank(jnp.array(values), fraction=fraction, power=power) == rank


def test_effective_rank_refuses_a_bad_fraction():
    with pytest.raises(ValueError, match=r"`fraction` must be in \(0, 1\], got 1.5"):
        measures.effective_rank(jnp.ones(3), fraction=1.5)


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        (np.array([]), {}, r"`values` must be a list of at least one value, got shape \(0,\)"),
        (np.ones((2, 2)), {}, r"got shape \(2, 2\)"),
        (np.array([1.0, np.nan]), {}, "`values` must be finite, got 1 entries"),
        (np.ones(3), {"power": 0}, "`power` must be positive, got 0"),
    ],
)
def test_effective_rank_refuses(values, options, message):
    with pytest.raises(ValueError, match=message):
        measures.effective_rank(values, **options)


@pytest.mark.parametrize("scale", [1e-300, 1e300])
def test_counts_of_modes_do_not_depend_on_the_scale(scale):
    """Squares and sums of such values leave the range of float64."""
    values = jnp.array([3.0, 2.0, 1.0])
    assert measures.effective_rank(scale * values, fraction=0.9, power=2) == 2
    ratio = measures.participation_ratio(values)
    np.testing.assert_allclose(ratio, 36 / 14, rtol=1e-15)
    np.testing.assert_allclose(measures.participation_ratio(scale * values), ratio, rtol=1e-14)


def test_nothing_needs_no_modes():
    assert measures.effective_rank(jnp.zeros(3)) == 0
    assert jax.jit(measures.effective_rank)(jnp.array([1.0, jnp.nan])) == 0


def test_participation_ratio_counts_equal_modes():
    np.testing.assert_allclose(measures.participation_ratio(jnp.array([2.0, 2.0, 0.0])), 2.0, rtol=1e-15)
