"""How far gradient descent strays from gradient flow: what figures 3.4, 3.5 and 3.6 share."""

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from ...engine import Claim
from .._lazy import jax, jnp, jr
from .._style import figure, shades
from ._common import linear

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

CHUNK = 32


def deviations(width: int, lam: np.ndarray, rate: np.ndarray, seed: np.ndarray, steps: int) -> dict:
    """Deviation (L_exact − L_descent) / L_descent of the loss, averaged over ``steps`` steps.

    ``lam`` and ``rate`` are paired. The same networks and tasks serve every pair: curves differ by the
    parameter and not by the draw.
    """
    pair, trial = (mesh.ravel() for mesh in np.meshgrid(np.arange(lam.size), seed, indexing="ij"))
    run, found = _program(width, steps), []
    for start in range(0, pair.size, CHUNK):
        # Always the same shape, the last chunk filled up: one program per width serves all three figures.
        part = np.minimum(np.arange(start, start + CHUNK), pair.size - 1)
        found.append(run(lam[pair[part]], rate[pair[part]], trial[part]))
    joined = np.concatenate([np.asarray(values) for values in found], axis=1)[:, : pair.size]
    deviation, absolute = joined.reshape(2, lam.size, seed.size)
    return {"deviation": deviation, "absolute": absolute}


@functools.cache
def _program(width: int, steps: int):
    def draw(point):
        lam, _, seed = point
        task_key, key = jr.split(jr.fold_in(jr.key(width), seed))
        task = linear.random_regression(width, width, 2 * width, key=task_key)
        return linear.lambda_balanced(width, width, width, lam=lam, key=key), task

    def run(rate, network, task):
        descent = linear.gradient_descent(network, task, learning_rate=rate, steps=steps)
        exact = linear.exact_flow(network, task, rate * jnp.arange(steps + 1.0))
        relative = (linear.loss(exact, task) / linear.loss(descent, task))[1:] - 1
        return jnp.stack([jnp.mean(relative), jnp.mean(jnp.abs(relative))])

    def whole(lam, rate, seed):
        drawn = jax.lax.map(draw, (lam, rate, seed))
        return jax.vmap(run, out_axes=1)(rate, *drawn)

    return jax.jit(whole)


def draw_deviation(data: "xr.Dataset", axis: str, label: str, *, log: bool = True) -> "Figure":
    """Average deviation against one parameter: a line per size, standard deviation over trials shaded."""
    fig, axes = figure(1, 1, width=3.6, height=2.7)
    ax = axes[0, 0]
    mean, spread = data.deviation.mean("seed"), data.deviation.std("seed")
    for width, color in zip(data.width.values, shades(data.width.size), strict=True):
        y, dy = mean.sel(width=width), spread.sel(width=width)
        ax.plot(data[axis], y, "o-", color=color, label=f"N = {width}")
        ax.fill_between(data[axis], y - dy, y + dy, color=color, alpha=0.2, lw=0)
    ax.set(xlabel=label, ylabel="average deviation of the loss")
    if log:
        ax.set_xscale("log")
    ax.set_ylim(bottom=min(0.0, ax.get_ylim()[0]))
    ax.legend(loc="best")
    return fig


def larger_deviate_more(mean: "xr.DataArray", source: str) -> Iterator[Claim]:
    """Claim that the mean deviation grows with the width, where there are widths to compare."""
    if mean.width.size > 1:
        yield Claim(
            "The average deviation is larger for larger networks",
            measured=float((mean.diff("width") / mean.isel(width=-1)).min()),
            at_least=0,
            source=source,
            note="Smallest increase from one size to the next, relative to the largest network.",
        )


def listed(values: "xr.DataArray", axis: str = "width", form: str = ".2g") -> str:
    """Values along ``axis`` as text, for the note of a claim."""
    return ", ".join(
        f"{k}: {float(v):{form}}" for k, v in zip(values[axis].values, values.values, strict=True)
    )
