"""Networks on the memory-pro task, before and after training: what the figures of Experiment 1 share.

Which g: ``scale="text"`` draws recurrent weights from N(0, g²/N), ``scale="code"`` takes g times PyTorch's
uniform ±1/√N, as the program of hazelden2025 did: its standard deviation is g/√(3N). A GRU has only the
second.

Trials carry fresh noise at every iteration, in place of the document's 3000 stored ones.
"""

import dataclasses
import functools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from .._lazy import eqx, jax, jnp, jr, lazily, optax, xr

operators = lazily("nullcline.operators")
recurrent = lazily("nullcline.recurrent")

THRESHOLD = 1 / 60
"""Mean squared error of a converged network: 5 % of that of zero output, 1/3 (erratum to E.1)."""
DOCUMENT_UNITS = 256
"""Units of the document's networks; numbers found with smaller ones are not asked of them."""
RECORD, TEST_TRIALS = 50, 30
STAGES = ("before", "after")
"""Of training."""
SCALES = {"text": "normal", "code": "uniform"}


@dataclasses.dataclass(frozen=True)
class Setup:
    """A kind of network, and how it is trained."""

    cell: str = "tanh"
    scale: str = "text"
    hidden: int = 128
    period: int = 10
    batch: int = 32
    steps: int = 2000
    stops: bool = True
    """Whether training ends when every network has converged; a network's end is then its own convergence."""

    def __post_init__(self):
        if self.scale not in SCALES:
            raise ValueError(f"`scale` must be one of {list(SCALES)}, got {self.scale!r}.")

    @property
    def task(self) -> Any:
        """The memory-pro task with the periods of this setup."""
        return recurrent.MemoryPro(period=self.period)

    def network(self, g: float, seed: int) -> Any:
        """Draw the untrained network of a seed: the same directions for every g."""
        key = jr.fold_in(jr.key(2025), seed)
        if self.cell == "gru":
            if self.scale != "code":
                raise ValueError("A GRU has the g of the code; give `scale='code'`.")
            return recurrent.gru_cell(3, self.hidden, 3, g=g, dtype=jnp.float32, key=key)
        return recurrent.rate_cell(
            3, self.hidden, 3, g=g, nonlinearity=self.cell, dt=1.0, weights=SCALES[self.scale],
            vectors="uniform", reads="state", dtype=jnp.float32, key=key,
        )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Trained:
    """Networks of one setup and g, one per seed (the leading axis of every array).

    ``iterations`` to convergence are NaN where there was none; ``losses`` are test losses at ``records``;
    ``snapshots`` at them (a second axis) are there if asked for.
    """

    before: Any
    after: Any
    snapshots: Any | None
    records: np.ndarray
    losses: np.ndarray
    iterations: np.ndarray

    def one(self, seed: int, stage: str) -> Any:
        """Network number ``seed``, ``"before"`` or ``"after"`` training."""
        return jax.tree.map(lambda leaf: leaf[seed], getattr(self, stage))


@functools.cache
def optimizer() -> Any:
    """Adam after the clip of the document, in effect a normalised gradient inside Adam."""
    return optax.chain(optax.clip_by_global_norm(1e-4), optax.adam(1e-3))


# Figures show the same networks: those that were made by this process are found again.
@functools.lru_cache(maxsize=64)
def trained(setup: Setup, g: float, seeds: tuple[int, ...], keeps_snapshots: bool = False) -> Trained:
    """Train one network per seed; convergence is the first record with a test loss below the threshold."""
    cells = [setup.network(g, seed) for seed in seeds]
    trials = setup.task.grid(TEST_TRIALS, dtype=jnp.float32)
    losses = [test_losses(recurrent.stack(cells), trials)]

    def report(checkpoint):
        losses.append(test_losses(checkpoint.cell, trials))
        return setup.stops and bool(np.all(np.nanmin(losses, axis=0) < THRESHOLD))

    result = recurrent.train_many(
        cells, setup.task, steps=setup.steps, batch_size=setup.batch, optimizer=optimizer(),
        snapshot_every=RECORD, report=report, key=jr.fold_in(jr.key(2026), round(1000 * g)),
    )  # fmt: skip
    course = np.stack(losses, axis=1)
    records = np.concatenate([[0], result.snapshot_steps])
    is_below = course < THRESHOLD
    has_met = is_below.any(axis=1) & (np.asarray(result.diverged_at) < 0)
    first = np.argmax(is_below, axis=1)
    last = len(records) - 1
    end = np.where(has_met & setup.stops, first, last)
    snapshots = jax.tree.map(
        lambda start, rest: jnp.concatenate([start[:, None], rest], axis=1), result.initial, result.snapshots
    )
    return Trained(
        before=result.initial,
        after=jax.tree.map(lambda leaf: leaf[np.arange(len(seeds)), end], snapshots),
        snapshots=snapshots if keeps_snapshots else None,
        records=records,
        losses=course,
        iterations=np.where(has_met, records[first], np.nan).astype(float),
    )


def test_losses(cells: Any, trials: Any) -> np.ndarray:
    """Mean squared error of each network, without noise."""
    return np.asarray(_test_losses()(cells, trials.inputs, trials.targets))


@functools.cache
def _test_losses() -> Any:
    def one(cell, inputs, targets):
        return jnp.mean((recurrent.run(cell, inputs)[1] - targets) ** 2)

    return eqx.filter_jit(eqx.filter_vmap(one, in_axes=(eqx.if_array(0), None, None)))


def flow_of(cell: Any, task: Any, trials: int = TEST_TRIALS) -> Any:
    """Linearise a network along noise-free trials of even angles, in float64."""
    cell = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), cell)
    return operators.linearize(cell, task.grid(trials).inputs)


def measure_stages(
    found: Trained, setup: Setup, measure: Callable[[Any], dict[str, Any]], trials: int = TEST_TRIALS
) -> dict[str, np.ndarray]:
    """Measure the flow of every network before and after training: arrays (seed, stage, ...)."""
    rows = [
        [measure(flow_of(found.one(i, stage), setup.task, trials)) for stage in STAGES]
        for i in range(len(found.iterations))
    ]
    return {name: np.array([[one[name] for one in row] for row in rows]) for name in rows[0][0]}


def as_dataset(found: Trained, seed: Any, measured: dict[str, np.ndarray], **axes: tuple[str, ...]) -> Any:
    """What :func:`measure_stages` gave, with iterations; ``axes`` name further axes of some variables.

    Of variables named ``path`` and ``shape``, which are drawn, the first network is kept.
    """
    variables: dict[str, Any] = {"iterations": ("seed", found.iterations)}
    for name, values in measured.items():
        own = axes.get(name, ())
        is_drawn = name in ("path", "shape")
        variables[name] = (("stage", *own), values[0]) if is_drawn else (("seed", "stage", *own), values)
    return xr.Dataset(variables, coords={"seed": list(seed), "stage": list(STAGES)})


def states_and_ranks(flow: Any, components: int, drawn: int) -> dict[str, Any]:
    """Ranks of K, and of the states their dimension, shares of the first components and some paths."""
    projection, share = principal_components(flow.states, components)
    return {
        "rank": kernel_ranks(flow),
        "dimension": float(operators.activity_dimension(flow.states)),
        "share": share,
        "path": projection[:: len(projection) // drawn][:drawn].astype(np.float32),
    }


STATES_AND_RANKS = {
    "rank": ("power",), "share": ("component",), "path": ("trial", "time", "axis"),
}  # fmt: skip
"""Axes of what :func:`states_and_ranks` gives."""


def kernel_ranks(flow: Any) -> tuple[float, float]:
    """Effective rank of K over (trial, time), powers 1 and 2."""
    values = operators.consensus(flow.parameter_operator, ("hidden",), "trace").values
    return float(operators.effective_rank(values, power=1)), float(operators.effective_rank(values, power=2))


def dimension_of_chaos(flow: Any, trials: int) -> float:
    """Kaplan–Yorke dimension, the mean over the first trials."""
    exponents = operators.lyapunov(flow.take(jnp.arange(trials)))
    return float(np.mean(operators.kaplan_yorke(exponents)))


def principal_components(states: Any, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Projection of the states on their first three components, and cumulative shares of the first ones."""
    states = np.asarray(states, np.float64)
    rows = states.reshape(-1, states.shape[2])
    rows = rows - rows.mean(axis=0)
    _, values, vectors = np.linalg.svd(rows, full_matrices=False)
    share = np.cumsum(values**2) / np.sum(values**2)
    padded = np.concatenate([share, np.ones(max(0, count - len(share)))])[:count]
    return (rows @ vectors[:3].T).reshape(*states.shape[:2], 3), padded


def operator_spectra(flow: Any) -> dict[str, np.ndarray]:
    """Spectra of K over (trial, time), of P and P K P* over time: eigenvalues, of P squared singular values.

    The last two are consensuses by partial traces over trials and units, by 64 random probes: the trace of
    P P* has the squared singular values of P in the sense of ``"gram"``.
    """
    P, K = flow.propagator, flow.parameter_operator
    over = ("batch", "hidden")
    return {
        "K": np.asarray(operators.consensus(K, ("hidden",), "trace").values),
        "P": np.asarray(operators.consensus(P @ P.T, over, "trace").values),
        "PKP*": np.asarray(operators.consensus(P @ K @ P.T, over, "trace").values),
    }


def rank_of(values: np.ndarray, power: int) -> float:
    """Effective rank of a whole spectrum, 95 % of the sum of the values to a power."""
    return float(operators.effective_rank(jnp.asarray(values), power=power))


def share_of_modes(flow: Any) -> float:
    """Effective rank of P in the full space (quadrature), as a share of its dimension."""
    return float(operators.effective_rank(flow.propagator, probes=3, steps=40)) / flow.space.size


def quietly(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let a median over no converged network be NaN without a warning: a claim about it then fails."""

    @functools.wraps(method)
    def wrapped(self, data):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "All-NaN slice|Mean of empty slice", RuntimeWarning)
            found = method(self, data)
            return found if hasattr(found, "savefig") else list(found)

    return wrapped


def ends(values: Any) -> tuple[float, float]:
    """First and last value along g that is a number; NaN where there is none."""
    known = values.dropna("g")
    return (float(known[0]), float(known[-1])) if known.size else (np.nan, np.nan)
