"""The studies of the linear theory: the simulation they rest on, their figures and their claims."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nullcline.engine import run
from nullcline.studies.schuessler2020 import _linear
from nullcline.studies.schuessler2020.fig3 import SimpleTask
from nullcline.studies.schuessler2020.fig4 import InitialStrength
from nullcline.studies.schuessler2020.figs3 import SmallSingularValues
from nullcline.studies.schuessler2020.figs4 import ExplodingGradient

SMALL = {
    SimpleTask: {"neurons": 48},
    SmallSingularValues: {"neurons": 48},
    InitialStrength: {"neurons": 48, "g": (0.0, 0.6, 0.8), "seed": tuple(range(20))},
    ExplodingGradient: {"neurons": 48, "seed": 0},
}


def test_gradient_of_the_simulation_is_that_of_autodiff():
    """Backward pass by hand against autodiff of the loss over the last two steps."""
    w0, m, w = _linear.network(8, 0.6, 3)

    def loss(weights):
        return jnp.mean((_linear.output(weights, m, w, 12)[-2:] - 1.5) ** 2) / 2

    after, (before, last) = _linear.descend(w0, m, w, 1.5, 0.1, 12)
    np.testing.assert_allclose(before, loss(w0), rtol=1e-12)
    np.testing.assert_allclose(last, _linear.output(w0, m, w, 12)[-1], rtol=1e-12)
    np.testing.assert_allclose(w0 - after, 0.1 * jax.grad(loss)(w0), rtol=1e-10, atol=1e-15)


def test_output_settles_at_the_fixed_point():
    w0, m, w = _linear.network(8, 0.3, 4)
    expected = w @ jnp.linalg.solve(jnp.eye(8) - w0, m)
    np.testing.assert_allclose(_linear.output(w0, m, w, 200)[-1], expected, rtol=1e-10)
    assert np.all(_linear.output(w0, m, w, 4)[:2] == 0)  # silence during the fixation


def test_leading_singular_values():
    change = np.diag([1.0, 1e-3, 1e-6, 1e-9, 0, 0])
    np.testing.assert_allclose(_linear.leading(change)[:4], [1, 1e-3, 1e-6, 1e-9], rtol=1e-6)


def test_third_order_is_cut_at_the_target():
    taus = jnp.linspace(0, 2, 50)
    readout, values = _linear.third_order(taus, 2.0, 0.0)
    first = int(np.argmax(readout == 2.0))
    assert 0 < first < 49 and np.all(readout[first:] == 2.0) and np.all(np.abs(readout) <= 2.0)
    assert np.all(values[first:] == values[first - 1]) and np.all(values[1:first] > 0)


@pytest.mark.slow
@pytest.mark.parametrize("study", SMALL, ids=lambda study: study.__name__)
def test_study_runs_draws_and_claims(study, tmp_path, monkeypatch):
    """Small networks: the figure is drawn and every claim is a finite number with a verdict."""
    monkeypatch.setattr(_linear, "GAPS", 2)
    data = run(study(), out=tmp_path, overrides=SMALL[study], is_quiet=True)
    assert data.attrs["failed"] == 0
    figure = study().draw(data)
    figure.savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    claims = list(study().claims(data))
    assert len(claims) >= 4
    assert all(np.isfinite(claim.measured) for claim in claims)
    # What does not depend on the size of the network holds for small ones too.
    exact = [
        claim for claim in claims if "nfinite width" in claim.sentence or "first-order" in claim.sentence
    ]
    assert all(claim.verdict == "holds" for claim in exact if "Early" not in claim.sentence)
