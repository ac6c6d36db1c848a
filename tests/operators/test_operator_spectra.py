"""Kernels, spectra, effective ranks and consensus against dense matrices."""

import cells
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from reference import reference

from nullcline import operators, recurrent
from nullcline.operators import _kernels, _krylov

EPS = np.finfo(float).eps
SLOW = pytest.mark.slow


def close(actual, expected, rtol=1e-13):
    expected = np.asarray(expected)
    np.testing.assert_allclose(
        np.asarray(actual), expected, rtol=0, atol=rtol * max(1e-300, np.abs(expected).max())
    )


def rank(matrix):
    values = np.linalg.svd(matrix, compute_uv=False)
    return int(np.sum(values > len(matrix) * EPS * 10 * values[0]))


def features(flow):
    """Inputs, previous hidden states and their rows, as (batch * time, ...)."""
    H = cells.HIDDEN
    before = np.asarray(flow.states_before).reshape(-1, flow.states.shape[2])
    after = np.asarray(flow.states).reshape(-1, flow.states.shape[2])
    return np.asarray(flow.inputs).reshape(len(before), -1), before[:, :H], before, after


def sigmoid(v):
    return 1 / (1 + np.exp(-v))


def rate_kernel(flow, cell):
    x, h, _, _ = features(flow)
    return cell.dt**2 * (x @ x.T + np.tanh(h) @ np.tanh(h).T + 1)


def torch_rnn_kernel(flow, cell):
    x, h, _, after = features(flow)
    d = 1 - after**2
    return (x @ x.T + 1 + h @ h.T + 1) * (d @ d.T) / cells.HIDDEN


def gru_kernel(flow, cell):
    x, h, _, _ = features(flow)
    w = {name: np.asarray(getattr(cell, name)) for name in ("w_ih", "w_hh", "b_ih", "b_hh")}
    a, m = np.split(x @ w["w_ih"].T + w["b_ih"], 3, 1), np.split(h @ w["w_hh"].T + w["b_hh"], 3, 1)
    r, u = sigmoid(a[0] + m[0]), sigmoid(a[1] + m[1])
    n = np.tanh(a[2] + r * m[2])
    dn, du = (1 - u) * (1 - n**2), u * (1 - u) * (h - n)
    dr, dm = dn * m[2] * r * (1 - r), dn * r
    shared = dr @ dr.T + du @ du.T
    return ((x @ x.T + 1) * (shared + dn @ dn.T) + (h @ h.T + 1) * (shared + dm @ dm.T)) / cells.HIDDEN


def lstm_kernel(flow, cell):
    x, h, before, after = features(flow)
    c, c_after = before[:, cells.HIDDEN :], after[:, cells.HIDDEN :]
    w = {name: np.asarray(getattr(cell, name)) for name in ("w_ih", "w_hh", "b_ih", "b_hh")}
    i, f, g, o = np.split(x @ w["w_ih"].T + w["b_ih"] + h @ w["w_hh"].T + w["b_hh"], 4, 1)
    i, f, g, o = sigmoid(i), sigmoid(f), np.tanh(g), sigmoid(o)
    memory = [g * i * (1 - i), c * f * (1 - f), i * (1 - g**2)]
    hidden = [o * (1 - np.tanh(c_after) ** 2) * part for part in memory] + [np.tanh(c_after) * o * (1 - o)]
    return (x @ x.T + 1 + h @ h.T + 1) * sum(d @ d.T for d in memory + hidden) / (2 * cells.HIDDEN)


KERNELS = {"rate": rate_kernel, "torch_rnn": torch_rnn_kernel, "gru": gru_kernel, "lstm": lstm_kernel}


@pytest.mark.parametrize(
    "name", ["rate", "gru", *(pytest.param(n, marks=SLOW) for n in ("torch_rnn", "lstm"))]
)
def test_kernel_over_trials_and_times_is_the_closed_form(name):
    flow = cells.flow_of(name)
    root = np.sqrt(np.repeat(np.asarray(cells.WEIGHTS), cells.TIME))
    expected = root[:, None] * KERNELS[name](flow, cells.make(name)) * root[None, :]
    found = operators.consensus(flow.parameter_operator, ("hidden",))
    assert (found.kind, found.method) == ("trace", "kernel")
    close(found.matrix, expected)
    close(found.values, np.linalg.eigvalsh(expected)[::-1], 1e-12)
    over_time = np.einsum("btbs->ts", expected.reshape(3, 5, 3, 5)) / 3
    close(operators.consensus(flow.parameter_operator, ("batch", "hidden")).matrix, over_time)
    # On a CPU the kernel is formed by BLAS; elsewhere by the compiled program.
    form = _kernels.factored(flow.parameter_operator)
    close(_kernels._compiled_kernel(form), expected)
    units = jax.jit(jax.vmap(_kernels.unit_factor, (None, 0)))(form, jnp.arange(form.units))
    close(jnp.einsum("urck,usck->rs", units, units) / flow.states.shape[2], expected)
    if name == "gru":  # leaves share the gains of two gates and differ in the third
        assert [gains.shape[1] // cells.HIDDEN for group in form.groups for gains in group.gains] == [2, 1, 1]


@pytest.mark.parametrize(
    "name", ["rate", "tied", pytest.param("lstm", marks=SLOW), pytest.param("twice_local", marks=SLOW)]
)
def test_whole_spectrum_of_k(name):
    flow, ref = cells.flow_of(name), reference(name)
    K = flow.parameter_operator
    white = ref.whiten(ref.gram(ref.tangent))
    exact = np.linalg.eigvalsh(white)[::-1]
    whole = operators.spectrum(K)
    assert whole.method == ("dense" if name == "tied" else "units")
    assert whole.is_complete and whole.kind == "eigenvalues"
    padded = np.zeros(len(exact))
    padded[: len(whole.values)] = whole.values
    close(padded, exact)
    close(whole.total, np.trace(white))
    close(whole.participation_ratio, np.trace(white) ** 2 / np.sum(white**2), 1e-12)
    some = operators.spectrum(K, 5)
    close(some.values, exact[:5])
    assert np.all(some.residuals < 1e-13) and some.modes.shape == (5, *flow.states.shape)
    gram = np.einsum("mbth,nbth,b->mn", some.modes, some.modes, cells.WEIGHTS)
    close(gram, np.eye(5))  # orthonormal in the inner product, multiplicities included


def test_multiplicities_survive_the_matrix_free_way():
    # Each eigenvalue of a rate network comes once per unit; one random vector would see it once.
    flow, ref = cells.flow_of("rate"), reference("rate")
    exact = np.linalg.eigvalsh(ref.whiten(ref.gram(ref.tangent)))[::-1]
    close(exact[:4], np.full(4, exact[0]))
    found = operators.spectrum(flow.parameter_operator, 8, method="krylov")
    close(found.values, exact[:8], 1e-9)
    assert np.all(found.is_converged) and np.all(found.residuals < 1e-8) and found.total is None


def test_spectrum_of_p_and_of_compositions():
    flow, ref = cells.flow_of("gru"), reference("gru")
    P, K = flow.propagator, flow.parameter_operator
    exact = np.linalg.svd(ref.propagator, compute_uv=False)
    dense, krylov = operators.spectrum(P, 4), operators.spectrum(P, 4, method="krylov", key=jr.key(3))
    assert (dense.method, krylov.method) == ("dense", "krylov") and dense.kind == "singular values"
    close(dense.values, exact[:4])
    close(krylov.values, exact[:4], 1e-9)
    assert np.all(krylov.residuals < 1e-8) and np.all(dense.residuals < 1e-13)
    close(dense.total, np.sum(exact**2))
    whole = operators.spectrum(P @ K @ P.T)
    close(
        whole.values, np.linalg.eigvalsh(ref.whiten(ref.gram(ref.unrolled)))[::-1][: len(whole.values)], 1e-12
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda P: P,
        pytest.param(lambda P: P @ P.T, marks=SLOW),
        pytest.param(lambda P: 2.0 * P.inverse.T - P, marks=SLOW),
    ],
)
def test_trials_that_are_equal_do_not_hide_one_another(make):
    # P of two equal trials has every singular value twice: a space of one vector over both sees it once.
    x = jnp.repeat(cells.inputs_for(jr.key(4), 1), 2, axis=0)
    flow = operators.linearize(cells.make("rate"), x, weights=jnp.array([0.7, 0.3]))
    operator = make(flow.propagator)
    found = operators.spectrum(operator, 6, method="krylov")
    close(found.values, np.linalg.svd(np.asarray(operator.dense()), compute_uv=False)[:6], 1e-9)
    close(found.values[::2], found.values[1::2], 1e-9)
    assert np.all(found.residuals < 1e-8) and np.all(found.is_converged)
    gram = np.einsum("mbth,nbth,b->mn", found.modes, found.modes, np.asarray(flow.weights))
    close(gram, np.eye(6), 1e-12)


def test_an_unfinished_krylov_space_says_so():
    flow = cells.flow_of("gru")
    found = operators.spectrum(flow.propagator, 6, method="krylov", max_basis=8)
    assert not np.all(found.is_converged)
    with pytest.raises(ValueError, match="`max_basis` must be at least k = 6, got 5"):
        operators.spectrum(flow.propagator, 6, method="krylov", max_basis=5)


def test_a_few_values_of_a_consensus_come_with_the_total_of_all():
    flow = cells.flow_of("torch_rnn", jnp.full(6, 1 / 6), batch=6, time=15)
    kernel = operators.consensus(flow.parameter_operator)
    exact = np.linalg.eigvalsh(np.asarray(kernel.matrix))[::-1]
    found = kernel.top(2)
    assert (found.method, found.kind, found.is_complete, found.dimension) == (
        "krylov",
        "eigenvalues",
        False,
        90,
    )
    close(found.values, exact[:2])
    close(found.total, np.sum(exact))
    assert np.all(found.residuals < 1e-10)
    assert operators.effective_rank(found, 0.5).rank == operators.effective_rank(kernel, 0.5).rank
    whole = kernel.top(60)  # a space of a few times 60 vectors would be larger than all
    assert whole.method == "dense"
    close(whole.values, exact[:60])
    with pytest.raises(ValueError, match="`k` must be an integer from 1 to 90, got 91"):
        kernel.top(91)
    # The kernel of a rate network is a thin factor.
    thin = operators.consensus(cells.flow_of("rate").parameter_operator)
    some, values = thin.top(3), np.linalg.eigvalsh(np.asarray(thin.matrix))[::-1]
    close(some.values, values[:3])
    close(some.total, np.sum(values))
    close(jax.jit(lambda consensus: consensus.values)(thin), thin.values)  # traced, no LAPACK of the host


@pytest.mark.parametrize(
    ("name", "expected"), [("torch_rnn", 4), pytest.param("gru", 12, marks=SLOW), ("rate", 1)]
)
def test_bias_has_one_feature_but_a_kernel_of_higher_rank(name, expected):
    # hazelden2025 Theorem 1 (3) holds for constant sensitivities only: the rate network. Elsewhere a bias,
    # with its one constant feature, has a kernel of rank H (RNN) and 3 H (GRU).
    flow = cells.flow_of(name, jnp.full(6, 1 / 6), batch=6, time=5)
    term = flow.parameter_operator.terms["b" if name == "rate" else "b_ih"]
    assert rank(operators.consensus(term).matrix) == expected


@pytest.mark.slow
def test_lstm_bias_kernel_has_rank_seven_h():
    flow = cells.flow_of("lstm", jnp.full(8, 1 / 8), batch=8, time=6)
    matrix = operators.consensus(flow.parameter_operator.terms["b_hh"]).matrix
    # Sensitivities: i, f, g through c and through h, o through h alone.
    assert rank(matrix) == 7 * cells.HIDDEN < len(matrix)


def test_rank_bounds_and_invariance_under_p():
    flow, ref = cells.flow_of("tied"), reference("tied")
    parameters = 17  # w and the gain
    assert rank(ref.whiten(ref.gram(ref.tangent))) == rank(ref.whiten(ref.gram(ref.unrolled))) == parameters
    whole = operators.spectrum(flow.parameter_operator)
    assert len(whole.values) == parameters and whole.dimension == 60


def test_rate_network_kernels_have_the_rank_of_their_features_and_obey_the_sum_rule():
    flow = cells.flow_of("rate", jnp.full(5, 0.2), batch=5, time=6)
    h = np.tanh(np.asarray(flow.states_before)).reshape(-1, cells.HIDDEN)
    x = np.asarray(flow.inputs).reshape(len(h), -1)
    terms = flow.parameter_operator.terms
    ranks = {}
    for name, feature in (("w", h), ("w_in", x), ("b", np.ones((len(h), 1)))):
        kernel = operators.consensus(terms[name])
        ranks[name] = float(operators.effective_rank(kernel).rank)
        variances = np.linalg.svd(feature, compute_uv=False) ** 2
        assert ranks[name] == float(operators.effective_rank(jnp.asarray(variances)).rank)
    total = float(operators.effective_rank(operators.consensus(flow.parameter_operator)).rank)
    assert total <= sum(ranks.values())
    # With squares the sum rule fails.
    one, two = jnp.array([1, 0.22, 0]), jnp.array([0, 0.22, 1])
    counts = [float(operators.effective_rank(v, power=2).rank) for v in (one, two, one + two)]
    assert counts == [1, 1, 3]


def test_effective_rank_is_of_the_true_total():
    flow, ref = cells.flow_of("gru"), reference("gru")
    K = flow.parameter_operator
    values = np.linalg.eigvalsh(ref.whiten(ref.gram(ref.tangent)))[::-1]
    for power in (1, 2):
        share = np.cumsum(values**power) / np.sum(values**power)
        found = operators.effective_rank(K, 0.95, power)
        assert int(found.rank) == np.sum(share < 0.95) + 1
        assert found.is_exact and found.power == power and found.standard_error == 0
        close(found.total, np.sum(values**power), 1e-12)
        k = int(found.rank)
        fine = operators.effective_rank(K, 0.95, power, interpolate=True)
        close(fine.rank, k - 1 + (0.95 - share[k - 2]) / (share[k - 1] - share[k - 2]), 1e-9)
    enough, few = operators.spectrum(K, int(operators.effective_rank(K).rank)), operators.spectrum(K, 3)
    assert operators.effective_rank(enough).rank == operators.effective_rank(K).rank
    with pytest.raises(ValueError, match=r"3 values hold 0\.\d+ of the total .* at least 4"):
        operators.effective_rank(few)
    with pytest.raises(ValueError, match="no known total for power 2"):
        operators.effective_rank(few, power=2)
    one = operators.effective_rank(jnp.array([8.0, 1.0]), 0.75)
    assert one.rank == 1 and repr(one) == (
        "EffectiveRank(1, fraction=0.75, power=1, total=9, kind='values', method='values')"
    )
    assert repr(few).startswith("Spectrum(3 of 60 eigenvalues, ") and "residuals up to " in repr(few)
    close(operators.effective_rank(jnp.array([8.0, 1.0]), 0.45, interpolate=True).rank, 0.45 * 9 / 8)


def test_quadrature_estimates_the_effective_rank_with_an_error_bar():
    # Dimension 60 and 40 steps: the quadrature of each probe is exact, the sampling of probes is left. The
    # error bar is a jackknife over 40 of them; four error bars miss in fewer than 1 in 1000 draws of the key.
    flow = cells.flow_of("gru")
    P = flow.propagator
    exact = operators.effective_rank(P, interpolate=True)
    found = operators.effective_rank(P, method="quadrature", probes=40, key=jr.key(5))
    assert not found.is_exact and 0 < found.standard_error < 3 and " ± " in repr(found)
    # Interpolated counts of a discrete spectrum differ by up to one mode from the smoothed density.
    assert abs(found.rank - exact.rank) < 4 * found.standard_error + 1
    assert abs(found.total / exact.total - 1) < 0.2


def test_total_by_probes_and_exactly(monkeypatch):
    flow, ref = cells.flow_of("gru"), reference("gru")
    K, P = flow.parameter_operator, flow.propagator
    assert operators.total_variance(K).standard_error == 0
    close(operators.total_variance(K).value, np.trace(ref.whiten(ref.gram(ref.tangent))))
    close(operators.total_variance(P).value, np.sum(ref.propagator**2), 1e-12)
    monkeypatch.setattr("nullcline.operators._spectrum.DENSE_LIMIT", 10)
    found = operators.total_variance(P, probes=200, key=jr.key(2))
    # Four standard errors of a mean of 200: missed by fewer than 1 key in 10^4.
    assert 0 < found.standard_error < 0.1 * found.value
    assert abs(found.value - np.sum(ref.propagator**2)) < 4 * found.standard_error


def _partial(matrix, shape, letters):
    return np.einsum(letters, matrix.reshape(*shape, *shape))


def test_consensus_over_every_set_of_axes():
    flow, ref = cells.flow_of("gru"), reference("gru")
    shape = flow.states.shape
    B, T, S = shape
    P, K = flow.propagator, flow.parameter_operator
    k, p = ref.whiten(ref.gram(ref.tangent)), ref.propagator
    cases = {
        ("batch",): ("btibuj->tiuj", B),
        ("time",): ("atibtj->aibj", T),
        ("batch", "time"): ("btibtj->ij", B * T),
        ("time", "hidden"): ("atibti->ab", T * S),
    }
    for over, (letters, removed) in cases.items():
        trace = _partial(k, shape, letters) / removed
        close(operators.consensus(K, over).matrix.reshape(trace.shape), trace, 1e-12)
        gram = operators.consensus(P, over)
        assert gram.kind == "gram"
        close(gram.matrix.reshape(trace.shape), _partial(p @ p.T, shape, letters) / removed, 1e-12)
    both = operators.consensus(P, ("batch", "hidden"), "duplicate")
    close(both.matrix, np.einsum("atibuj->tu", p.reshape(*shape, *shape)) / (B * S), 1e-12)
    close(both.values, np.linalg.svd(both.matrix, compute_uv=False), 1e-12)
    # For K of a unit-local cell over hidden units the document's version is the trace.
    duplicate = operators.consensus(K, ("hidden",), "duplicate")
    close(duplicate.matrix, operators.consensus(K, ("hidden",)).matrix, 1e-12)


@pytest.mark.slow
def test_three_kinds_agree_for_products_with_the_identity():
    # F = a z + W x: P is (running sums of powers of a) times I, K is a kernel times I.
    x = cells.normal(jr.key(0), (2, 5, 3))
    step = lambda p, z, x: 0.7 * z + p @ x  # noqa: E731
    flow = operators.linearize(step, x, jnp.zeros(3), params=jnp.ones((3, 3)))
    for operator in (flow.propagator, flow.parameter_operator):
        kinds = ("trace", "gram", "duplicate") if operator.is_psd else ("gram", "duplicate")
        found = [operators.consensus(operator, ("hidden",), kind) for kind in kinds]
        for one in found[1:]:
            close(one.values, found[0].values, 1e-7)  # square roots of eigenvalues keep half the digits


@pytest.mark.slow
def test_trace_and_gram_do_not_depend_on_the_hidden_basis_but_duplicate_does(key):
    cell = cells.make("rate")
    turn = jnp.linalg.qr(cells.normal(key, (cells.HIDDEN, cells.HIDDEN)))[0]
    x = cells.inputs_for(jr.key(1))

    def step(q, p, z, x):
        return q.T @ (q @ z + 0.4 * (-(q @ z) + p["w"] @ jnp.tanh(q @ z) + p["v"] @ x))

    params = {"w": cell.w, "v": cell.w_in}
    start = 0.2 * jnp.ones(cells.HIDDEN)
    eye = jnp.eye(cells.HIDDEN)
    flows = [
        operators.linearize(lambda p, z, x, q=q: step(q, p, z, x), x, q.T @ start, params=params)
        for q in (eye, turn)
    ]
    values = {}
    for kind in ("gram", "duplicate"):
        values[kind] = [operators.consensus(f.propagator, ("batch", "hidden"), kind).values for f in flows]
    values["trace"] = [operators.consensus(f.parameter_operator, ("hidden",)).values for f in flows]
    for kind in ("gram", "trace"):
        close(values[kind][1], values[kind][0], 1e-12)
    assert np.max(np.abs(values["duplicate"][1] / values["duplicate"][0] - 1)) > 0.05


@pytest.mark.slow
def test_recursions_and_probes_of_p(monkeypatch):
    flow, ref = cells.flow_of("lstm"), reference("lstm")
    P, K = flow.propagator, flow.parameter_operator
    exact = {over: operators.consensus(P, over) for over in (("batch", "time"), ("batch", "hidden"))}
    whole = operators.consensus(P @ K @ P.T, ("batch", "hidden"))
    monkeypatch.setattr("nullcline.operators._consensus.DENSE_LIMIT", 100)
    for over, expected in exact.items():
        found = operators.consensus(P, over)
        assert found.method == "recursion"
        close(found.matrix, expected.matrix, 1e-12)
    sampled = operators.consensus(P @ K @ P.T, ("batch", "hidden"), probes=400, key=jr.key(1))
    assert sampled.method == "probes"
    # 25 entries, each a mean of 400: five standard errors, missed by fewer than 1 key in 10^4.
    assert np.all(np.abs(sampled.matrix - whole.matrix) < 5 * np.asarray(sampled.standard_error))
    assert float(jnp.max(sampled.standard_error)) < 0.2 * float(jnp.max(whole.matrix))
    columns = operators.consensus(P, ("batch", "hidden"), "duplicate")
    assert columns.method == "columns"
    expected = np.einsum("atibuj->tu", ref.propagator.reshape(3, 5, 8, 3, 5, 8)) / 24
    close(columns.matrix, expected, 1e-12)


def test_modes_of_a_consensus_hold_the_share_of_a_trajectory(key):
    flow = cells.flow_of("rate")
    kernel = operators.consensus(flow.parameter_operator)
    q = cells.normal(key, flow.states.shape)
    share = operators.mode_share(kernel, q, cells.BATCH * cells.TIME, weights=flow.weights)
    close(jnp.sum(share), 1.0)
    vectors = np.linalg.eigh(kernel.matrix)[1][:, ::-1]
    white = (np.sqrt(flow.weights)[:, None, None] * q).reshape(-1, cells.HIDDEN)
    close(share[0], np.sum((vectors[:, 0] @ white) ** 2) / np.sum(white**2))


def test_block_that_loses_rank_stays_orthonormal():
    flow = cells.flow_of("rate")
    K = flow.parameter_operator.terms["b"]  # rank 4 in dimension 60
    space = _krylov.expand(K, _krylov.start_block(K, 6, jr.key(0)), 4)
    close(space.basis @ space.basis.T, np.eye(len(space.basis)), 1e-12)


def test_a_krylov_space_that_is_complete_goes_on():
    """All Jacobians zero, so P = I: after one vector the space is complete, and yet every value is 1."""
    cell = recurrent.rate_cell(1, 3, 1, nonlinearity="relu", dt=1.0, key=jr.key(0))
    P = operators.linearize(cell, jnp.zeros((2, 4, 1))).propagator
    top = operators.spectrum(P, 7, method="krylov")
    np.testing.assert_allclose(top.values, 1.0, rtol=1e-12)
    assert top.is_converged.all()
    rank = operators.effective_rank(P, method="quadrature")
    np.testing.assert_allclose([rank.rank, rank.total], [0.95 * 24, 24], rtol=1e-9)


def test_units_at_rest_have_no_modes():
    """A ReLU network that never fires and has no bias: K is zero, and its modes are not NaN."""
    cell = recurrent.rate_cell(1, 3, 1, nonlinearity="relu", dt=1.0, key=jr.key(0))
    found = operators.spectrum(operators.linearize(cell, jnp.zeros((2, 4, 1))).parameter_operator, 2)
    np.testing.assert_array_equal(found.values, 0)
    assert np.isfinite(np.asarray(found.modes)).all()
