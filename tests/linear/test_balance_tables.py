"""Expected balance of random weights, against Monte Carlo and against direct evaluation of the limits."""

import itertools
import math

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from nullcline import linear

SCHEMES = [
    ("lecun", (1.0, 1.0)),
    ("he", (1.0, 1.0)),
    ("glorot", (1.0, 1.0)),
    ("scaled", (1.5, 0.5)),
]
N_IN, N_HIDDEN, N_OUT = 8, 12, 10
DRAWS = 10_000


def variances(scheme, alphas, n_in, n_hidden, n_out):
    """Variances of the two layers as the initializations are defined in the literature."""
    return {
        "lecun": (1 / n_in, 1 / n_hidden),
        "he": (2 / n_in, 2 / n_hidden),
        "glorot": (2 / (n_in + n_hidden), 2 / (n_hidden + n_out)),
        "scaled": (alphas[0] ** 2 / n_in, alphas[1] ** 2 / n_hidden),
    }[scheme]


@jax.jit
def balances(first, second, key):
    def draw(key):
        one, two = jr.split(key)
        w1 = jnp.sqrt(first) * jr.normal(one, (N_HIDDEN, N_IN))
        w2 = jnp.sqrt(second) * jr.normal(two, (N_OUT, N_HIDDEN))
        return w2.T @ w2 - w1 @ w1.T

    return jax.lax.map(draw, jr.split(key, DRAWS), batch_size=2000)


@pytest.mark.parametrize(("scheme", "alphas"), SCHEMES)
def test_moments_against_monte_carlo(scheme, alphas):
    """Means and variances over 10 000 draws, each within five standard errors: false alarms below 1e-4."""
    first, second = map(jnp.array, variances(scheme, alphas, N_IN, N_HIDDEN, N_OUT))
    d = np.asarray(balances(first, second, jr.key(1)))
    expected = linear.expected_balance(N_IN, N_HIDDEN, N_OUT, scheme=scheme, alphas=alphas)
    diagonal = np.diagonal(d, axis1=1, axis2=2)
    above = d[:, *np.triu_indices(N_HIDDEN, 1)]

    def within(samples, value, power):
        """Average of one statistic per draw, compared with its expectation."""
        error = np.std(samples) / math.sqrt(DRAWS)
        assert abs(np.mean(samples) - value) < 5 * error, (scheme, power)

    within(np.mean(diagonal, axis=1), expected.lam, "mean")
    within(np.mean(above, axis=1), 0.0, "off-diagonal mean")
    within(np.mean((diagonal - expected.lam) ** 2, axis=1), expected.diagonal_variance, "diagonal variance")
    within(np.mean(above**2, axis=1), expected.variance, "off-diagonal variance")
    lam_star = np.mean(diagonal, axis=1)
    within((lam_star - expected.lam) ** 2, expected.fitted_deviation**2, "fitted")
    distance = np.sum((d - expected.lam * np.eye(N_HIDDEN)) ** 2, axis=(1, 2))
    within(distance, expected.distance**2, "distance")


@pytest.mark.parametrize(("scheme", "alphas"), SCHEMES)
def test_limits_are_those_of_the_table(scheme, alphas):
    n = 10**9

    def lam(k, r):
        sizes = (n, max(1, round(k * n)), max(1, round(r * n)))
        return linear.expected_balance(*sizes, scheme=scheme, alphas=alphas).lam

    for k, r in itertools.product((0.5, 2.0), (0.3, 3.0)):
        points = {"r=k": (k, k), "r->0": (k, 1e-7), "r->inf": (k, 1e7), "k->0": (1e-7, r), "k->inf": (1e7, r)}
        for name, (at_k, at_r) in points.items():
            limit = linear.expected_lambda_limit(name, scheme=scheme, k=k, r=r, alphas=alphas)
            if math.isinf(limit):
                growth = lam(at_k, at_r) / (at_r / at_k)
                second = {"lecun": 1.0, "he": 2.0, "scaled": alphas[1] ** 2}[scheme]
                np.testing.assert_allclose(growth, second, rtol=1e-5)
            else:
                np.testing.assert_allclose(lam(at_k, at_r), limit, atol=3e-6)


def test_scaled_vanishes_at_its_own_ratio():
    # r = (alpha_1 / alpha_2)^2 k with alphas (1, 2): k = 4 r.
    assert linear.expected_balance(100, 400, 100, scheme="scaled", alphas=(1.0, 2.0)).lam == pytest.approx(
        0.0
    )


@pytest.mark.parametrize("width", [20, 320, 1280])
def test_lecun_never_becomes_balanced(width):
    """At k = 1, r = 2 the relative distance stays at sqrt(3), for every width."""
    expected = linear.expected_balance(width, width, 2 * width, scheme="lecun")
    np.testing.assert_allclose(expected.relative_distance, math.sqrt(3), rtol=1.0 / width)
    assert expected.variance < 4 / width
    wide = linear.expected_balance(10**6, 10, 2 * 10**6, scheme="lecun")
    assert wide.relative_distance < 0.01


def test_the_numbers_of_figure_3_1():
    text = [linear.expected_balance(40, 200, 80, scheme=s).lam for s in ("lecun", "he", "glorot")]
    np.testing.assert_allclose(text, [-0.6, -1.2, 2 * (80 / 280 - 40 / 240)], rtol=1e-12)
    scaled = linear.expected_balance(40, 200, 80, scheme="scaled", alphas=(1.0, 2.0))
    np.testing.assert_allclose(scaled.lam, 0.6, rtol=1e-12)


def test_the_initializer_follows_the_table():
    """One draw of the library's own initializer: fitted lambda within five deviations (1e-6)."""
    for seed, (scheme, alphas) in enumerate(SCHEMES):
        extra = {"alphas": alphas} if scheme == "scaled" else {}
        network = linear.gaussian(40, 200, 80, scheme=scheme, key=jr.key(seed), **extra)
        expected = linear.expected_balance(40, 200, 80, scheme=scheme, alphas=alphas)
        assert abs(linear.fitted_lambda(network) - expected.lam) < 5 * expected.fitted_deviation


def test_bad_arguments():
    with pytest.raises(ValueError, match="`n_hidden` must be an integer of at least 1, got 0"):
        linear.expected_balance(3, 0, 3)
    with pytest.raises(ValueError, match="`alphas` belong to scheme 'scaled'"):
        linear.expected_balance(3, 3, 3, scheme="he", alphas=(1.0, 2.0))
    with pytest.raises(ValueError, match="`alphas` must be two numbers from 0"):
        linear.expected_balance(3, 3, 3, scheme="scaled", alphas=(-1.0, 2.0))
    with pytest.raises(ValueError, match="`k` must be positive and finite, got 0"):
        linear.expected_lambda_limit("r=k", scheme="he", k=0.0)
