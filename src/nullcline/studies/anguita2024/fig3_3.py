"""Figure 3.3: the exact solution against descent for small and large λ."""

from collections.abc import Iterator

import numpy as np

from ...engine import Claim, Grid, Study
from .._lazy import jr
from ._common import (
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
    start_strength,
    sweep,
)

SIZE, SAMPLES, RATE = 3, 10, 2e-4
LAMBDAS = [-50.0, 0.01, 50.0]


class Dynamics(Study):
    """Loss, function, correlations and NTK for λ = −50, 0.01 and 50."""

    source = "anguita2024/fig3.3"
    presets = {
        "quick": Grid(lam=LAMBDAS, steps=50_000, seed=range(3)),
        "paper": Grid(lam=LAMBDAS, steps=50_000, seed=range(10)),
    }
    expected = {"quick": 9, "paper": 12}
    vectorized = ("lam", "seed")

    def compute(self, lam, steps, seed):
        stages = log_stages(steps)

        def draw(lam, seed):
            task_key, key = jr.split(jr.fold_in(jr.key(33), seed))
            task = linear.random_regression(SIZE, SIZE, SAMPLES, key=task_key)
            return linear.lambda_balanced(SIZE, SIZE, SIZE, lam=lam, key=key), task

        found = sweep(
            draw, lambda lam, seed, network, task: dynamics(network, task, RATE, stages), lam, seed, batch=10
        )
        dims = ("lam", "seed", "by", "step")
        own = {"qqt": ("row", "column"), "ntk": ("entry",)}
        return {
            "step": ("step", recorded(stages)),
            "by": ("by", list(METHODS)),
            **{name: ((*dims, *own.get(name, ())), values) for name, values in found.items()},
        }

    def draw(self, data):
        return draw_dynamics(data.isel(seed=0, steps=0), SIZE)

    def claims(self, data) -> Iterator[Claim]:
        data = data.isel(steps=0)
        gap = course_gap(data.qqt)
        yield Claim(
            "The exact QQᵀ matches descent for large negative, large positive and small λ",
            measured=float(gap.max()),
            at_most=5e-4,
            source="Figure 3.3",
            note=gap_note(gap, data.qqt, RATE, SIZE),
        )
        descent, exact = data.loss.sel(by="descent"), data.loss.sel(by="exact")
        apart = np.abs(descent / exact - 1).max(("lam", "step"))
        yield Claim(
            "The exact loss matches descent",
            measured=apart.median(),
            at_most=8e-3,
            source="Figure 3.3",
            note=f"Largest relative difference along training, median over draws; {spread(apart)}.",
        )
        sides = {"input": slice(None, SIZE), "output": slice(SIZE, None)}
        large = float(np.abs(data.lam).max())
        for lam, fixed, small in ((-large, "input", "output"), (large, "output", "input")):
            exact = data.qqt.sel(lam=lam, by="exact")
            blocks = {side: exact.isel(row=part, column=part) for side, part in sides.items()}
            norm = {side: (block**2).sum(("row", "column")) ** 0.5 for side, block in blocks.items()}
            moved = ((blocks[fixed] - blocks[fixed].isel(step=0)) ** 2).sum(("row", "column")) ** 0.5
            start = start_strength(data.qqt.sel(lam=lam), SIZE)
            change = (moved / norm[fixed].isel(step=0)).max("step")
            yield Claim(
                f"For λ = {signed(lam)} the {fixed} representation remains almost constant: it changes by at "
                "most (a/λ)² of itself",
                measured=(change / (start / lam) ** 2).max(),
                at_most=1,
                source="Section 3.3",
                note="Largest relative change in units of (a/λ)², a the strength of the initial function; "
                f"the change itself is {float(change.median()):.2%} in the median, {spread(change)}.",
            )
            share = (norm[small] / norm[fixed]).max("step")
            yield Claim(
                f"For λ = {signed(lam)} the {small} representation is much smaller",
                measured=share.median(),
                at_most=0.01,
                source="Section 3.3",
                note=f"Norm relative to the other representation, median over draws; {spread(share)}.",
            )
        end = data.distance.sel(by="exact").isel(step=-1)
        yield Claim(
            "The NTK remains almost constant for large |λ|",
            measured=end.sel(lam=[-large, large]).max(),
            at_most=1e-3,
            source="Section 3.3",
            note="Kernel distance at the end, the largest of all draws.",
        )
        near = end.sel(lam=float(data.lam[np.abs(data.lam).argmin("lam")]))
        yield Claim(
            "For λ close to 0 the NTK moves",
            measured=near.median(),
            at_least=0.1,
            source="Section 3.3",
            note=f"Kernel distance at the end, median over draws; {spread(near)}.",
        )
