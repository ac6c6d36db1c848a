"""Kernel distance at convergence: what both panels of figure 2 share."""

import numpy as np

from .._lazy import jnp, jr
from ..anguita2024._common import linear, match_sign, sweep

SAMPLES, LATE = 10, 1e9


def kernel_distance(
    shape: tuple[int, int, int], lam: np.ndarray, seed: np.ndarray, times=(LATE,)
) -> np.ndarray:
    """Distance of the NTK from the initial one, for every λ, seed and time; by default at convergence."""
    inputs, hidden, outputs = shape

    def draw(lam, seed):
        task_key, key = jr.split(jr.fold_in(jr.key(2), seed))
        task = linear.random_regression(inputs, outputs, SAMPLES, scale=np.sqrt(3), key=task_key)
        return match_sign(linear.lambda_balanced(inputs, hidden, outputs, lam=lam, key=key), task), task

    def run(lam, seed, network, task):
        course = linear.exact_flow(network, task, jnp.asarray([0.0, *times]))
        return {"distance": linear.ntk_distance(course, task)[1:]}

    return sweep(draw, run, lam, seed, batch=256)["distance"]
