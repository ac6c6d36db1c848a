"""Grids, digests and claims: what names a point and what judges a study."""

import hashlib

import numpy as np
import pytest
from toys import Exponentials, Squares

from nullcline.engine import Claim, Grid, Study, make_plan
from nullcline.engine._plan import digest


def test_points_of_a_grid_are_plain_values_in_order():
    points = list(Grid(shape=["a", "b"], lam=np.linspace(0, 1, 2), seed=range(2)).points(("lam",)))
    assert points == [
        {"shape": "a", "lam": (0.0, 1.0), "seed": 0},
        {"shape": "a", "lam": (0.0, 1.0), "seed": 1},
        {"shape": "b", "lam": (0.0, 1.0), "seed": 0},
        {"shape": "b", "lam": (0.0, 1.0), "seed": 1},
    ]
    assert type(points[0]["lam"][0]) is float and list(points[0]) == ["shape", "lam", "seed"]


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"lam": []}, "Axis `lam` has no values"),
        ({"lam": [1, 1.0]}, "Axis `lam` repeats a value"),
        ({"lam": [0.0, -0.0]}, "Axis `lam` repeats a value"),
        ({"lam": [1, "a"]}, "Axis `lam` mixes types"),
        ({"lam": [float("nan")]}, "Axis `lam` holds nan"),
        ({"lam": [None]}, "Axis `lam` holds None"),
    ],
)
def test_bad_axes_are_refused_by_name(axes, message):
    with pytest.raises(ValueError, match=message):
        Grid(**axes)


def test_a_digest_depends_on_study_version_and_every_parameter():
    class Newer(Squares):
        version = 2

    class Other(Squares):
        source = "toy/others"

    names = [
        digest(Squares(), {"n": 1}),
        digest(Squares(), {"n": 2}),
        digest(Squares(), {"n": 1.0}),
        digest(Squares(), {"n": True}),
        digest(Squares(), {"n": "1"}),
        digest(Squares(), {"m": 1}),
        digest(Newer(), {"n": 1}),
        digest(Other(), {"n": 1}),
    ]
    assert len(set(names)) == len(names)


def test_the_digest_is_the_same_for_ever():
    # Written down on the day the layout was fixed: if this changes, every stored result is lost to its owner.
    text = b'{"format":1,"parameters":{"n":3},"study":"toy/squares","version":1}'
    assert digest(Squares(), {"n": 3}) == hashlib.sha256(text).hexdigest()[:32]
    assert digest(Squares(), {"n": 3}) == "26d22c99631378781c51b7c932376eed"


def test_nearby_floats_are_different_points():
    grid = Grid(lam=[0.1, np.nextafter(0.1, 1)])
    names = {digest(Squares(), point) for point in grid.points()}
    assert len(names) == 2


def test_an_array_without_axes_is_one_value():
    assert Grid(gain=np.array(3))["gain"] == (3,)


def test_overrides_replace_axes_and_mark_the_label():
    plan = make_plan(Squares(), "quick", {"n": (1, 2)})
    assert [point.parameters["n"] for point in plan.points()] == [1, 2]
    assert (
        plan.label.startswith("quick+") and plan.label != make_plan(Squares(), "quick", {"n": (1, 3)}).label
    )
    assert make_plan(Squares()).label == "quick"


def test_a_plan_refuses_what_cannot_work():
    with pytest.raises(ValueError, match="no preset 'slow'; it has 'quick', 'paper'"):
        make_plan(Squares(), "slow")
    with pytest.raises(ValueError, match="no parameter 'm'; it has 'n'"):
        make_plan(Squares(), "quick", {"m": 1})
    with pytest.raises(TypeError, match="must be an instance"):
        make_plan(Squares)  # pyright: ignore[reportArgumentType]

    class Stateful(Squares):
        def __init__(self):
            self.width = 3

    with pytest.raises(ValueError, match=r"keeps state in \['width'\].*must be an axis"):
        make_plan(Stateful())

    class Nameless(Squares):
        source = "../escape"

    with pytest.raises(ValueError, match="must read 'document/figure'"):
        make_plan(Nameless())

    class Narrow(Exponentials):
        def compute(self, size):
            return {}

    with pytest.raises(ValueError, match=r"`compute` does not take the axes \['size', 'seed'\]"):
        make_plan(Narrow())


@pytest.mark.parametrize(
    ("bounds", "measured", "erratum", "verdict"),
    [
        ({"at_least": 1.0}, 1.0, "", "holds"),
        ({"at_least": 1.0}, 0.99, "", "fails"),
        ({"at_most": 1.0}, 1.01, "", "fails"),
        ({"at_least": 0.0, "at_most": 1.0}, 0.5, "", "holds"),
        ({"at_least": 0.0, "at_most": 1.0}, 0.5, "a sign is lost", "refuted"),
        ({"at_least": 0.0, "at_most": 1.0}, 2.0, "a sign is lost", "fails"),
        ({"at_least": 0.0}, float("nan"), "", "fails"),
    ],
)
def test_verdicts(bounds, measured, erratum, verdict):
    assert Claim("it is so", measured, erratum=erratum, **bounds).verdict == verdict


def test_a_claim_needs_a_bound():
    with pytest.raises(ValueError, match="has no bound"):
        Claim("it is so", 1.0)


def test_study_names():
    assert isinstance(Squares(), Study)
    assert (Squares().document, Squares().figure, Squares().title) == (
        "toy",
        "squares",
        "Squares of whole numbers",
    )
