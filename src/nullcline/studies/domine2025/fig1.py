"""Figure 1: dynamics of a bottlenecked network."""

from collections.abc import Iterator

import numpy as np

from ...engine import Claim, Grid, Study
from .._lazy import jax, jnp, jr
from ..anguita2024._common import (
    METHODS,
    course_gap,
    draw_dynamics,
    dynamics,
    gap_note,
    linear,
    log_stages,
    recorded,
    signed,
    spread,
    sweep,
)

INPUTS, HIDDEN, OUTPUTS, SAMPLES, RATE = 3, 2, 3, 20, 0.01
LATE = 1e9


class BottleneckDynamics(Study):
    """Loss, function, correlations and NTK of a 3-2-3 network, for λ = 1, 0 and −1."""

    source = "domine2025/fig1"
    presets = {
        "quick": Grid(lam=[1.0, 0.0, -1.0], steps=40_000, seed=range(10)),
        "paper": Grid(lam=[1.0, 0.0, -1.0], steps=40_000, seed=range(20)),
    }
    expected = {"quick": 16, "paper": 16}
    vectorized = ("lam", "seed")

    def compute(self, lam, steps, seed):
        stages = log_stages(steps)

        def draw(lam, seed):
            task_key, key = jr.split(jr.fold_in(jr.key(1), seed))
            task = linear.random_regression(INPUTS, OUTPUTS, SAMPLES, scale=np.sqrt(0.1), key=task_key)
            # Zero-balanced weights have variance 1e-4, the others 1.
            scale = jnp.where(lam == 0, 0.01, 1.0)
            return linear.lambda_balanced(INPUTS, HIDDEN, OUTPUTS, lam=lam, scale=scale, key=key), task

        def run(lam, seed, network, task):
            u, s, vt = jnp.linalg.svd(task.target)

            def limit(correlation):
                whole = linear.Task.from_correlation(correlation)
                return linear.loss(linear.exact_flow(network, whole, jnp.asarray([LATE])), whole)[0]

            # The task itself, and the same task cut to the rank that the network can reach.
            cut = (u[:, :HIDDEN] * s[None, :HIDDEN]) @ vt[:HIDDEN]
            excess, learnable = jax.vmap(limit)(jnp.stack([task.target, cut]))
            return {
                **dynamics(network, task, RATE, stages),
                "excess": excess,
                "smallest": s[-1],
                "learnable": learnable,
            }

        found = sweep(draw, run, lam, seed, batch=10)
        dims = ("lam", "seed", "by", "step")
        own = {"qqt": ("row", "column"), "ntk": ("entry",)}
        plain = ("excess", "smallest", "learnable")
        return {
            "step": ("step", recorded(stages)),
            "by": ("by", list(METHODS)),
            **{name: v if name in plain else ((*dims, *own.get(name, ())), v) for name, v in found.items()},
        }

    def draw(self, data):
        return draw_dynamics(data.isel(seed=0, steps=0), INPUTS)

    def claims(self, data) -> Iterator[Claim]:
        data = data.isel(steps=0)
        gap = course_gap(data.qqt)
        # Numbers of one digit, for weights of variance 1 (λ = ±1) and 1e-4 (λ = 0).
        for lam in data.lam.values:
            one = gap.sel(lam=[lam])
            why = f"{spread(one).capitalize()}; it builds up on the plateau."
            if lam != 0:
                why = gap_note(one, data.qqt.sel(lam=[lam]), RATE, INPUTS)
            if lam == 1:
                why += " The caption repeats λ = −1; appendix B.3 has 1, 0 and −1."
            yield Claim(
                f"For λ = {signed(lam)} the simulation is exactly matched by the analytical solution",
                measured=float(one.median()),
                at_most=1.5e-3 if lam == 0 else 2e-2,
                source="Figure 1",
                note=f"Largest difference of QQᵀ relative to its largest norm, median over draws. {why}",
            )
        predicted = data.smallest**2 / 2
        yield Claim(
            "The bottleneck leaves the excess loss ½ s₃²",
            measured=np.abs(data.excess / predicted - 1).max(),
            at_most=1e-6,
            source="Section 4",
            note="Exact limit, relative to ½ s₃², the largest of all draws.",
        )
        yield Claim(
            "Bottlenecked networks never achieve zero loss",
            measured=data.learnable.max(),
            at_most=1e-12,
            source="Section 4",
            erratum="Only if the rank of the task exceeds the number of hidden units.",
            note="Loss at convergence on the same tasks cut to rank 2.",
        )
