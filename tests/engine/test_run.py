"""Executors: the same bits everywhere, float64 everywhere, accidents reported and contained."""

import signal
import sys
import warnings

import jax
import numpy as np
import pytest
import xarray as xr
from toys import Accidents, Exponentials, Squares

import nullcline.engine._child as child_module
from nullcline import engine
from nullcline.engine import Executor, FailedPointsWarning, Grid, WorkerError
from nullcline.engine._child import Child, ask_child, pack, stop_children
from nullcline.engine._compute import Float64Error
from nullcline.engine._environment import computing
from nullcline.engine._executors import _local
from nullcline.engine._record import read_variables


def run(study, out, **options):
    return engine.run(study, out=out, is_quiet=True, **options)


@pytest.fixture
def marks(tmp_path, monkeypatch):
    folder = tmp_path / "marks"
    folder.mkdir()
    monkeypatch.setenv("TOY_MARKS", str(folder))
    return lambda: sorted(path.name.split(".")[0] for path in folder.iterdir())


def test_a_second_run_computes_nothing(tmp_path, marks):
    first = run(Squares(), tmp_path / "out")
    second = run(Squares(), tmp_path / "out")
    assert marks() == sorted(f"squares-{n}" for n in range(12))
    xr.testing.assert_identical(first, second)
    np.testing.assert_array_equal(first.square, np.arange(12) ** 2)
    assert (
        first.attrs["points"] == 12 and first.attrs["failed"] == 0 and first.attrs["study"] == "toy/squares"
    )


def test_failures_are_stored_counted_and_retried_only_when_asked(tmp_path, marks, monkeypatch):
    out = tmp_path / "out"
    with pytest.warns(
        FailedPointsWarning, match=r"2 of 4 points failed; the first, .*'raises'.*: ZeroDivisionError"
    ):
        data = run(Accidents(), out)
    np.testing.assert_array_equal(data.value, [1.0, np.nan, np.nan, 1.0])
    assert data.attrs["failed"] == 2
    before = marks()
    monkeypatch.setenv("TOY_REPAIRED", "1")
    with pytest.warns(FailedPointsWarning):
        run(Accidents(), out)
    assert marks() == before
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = run(Accidents(), out, retry_failed=True)
    np.testing.assert_array_equal(data.value, np.ones(4))
    assert marks() == sorted(before + ["accidents-nan", "accidents-raises"])


def test_nan_is_an_answer_where_the_study_says_so(tmp_path):
    class Silent(Accidents):
        presets = {"quick": Grid(kind=["good", "nan"])}  # noqa: RUF012
        may_be_nan = ("value",)

    np.testing.assert_array_equal(run(Silent(), tmp_path).value, [1.0, np.nan])


def test_what_a_point_raises_ends_that_point_alone(tmp_path):
    class Rude(Squares):
        presets = {"quick": Grid(n=range(4))}  # noqa: RUF012

        def compute(self, n):
            if n == 1:
                raise ValueError("bad byte \0 in \udcff")
            if n == 2:
                raise SystemExit("I give up")
            return {"square": n * n}

    with pytest.warns(FailedPointsWarning, match=r"2 of 4 points failed.*bad byte \\x00 in \\udcff"):
        data = run(Rude(), tmp_path)
    np.testing.assert_array_equal(data.square, [0, np.nan, np.nan, 9])


def test_points_of_other_data_of_the_user_are_other_points(tmp_path, marks):
    class Fed(Squares):
        food = ""

        def supplied(self):
            return self.food

    run(Squares(), tmp_path / "out")
    run(Fed(), tmp_path / "out")  # nothing supplied: the same points
    assert len(marks()) == 12
    Fed.food = "some"
    run(Fed(), tmp_path / "out")
    assert len(marks()) == 24
    Fed.food = "other"
    data = run(Fed(), tmp_path / "out")
    assert len(marks()) == 36 and data.attrs["failed"] == 0
    run(Fed(), tmp_path / "out")
    assert len(marks()) == 36


def test_a_study_that_lacks_its_data_says_so_before_anything(tmp_path):
    class Hungry(Squares):
        def missing(self):
            return "give the folder of the recordings with --data"

    with pytest.raises(ValueError, match="cannot run yet: give the folder"):
        run(Hungry(), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_float32_is_refused(tmp_path):
    jax.config.update("jax_enable_x64", False)
    try:
        with pytest.raises(Float64Error, match="JAX_ENABLE_X64=1"):
            run(Squares(), tmp_path)
    finally:
        jax.config.update("jax_enable_x64", True)
    assert not list((tmp_path / "toy/squares/points").iterdir())


class Precision(Squares):
    """What a worker computes with."""

    source = "toy/precision"
    presets = {"quick": Grid(n=[1, 2])}  # noqa: RUF012

    def compute(self, n):
        from pathlib import Path

        import jax.numpy as jnp

        one = jnp.asarray(1.0)
        threads = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
        return {
            "dtype": str(one.dtype),
            "gap": (one + 1e-12) - one,
            "pool": sum("XLAEigen" in name for name in threads),
        }


def test_float64_reaches_every_worker_and_each_computes_with_one_thread(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_ENABLE_X64", "0")
    monkeypatch.setenv("XLA_FLAGS", "")
    data = run(Precision(), tmp_path, workers=2)
    assert data.dtype.values.tolist() == ["float64", "float64"]
    assert (data.gap > 0).all() and (data.pool == 1).all()


@pytest.mark.slow
def test_the_same_bits_whatever_the_executor_the_order_and_the_number_of_workers(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_ENABLE_COMPILATION_CACHE", "0")  # every process compiles for itself
    one = run(Exponentials(), tmp_path / "one", workers=1)
    two = run(Exponentials(), tmp_path / "two", workers=2)
    backwards = run(Exponentials(), tmp_path / "back", timeout=600.0, overrides={"size": (200, 40, 3)})
    xr.testing.assert_equal(one, two)
    xr.testing.assert_equal(one, backwards.sel(size=one.size))
    assert np.asarray(one.trace).tobytes() == np.asarray(two.trace).tobytes()
    # In this process too: the test set-up asks for one thread as the command does.
    xr.testing.assert_equal(one, run(Exponentials(), tmp_path / "here"))


def test_a_study_of_a_notebook_reaches_the_workers(tmp_path):
    source = (
        "import numpy as np\nfrom nullcline.engine import Grid, Study\n"
        "def helper(n):\n    return np.sqrt(n)\n"
        "class Cell(Study):\n    source = 'toy/cell'\n    presets = {'quick': Grid(n=[4, 9])}\n"
        "    def compute(self, n):\n        return {'root': helper(n)}\n"
        "    def draw(self, data): ...\n    def claims(self, data): ...\n"
    )
    namespace = {"__name__": "a_module_that_is_nowhere"}
    exec(source, namespace)
    assert run(namespace["Cell"](), tmp_path, workers=1).root.values.tolist() == [2.0, 3.0]


def test_a_hanging_point_is_given_up_and_the_others_are_not(tmp_path):
    with pytest.warns(FailedPointsWarning, match=r"1 of 3 points failed; .*'hangs'.*: stopped after 3 s"):
        data = run(Accidents(), tmp_path, preset="hangs", timeout=3.0)
    np.testing.assert_array_equal(data.value, [1.0, np.nan, 1.0])


class Killed(Squares):
    """A point whose process is killed, as the kernel does when memory runs out."""

    source = "toy/killed"
    presets = {"quick": Grid(n=[0, 1])}  # noqa: RUF012

    def compute(self, n):
        import os
        import signal

        if n == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"square": n}


def test_a_point_that_kills_its_process_is_reported(tmp_path):
    with pytest.warns(FailedPointsWarning, match=r"1 of 2 points .*died 2 times \(signal 9\)"):
        data = run(Killed(), tmp_path, timeout=600.0)
    np.testing.assert_array_equal(data.square, [0.0, np.nan])


def test_a_killed_child_is_replaced_without_losing_the_point():
    owner = "test"
    payload = pack(Squares(), {"n": 3})
    try:
        first = ask_child(owner, computing(), payload, 600.0)
        (child,) = child_module._pool._idle[owner]
        child.process.send_signal(signal.SIGKILL)
        second = ask_child(owner, computing(), payload, 600.0)
        assert first.message == second.message == "" and second.record
        (other,) = child_module._pool._idle[owner]
        assert other.process.pid != child.process.pid
    finally:
        stop_children(owner)
    assert child.process.poll() is not None and other.process.poll() is not None
    with pytest.raises(WorkerError, match="stopped"):
        ask_child(owner, computing(), payload, 1.0)


def test_a_child_ends_with_its_parent():
    child = Child(computing())
    assert child.process.stdin
    child.process.stdin.close()
    assert child.process.wait(timeout=120) == 1


class Programs(Squares):
    """How many programs of one function the process has compiled before this point."""

    source = "toy/programs"

    def compute(self, n):
        import jax.numpy as jnp

        before = jnp.linalg.norm._cache_size()
        jnp.linalg.norm(jnp.ones(n + 1))
        return {"programs": before}


class OtherPrograms(Programs):
    source = "toy/other"


def test_a_worker_keeps_the_programs_of_one_study(tmp_path):
    """Within a study nothing is compiled twice; those of all studies would fill the memory of a laptop."""
    child, seen = Child(_local()), []
    for number, study in enumerate([Programs(), Programs(), Programs(), OtherPrograms()]):
        path = tmp_path / f"{number}.nc"
        path.write_bytes(child.ask(pack(study, {"n": number}), None))
        seen.append(int(read_variables(path, {"programs": ()})["programs"][1]))
    child.stop()
    assert seen == [0, 1, 2, 0]


def test_a_worker_that_cannot_start_is_an_error_and_no_failed_point(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(WorkerError, match=r"ended while it started \(exit status 1\)"):
        run(Squares(), tmp_path, timeout=5.0)
    assert not list((tmp_path / "toy/squares/points").iterdir())


def test_a_study_that_a_worker_cannot_load_is_an_error_and_no_failed_point(tmp_path):
    class Odd(Squares):
        def __reduce__(self):
            return (__import__, ("a_module_that_is_nowhere",))

    with pytest.raises(WorkerError, match="cannot load the study: ModuleNotFoundError: No module named"):
        run(Odd(), tmp_path, timeout=600.0)
    assert not list((tmp_path / "toy/squares/points").iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "`workers` must be at least 1, got 0"),
        ({"timeout": 0.0}, "`timeout` must be positive"),
        ({"timeout": float("inf")}, "`timeout` must be positive and at most .* got inf"),
        ({"timeout": float("nan")}, "`timeout` must be positive and at most .* got nan"),
        ({"workers": 2, "scheduler": "tls://a:1"}, "not both"),
        ({"scheduler": "tcp://10.0.0.1:8786"}, "plain tcp beyond this machine.*--allow-plain-tcp"),
        ({"scheduler": "10.0.0.1:8786"}, r"must read tls://host:port, or tcp://127\.0\.0\.1:port"),
        ({"scheduler": "tcp://127.0.0.1"}, "must read tls://host:port"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Executor(**options)


def test_good_addresses_are_accepted():
    for address in ("tls://cluster.example:8786", "tcp://127.0.0.1:1", "tcp://localhost:1", "tcp://[::1]:1"):
        assert Executor(scheduler=address).scheduler == address
    assert Executor(scheduler="tcp://10.0.0.1:1", allow_plain_tcp=True).allow_plain_tcp
