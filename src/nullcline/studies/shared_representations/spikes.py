"""The open question whether the spikes after the threshold are numerical or structural."""

from collections.abc import Iterator

import numpy as np

from ...engine import Claim, Grid, Study
from .._lazy import jnp
from .._style import BLACK, PALETTE, figure
from ._common import MASKS, gated, key, stack, start, train

SOLVERS = {
    "float64": "RKC2, float64",
    "float32": "RKC2, float32",
    "tight": "RKC2, rtol 1e-5",
    "tsit5": "Tsit5, rtol 1e-6",
}


class Spikes(Study):
    """Test loss of the same runs by four methods, at the same time of gradient flow."""

    source = "shared-representations/spikes"
    presets = {
        "quick": Grid(
            solver=list(SOLVERS),
            languages=6,
            words=8,
            scale=0.1,
            time=3_000.0,
            seed=range(4),
            pairs=range(11, 21),
        ),
        "paper": Grid(
            solver=list(SOLVERS),
            languages=10,
            words=32,
            scale=0.03,
            time=6_000.0,
            seed=range(3),
            pairs=range(20, 44),
        ),
    }
    vectorized = ("seed", "pairs")
    expected = {"quick": 20, "paper": 1_500}

    def compute(self, solver, languages, words, scale, time, seed, pairs):
        masks = jnp.stack(
            [gated.nested_mask(languages, int(n), key=key(MASKS, s)) for s in seed for n in pairs]
        )
        networks = stack([start(languages, words, words, scale, s) for s in seed for _ in pairs])
        if solver == "float32":
            networks = networks.astype(jnp.float32)
        run = train(
            networks,
            masks,
            max_time=time,
            max_evaluations=100_000,
            rtol=1e-5 if solver == "tight" else 1e-3,
            times=jnp.asarray([time]) if solver == "tsit5" else None,
        )
        shape = (len(seed), len(pairs))
        graph = [gated.connectivity(mask) for mask in masks]
        return {
            "converged": np.asarray(run.is_converged).reshape(shape),
            "test": np.asarray(run.test_loss, np.float64).reshape(shape),
            "frustration": np.asarray(run.frustration, np.float64).reshape(shape),
            "connected": np.asarray([bool(g.is_connected) for g in graph]).reshape(shape),
        }

    def draw(self, data):
        fig, ((ax,),) = figure(width=4.2, height=3.0)
        data = data.isel(languages=0, words=0, scale=0, time=0)
        shift = 0.0
        for solver, color, marker in zip(data.solver.values, PALETTE, "osx+", strict=False):
            one, label = data.sel(solver=solver), SOLVERS[str(solver)]
            stuck = ~one.converged.astype(bool).values & one.connected.astype(bool).values
            where = np.broadcast_to(data.pairs.values, stuck.shape)[stuck]
            ax.semilogy(
                where + shift, one.test.values[stuck], marker, color=color, ms=4, mfc="none", label=label
            )
            shift += 0.15
        ok = data.sel(solver="float64")
        good = ok.converged.astype(bool).values & ok.connected.astype(bool).values
        ax.semilogy(
            np.broadcast_to(data.pairs.values, good.shape)[good],
            ok.test.values[good],
            ".",
            color=BLACK,
            ms=2,
            label="converged (float64)",
        )
        ax.set(
            xlabel="trained pairs",
            ylabel="test loss at the same time",
        )
        ax.set_title("connected masks: spikes by solver", fontsize=8)
        ax.legend(fontsize=6)
        return fig

    def claims(self, data) -> Iterator[Claim]:
        data = data.isel(languages=0, words=0, scale=0, time=0)
        ok = data.converged.astype(bool)
        reference = data.sel(solver="float64")
        same = (ok == ok.sel(solver="float64")).all("solver").mean()
        yield Claim(
            "The spikes are numerical",
            measured=same,
            at_least=0.97,
            source="Section 2",
            erratum="Structural: the same runs are stuck in float32 and float64, with tight steps and with "
            "another solver.",
            note="Share of runs on whose convergence all four methods agree.",
        )
        stuck = ~ok.any("solver") & reference.connected.astype(bool)
        apart = np.abs(data.test / reference.test - 1).where(stuck)
        yield Claim(
            "Stuck runs have the same test loss by every method",
            measured=apart.median(("seed", "pairs")).max(),
            at_most=0.02,
            note=f"Median relative difference of {int(stuck.sum())} stuck runs on connected masks, at one "
            "time; the worst method.",
        )
        spike = (data.test > 1e-3) & reference.connected.astype(bool) & ok
        yield Claim(
            "No converged run on a connected mask is a spike, by any method", measured=spike.sum(), at_most=0
        )
