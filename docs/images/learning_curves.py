"""Draw the figure of the README: `python docs/images/learning_curves.py`."""

from pathlib import Path

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from nullcline import linear
from nullcline.studies._style import PALETTE, figure, letter

SHAPES = {"funnel": (4, 2, 2), "square": (4, 4, 4), "inverted funnel": (2, 2, 4), "bottleneck": (4, 2, 4)}


def draw_losses(ax):
    task = linear.random_regression(4, 4, 12, key=jr.key(3))
    learning_rate, steps = 5e-3, 2000
    times = jnp.geomspace(learning_rate, learning_rate * steps, 150)
    for lam, color in zip((0.0, 1.0, 5.0), PALETTE, strict=False):
        network = linear.lambda_balanced(4, 4, 4, lam=lam, scale=0.25, key=jr.key(8))
        descent = linear.gradient_descent(network, task, learning_rate=learning_rate, steps=steps)
        seen = np.unique(np.geomspace(1, steps, 25).astype(int))
        ax.plot(descent.times[seen], linear.loss(descent, task)[seen], "o", color=color, ms=3)
        exact = linear.exact_flow(network, task, times)
        ax.plot(times, linear.loss(exact, task), color=color, lw=1, label=f"λ = {lam:g}")
    ax.set(xscale="log", xlabel="training time", ylabel="loss")
    ax.legend(
        title="lines exact, dots descent", title_fontsize=6, fontsize=6, frameon=False, loc="upper right"
    )


def draw_kernels(ax):
    lams = np.linspace(-9, 9, 13)
    for (name, shape), color in zip(SHAPES.items(), PALETTE, strict=False):

        def distance(lam, key, shape=shape):
            task_key, key = jr.split(key)
            task = linear.random_regression(shape[0], shape[2], 10, scale=3**0.5, key=task_key)
            network = linear.lambda_balanced(*shape, lam=lam, key=key)
            return linear.ntk_distance(linear.exact_flow(network, task, jnp.array([0.0, 1e9])), task)[1]

        keys = jr.split(jr.key(0), 40)
        many = jax.jit(jax.vmap(jax.vmap(distance, (None, 0)), (0, None)))(jnp.asarray(lams), keys)
        ax.plot(lams, jnp.median(many, axis=1), "o-", color=color, ms=3, label=f"{name} {shape}")
    ax.set(xlabel="balance λ", ylabel="change of the tangent kernel", ylim=(0, 0.75))
    ax.legend(frameon=False, loc="upper center", ncols=2, fontsize=6)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    fig, axes = figure(1, 2, width=7.2, height=2.7)
    draw_losses(axes[0, 0])
    draw_kernels(axes[0, 1])
    letter(axes[0, 0], "A")
    letter(axes[0, 1], "B")
    fig.savefig(Path(__file__).with_suffix(".png"), dpi=160)
