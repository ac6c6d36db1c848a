"""GRUs on the memory-pro task, over initial scales: what Figures S11 and S13 share."""

import functools
from collections.abc import Mapping

import numpy as np

from .._lazy import lazily
from ._memory import TEST_TRIALS, Setup, flow_of, kernel_ranks, trained

operators = lazily("nullcline.operators")

STAGES = ("before", "after")


# Both figures show the same networks: those that were made by this process are found again.
@functools.lru_cache(maxsize=64)
def measured(
    g: float, hidden: int, period: int, batch: int, steps: int, stops: bool, seeds: tuple[int, ...]
) -> Mapping[str, np.ndarray]:
    """Train the GRUs of one g and measure them before and after; the first axis is the seed."""
    setup = Setup("gru", "code", hidden, period, batch, steps, stops)
    found = trained(setup, g, seeds)
    shape = (len(seeds), len(STAGES))
    ranks, full, dimensions = np.zeros((*shape, 2)), np.zeros(shape), np.zeros(shape)
    for i in range(len(seeds)):
        for j, stage in enumerate(STAGES):
            flow = flow_of(found.one(i, stage), setup.task)
            ranks[i, j] = kernel_ranks(flow)
            rank = operators.effective_rank(flow.propagator, probes=2, steps=30)
            full[i, j] = float(rank) / flow.space.size
            dimensions[i, j] = operators.activity_dimension(flow.states)
    return {
        "iterations": found.iterations,
        "rank": ranks,
        "kernel_share": ranks / (TEST_TRIALS * setup.task.time),
        "propagator_share": full,
        "dimension": dimensions,
    }
