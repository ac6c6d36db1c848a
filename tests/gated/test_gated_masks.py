"""Masks, their graphs, and the spectra of random ones."""

import itertools
import math

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from nullcline import gated


@pytest.mark.parametrize(("diagonal", "low"), [(True, 6), (False, 1)])
def test_nested_masks_add_one_pair_at_a_time(diagonal, low):
    masks = np.asarray(gated.nested_masks(6, diagonal=diagonal, key=jr.key(0)))
    assert masks.shape == (36 - low, 6, 6)
    np.testing.assert_array_equal(masks.sum((1, 2)), np.arange(low, 36))
    assert np.all(masks[1:] >= masks[:-1])
    if diagonal:
        assert masks[:, np.arange(6), np.arange(6)].all()
    one = gated.nested_mask(6, 20, diagonal=diagonal, key=jr.key(0))
    np.testing.assert_array_equal(one, masks[20 - low])


def test_pairs_of_nested_masks_are_uniform():
    masks = jax.vmap(lambda k: gated.nested_mask(4, 8, key=k))(jr.split(jr.key(1), 3000))
    # Each of the 12 free pairs is in 4 of 12: binomial error 0.0086, five of them, 7e-6 false alarms.
    free = ~np.eye(4, dtype=bool)
    assert np.abs(np.asarray(masks).mean(0)[free] - 1 / 3).max() < 5 * (2 / 9 / 3000) ** 0.5


def test_bernoulli_masks_are_nested_in_p():
    low, high = (gated.bernoulli_mask(8, p, key=jr.key(0)) for p in (0.3, 0.6))
    assert np.all(low <= high)
    assert not gated.bernoulli_mask(8, 0.0, key=jr.key(0)).any()
    assert gated.bernoulli_mask(8, 1.0, key=jr.key(0)).all()
    with_diagonal = gated.bernoulli_mask(8, 0.3, diagonal=True, key=jr.key(0))
    np.testing.assert_array_equal(with_diagonal, low | np.eye(8, dtype=bool))


def test_circulant_masks():
    mask = np.asarray(gated.circulant_mask(5, 2))
    for o, i in itertools.product(range(5), repeat=2):
        assert mask[o, i] == ((i - o) % 5 in (0, 1))
    shifted = np.asarray(gated.circulant_mask(5, offsets=[1, -1]))
    for o, i in itertools.product(range(5), repeat=2):
        assert shifted[o, i] == ((i - o) % 5 in (1, 4))


def test_components_of_circulants():
    cases = {(0,): 10, (1,): 10, (0, 2): 2, (0, 5): 5, (0, 1): 1, (3, 5, 9): 2, (0, 1, 2, 3): 1}
    for offsets, expected in cases.items():
        graph = gated.connectivity(gated.circulant_mask(10, offsets=offsets))
        assert int(graph.n_components) == expected
        differences = [b - a for a, b in itertools.pairwise(offsets)]
        assert expected == math.gcd(10, *differences)


def test_gap_of_contiguous_circulants():
    expected = [0.951, 0.873, 0.769, 0.647, 0.513, 0.374]
    for width, ratio in zip(range(2, 8), expected, strict=True):
        graph = gated.connectivity(gated.circulant_mask(10, width))
        exact = abs(math.sin(math.pi * width / 10) / (width * math.sin(math.pi / 10)))
        np.testing.assert_allclose(1 - graph.gap, exact, rtol=1e-12)
        assert round(exact, 3) == ratio


def breadth_first(mask):
    n = len(mask)
    label, count = -np.ones(2 * n, int), 0
    for start in range(2 * n):
        if label[start] < 0:
            stack = [start]
            while stack:
                at = stack.pop()
                if label[at] < 0:
                    label[at] = count
                    near = np.flatnonzero(mask[at]) + n if at < n else np.flatnonzero(mask[:, at - n])
                    stack += list(near)
            count += 1
    return label[:n], label[n:], count


def test_connectivity_of_random_masks():
    describe = jax.jit(jax.vmap(gated.connectivity))
    masks = jax.vmap(lambda k, p: gated.bernoulli_mask(7, p, key=k))(
        jr.split(jr.key(3), 20), jnp.linspace(0.05, 0.6, 20)
    )
    masks = masks.at[:, 0, 0].set(True)
    graphs = describe(masks)
    assert set(np.asarray(graphs.n_components)) >= {1, 2, 3}
    for k, mask in enumerate(np.asarray(masks)):
        graph = jax.tree.map(lambda x, k=k: np.asarray(x[k]), graphs)
        outputs, inputs, count = breadth_first(mask)
        np.testing.assert_array_equal(graph.output_component, outputs)
        np.testing.assert_array_equal(graph.input_component, inputs)
        assert graph.n_components == count and bool(graphs.is_connected[k]) == (count == 1)
        across = outputs[:, None] != inputs[None, :]
        assert graph.n_cross == across.sum() and graph.n_pairs == mask.sum()
        np.testing.assert_array_equal(graph.output_degree, mask.sum(1))
        np.testing.assert_array_equal(graph.input_degree, mask.sum(0))
        adjacency = np.block([[np.zeros((7, 7)), mask], [mask.T, np.zeros((7, 7))]])
        laplacian = np.diag(adjacency.sum(0)) - adjacency
        np.testing.assert_allclose(graph.algebraic_connectivity, np.linalg.eigvalsh(laplacian)[1], atol=1e-13)
        pinv = np.linalg.pinv(laplacian, rcond=1e-10)
        resistance = np.diag(pinv)[:7, None] + np.diag(pinv)[None, 7:] - 2 * pinv[:7, 7:]
        np.testing.assert_allclose(graph.resistance[~across], resistance[~across], rtol=1e-9)
        assert np.isinf(graph.resistance[across]).all()
        np.testing.assert_allclose(graph.singular_values, np.linalg.svd(mask * 1.0)[1], atol=1e-13)


def test_resistance_of_a_path_and_foster():
    # A path o0 - i0 - o1 - i1: resistances are its distances.
    graph = gated.connectivity(np.array([[1, 0], [1, 1]]))
    np.testing.assert_allclose(graph.resistance, [[1, 3], [1, 1]], rtol=1e-13)
    # Foster: the resistances of the edges of a connected graph sum to its vertices minus one.
    mask = gated.nested_mask(10, 40, key=jr.key(0))
    graph = gated.connectivity(mask)
    assert bool(graph.is_connected)
    np.testing.assert_allclose(jnp.sum(jnp.where(mask, graph.resistance, 0)), 19, rtol=1e-12)


def test_one_language():
    graph = gated.connectivity(np.ones((1, 1)))
    assert int(graph.n_components) == 1 and float(graph.gap) == 1


def test_spectrum_of_bernoulli_masks():
    n, p = 400, 0.3
    law = gated.bernoulli_spectrum(n, p)
    mask = np.asarray(gated.bernoulli_mask(n, p, key=jr.key(0)), float)
    values = np.linalg.svd(mask, compute_uv=False)
    # The outlier fluctuates by about sqrt(2 p (1 - p)) = 0.65 at most, the edge by n^(-2/3) of itself.
    assert abs(values[0] - law.outlier) < 5 * (p * (1 - p)) ** 0.5
    assert abs(values[1] / law.edge - 1) < 3 * n ** (-2 / 3)
    # Eigenvalue rigidity: the empirical law is within a few log(n)/n of the limit, far from sampling noise.
    found = np.arange(1, n) / (n - 1)
    expected = np.asarray(gated.bulk_distribution(jnp.asarray(np.sort(values[1:])), law.edge))
    assert np.abs(found - expected).max() < 10 / n
    # The note's edge, without the square root of n, is off by a factor of 20.
    assert values[1] / (2 * (p * (1 - p)) ** 0.5) > 15


def test_small_scale_losses():
    # Components: outputs {0, 1} with input {0}; output {2} with inputs {1, 2}.
    mask = np.array([[1, 0, 0], [1, 0, 0], [0, 1, 1]])
    predicted = np.asarray(gated.small_scale_losses(mask))
    # inputs / outputs: 1/2 and 2. rho² = sqrt((1/2) / 2) = 1/2 one way and 2 the other.
    expected = [[0, 0.75, 0.75], [0, 0.75, 0.75], [1.5, 0, 0]]
    np.testing.assert_allclose(predicted, expected, rtol=1e-13)
    silent = np.array([[1, 0, 1], [0, 0, 0], [1, 0, 1]])
    half = np.array([[0, 0.5, 0], [0.5, 0.5, 0.5], [0, 0.5, 0]])
    np.testing.assert_allclose(gated.small_scale_losses(silent), half)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gated.as_mask(np.ones((2, 3))), r"`mask` must be square.*\(2, 3\)"),
        (lambda: gated.as_mask(np.full((2, 2), 2)), "only 0 and 1"),
        (lambda: gated.as_mask(np.full((2, 2), np.nan)), "only 0 and 1"),
        (lambda: gated.as_mask(np.zeros((2, 2))), "no trained pair"),
        (lambda: gated.as_mask(np.ones((2, 2)), 3), "3 languages"),
        (lambda: gated.nested_mask(4, 3, key=jr.key(0)), r"`n_pairs` must be in \[4, 16\].*got 3"),
        (lambda: gated.nested_mask(4, 17, key=jr.key(0)), r"\[4, 16\].*got 17"),
        (lambda: gated.nested_mask(4, 0, diagonal=False, key=jr.key(0)), r"\[1, 16\].*got 0"),
        (lambda: gated.as_mask([[1, 0], [1]]), "`mask` must be an array of 0 and 1, got list"),
        (lambda: gated.nested_masks(0, key=jr.key(0)), "`n_languages` must be an integer .* got 0"),
        (lambda: gated.nested_mask(4, 8.5, key=jr.key(0)), "`n_pairs` must be an integer, got 8.5"),
        (lambda: gated.circulant_mask(4, offsets=[0, 1.5]), r"`offsets` must be integers, got \[0, 1.5\]"),
        (lambda: gated.final_rate(np.ones((2, 2)), 0), "`n_words` must be an integer of at least 1, got 0"),
        (lambda: gated.final_hessian_eigenvalues(np.ones((2, 2)), -2), "`n_words` must be an integer"),
        (lambda: gated.bernoulli_mask(4, 1.5, key=jr.key(0)), r"`p` must be in \[0, 1\], got 1.5"),
        (lambda: gated.bernoulli_mask(4, float("nan"), key=jr.key(0)), "`p`.*nan"),
        (lambda: gated.circulant_mask(4, 0), "`width` must be an integer from 1 to 4, got 0"),
        (lambda: gated.circulant_mask(4, 5), "got 5"),
        (lambda: gated.circulant_mask(4, offsets=[]), "at least one"),
        (lambda: gated.circulant_mask(4, offsets=[0, 4]), "none twice modulo 4"),
        (lambda: gated.circulant_mask(4), "either `width` or `offsets`"),
        (lambda: gated.bernoulli_spectrum(4, -0.1), "`p`"),
        (lambda: gated.bulk_distribution(jnp.ones(2), 0.0), "`edge`"),
    ],
)
@pytest.mark.usefixtures("own_messages")
def test_bad_masks(call, message):
    with pytest.raises(ValueError, match=message):
        call()
