"""The command: what it says, what it exits with, and how little it loads to say it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nullcline import citation, cli
from nullcline.engine import Grid, Study, computing
from nullcline.studies import find

TOYS = str(Path(__file__).parent / "engine/toys.py")


@pytest.fixture
def nullcline(capsys, monkeypatch):
    """Run the command in this process, whose JAX has float64 already; give status, output and messages."""
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name, value in {**computing(), "NULLCLINE_DATA": ""}.items():
        monkeypatch.setenv(name, value)  # the command sets them; this puts them back

    def call(*words):
        try:
            status = cli.main(words)
        except SystemExit as stop:
            status = stop.code
        said = capsys.readouterr()
        return status, said.out, said.err

    return call


def test_list_says_document_figure_presets_and_time(nullcline):
    status, out, _ = nullcline("list", "--studies", TOYS)
    assert status == 0
    first = " ".join(out.splitlines()[0].split())
    assert first == "toy/squares quick (1.0 s), paper Squares of whole numbers"
    assert nullcline("list")[0] == 0


def test_reproduce_reports_and_exits_by_what_came_out(nullcline, tmp_path):
    words = ("--studies", TOYS, "--out", str(tmp_path))
    status, out, err = nullcline("reproduce", "toy/squares", *words)
    assert status == 0
    assert out == f"report: {tmp_path}/report.html (1 study, 2 claims: 1 hold, 1 refuted, 0 fail)\n"
    assert "toy/squares" in err and "12/12" in err and "2 claims: 1 holds, 1 refuted" in err
    status, out, err = nullcline("reproduce", "toy/squares", "toy/accidents", *words)
    assert status == 1
    assert "1 partial" in out and "2 of 4 points failed, claims not judged" in err
    assert "failed: {'kind': 'raises'}: ZeroDivisionError: one over nothing" in err
    status, out, _ = nullcline("reproduce", "toy/squares", *words)
    assert status == 0 and "(1 study, 2 claims: 1 hold, 1 refuted, 0 fail; 2 studies in all)" in out
    status, out, _ = nullcline("report", str(tmp_path))
    assert status == 1 and "2 studies, 2 claims: 1 hold, 1 refuted, 0 fail; 1 partial" in out


def test_a_dry_run_writes_nothing(nullcline, tmp_path):
    out = tmp_path / "out"
    status, said, _ = nullcline("reproduce", "toy", "--studies", TOYS, "--out", str(out), "--dry-run")
    assert status == 0 and "toy/squares: 12 of 12 points to compute, about 1.0 s" in said
    assert "19 points to compute in 3 studies" in said and not out.exists()


def test_parameters_are_set_with_the_type_of_their_axis(nullcline, tmp_path):
    words = ("reproduce", "toy/squares", "--studies", TOYS, "--out", str(tmp_path), "--set")
    status, _, err = nullcline(*words, "n=11,12")
    assert status == 0 and "2/2" in err
    (outcome,) = tmp_path.glob("toy/squares/quick+*/outcome.json")
    assert json.loads(outcome.read_text())["overrides"] == {"n": [11, 12]}
    for text, message in (
        ("n=1.5", "--set n: '1.5' is not an integer"),
        ("n", "--set must read name=value,value, got 'n'"),
        ("m=1", "unknown parameter 'm'. There are: n"),
        ("n=1,1", "Axis `n` repeats a value"),
    ):
        status, _, err = nullcline(*words, text)
        assert status == 2 and message in err, err


class Typed(Study):
    """Axes of every type."""

    source = "toy/typed"
    presets = {"quick": Grid(lam=[0.5], n=[1], flag=[True], shape=["4-2"])}  # noqa: RUF012
    compute = draw = claims = lambda self, **_: None


def test_values_of_every_type():
    found = cli.overrides(Typed(), "quick", ["lam=-3,0,3", "n=-1,2", "flag=false,TRUE", "shape=2-2-4,x"])
    assert found == {"lam": (-3.0, 0.0, 3.0), "n": (-1, 2), "flag": (False, True), "shape": ("2-2-4", "x")}
    assert all(type(value) is float for value in found["lam"])
    with pytest.raises(cli.UsageError, match="--set flag: 'maybe' is not true or false"):
        cli.overrides(Typed(), "quick", ["flag=maybe"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("reproduce", "toy/sqares"), "unknown study 'toy/sqares'. Did you mean toy/squares"),
        (
            ("reproduce", "toy", "--preset", "qick"),
            "unknown preset of toy/squares 'qick'. Did you mean quick?",
        ),
        (("reproduce", "toy", "--shard", "9/8"), "1 <= i <= n, got 9/8"),
        (("reproduce", "toy", "--shard", "one"), "`shard` must read i/n"),
        (("reproduce", "toy", "--workers", "0"), "`workers` must be at least 1"),
        (("reproduce", "toy", "--scheduler", "tcp://10.1.1.1:1"), "plain tcp beyond this machine"),
        (("reproduce", "toy", "--data", "/nowhere/at/all"), "--data: there is no folder /nowhere/at/all"),
        (("slurm", "toy", "--jobs", "0"), "--jobs must be at least 1"),
    ],
)
def test_bad_usage_is_answered_before_anything_runs(nullcline, tmp_path, words, message):
    status, _, err = nullcline(*words, "--studies", TOYS, "--out", str(tmp_path / "out"))
    assert status == 2 and message in err and not (tmp_path / "out").exists()


def test_unknown_options_and_commands_exit_with_2(nullcline):
    assert nullcline("reproduce", "--wokers", "2")[0] == 2
    assert nullcline("reprodce")[0] == 2
    assert nullcline("report", "/nowhere")[0] == 2
    status, _, err = nullcline("list", "--studies", "/nowhere.py")
    assert status == 2 and "there is no file /nowhere.py" in err


def test_shards_are_disjoint_and_the_last_one_draws(nullcline, tmp_path, monkeypatch):
    marks = tmp_path / "marks"
    marks.mkdir()
    monkeypatch.setenv("TOY_MARKS", str(marks))
    words = ("reproduce", "toy/squares", "--studies", TOYS, "--out", str(tmp_path), "--shard")
    status, out, _ = nullcline(*words, "1/3")
    assert status == 0 and "8 points are left to other shards" in out
    nullcline(*words, "2/3")
    assert not (tmp_path / "toy/squares/quick/figure.png").exists()
    status, out, _ = nullcline(*words, "3/3")
    assert status == 0 and "2 claims: 1 hold, 1 refuted, 0 fail" in out
    assert (tmp_path / "toy/squares/quick/figure.png").exists()
    assert sorted(path.name.split(".")[0] for path in marks.iterdir()) == sorted(
        f"squares-{n}" for n in range(12)
    )


def test_slurm_prints_a_script_that_bash_reads(nullcline, tmp_path):
    words = ("slurm", "toy/squares", "--studies", TOYS, "--set", "n=1,2,3,4", "--out", "my results")
    status, script, _ = nullcline(*words, "--jobs", "3", "--partition", "long", "--timeout", "60")
    assert status == 0
    for line in (
        "#!/bin/bash",
        "#SBATCH --array=1-3",
        "#SBATCH --cpus-per-task=1",
        "#SBATCH --partition=long",
    ):
        assert line in script.splitlines()
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    # What a job of the array runs, word for word.
    call = script.replace("nullcline reproduce", "printf '%s\\n'")
    said = subprocess.run(
        ["bash"],
        input=call,
        text=True,
        check=True,
        capture_output=True,
        env={"SLURM_ARRAY_TASK_ID": "2", "PATH": "/bin"},
    ).stdout.splitlines()
    assert said[:1] == ["toy/squares"] and said[-2:] == ["--shard", "2/3"]
    assert "my results" in said and said[said.index("--set") + 1] == "n=1,2,3,4"


def test_studies_that_cannot_run_are_not_counted(nullcline, tmp_path):
    words = ("schuessler2020/fig5", "schuessler2020/figS6", "--out", str(tmp_path))
    status, out, _ = nullcline("reproduce", *words, "--dry-run")
    assert status == 0 and "0 points to compute in 0 studies" in out
    status, _, err = nullcline("slurm", *words)
    assert (
        status == 2
        and "fig5: skipped: it needs the sentences" in err
        and "none of these studies can run yet" in err
    )
    status, script, err = nullcline("slurm", "schuessler2020/fig5", "domine2025/fig1", "--out", str(tmp_path))
    assert status == 0 and "skipped" in err and "# 1 point in all." in script


def test_cite(nullcline):
    status, out, _ = nullcline("cite", "domine2025/fig2")
    assert status == 0 and out.strip() == citation("domine2025")
    assert out.count("@") == 2 and "@software{nullcline," in out
    assert citation().count("@") == 6
    assert "author  = {{The nullcline developers}}" in out and "year    = {2026}" in out
    status, _, err = nullcline("cite", "domine2024")
    assert status == 2 and "Did you mean domine2025" in err
    with pytest.raises(ValueError, match="Unknown document x"):
        citation("x")


HEAVY = (
    "jax",
    "jaxlib",
    "equinox",
    "diffrax",
    "xarray",
    "pandas",
    "matplotlib",
    "h5py",
    "dask",
    "distributed",
    "scipy",
    "torch",
)


@pytest.mark.parametrize(
    "words", [["--help"], ["list"], ["reproduce", "--help"], ["inspect", "--help"], ["cite"]], ids=" ".join
)
def test_help_and_list_load_nothing_heavy(words):
    code = (
        "import sys\nfrom nullcline import cli\n"
        f"try:\n    cli.main({words!r})\nexcept SystemExit:\n    pass\n"
        "print('LOADED', *sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    loaded = said.stdout.splitlines()[-1].split()
    assert loaded[0] == "LOADED" and not set(HEAVY) & set(loaded)


def test_every_study_is_found_once_and_well_made():
    for source, study in find().items():
        assert study.source == source and study.title
        assert {"quick", "paper"} <= set(study.presets)
        assert set(study.expected) <= set(study.presets)


def test_discovery_walks_public_modules_only(tmp_path, monkeypatch):
    package = tmp_path / "some_studies"
    (package / "paper").mkdir(parents=True)
    body = "from nullcline.engine import Study\nclass {}(Study):\n    source = '{}'\n    presets = {{}}\n"
    body += "    compute = draw = claims = lambda self: None\n"
    (package / "__init__.py").write_text("")
    (package / "paper/__init__.py").write_text(body.format("A", "p/a"))
    (package / "paper/figure.py").write_text(body.format("B", "p/b") + "from . import A\n")
    (package / "paper/_private.py").write_text(body.format("C", "p/c"))
    monkeypatch.syspath_prepend(tmp_path)
    import some_studies  # pyright: ignore[reportMissingImports]

    assert list(find(some_studies)) == ["p/a", "p/b"]
    (package / "paper/again.py").write_text(body.format("D", "p/a"))
    with pytest.raises(ValueError, match="Two studies have the source 'p/a'"):
        find(some_studies)
