"""Studies of the shared-representations note: judgments on known data, and every study once, tiny."""

import matplotlib.figure
import numpy as np
import pytest
import xarray as xr

from nullcline import engine, studies
from nullcline.studies.shared_representations import _common
from nullcline.studies.shared_representations.diagonal import connection_chances
from nullcline.studies.shared_representations.fig1 import TrainedPairs

FOUND = {name: study for name, study in studies.find().items() if study.document == "shared-representations"}

# Four languages of two words wherever the study allows it: they share compiled programs.
TINY = {
    "fig1": {
        "languages": 4, "words": 2, "hidden": (2, 4), "scale": (0.3, 0.1), "seed": (0,),
        "pairs": (5, 8, 11, 14),
    },
    "fig2a": {"starts": 16, "scale": (0.1, 1e-4, 1e-8), "budget": 1_000},
    "fig2b": {"start": (6,), "decades": 6},
    "fig3a": {"scale": (0.01, 0.001), "seed": (0,)},
    "fig3b": {"scale": (0.01, 0.001), "words": 2, "seed": (0,)},
    "fig4": {"languages": 4, "words": 2, "scale": (0.1,), "seed": (0, 1), "pairs": (9, 12)},
    "circulants": {"words": 2, "seed": (0, 1), "budget": 3_000},
    "diagonal": {"orders": 200, "words": 2, "seed": (0, 1)},
    "spikes": {
        "solver": ("float64", "tight"), "languages": 4, "words": 2, "time": 300.0, "seed": (0, 1),
        "pairs": (9, 12),
    },
    "predictors": {"languages": 5, "words": 2, "fixed": 11, "pool": range(30), "seed": (0,), "budget": 1_500},
}  # fmt: skip


def test_what_is_there():
    names = {study.figure for study in FOUND.values()}
    assert names == set(TINY)
    for study in FOUND.values():
        assert {"quick", "paper"} <= set(study.presets) and set(study.expected) == {"quick", "paper"}
    paper = FOUND["shared-representations/fig1"].presets["paper"]
    # The note's own size: three seeds, six scales, 90 masks for each hidden size.
    assert len(paper["seed"]) * len(paper["scale"]) * len(paper["pairs"]) == 1620
    assert paper["hidden"] == (32, 64) and paper["words"] == (32,) and paper["languages"] == (10,)


def test_area_under_the_curve():
    score, good = np.array([1.0, 2.0, 3.0, 3.0]), np.array([False, False, True, True])
    assert _common.auc(score, good) == 1
    assert _common.auc(-score, good) == 0
    assert _common.auc(np.ones(4), good) == 0.5
    assert _common.auc(np.array([1.0, 3.0, 2.0, 4.0]), good) == 0.75
    assert np.isnan(_common.auc(score, np.ones(4, bool)))


def test_slope():
    x = np.array([1.0, 10.0, 100.0])
    np.testing.assert_allclose(_common.slope(x, 3 * x**0.7), 0.7, rtol=1e-12)
    # All the weight on the last two points.
    y = np.array([50.0, 1.0, 10.0])
    np.testing.assert_allclose(_common.slope(x, y, np.array([1e-12, 1, 1])), 1, rtol=1e-6)
    assert np.isnan(_common.slope(x[:1], y[:1]))


@pytest.mark.parametrize("diagonal", [True, False])
def test_chances_of_connection_by_trying_every_mask(diagonal):
    found, total = np.zeros(10), np.zeros(10)
    for code in range(2**9):
        mask = np.array([code >> k & 1 for k in range(9)]).reshape(3, 3)
        if diagonal and not np.diag(mask).all():
            continue
        adjacency = np.block([[np.eye(3, dtype=int), mask], [mask.T, np.eye(3, dtype=int)]])
        total[mask.sum()] += 1
        found[mask.sum()] += (np.linalg.matrix_power(adjacency, 6) > 0).all()
    expected = np.divide(found, total, out=np.zeros(10), where=total > 0)
    np.testing.assert_allclose(connection_chances(3, diagonal), expected, rtol=1e-14)


def fake_figure_1():
    """Two scales, six masks that connect at 7 pairs; the larger scale generalizes two pairs late."""
    pairs = np.arange(5, 11)
    shape = (1, 1, 2, 1, 2, 1, 6)
    dims = ("languages", "words", "hidden", "budget", "scale", "seed", "pairs")

    def full(values):
        return (dims, np.broadcast_to(values, shape).copy())

    test = np.where(pairs < np.array([[9], [7]]), 1.0, 1e-6)[:, None, :]
    joined = pairs >= 7
    return xr.Dataset(
        {
            "test": full(test),
            "train": full(1e-6),
            "converged": full(True),
            "components": full(np.where(joined, 1, 2)),
            "cross_pairs": full(np.where(joined, 0, 4)),
            "resistance": full(np.where(joined, 1.0, np.nan)),
            "within": full(1e-6),
            "cross": full(np.where(joined, np.nan, 1.0)),
            "frustration": full(1e-3),
        },
        coords={
            "languages": [4], "words": [8], "hidden": [8, 16], "budget": [1],
            "scale": [0.1, 0.01], "seed": [0], "pairs": pairs,
        },
    )  # fmt: skip


def by_sentence(claims, part):
    (found,) = [claim for claim in claims if part in claim.sentence]
    return found


def test_claims_of_figure_1_on_known_data():
    data = fake_figure_1()
    claims = list(TrainedPairs().claims(data))
    falls = by_sentence(claims, "falls with σ")
    assert falls.measured == 2 and falls.verdict == "holds"
    zero = by_sentence(claims, "may go to zero")
    assert zero.measured == 7 - 7 and zero.verdict == "refuted"
    # At the larger scale two converged runs on connected masks have a test loss of one: three claims see it.
    assert by_sentence(claims, "are runs at a training loss of 1e-6").measured == 2
    assert by_sentence(claims, "test ≤ T mean(R) train").verdict == "fails"
    # Had they not converged, they would be left out, and counted as such.
    data["converged"] = data.converged & (data.test < 0.5)
    claims = list(TrainedPairs().claims(data))
    assert by_sentence(claims, "are runs at a training loss of 1e-6").verdict == "refuted"
    worst = by_sentence(claims, "test ≤ T mean(R) train")
    np.testing.assert_allclose(worst.measured, 1 / 7)
    assert by_sentence(claims, "leave fewer frustrated runs").measured == 0.5


def test_figure_1_draws_unconverged_runs_as_crosses():
    data = fake_figure_1()
    data["converged"] = data.converged & (data.test < 0.5)
    fig = TrainedPairs().draw(data)
    crosses = [line for line in fig.axes[0].lines if line.get_marker() == "x" and len(line.get_xdata())]
    assert sum(len(line.get_xdata()) for line in crosses) == int((~data.converged.isel(hidden=0)).sum())


def tiny(name, tmp_path):
    study = FOUND[f"shared-representations/{name}"]
    data = engine.run(study, out=tmp_path, overrides=TINY[name], is_quiet=True)
    assert isinstance(study.draw(data), matplotlib.figure.Figure)
    return data, list(study.claims(data))


@pytest.mark.slow
def test_the_diagonal_study_runs(tmp_path):
    data, claims = tiny("diagonal", tmp_path)
    fixed, free = (data.connects.sel(diagonal=value).values for value in (True, False))
    assert fixed.min() >= 19 and np.median(fixed) < np.median(free)
    assert len(claims) == 12


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fig2b", "predictors"])
def test_studies_run_tiny(name, tmp_path):
    data, claims = tiny(name, tmp_path)
    assert claims and data.sizes


@pytest.mark.slow
def test_figure_1_runs(tmp_path):
    data, claims = tiny("fig1", tmp_path)
    assert len(claims) >= 6
    # The same point twice is the same bits.
    study = FOUND["shared-representations/fig1"]
    point = dict(languages=4, words=2, hidden=2, budget=3_000, scale=0.1, seed=(0,), pairs=(5, 8, 11, 14))
    again = study.compute(**point)
    stored = data.sel(hidden=2, scale=0.1).squeeze()
    np.testing.assert_array_equal(again["test"][0], stored.test.values)


@pytest.mark.slow
def test_figure_2a_runs(tmp_path):
    data, claims = tiny("fig2a", tmp_path)
    fails = data.fails.squeeze()
    # Narrow circulants fail, and the more the narrower; wide ones do not at small scales.
    assert float(fails.sel(width=2, scale=0.1)) > 0.5 > float(fails.sel(width=5, scale=0.1))
    assert by_sentence(claims, "Every start that converged").verdict == "holds"
    assert by_sentence(claims, "Wide circulants").verdict == "holds"


# Studies of one size share compiled programs: one test each.
@pytest.mark.slow
def test_studies_of_ten_languages_run(tmp_path):
    _, claims = tiny("fig3a", tmp_path)
    assert [claim.verdict for claim in claims] == ["holds", "refuted"]
    data, claims = tiny("fig3b", tmp_path)
    assert by_sentence(claims, "One aligned pair").verdict == "holds"
    assert np.abs(data.escape.sel(scale=0.01) / data.escape.sel(scale=0.001) - 1).max() < 0.2
    data, claims = tiny("circulants", tmp_path)
    assert by_sentence(claims, "every start that converged generalizes").verdict == "holds"
    assert np.isfinite(data.cross.sel(mask="width 1")).any() and data.cross.sel(mask="width 5").isnull().all()


@pytest.mark.slow
def test_studies_of_four_languages_run(tmp_path):
    _, claims = tiny("fig4", tmp_path)
    assert by_sentence(claims, "at most R T train").verdict == "holds"
    _, claims = tiny("spikes", tmp_path)
    assert by_sentence(claims, "No converged run").verdict == "holds"
    assert by_sentence(claims, "numerical").measured == 1
