"""The figures of anguita2024 and domine2025: each on a tiny grid, their helpers, and some quick presets."""

import io

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import xarray as xr

from nullcline import engine, linear, studies
from nullcline.studies.anguita2024 import _common, fig3_2, fig4_3, fig4_4, fig4_8

# The smallest grid that still runs every line of a study. Those that compile the exact solution for
# themselves take over five seconds; the three deviations share one program.
TINY = {
    "anguita2024/fig3.1": {"hidden": (20, 30), "seed": (0, 1)},
    "anguita2024/fig3.2": {"steps": 60},
    "anguita2024/fig3.4": {"width": (3,), "rate": (1e-4, 1e-3, 1e-2), "steps": 20, "seed": (0, 1)},
    "anguita2024/fig3.5": {"width": (3,), "lam": (1.0, 10.0, 100.0), "steps": 20, "seed": (0, 1)},
    "anguita2024/fig3.6": {"width": (3,), "lam": (50.0, 200.0), "steps": 20, "seed": (0, 1)},
    "anguita2024/fig4.2": {"steps": 600, "seed": (0,)},
    "anguita2024/fig4.3": {"steps": 1200, "seed": (0,)},
    "anguita2024/fig4.4": {"lam": (-20.0, -10.0, -6.0, 6.0, 10.0, 20.0), "steps": 600, "seed": (0,)},
    "anguita2024/fig4.8": {"steps": (20,), "seed": (0,)},
}
SLOW = {
    "domine2025/fig2b": {"lam": (-9.0, 0.0, 9.0), "seed": (0, 1, 2)},
    "domine2025/fig2c": {"width": (3,), "lam": (-9.0, 9.0), "seed": (0, 1, 2)},
}
# Compiling is most of their quick preset.
QUICK = (
    "anguita2024/fig3.3",
    "anguita2024/fig4.5",
    "anguita2024/fig4.6",
    "anguita2024/fig4.7",
    "domine2025/fig1",
)
FOUND = {
    name: study for name, study in studies.find().items() if name.startswith(("anguita2024/", "domine2025/"))
}


def judged(name, overrides, folder):
    """Compute, draw and judge a study; gives its claims."""
    study = FOUND[name]
    data = engine.run(study, overrides=overrides, out=folder)
    buffer = io.BytesIO()
    study.draw(data).savefig(buffer, format="png", dpi=50)
    assert buffer.getvalue().startswith(b"\x89PNG")
    claims = list(study.claims(data))
    assert claims
    assert len({claim.sentence for claim in claims}) == len(claims)
    assert all(claim.source for claim in claims)
    return claims


def test_every_figure_is_a_study():
    assert sorted(FOUND) == sorted([*TINY, *SLOW, *QUICK])
    for study in FOUND.values():
        assert set(study.presets) == {"quick", "paper"} == set(study.expected)


@pytest.mark.parametrize("name", sorted(TINY))
def test_tiny_grid(name, tmp_path):
    judged(name, TINY[name], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SLOW))
def test_tiny_grid_of_kernel_distances(name, tmp_path):
    judged(name, SLOW[name], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_quick_preset_keeps_its_claims(name, tmp_path):
    claims = judged(name, None, tmp_path)
    assert [claim.sentence for claim in claims if claim.verdict == "fails"] == []


def test_printed_solution_is_right_for_positive_lambda_only():
    t = np.linspace(0, 8, 30)
    for lam, is_right in ((0.5, True), (2.0, True), (-0.5, False)):
        exact = linear.mode_flow(jnp.array([1.5]), jnp.array([0.7]), jnp.asarray(t), lam=lam).strength[:, 0]
        printed = fig3_2.printed_solution(1.5, 0.7, t, lam)
        gap = np.abs(printed - np.asarray(exact)).max()
        assert gap < 1e-12 if is_right else gap > 0.5


def test_stages_cover_the_steps():
    for last in (1, 7, 100, 130, 1000, 50_000):
        stages = _common.log_stages(last)
        steps = _common.recorded(stages)
        assert steps[0] == 0 and steps[-1] == last
        assert np.all(np.diff(steps) > 0)
        assert all(length % every == 0 for length, every in stages)


def test_descent_in_stages_is_descent():
    task = linear.random_regression(3, 2, 8, key=jr.key(0))
    network = linear.lambda_balanced(3, 2, 2, lam=0.5, key=jr.key(1))
    stages = ((4, 1), (6, 3))
    whole = linear.gradient_descent(network, task, learning_rate=0.05, steps=10)
    parts = _common.descend(network, task, 0.05, stages)
    steps = _common.recorded(stages)
    np.testing.assert_array_equal(steps, [0, 1, 2, 3, 4, 7, 10])
    np.testing.assert_allclose(parts.qqt, whole.qqt[steps], rtol=1e-13)
    np.testing.assert_allclose(parts.times, whole.times[steps], rtol=1e-15)


def test_sweep_is_a_loop_over_the_grid():
    def draw(a, b):
        return (10 * a,)

    found = _common.sweep(
        draw,
        lambda a, b, drawn: {"x": drawn + b, "y": jnp.stack([a, b])},
        np.arange(3.0),
        np.arange(5.0),
        batch=4,
    )
    np.testing.assert_array_equal(found["x"], 10 * np.arange(3.0)[:, None] + np.arange(5.0)[None, :])
    assert found["y"].shape == (3, 5, 2)
    assert found["y"][2, 4].tolist() == [2, 4]


def test_match_sign_turns_the_determinant_and_keeps_the_balance():
    task = linear.semantic_hierarchy()
    signs = set()
    for seed in range(4):
        network = linear.lambda_balanced(8, 8, 8, lam=0.5, key=jr.key(seed))
        matched = _common.match_sign(network, task)
        signs.add(bool(jnp.linalg.det(network.function) * jnp.linalg.det(task.target) > 0))
        assert jnp.linalg.det(matched.function) * jnp.linalg.det(task.target) > 0
        np.testing.assert_allclose(linear.balance(matched), 0.5 * np.eye(8), atol=1e-13)
    assert signs == {True, False}


def test_match_sign_leaves_bottlenecks_alone():
    """Their determinant is zero: its sign would be rounding, and draws would depend on the machine."""
    network = linear.lambda_balanced(3, 2, 3, lam=1.0, key=jr.key(0))
    for flip in (1.0, -1.0):
        task = linear.Task.from_correlation(jnp.diag(jnp.asarray([flip, 1.0, 1.0])))
        np.testing.assert_array_equal(_common.match_sign(network, task).w2, network.w2)


def test_first_below_never_invents_a_step():
    loss = xr.DataArray(
        [[1.0, 0.1, 0.01], [1.0, 1.0, 1.0]], dims=("seed", "step"), coords={"step": [0, 5, 9]}
    )
    found = fig4_3.first_below(loss, 0.5)
    assert float(found[0]) == 5
    assert np.isnan(found[1])


@pytest.mark.parametrize("kind", ["exponential", "hyperbola"])
def test_fits_recover_what_they_are_given(kind):
    lam = np.array(fig4_4.balances(12))
    curves = {"exponential": 650 * np.exp(-0.07 * np.abs(lam)), "hyperbola": 3000 / np.sqrt(lam**2 + 8)}
    parameters, curve = fig4_4.fits(lam, curves[kind])[kind]
    np.testing.assert_allclose(curve, curves[kind], rtol=1e-6)
    np.testing.assert_allclose(
        parameters, {"exponential": (650, 0.07), "hyperbola": (3000,)}[kind], rtol=1e-6
    )


@pytest.mark.parametrize("lam", [-10.0, 0.1])
def test_filled_up_network_trains_like_itself(lam):
    found = fig4_8.trial(lam, 3)
    size = int(found["size"])
    assert fig4_8.SMALLEST <= size < fig4_8.LARGEST
    network = linear.Network(found["w1"][:size, :size], found["w2"][:size, :size])
    np.testing.assert_allclose(linear.balance(network), lam * np.eye(size), atol=1e-12)
    x, y = found["x"][0, :size, : 2 * size], found["y"][0, :size, : 2 * size]
    np.testing.assert_allclose(x @ x.T / (2 * size), np.eye(size), atol=1e-12)

    def train(network, x, y, rate):
        task = linear.Task(x, y, is_isotropic=True)
        return linear.nonlinear_descent(
            network, task, activation="tanh", learning_rate=rate, steps=20, every=20
        ).network

    small = train(network, x, y, 1e-2)
    large = linear.Network(found["w1"], found["w2"])
    large = train(large, found["x"][0], found["y"][0], 1e-2 * fig4_8.LARGEST / size)
    for name in ("w1", "w2"):
        filled = np.asarray(getattr(large, name))
        np.testing.assert_allclose(filled[:size, :size], getattr(small, name), rtol=1e-12, atol=1e-13)
        filled = filled.copy()
        filled[:size, :size] = 0
        assert not filled.any()


def test_gap_note_measures_the_strength_of_the_start():
    rng = np.random.default_rng(0)
    q = rng.normal(size=(2, 2, 3, 5, 4))  # lam, by, step, row, hidden
    qqt = xr.DataArray(
        q @ np.swapaxes(q, -1, -2),
        dims=("lam", "by", "step", "row", "column"),
        coords={"lam": [0.0, 1.0], "by": ["descent", "exact"]},
    )
    strength = _common.start_strength(qqt, 3)
    function = qqt.values[1, 1, 0, 3:, :3]
    assert float(strength.sel(lam=1)) == pytest.approx(np.linalg.svd(function)[1][0], rel=1e-12)
    gap = _common.course_gap(qqt)
    exact, descent = qqt.values[1, 1], qqt.values[1, 0]
    largest = max(np.linalg.norm(a - b) for a, b in zip(exact, descent, strict=True))
    expected = largest / max(np.linalg.norm(a) for a in exact)
    assert float(gap.sel(lam=1)) == pytest.approx(expected, rel=1e-12)


def test_draws_do_not_depend_on_the_grid():
    wide = fig4_8.trial(0.1, 5)
    again = fig4_8.trial(0.1, 5)
    assert all(np.array_equal(wide[name], again[name]) for name in wide)
    assert jax.config.jax_enable_x64 and wide["w1"].dtype == np.float64
