"""What the figures on two-layer linear networks share: sweeps, recorded steps, the plot of dynamics."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .._lazy import jax, jnp, lazily
from .._style import BLACK, PALETTE, figure, letter

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

    from nullcline import linear
else:
    linear = lazily("nullcline.linear")

__all__ = [
    "METHODS",
    "course_gap",
    "descend",
    "draw_dynamics",
    "dynamics",
    "gap_note",
    "linear",
    "log_stages",
    "match_sign",
    "recorded",
    "signed",
    "spread",
    "sweep",
]

METHODS = ("descent", "exact")


def sweep(draw: Callable, run: Callable, *axes: Any, batch: int = 64) -> dict[str, np.ndarray]:
    """Call ``run(*values, *draw(*values))`` for every combination of the values of ``axes``, as one program.

    Draws are mapped one after the other: a batch of independent decompositions in one program can exhaust the
    threads that XLA gives to LAPACK on small machines. Runs are vectorized, ``batch`` at a time.
    """
    values = [np.asarray(axis) for axis in axes]
    count = int(np.prod([axis.size for axis in values]))
    # Batches of one size, the last filled up: a shorter one would be compiled once more.
    batch = -(-count // -(-count // batch))
    index = np.minimum(np.arange(-(-count // batch) * batch), count - 1)
    flat = tuple(jnp.asarray(mesh.ravel()[index]) for mesh in np.meshgrid(*values, indexing="ij"))

    @jax.jit
    def whole(flat):
        drawn = jax.lax.map(lambda point: draw(*point), flat)
        return jax.lax.map(lambda point: run(*point[0], *point[1]), (flat, drawn), batch_size=batch)

    lengths = tuple(len(axis) for axis in values)
    return {name: np.asarray(x)[:count].reshape(*lengths, *x.shape[1:]) for name, x in whole(flat).items()}


def match_sign(network, task):
    """Give a square network the sign of the task's determinant, by flipping one output; the balance stays.

    From the other sign, which half of all draws have, a zero-balanced square network only reaches a saddle.
    """
    # The determinant of a bottleneck is zero, and its sign rounding.
    if network.n_in != network.n_out or network.n_hidden < network.n_in:
        return network
    is_opposite = jnp.linalg.det(network.function) * jnp.linalg.det(task.target) < 0
    sign = jnp.where(is_opposite & (jnp.arange(network.n_out) == 0), -1.0, 1.0)
    return linear.Network(network.w1, sign[:, None] * network.w2)


def log_stages(last: int) -> tuple[tuple[int, int], ...]:
    """Stages (steps, steps between records) that keep about 100 states in every decade of ``last`` steps."""
    stages, start, every = [], 0, 1
    while start < last:
        length = min(100 * every, last) - start
        stages.append((length, next(d for d in range(every, 0, -1) if length % d == 0)))
        start, every = start + length, 10 * every
    return tuple(stages)


def recorded(stages: tuple[tuple[int, int], ...]) -> np.ndarray:
    """Steps at which descent in ``stages`` keeps its state."""
    starts = np.cumsum([0, *(steps for steps, _ in stages)])
    later = [
        start + np.arange(every, steps + 1, every)
        for start, (steps, every) in zip(starts, stages, strict=False)
    ]
    return np.concatenate([[0], *later])


def descend(network, task, rate, stages: tuple[tuple[int, int], ...]):
    """Gradient descent that keeps fewer states as it slows down: the trajectory at the steps ``recorded``."""
    runs = []
    for steps, every in stages:
        runs.append(linear.gradient_descent(network, task, learning_rate=rate, steps=steps, every=every))
        network = runs[-1].network_at(-1)
    g1, g2 = (
        jnp.concatenate([getattr(runs[0], name), *(getattr(run, name)[1:] for run in runs[1:])])
        for name in ("g1", "g2")
    )
    status = jnp.stack([run.status for run in runs]).max()
    times = rate * jnp.asarray(recorded(stages), g1.dtype)
    return linear.Trajectory(times, g1, g2, None, None, status)


def signed(value: float, form: str = "g") -> str:
    """A number as text with a real minus sign."""
    return f"{value:{form}}".replace("-", "−")


def spread(values: "xr.DataArray") -> str:
    """Smallest and largest value, for the note of a claim that judges their median or mean."""
    return f"all draws {float(values.min()):.2g} to {float(values.max()):.2g}"


def pick(matrices, count: int = 9):
    """A few entries of each matrix, spread evenly: enough to draw a large one."""
    flat = matrices.reshape(*matrices.shape[:-2], -1)
    return flat[..., np.unique(np.linspace(0, flat.shape[-1] - 1, count).astype(int))]


def dynamics(network, task, rate: float, stages: tuple[tuple[int, int], ...]) -> dict[str, Any]:
    """Descent and exact flow at the same steps: QQᵀ, loss, kernel distance, some entries of the NTK."""
    descent = descend(network, task, rate, stages)
    pair = (descent, linear.exact_flow(network, task, descent.times))
    return {
        name: jnp.stack([of(run, task) for run in pair])
        for name, of in {
            "qqt": lambda run, task: run.qqt,
            "loss": linear.loss,
            "distance": linear.ntk_distance,
            "ntk": lambda run, task: pick(linear.ntk(run, task)),
        }.items()
    }


def course_gap(qqt: "xr.DataArray") -> "xr.DataArray":
    """Largest distance between descent and exact QQᵀ along training, relative to the largest exact norm."""
    exact = qqt.sel(by="exact")
    gap, norm = (
        ((x**2).sum(("row", "column")) ** 0.5).max("step") for x in (qqt.sel(by="descent") - exact, exact)
    )
    return gap / norm


def start_strength(qqt: "xr.DataArray", inputs: int) -> "xr.DataArray":
    """Largest singular value of the initial function, for every draw."""
    start = qqt.sel(by="exact").isel(step=0, row=slice(inputs, None), column=slice(None, inputs))
    norm = np.linalg.norm(start.transpose(..., "row", "column").values, ord=2, axis=(-2, -1))
    return start.isel(row=0, column=0, drop=True).copy(data=norm)


def gap_note(gap: "xr.DataArray", qqt: "xr.DataArray", rate: float, inputs: int) -> str:
    """Why draws differ: the gap is that of the step size, which counts in units of the initial curvature."""
    curvature = np.sqrt(qqt.lam**2 + 4 * start_strength(qqt, inputs) ** 2)
    return (
        f"{spread(gap).capitalize()}, in proportion to the strength a of the initial function: "
        f"at most {float((gap / (rate * curvature)).max()):.2f} η√(λ² + 4a²)."
    )


def draw_dynamics(data: "xr.Dataset", inputs: int) -> "Figure":
    """One row per λ: loss, function, correlations and NTK; descent colored, exact black and dotted."""
    titles = ("loss", r"function $W_2W_1$", r"input $W_1^\top W_1$", r"output $W_2W_2^\top$", "NTK (entries)")
    fig, axes = figure(data.lam.size, 5, width=9.2, height=1.55 * data.lam.size + 0.4, sharex=True)
    for row, lam in enumerate(data.lam.values):
        one = data.sel(lam=lam)
        first, last = slice(None, inputs), slice(inputs, None)
        blocks = (
            one.loss,
            one.qqt.isel(row=last, column=first),
            one.qqt.isel(row=first, column=first),
            one.qqt.isel(row=last, column=last),
            one.ntk,
        )
        steps = np.maximum(data.step.values, 0.5)
        for ax, block in zip(axes[row], blocks, strict=True):
            by_method = block.transpose("by", "step", ...)
            curves = by_method.sel(by="descent").values.reshape(steps.size, -1)
            exact = by_method.sel(by="exact").values.reshape(steps.size, -1)
            for j in range(curves.shape[1]):
                ax.plot(steps, curves[:, j], color=PALETTE[j % 6], lw=1.6)
            ax.plot(steps, exact, color=BLACK, ls=":", lw=1.1)
            ax.set_xscale("log")
        axes[row, 0].set_ylabel(f"λ = {signed(lam)}")
        letter(axes[row, 0], "ABC"[row] if data.lam.size <= 3 else "")
    for ax, title in zip(axes[0], titles, strict=True):
        ax.set_title(title)
    for ax in axes[-1]:
        ax.set_xlabel("training step")
    axes[0, 0].plot([], [], color=PALETTE[0], lw=1.6, label="gradient descent (one color per entry)")
    axes[0, 0].plot([], [], color=BLACK, ls=":", lw=1.1, label="exact solution")
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return fig
