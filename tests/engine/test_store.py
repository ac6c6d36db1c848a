"""The store never trusts a file that it did not write whole, and never deletes one."""

import os
import time

import h5netcdf
import h5py
import numpy as np
import pytest
import xarray as xr
from toys import Exponentials, Squares

from nullcline import engine
from nullcline.engine import Grid, StoreError, make_plan, open_sweep
from nullcline.engine._record import BrokenFileError, netcdf_image, read_variables, seal, unseal
from nullcline.engine._store import Store, write_whole


def run(study, out, **options):
    return engine.run(study, out=out, is_quiet=True, **options)


@pytest.fixture
def marks(tmp_path, monkeypatch):
    folder = tmp_path / "marks"
    folder.mkdir()
    monkeypatch.setenv("TOY_MARKS", str(folder))
    return lambda: sorted(path.name.split(".")[0] for path in folder.iterdir())


def test_every_kind_of_variable_survives_the_file(tmp_path):
    variables = {
        "x": (("lam", "time"), np.array([[0.1, np.pi], [-0.0, 1e-300]])),
        "single": (("lam",), np.array([1.5, 2.5], np.float32)),
        "count": ((), np.asarray(7)),
        "flag": (("lam",), np.array([True, False])),
        "name": (("lam",), np.array(["α", "bb"])),
        "time": (("time",), np.array([0.0, 1.0])),
        "square": (("item", "item2"), np.arange(9).reshape(3, 3)),
    }
    path = tmp_path / "a.nc"
    path.write_bytes(seal(netcdf_image(variables, {"study": "a/b", "n": 3}), {"k": 1}))
    back = read_variables(path, {name: dimensions for name, (dimensions, _) in variables.items()})
    with h5netcdf.File(path, "r") as file:
        assert dict(file.dimensions.items())["item"].size == 3 and "item" not in file.variables
    data = xr.load_dataset(path, engine="h5netcdf")
    assert data.attrs == {"study": "a/b", "n": 3} and set(data.coords) == {"time"}
    for name, (dimensions, array) in variables.items():
        assert data[name].dims == dimensions and np.array_equal(data[name], array)
        assert data[name].dtype.kind in {"U": "OUT"}.get(array.dtype.kind, array.dtype.kind)
        assert back[name][0] == dimensions
        assert np.array_equal(back[name][1], array) and back[name][1].dtype.kind == array.dtype.kind.replace(
            "U", "O"
        )


def test_a_point_opens_in_xarray_with_its_attributes(tmp_path):
    run(Exponentials(), tmp_path, overrides={"size": 3})
    (path,) = (tmp_path / "toy/exponentials/points").glob("*.nc")
    data = xr.load_dataset(path, engine="h5netcdf")
    assert data.trace.dims == ("seed",) and list(data.seed) == [0, 1, 2, 3]
    assert data.attrs["status"] == "done" and data.attrs["message"] == ""
    assert data.attrs["parameters"] == '{"seed":[0,1,2,3],"size":3}' and data.attrs["seed"] == "[0,1,2,3]"
    assert data.attrs["dtype"] == "float64" and data.attrs["device"].startswith("cpu")
    assert data.attrs["wall_time"] > 0
    assert {"study", "version", "nullcline", "jax", "numpy", "python", "created", "commit"} <= set(data.attrs)
    with h5py.File(path) as file:
        assert file["trace"].dtype == np.float64


def test_any_changed_byte_and_any_cut_is_noticed():
    blob = seal(b"some bytes of a netCDF file", {"status": "done"})
    assert unseal(blob)[0] == {"status": "done"}
    for place in range(len(blob)):
        broken = bytearray(blob)
        broken[place] ^= 1
        with pytest.raises(BrokenFileError):
            unseal(bytes(broken))
    for length in range(len(blob)):
        with pytest.raises(BrokenFileError):
            unseal(blob[:length])


def damage_flip(path):
    blob = bytearray(path.read_bytes())
    blob[len(blob) // 2] ^= 255
    path.write_bytes(blob)


def damage_cut(path):
    os.truncate(path, path.stat().st_size // 2)


def damage_empty(path):
    os.truncate(path, 0)


def damage_foreign(path):
    xr.Dataset({"square": 1e9}).to_netcdf(path, engine="h5netcdf")


def damage_other_point(path):
    other = next(p for p in path.parent.glob("*.nc") if p != path)
    path.write_bytes(other.read_bytes())


@pytest.mark.parametrize(
    "damage",
    [damage_flip, damage_cut, damage_empty, damage_foreign, damage_other_point],
    ids=lambda f: f.__name__,
)
def test_a_damaged_file_is_named_kept_and_computed_again(damage, tmp_path, marks):
    right = run(Squares(), tmp_path)
    points = make_plan(Squares()).points()
    path = tmp_path / "toy/squares/points" / f"{points[5].digest}.nc"
    damage(path)
    harmed = path.read_bytes()
    before = marks()
    dry = open_sweep(make_plan(Squares()), tmp_path, is_dry=True)
    assert len(dry.left) == 1 and str(path) in dry.notes[0] and path.read_bytes() == harmed
    sweep = open_sweep(make_plan(Squares()), tmp_path)
    assert len(sweep.left) == 1 and len(sweep.notes) == 1
    assert str(path) in sweep.notes[0] and "moved to" in sweep.notes[0]
    (kept,) = (tmp_path / "toy/squares/set-aside").iterdir()
    assert kept.read_bytes() == harmed and not path.exists()
    again = run(Squares(), tmp_path)
    xr.testing.assert_identical(again.drop_attrs(), right.drop_attrs())
    assert sorted(before + ["squares-5"]) == marks()


def test_files_of_others_are_named_and_left_alone(tmp_path):
    run(Squares(), tmp_path)
    stray = tmp_path / "toy/squares/points/notes.txt"
    stray.write_text("mine")
    sweep = open_sweep(make_plan(Squares()), tmp_path)
    assert len(sweep.notes) == 1 and str(stray) in sweep.notes[0] and not sweep.left
    assert stray.read_text() == "mine"


def test_a_damaged_dataset_is_kept_and_made_again_from_the_points(tmp_path, marks):
    right = run(Squares(), tmp_path)
    path = tmp_path / "toy/squares/quick/data.nc"
    damage_flip(path)
    xr.testing.assert_identical(run(Squares(), tmp_path), right)
    assert len(marks()) == 12
    assert [p.name.startswith("data.nc.") for p in (tmp_path / "toy/squares/set-aside").iterdir()] == [True]


def test_another_version_of_a_study_shares_nothing(tmp_path, marks):
    class Newer(Squares):
        version = 2

    run(Squares(), tmp_path)
    run(Newer(), tmp_path)
    assert marks() == sorted([f"squares-{n}" for n in range(12)] * 2)


def test_presets_and_overrides_share_points(tmp_path, marks):
    run(Squares(), tmp_path, overrides={"n": (3, 4)})
    run(Squares(), tmp_path)
    assert len(marks()) == 12
    assert run(Squares(), tmp_path, overrides={"n": (11, 2)}).square.values.tolist() == [121, 4]
    assert len(marks()) == 12


def test_overrides_have_the_type_of_their_axis(tmp_path, marks):
    class Halves(Squares):
        presets = {"quick": Grid(n=[1.0, 2.0])}  # noqa: RUF012

    run(Halves(), tmp_path)
    run(Halves(), tmp_path, overrides={"n": (1, 2)})
    assert len(marks()) == 2
    for values in ("two", True, (1.0, 0.5)):
        study = Halves() if isinstance(values, str | bool) else Squares()
        with pytest.raises(ValueError, match=r"Axis `n` holds values of type (float|int), such as"):
            make_plan(study, "quick", {"n": values})


def test_only_old_parts_are_tidied_away(tmp_path):
    store = Store(tmp_path, Squares())
    store.prepare()
    old, fresh = store.points / "a.nc.1.part", store.points / "b.nc.2.part"
    for path in (old, fresh):
        path.write_bytes(b"")
    os.utime(old, (time.time() - 7200,) * 2)
    store.prepare()
    assert not old.exists() and fresh.exists()


def test_a_failed_write_leaves_the_old_file_and_no_part(tmp_path, monkeypatch):
    path = tmp_path / "a.nc"
    write_whole(path, b"old")

    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(StoreError, match=r"cannot write .*a\.nc: No space left on device"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]
