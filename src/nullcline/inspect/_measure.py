"""The numbers of the report, as one labelled dataset."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from nullcline import operators
from nullcline.measures import effective_rank, participation_ratio

from ._checkpoint import Network

if TYPE_CHECKING:
    import xarray as xr

Variables = dict[str, tuple[tuple[str, ...], np.ndarray, str]]
"""Dimensions, values and meaning by name."""
MOMENTS = ("before", "after")
FRACTION = 0.95
_MODES = 10
_ROWS = 3000
"""Most (trial, time) rows by default: the kernel of K is a matrix of that side."""
_DENSE = 1000
_EXPONENTS = 300
_QR_FLOPS = 2e10
"""Operations spent on the Lyapunov exponents of one network before fewer trials are taken."""


def compare(
    before: Network,
    after: Network,
    inputs: np.ndarray,
    *,
    nonlinearity: str = "tanh",
    trials: int | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> "xr.Dataset":
    """Measure two states of a network on the same inputs.

    Parameters
    ----------
    before, after
        Two checkpoints of one network, as :func:`read_network` gives them.
    inputs
        Inputs of each trial, (batch, time, inputs).
    nonlinearity
        ``"tanh"`` or ``"relu"``, of an RNN; its weights do not tell.
    trials
        Use only the first so many trials; by default as many as keep trials × times within 3000.
    say
        Called with a line before each step that may take long.

    Returns
    -------
    The change of each weight (singular values, ranks), and before and after: the spectrum of K over trials
    and times, the largest singular values of P and its spectrum over time, effective ranks, Lyapunov
    exponents, variances of the activity. Effective ranks hold 95 % of the total.
    """
    _check_pair(before, after)
    batch, steps = inputs.shape[:2]
    used = max(1, min(batch, _ROWS // steps)) if trials is None else trials
    if not 1 <= used <= batch:
        raise ValueError(f"--trials must be from 1 to {batch}, the trials of the inputs, got {trials}.")
    inputs = inputs[:used]
    start = time.monotonic()
    measured: list[Variables] = []
    methods: dict[str, str] = {}
    for moment, network in zip(MOMENTS, (before, after), strict=True):
        say(f"{moment}: states of {used} trials, {steps} steps")
        flow = operators.from_state_dict(network.weights, inputs, nonlinearity=nonlinearity)
        found: Variables = {}
        for part in (_activity, _kernel, _propagator, _exponents):
            found |= part(flow, lambda text, moment=moment: say(f"{moment}: {text}"), methods)
        measured.append(found)
    both = {
        name: (("moment", *dims), np.stack([values, measured[1][name][1]]), {"long_name": meaning})
        for name, (dims, values, meaning) in measured[0].items()
    }
    data = _change(before, after).assign(both).assign_coords(moment=list(MOMENTS), power=[1, 2])
    size = before.hidden * (2 if before.kind == "lstm" else 1) * before.layers
    data.attrs |= {
        "kind": f"RNN ({nonlinearity})" if before.kind == "rnn" else before.kind.upper(),
        "layers": before.layers,
        "hidden": before.hidden,
        "state_size": size,
        "inputs": before.inputs,
        "trials": used,
        "trials_given": batch,
        "steps": steps,
        "fraction": FRACTION,
        "before": str(before.source),
        "after": str(after.source),
        "wall_time": time.monotonic() - start,
    } | methods
    return data


def _check_pair(before: Network, after: Network) -> None:
    shapes = [{name: w.shape for name, w in network.weights.items()} for network in (before, after)]
    if before.kind != after.kind or shapes[0] != shapes[1]:
        texts = [
            f"{n.source}: {n.kind.upper()}, {n.layers} layers of {n.hidden} units, {n.inputs} inputs"
            for n in (before, after)
        ]
        differ = sorted(name for name in shapes[0] | shapes[1] if shapes[0].get(name) != shapes[1].get(name))
        raise ValueError(
            f"The two checkpoints are not of one network ({'; '.join(texts)}; they differ in "
            f"{', '.join(differ[:6])})."
        )


def _change(before: Network, after: Network) -> "xr.Dataset":
    """Size of the change of every leaf, and singular values and ranks of that of every matrix."""
    import xarray as xr

    names = sorted(before.weights)
    matrices = [name for name in names if before.weights[name].ndim == 2]
    modes = max(min(before.weights[name].shape) for name in matrices)
    sizes = []
    for name in names:
        old, new = (
            np.linalg.norm(before.weights[name]),
            np.linalg.norm(after.weights[name] - before.weights[name]),
        )
        sizes.append(new / old if old > 0 else np.nan)

    def spectra(of: Callable[[str], np.ndarray]) -> np.ndarray:
        rows = np.full((len(matrices), modes), np.nan)
        for row, name in zip(rows, matrices, strict=True):
            values = np.linalg.svd(of(name), compute_uv=False)
            row[: len(values)] = values
        return rows

    change = spectra(lambda name: after.weights[name] - before.weights[name])
    weights = np.stack([spectra(lambda name, n=n: n.weights[name]) for n in (before, after)])
    ranks = [_count(row[~np.isnan(row)]) for row in change]
    largest = [max(before.weights[name].shape) for name in matrices]
    full = [min(before.weights[name].shape) for name in matrices]
    numerical = [
        int(np.sum(row[:n] > side * np.finfo(np.float32).eps * max(row[0], np.finfo(float).tiny)))
        for row, n, side in zip(change, full, largest, strict=True)
    ]
    return xr.Dataset(
        {
            "change_size": ("parameter", np.array(sizes), {"long_name": "|change| / |before|"}),
            "change_values": (
                ("weight", "weight_mode"),
                change,
                {"long_name": "singular values of the change"},
            ),
            "change_rank": (
                "weight",
                np.array(ranks),
                {"long_name": "effective rank of the change, power 2"},
            ),
            "change_numerical_rank": (
                "weight",
                np.array(numerical),
                {"long_name": "rank to float32 rounding"},
            ),
            "full_rank": ("weight", np.array(full), {"long_name": "largest possible rank"}),
            "weight_values": (
                ("moment", "weight", "weight_mode"),
                weights,
                {"long_name": "singular values of the weights"},
            ),
        },
        {"parameter": names, "weight": matrices, "moment": list(MOMENTS)},
    )


def _count(values: np.ndarray) -> int:
    return int(effective_rank(values, fraction=FRACTION, power=2))


def _activity(flow: operators.Flow, say: Callable, methods: dict[str, str]) -> Variables:
    rows = np.asarray(flow.states).reshape(-1, flow.states.shape[2])
    variances = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False) ** 2 / len(rows)
    ratio = participation_ratio(variances)
    return {
        "variances": (("component",), variances, "variances of the principal components"),
        "activity_components": (
            (),
            np.asarray(_count(np.sqrt(variances))),
            "components for 95 % of the variance",
        ),
        "activity_participation": ((), np.asarray(ratio), "participation ratio of the variances"),
    }


def _kernel(flow: operators.Flow, say: Callable, methods: dict[str, str]) -> Variables:
    batch, steps, _ = flow.states.shape
    say(f"K over {batch * steps} trials and times")
    kernel = operators.consensus(flow.parameter_operator, ("hidden",))
    values = np.asarray(kernel.values)
    ranks = [float(operators.effective_rank(kernel, FRACTION, power).rank) for power in (1, 2)]
    methods["kernel_method"] = kernel.method
    ratio = participation_ratio(values)
    return {
        "kernel_values": (("kernel_mode",), values, "eigenvalues of K over trials and times"),
        "kernel_rank": (("power",), np.array(ranks), "effective rank of K over trials and times"),
        "kernel_participation": ((), np.asarray(ratio), "participation ratio of K over trials and times"),
    }


def _propagator(flow: operators.Flow, say: Callable, methods: dict[str, str]) -> Variables:
    P = flow.propagator
    size = flow.space.size
    is_small = size <= _DENSE
    count = min(_MODES, size)
    say(f"the {count} largest singular values of P, dimension {size}")
    how = "dense" if is_small else "krylov"
    top = operators.spectrum(P, count, method=how, with_modes=False, tolerance=1e-4, max_basis=12 * count)
    say("effective rank of P")
    rank = operators.effective_rank(P, FRACTION, method="auto" if is_small else "quadrature", probes=4)
    over_time = operators.consensus(P, ("batch", "hidden"), "gram")
    methods |= {"propagator_method": rank.method, "propagator_time_method": over_time.method}
    time_rank = operators.effective_rank(over_time, FRACTION).rank
    return {
        "propagator_top": (("top_mode",), np.asarray(top.values), "largest singular values of P"),
        "propagator_is_converged": (("top_mode",), np.asarray(top.is_converged), "whether each converged"),
        "propagator_rank": ((), np.asarray(rank.rank), "effective rank of P, power 2"),
        "propagator_rank_error": ((), np.asarray(rank.standard_error), "standard error of propagator_rank"),
        "propagator_time_values": (
            ("time_mode",),
            np.asarray(over_time.values),
            "singular values of P over time",
        ),
        "propagator_time_rank": ((), np.asarray(time_rank), "effective rank of P over time, power 2"),
    }


def _exponents(flow: operators.Flow, say: Callable, methods: dict[str, str]) -> Variables:
    import jax.numpy as jnp

    batch, steps, size = flow.states.shape
    count = min(size, _EXPONENTS)
    used = int(np.clip(_QR_FLOPS / (4.0 * steps * size * count**2), 1, batch))
    say(f"{count} Lyapunov exponents of {used} trials")
    exponents = operators.lyapunov(flow if used == batch else flow.take(jnp.arange(used)), count)
    values = np.asarray(exponents)
    dimension = np.asarray(operators.kaplan_yorke(exponents))
    if count < size:
        # The dimension needs exponents until their sum is negative.
        dimension = np.where(np.sum(values, axis=1) < 0, dimension, np.nan)
    ordered = -np.sort(-values, axis=1)
    return {
        "exponents": (("trial", "exponent"), ordered, "Lyapunov exponents per step"),
        "kaplan_yorke": (("trial",), dimension, "Kaplan-Yorke dimension"),
    }
