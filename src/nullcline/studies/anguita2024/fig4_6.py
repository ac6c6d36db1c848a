"""Figure 4.6: the exact solution through a sequence of tasks."""

from collections.abc import Iterator

import numpy as np

from ...engine import Claim, Grid, Study
from .._lazy import jax, jnp, jr
from .._style import BLACK, GREY, PALETTE, figure
from ._common import METHODS, descend, linear, log_stages, recorded, spread, sweep

SIZE, SAMPLES, RATE, TASKS = 5, 25, 0.01, 4
# The document does not say how large the initial weights are: here their function is as large as the tasks.
SCALE = 0.5


class ContinualLearning(Study):
    """Losses on four tasks learned one after the other, at λ = 1."""

    source = "anguita2024/fig4.6"
    presets = {
        "quick": Grid(lam=1.0, steps=6000, seed=range(3)),
        "paper": Grid(lam=1.0, steps=6000, seed=range(20)),
    }
    expected = {"quick": 9, "paper": 11}
    vectorized = ("seed",)

    def compute(self, lam, steps, seed):
        stages = log_stages(steps)

        def draw(seed):
            key = jr.fold_in(jr.key(46), seed)
            tasks = jax.lax.map(
                lambda i: linear.random_regression(SIZE, SIZE, SAMPLES, key=jr.fold_in(key, i)),
                jnp.arange(TASKS),
            )
            return linear.lambda_balanced(
                SIZE, SIZE, SIZE, lam=lam, scale=SCALE, key=jr.fold_in(key, TASKS)
            ), tasks

        def losses(run, tasks):
            return jax.vmap(lambda task: linear.loss(run, task), out_axes=-1)(tasks)

        def run(seed, network, tasks):
            def learn(state, task):
                descending, flowing = state
                descent = descend(descending, task, RATE, stages)
                exact = linear.exact_flow(flowing, task, descent.times)
                state = descent.network_at(-1), exact.network_at(-1)
                return state, jnp.stack([losses(descent, tasks), losses(exact, tasks)])

            (descending, _), found = jax.lax.scan(learn, (network, network), tasks)
            sigma, floor = jax.vmap(lambda task: (task.target, task.constant))(tasks)
            between = 0.5 * jnp.sum((sigma[:, None] - sigma[None, :]) ** 2, (2, 3))
            return {
                "loss": jnp.swapaxes(found, 0, 1),
                "converged": between + floor[None, :],
                "drift": jnp.linalg.norm(linear.balance(descending) - lam * jnp.eye(SIZE)),
            }

        found = sweep(draw, run, seed, batch=8)
        names = [f"task {i + 1}" for i in range(TASKS)]
        return {
            "step": ("step", recorded(stages)),
            "by": ("by", list(METHODS)),
            "trained": ("trained", names),
            "task": ("task", names),
            "loss": (("seed", "by", "trained", "step", "task"), found["loss"]),
            "converged": (("seed", "trained", "task"), found["converged"]),
            "drift": found["drift"],
        }

    def draw(self, data):
        data = data.isel(seed=0, lam=0, steps=0)
        fig, axes = figure(1, TASKS, width=8.4, height=2.4, sharey=True)
        steps = np.maximum(data.step.values, 0.5)
        for ax, trained in zip(axes[0], data.trained.values, strict=True):
            one = data.loss.sel(trained=trained)
            for j, task in enumerate(data.task.values):
                ax.plot(steps, one.sel(by="descent", task=task), color=PALETTE[j], lw=1.8, label=f"on {task}")
                ax.axhline(
                    float(data.converged.sel(trained=trained, task=task)), color=GREY, lw=0.5, zorder=0
                )
            ax.plot(steps, one.sel(by="exact"), color=BLACK, ls=":", label=["exact", *[""] * (TASKS - 1)])
            ax.set(xscale="log", xlabel="step within the task", title=f"training on {trained}")
        axes[0, 0].set_ylabel("loss")
        axes[0, 0].legend(loc="upper right")
        return fig

    def claims(self, data) -> Iterator[Claim]:
        gap = np.abs(data.loss.sel(by="descent") - data.loss.sel(by="exact"))
        everywhere = gap.max([d for d in gap.dims if d != "seed"])
        late = gap.sel(step=slice(50, None)).max([d for d in gap.dims if d != "seed"])
        why = "draws that start with a stronger function are further from the flow in their first steps"
        yield Claim(
            "The exact solution holds through the whole sequence: |exact − descent| of every loss",
            measured=everywhere.median(),
            at_most=0.08,
            source="Figure 4.6",
            note=f"Largest of all tasks and steps, median over draws; {spread(everywhere)}: {why}.",
        )
        yield Claim(
            "From step 50 of each task on, exact and descent differ by at most 0.015",
            measured=late.median(),
            at_most=0.015,
            source="Figure 4.6",
            note=f"Largest of all tasks, median over draws; {spread(late)}: {why}.",
        )
        end = data.loss.sel(by="exact").isel(step=-1)
        yield Claim(
            "After task j the loss on task i is ½‖Σ_j − Σ_i‖² + c_i",
            measured=np.abs(end - data.converged).max(),
            at_most=1e-4,
            source="Section 4.4",
            note="Largest difference of all draws and pairs of tasks.",
        )
        yield Claim(
            "The balance is preserved through training: descent moves it by O(η)",
            measured=data.drift.max(),
            at_most=0.05,
            source="Section 4.4",
            note=f"‖D − λI‖ after the four tasks; mean {float(data.drift.mean()):.3f}.",
        )
