"""The studies that train networks: verdicts on made-up data, a short training of each, a missing corpus."""

import itertools

import numpy as np
import pytest
import xarray as xr

from nullcline import plotting, studies
from nullcline.studies.schuessler2020 import _networks, _sst2

NAMES = ("fig1", "fig2", "fig5", "figS1", "figS2", "figS5", "figS6")


@pytest.fixture(scope="module")
def found():
    return studies.find()


@pytest.mark.parametrize("name", NAMES)
def test_study_is_found_with_both_presets(name, found):
    study = found[f"schuessler2020/{name}"]
    assert {"quick", "paper"} <= set(study.presets) and set(study.expected) == {"quick", "paper"}


def verdicts(study, data):
    return {claim.sentence: claim.verdict for claim in study.claims(data)}


def three_tasks(rank, epochs):
    """A dataset as Figure 1 should find it, with the given ranks and epochs at g = 0 and 0.9."""
    shape = (3, 2, 1, 5)
    dims = ("task", "g", "size", "seed")
    loss = np.full((*shape, 6000), 0.01)
    loss[0, ..., :50] = loss[1, :, ..., :150] = 1
    loss[2, ..., :2000] = 0.5
    values = np.full((*shape, 40), 0.1)
    values[..., :2] = [1.4, 1.3]
    truncation = np.full((*shape, 26), 0.01)
    return xr.Dataset(
        {
            "loss": ((*dims, "epoch"), loss),
            "test_loss": (dims, np.full(shape, 0.001)),
            "epochs": (dims, np.broadcast_to(epochs, shape)),
            "rank": (dims, np.broadcast_to(rank, shape)),
            "truncation": ((*dims, "truncated_rank"), truncation),
            "singular_values": ((*dims, "mode"), values),
            "trial_inputs": ((*dims, "time", "input"), np.ones((*shape, 200, 4))),
            "trial_outputs": ((*dims, "time", "output"), np.zeros((*shape, 200, 2))),
            "trial_targets": ((*dims, "time", "output"), np.full((*shape, 200, 2), 0.5)),
        },
        coords={"task": list(_networks.TASKS), "g": [0.0, 0.9], "size": ["small"], "seed": range(5),
                "epoch": np.arange(6000), "truncated_rank": np.arange(26), "mode": np.arange(1, 41)},
    )  # fmt: skip


def test_figure_1_judges(found):
    study = found["schuessler2020/fig1"]
    rank = np.array([2.0, 4.0, 7.0])[:, None, None, None]
    epochs = np.array([[70.0, 36.0], [317.0, 52.0], [2801.0, 227.0]])[:, :, None, None]
    good = three_tasks(rank, epochs)
    assert set(verdicts(study, good).values()) == {"holds"}
    assert len(study.draw(good).axes) == 12
    # Slower learning, a higher rank and a lost plateau must be noticed.
    bad = verdicts(study, three_tasks(rank + 1, epochs[:, ::-1]))
    assert (
        bad["flip-flop, g = 0: the loss after truncation drops to zero at rank 2, in every network"]
        == "fails"
    )
    assert bad["Romo: learning becomes faster with initial connectivity"] == "fails"
    # Networks of the document's size are also held to its numbers, by more claims.
    paper = good.assign_coords(size=["paper"])
    assert set(verdicts(study, paper).values()) == {"holds"}
    assert len(verdicts(study, paper)) == len(verdicts(study, good)) + 5
    unsolved = verdicts(study, paper.assign(test_loss=paper.test_loss + 0.03))
    assert [sentence for sentence, verdict in unsolved.items() if verdict == "fails"] == [
        "trained networks solve the tasks: 5, 5, 4, 5, 4, 5 of five end below 2 % of L_0"
    ]


def test_chance_of_lying_beyond_known_networks():
    """Against all ways to choose which of nine networks are ours."""
    for beyond in range(5):
        ways = [set(chosen) for chosen in itertools.combinations(range(9), 4)]
        # The largest `beyond` of the nine are ours.
        share = np.mean([set(range(9 - beyond, 9)) <= ours for ours in ways])
        ours = np.array([5.0] * (4 - beyond) + [np.nan] * beyond)
        np.testing.assert_allclose(_networks.chance_of_same_law(ours, 1, 9, 5), min(1, 2 * share))
    assert _networks.chance_of_same_law(np.zeros(5), 1, 9, 5) < 0.01


def test_growth_with_the_size_is_noticed(found):
    study = found["schuessler2020/figS1"]
    shape, dims = (1, 3, 2, 5), ("task", "g", "hidden", "seed")
    constant = {name: (dims, np.full(shape, 1.0)) for name in ("norm_change", "norm_w", "rank")}
    coords = {"task": ["flip-flop"], "g": [0.0, 0.9, 1.8], "hidden": [64, 128], "seed": range(5)}
    epochs = 100.0 + np.arange(5) + np.array([0.0, -2.0])[:, None]
    for growth, expected in ((0.0, {"holds"}), (20.0, {"holds", "fails"})):
        grown = epochs + growth * np.arange(2)[:, None]
        data = xr.Dataset(
            {
                "epochs": (dims, np.broadcast_to(grown, shape)),
                "test_loss": (dims, np.zeros(shape)),
                **constant,
            },
            coords=coords,
        )
        assert set(verdicts(study, data).values()) == expected


def test_the_known_fall_of_the_norm(found):
    study = found["schuessler2020/fig2"]
    scatter = np.array([0.9, 0.97, 1.0, 1.03, 1.1])
    for before, verdict in ((2.4, "holds"), (2.2, "holds"), (1.2, "fails"), (6.0, "fails")):
        norms = xr.DataArray([before * scatter, 0.8 * scatter], dims=("g", "seed"), coords={"g": [0.0, 1.5]})
        assert study._fall(norms, "mante").verdict == verdict


def test_networks_that_did_not_converge_enter_no_median(found):
    study = found["schuessler2020/fig2"]
    g = np.array([0.0, 0.6, 1.2, 1.8])
    shape = (3, 4, 1, 3)
    dims = ("task", "g", "hidden", "seed")
    course = np.array([100.0, 60.0, 20.0, 40.0])[None, :, None, None]
    data = xr.Dataset(
        {
            "epochs": (dims, np.broadcast_to(course, shape).copy()),
            "norm_change": (dims, np.broadcast_to(2 - 0.8 * g[None, :, None, None], shape).copy()),
            "norm_w": (dims, np.broadcast_to(8 * g[None, :, None, None], shape)),
            "shuffled": (dims, np.where(np.broadcast_to(g[None, :, None, None], shape) > 0, 0.9, 0.001)),
            "rank": (dims, np.broadcast_to(2 + 2 * g[None, :, None, None], shape).copy()),
            "test_loss": (dims, np.full(shape, 0.001)),
        },
        coords={"task": list(_networks.TASKS), "g": g, "hidden": [64], "seed": range(3)},
    )
    assert set(verdicts(study, data).values()) == {"holds"}
    # One network never met the threshold and ended far off: nothing changes but the count.
    data["epochs"][:, :, :, 0] = np.nan
    data["norm_change"][:, :, :, 0] = 1e3
    data["rank"][:, :, :, 0] = 25
    assert set(verdicts(study, data).values()) == {"holds"}
    assert any("8 networks converged" in claim.note for claim in study.claims(data))
    assert len(study.draw(data).axes) == 4


def test_a_missing_corpus_is_explained(found, monkeypatch, tmp_path):
    study = found["schuessler2020/fig5"]
    monkeypatch.delenv("NULLCLINE_DATA", raising=False)
    assert "no folder was named" in study.missing() and "--data DIR" in study.missing()
    monkeypatch.setenv("NULLCLINE_DATA", str(tmp_path))
    assert f"{tmp_path} (NULLCLINE_DATA) does not hold them" in study.missing()
    (tmp_path / "sst2").mkdir()
    for name in _sst2.FILES:
        (tmp_path / "sst2" / name).write_text("1 good film\n")
    assert study.missing() == ""


def test_points_of_another_corpus_are_other_points(found, monkeypatch, tmp_path):
    study = found["schuessler2020/fig5"]
    monkeypatch.setenv("NULLCLINE_DATA", str(tmp_path))
    assert study.supplied() == ""
    digests = [study.supplied()]
    for name in _sst2.FILES:
        (tmp_path / name).write_text("1 good film\n")
    digests.append(study.supplied())
    (tmp_path / "dev.txt").write_text("0 bad film !\n")
    digests.append(study.supplied())
    (tmp_path / "glove.txt").write_text("good 1 2\n")
    digests.append(study.supplied())
    assert len(set(digests)) == 4
    (tmp_path / "sst2").mkdir()
    for path in list(tmp_path.glob("*.txt")):
        path.rename(tmp_path / "sst2" / path.name)
    assert study.supplied() == digests[-1]  # the folder does not matter, what it holds does


def test_trials_are_drawn():
    import jax.random as jr

    from nullcline import recurrent

    task = recurrent.FlipFlop()
    trials = task.sample(2, key=jr.key(0))
    fig = plotting.plot_trials(trials, outputs=np.zeros((2, 100, 2)), dt=task.dt, count=2)
    lines = fig.axes[0].get_lines()
    # Two inputs, two targets and two outputs, each on a line of zero.
    assert len(lines) == 4 + 2 + 4
    assert [tick.get_text() for tick in fig.axes[0].get_yticklabels()] == ["$u_1$", "$u_2$", "$z_1$", "$z_2$"]
    # The targets stop where the loss does not look; the loss starts ten steps after the first onset.
    target = next(line for line in lines if line.get_color() == "#000000")
    assert not np.isfinite(target.get_ydata()[:12]).any() and np.isfinite(target.get_ydata()[12])
    assert target.get_xdata()[-1] == 99 * task.dt
    with pytest.raises(ValueError, match=r"`count` must be in 1..2"):
        plotting.plot_trials(trials, count=3)
    with pytest.raises(ValueError, match=r"`outputs` must have the shape of the targets, \(2, 100, 2\)"):
        plotting.plot_trials(trials, outputs=np.zeros((2, 100, 3)))


def test_networks_of_a_batch_are_those_trained_alone(monkeypatch):
    """On an accelerator: every strength and seed is drawn, trained and measured with the keys of its seed."""
    import types

    import jax.numpy as jnp
    import jax.random as jr

    from nullcline import recurrent

    seen = {}

    def cell(task, hidden, g, key):
        drawn = jr.key_data(key).astype(float)
        return recurrent.RateCell(drawn[None], g * jnp.ones((2, 2)), jnp.zeros((2, 2)))

    def train_many(cells, task, *, steps, key):
        seen["trials"] = jr.key_data(key)
        return types.SimpleNamespace(initial=cells, final=cells, losses=np.zeros((4, steps)))

    def measure(task, initial, final, losses, key):
        trial = dict.fromkeys(("trial_inputs", "trial_outputs", "trial_targets"), initial.w_in)
        return {"w": initial.w, "w_in": initial.w_in, "key": jr.key_data(key), **trial}

    monkeypatch.setattr(recurrent, "train_many", train_many)
    monkeypatch.setattr(_networks, "_cell", cell)
    monkeypatch.setattr(_networks, "_measure", measure)
    batch = _networks._batch.__wrapped__("romo", 2, (0.3, 0.9), (3, 4))
    assert list(batch) == [(0.3, 3), (0.3, 4), (0.9, 3), (0.9, 4)]
    for index, ((g, seed), found) in enumerate(batch.items()):
        key = _networks._key("romo", seed)
        np.testing.assert_array_equal(found["w"], g)
        np.testing.assert_array_equal(found["w_in"][0], jr.key_data(key))
        np.testing.assert_array_equal(seen["trials"][index], jr.key_data(jr.fold_in(key, 1)))
        np.testing.assert_array_equal(found["key"], jr.key_data(jr.fold_in(key, 2)))
    # What is trained together: the strengths of the document at its size, and those of Figure S1.
    assert _networks._company("flip-flop", 0.9, 256) == (0.0, 0.3, 0.6, 0.9, 1.2, 1.5, 1.8, 2.1)
    assert _networks._company("romo", 0.9, 512) == (0.0, 0.9, 1.8)
    assert _networks._company("romo", 0.7, 512) == (0.7,)


@pytest.mark.slow
def test_short_trainings_give_what_the_figures_need(found, monkeypatch, tmp_path):
    """Every training study on a few epochs: the whole way from `compute` to figure and claims."""
    from nullcline import engine
    from nullcline.studies.schuessler2020 import fig1

    monkeypatch.setattr(_networks, "EPOCHS", {"flip-flop": 5, "mante": 5, "romo": 6000})
    monkeypatch.setattr(_networks, "TEST_TRIALS", 32)
    monkeypatch.setitem(fig1.HIDDEN, "small", dict.fromkeys(_networks.TASKS, 41))
    for name, overrides in (
        ("fig2", {"task": ("flip-flop",), "g": (0.0, 1.2), "hidden": (41,), "seed": (0,)}),
        ("figS1", {"hidden": (41,), "seed": (0,)}),
        ("figS2", {"task": ("flip-flop",), "seed": (0,)}),
    ):
        data = engine.run(found[f"schuessler2020/{name}"], out=tmp_path, overrides=overrides, is_quiet=True)
        assert data.attrs["failed"] == 0
        if name != "fig2":
            assert found[f"schuessler2020/{name}"].draw(data).axes
            assert list(found[f"schuessler2020/{name}"].claims(data))


@pytest.mark.slow
def test_sentences_from_files_to_figures(found, monkeypatch, tmp_path):
    """Both LSTM studies on a corpus made here, with GloVe vectors and without."""
    from nullcline import engine

    rng = np.random.default_rng(0)
    plain = [f"w{i}" for i in range(130)]
    for name, count in zip(_sst2.FILES, (128, 40, 40), strict=True):
        lines = []
        for _ in range(count):
            label = int(rng.integers(2))
            tokens = [*rng.choice(plain, size=6), "good" if label else "bad"]
            lines.append(f"{label} {' '.join(tokens)}\n")
        (tmp_path / name).write_text("".join(lines))
    monkeypatch.setenv("NULLCLINE_DATA", str(tmp_path))
    overrides = {"hidden": (16,), "epochs": (2,), "rate": (0.5,), "seed": (0,)}
    for name in ("fig5", "figS6"):
        study = found[f"schuessler2020/{name}"]
        data = engine.run(study, out=tmp_path / "results", overrides=overrides, is_quiet=True)
        assert study.draw(data).axes
        assert list(study.claims(data))
    _sst2._trained_on.cache_clear()
    vectors = "".join(f"{word} {' '.join(['0.5'] * 100)}\n" for word in ("good", "bad", "unused"))
    (tmp_path / "glove.tiny.txt").write_text(vectors)
    words, train, _, _ = _sst2._corpora()
    assert words.vectors.shape == (3, 100) and 0 < train.coverage < 0.2
