"""Records put together: order of dimensions, ragged dimensions, holes."""

import numpy as np
import pytest
from toys import Squares

from nullcline import engine
from nullcline.engine import Grid


def run(study, out, **options):
    return engine.run(study, out=out, is_quiet=True, **options)


class Mixed(Squares):
    """Vectorized and distributed axes in turn, dimensions of its own, every kind of value."""

    source = "toy/mixed"
    presets = {"quick": Grid(lam=[-1.0, 0.0, 2.0], n=[1, 3], mode=["a", "b"])}  # noqa: RUF012
    vectorized = ("lam", "mode")

    def compute(self, lam, n, mode):
        assert isinstance(lam, np.ndarray) and lam.dtype == np.float64 and type(n) is int
        grown = lam[:, None] * n + np.array([len(m) + 10 * (m == "b") for m in mode])
        return {
            "value": grown,
            "path": (("mode", "time"), np.ones((2, 1)) * np.arange(n)),
            "time": ("time", 0.5 * np.arange(n)),
            "flag": ("lam", lam > 0),
            "word": ((), f"n={n}"),
            "count": ("item", np.arange(n)),
        }


def test_axes_of_the_grid_come_first_in_their_order(tmp_path):
    data = run(Mixed(), tmp_path)
    assert data.value.dims == ("lam", "n", "mode")
    assert data.path.dims == ("n", "mode", "time")
    for lam in (-1.0, 0.0, 2.0):
        for n in (1, 3):
            np.testing.assert_array_equal(data.value.sel(lam=lam, n=n), [lam * n + 1, lam * n + 11])
    assert data.flag.dtype == bool and data.flag.sel(n=3).values.tolist() == [False, False, True]
    assert data.word.values.tolist() == ["n=1", "n=3"]


def test_ragged_dimensions_are_filled_with_nan(tmp_path):
    data = run(Mixed(), tmp_path)
    assert data.time.values.tolist() == [0.0, 0.5, 1.0]
    np.testing.assert_array_equal(data.path.sel(n=1, mode="a"), [0.0, np.nan, np.nan])
    np.testing.assert_array_equal(data["count"].sel(n=1), [0.0, np.nan, np.nan])
    np.testing.assert_array_equal(data["count"].sel(n=3), [0.0, 1.0, 2.0])


def test_different_times_are_joined(tmp_path):
    class Times(Squares):
        presets = {"quick": Grid(n=[2, 3])}  # noqa: RUF012

        def compute(self, n):
            times = np.arange(0, 6, n) * 1.0
            return {"value": ("time", times**2), "time": ("time", times)}

    data = run(Times(), tmp_path)
    assert data.time.values.tolist() == [0, 2, 3, 4]
    np.testing.assert_array_equal(data.value.sel(n=2), [0, 4, np.nan, 16])
    np.testing.assert_array_equal(data.value.sel(n=3), [0, np.nan, 9, np.nan])


@pytest.mark.parametrize("names", [[3.0, 1.0, 2.0], ["w", "v", "b"]])
def test_the_same_coordinates_in_another_order_keep_their_values(names, tmp_path):
    class Shuffled(Squares):
        presets = {"quick": Grid(n=[0, 1, 2])}  # noqa: RUF012

        def compute(self, n):
            x = np.roll(names, n)
            return {"x": ("x", x), "place": ("x", [names.index(name) for name in x.tolist()])}

    data = run(Shuffled(), tmp_path)
    for place, name in enumerate(names):
        assert data.place.sel(x=name).values.tolist() == [place] * 3


@pytest.mark.parametrize(
    ("coordinates", "message"),
    [
        ([[0.0, 0.0, 1.0], [0.0, 1.0, 1.0]], "differ in their coordinates along `x`, and some repeat one"),
        ([[0.0, 1.0, 2.0], None], "Some points give coordinates along `x` and others do not"),
    ],
)
def test_coordinates_that_cannot_be_joined_are_refused(coordinates, message, tmp_path):
    class Odd(Squares):
        presets = {"quick": Grid(n=[0, 1])}  # noqa: RUF012

        def compute(self, n):
            x = coordinates[n]
            return {"y": ("x", np.arange(3.0)), **({} if x is None else {"x": ("x", np.array(x))})}

    with pytest.raises(ValueError, match=message):
        run(Odd(), tmp_path)


def test_coordinates_that_repeat_are_kept_where_points_agree(tmp_path):
    class Twice(Squares):
        presets = {"quick": Grid(n=[0, 1])}  # noqa: RUF012

        def compute(self, n):
            return {"y": ("x", n + np.arange(3.0)), "x": ("x", np.array([0.0, 0.0, 1.0]))}

    assert run(Twice(), tmp_path).y.values.tolist() == [[0, 1, 2], [1, 2, 3]]


def test_a_dataset_may_be_returned_and_read_from_the_consolidated_file(tmp_path):
    class Labelled(Squares):
        def compute(self, n):
            import xarray as xr

            return xr.Dataset({"value": ("time", n * np.arange(3.0))}, coords={"time": [1.0, 2.0, 4.0]})

    first = run(Labelled(), tmp_path)
    again = run(Labelled(), tmp_path)
    assert first.identical(again) and again.value.dims == ("n", "time")
    assert again.value.sel(n=4, time=4.0) == 8.0


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({"x": np.ones(3)}, r"`x` has shape \(3,\); the vectorized axes \(\) ask for \(\)"),
        ({"x": ("time", 1.0)}, r"`x` has shape \(\), but dimensions \('time',\)"),
        ({"x": 1j}, "`x` is complex128; netCDF holds"),
        ({"n": 3.0}, "`n` is an axis of the study"),
        (
            {"x": ("t", np.ones(2)), "y": ("t", np.ones(3))},
            "Dimension `t` has length 3 in `y` and 2 elsewhere",
        ),
        ({"loss/train": 1.0}, "name of a variable must be text without slashes, got 'loss/train'"),
        ({"": 1.0}, "name of a variable must be text"),
        ({7: 1.0}, "name of a variable must be text without slashes, got 7"),
        ({"x": ("a/b", np.ones(2))}, "name of a dimension of `x` must be text without slashes, got 'a/b'"),
        ({"x": ("n", np.ones(2))}, "`x` has a dimension `n`, an axis of the study, of which `compute` sees"),
        (3.0, "must return a mapping of names to arrays, or an xarray.Dataset; got float"),
    ],
)
def test_a_wrong_result_is_a_failure_that_says_what_is_wrong(result, message, tmp_path):
    class Wrong(Squares):
        presets = {"quick": Grid(n=[1])}  # noqa: RUF012

        def compute(self, n):
            return result

    with pytest.raises(RuntimeError, match=message):
        run(Wrong(), tmp_path)
