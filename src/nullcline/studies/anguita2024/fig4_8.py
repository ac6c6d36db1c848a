"""Figure 4.8: what becomes of the balance in nonlinear networks."""

from collections.abc import Iterator

import numpy as np

from ...engine import Claim, Grid, Study
from .._lazy import jax, jnp, jr
from .._style import PALETTE, figure
from ._common import linear, signed

RATE, SMALLEST, LARGEST = 1e-3, 3, 19
ACTIVATIONS = ["linear", "relu", "tanh"]
LAMBDAS = [-10.0, 0.1, 10.0]
STAGES = ["start", "task 1", "task 2"]
# Steps for each task: as many as the document takes, and until convergence.
SHORT, LONG = 2000, 10_000


def balanced(normals: np.ndarray, lam: float) -> tuple[np.ndarray, np.ndarray]:
    """λ-balanced weights as ``linear.lambda_balanced`` makes them.

    In NumPy: JAX would compile for each size.
    """
    u, a, vt = np.linalg.svd(normals[0] @ normals[1])
    q, r = np.linalg.qr(normals[2])
    frame = q * np.sign(np.diag(r))
    big = np.sqrt((np.hypot(lam, 2 * a) + abs(lam)) / 2)
    first, second = (a / big, big) if lam >= 0 else (big, a / big)
    return (frame * first) @ vt, (u * second) @ frame.T


def trial(lam: float, seed: int) -> dict[str, np.ndarray]:
    """A network of random size and two tasks, filled up with zeros to the largest size.

    Zero weights, inputs and targets stay zero in training: networks of all sizes train in one program.
    """
    size_key, network_key, task_key = jr.split(jr.fold_in(jr.key(48), seed), 3)
    size = int(jr.randint(size_key, (), SMALLEST, LARGEST + 1))
    normals = np.asarray(jr.normal(network_key, (3, LARGEST, LARGEST)))[:, :size, :size]
    data = np.asarray(jr.normal(task_key, (2, 2, LARGEST, 2 * LARGEST)))[:, :, :size, : 2 * size]
    w1, w2 = balanced(normals, lam)
    u, _, vt = np.linalg.svd(data[:, 0], full_matrices=False)
    more = LARGEST - size
    fill = ((0, 0), (0, more), (0, 2 * more))
    return {
        "size": np.array(float(size)),
        "w1": np.pad(w1, (0, more)),
        "w2": np.pad(w2, (0, more)),
        "x": np.pad(np.sqrt(2 * size) * (u @ vt), fill),
        "y": np.pad(data[:, 1], fill),
    }


class NonlinearBalance(Study):
    """Fitted balance λ* and the distance from it through two tasks: linear, ReLU and tanh networks."""

    source = "anguita2024/fig4.8"
    presets = {
        "quick": Grid(activation=ACTIVATIONS, lam=LAMBDAS, steps=[SHORT, LONG], seed=range(6)),
        "paper": Grid(activation=ACTIVATIONS, lam=LAMBDAS, steps=[SHORT, LONG], seed=range(50)),
    }
    expected = {"quick": 16, "paper": 110}
    vectorized = ("lam", "seed")

    def compute(self, activation, lam, steps, seed):
        trials = [trial(float(one), int(s)) for one in lam for s in seed]
        batch = {name: jnp.asarray(np.stack([t[name] for t in trials])) for name in trials[0]}

        def measure(network, size):
            d = linear.balance(network)
            fitted = jnp.trace(d) / size
            units = jnp.diag((jnp.arange(float(LARGEST)) < size).astype(d.dtype))
            return fitted, jnp.linalg.norm(d - fitted * units)

        @jax.jit
        @jax.vmap
        def run(one):
            network, found = linear.Network(one["w1"], one["w2"]), []
            found.append(measure(network, one["size"]))
            for x, y in zip(one["x"], one["y"], strict=True):
                # The loss is averaged over all columns: the rate makes up for the empty ones.
                result = linear.nonlinear_descent(
                    network,
                    linear.Task(x, y, is_isotropic=True),
                    activation=activation,
                    learning_rate=RATE * LARGEST / one["size"],
                    steps=steps,
                    every=steps,
                )
                network = result.network
                found.append(measure(network, one["size"]))
            return [jnp.stack(values) for values in zip(*found, strict=True)]

        fitted, distance = run(batch)
        shape, dims = (len(lam), len(seed), len(STAGES)), ("lam", "seed", "stage")
        return {
            "stage": ("stage", STAGES),
            "fitted": (dims, fitted.reshape(shape)),
            "distance": (dims, distance.reshape(shape)),
        }

    def draw(self, data):
        fig, axes = figure(2, data.lam.size, width=7.4, height=4.2, sharex=True)
        x = np.arange(data.stage.size)
        for column, lam in enumerate(data.lam.values):
            for row, (name, label) in enumerate((("fitted", "fitted λ*"), ("distance", "‖D − λ*I‖"))):
                ax = axes[row, column]
                for j, activation in enumerate(data.activation.values):
                    for steps, style in zip(data.steps.values, ("-", "--"), strict=False):
                        one = data[name].sel(lam=lam, activation=activation, steps=steps)
                        mean, spread = one.mean("seed"), one.std("seed")
                        ax.plot(x, mean, "o" + style, color=PALETTE[j], label=f"{activation}, {steps} steps")
                        if style == "-":
                            ax.fill_between(
                                x, mean - spread, mean + spread, color=PALETTE[j], alpha=0.15, lw=0
                            )
                ax.set_xticks(x, data.stage.values)
                if column == 0:
                    ax.set_ylabel(label)
            axes[0, column].set_title(f"λ = {signed(lam)}")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        fig.legend(handles, labels, loc="outside lower center", ncols=3, handlelength=3)
        return fig

    def claims(self, data) -> Iterator[Claim]:
        mean = data.mean("seed")
        few, many = int(data.steps.min()), int(data.steps.max())
        fitted, distance = mean.fitted, mean.distance
        moved = np.abs(data.fitted - data.fitted.sel(stage="start")) / np.maximum(np.abs(data.lam), 1)
        for activation in ("linear", "relu"):
            change = moved.sel(activation=activation)
            yield Claim(
                f"λ* is preserved through training in {activation} networks",
                measured=change.mean("seed").max(),
                at_most=0.01,
                source="Figure 4.8",
                note="Mean over draws, as in the figure, of |λ* − λ| over max(|λ|, 1), the largest of all "
                f"stages and λ; {float(change.max()):.4f} in the worst draw. Descent adds its O(η).",
            )
        tanh = (fitted.sel(stage="task 2") - data.lam).sel(activation="tanh")
        ends = fitted.sel(activation="tanh", stage="task 2", steps=few)
        yield Claim(
            "λ* decreases through training in tanh networks",
            measured=tanh.max(),
            at_most=-2,
            source="Figure 4.8",
            note=f"Mean change after both tasks, the smallest of all λ; after {few} steps each: "
            + ", ".join(
                f"{signed(lam)} → {signed(float(ends.sel(lam=lam)), '.1f')}" for lam in data.lam.values
            ),
        )
        yield Claim(
            "In a linear network λ* matches the balance exactly: the distance stays 0",
            measured=data.distance.sel(activation="linear").max(),
            at_most=0.5,
            source="Figure 4.8",
            note=f"Largest of all draws, O(η); mean {float(distance.sel(activation='linear').max()):.2f} "
            "at most.",
        )
        for activation, low, high in (("relu", 12, 20), ("tanh", 15, 30)):
            level = distance.sel(activation=activation, steps=few, stage=["task 1", "task 2"])
            yield Claim(
                f"The distance from λ*I grows to {low}–{high} in {activation} networks after {few} steps",
                measured=level.mean(),
                at_least=low,
                at_most=high,
                source="Figure 4.8",
                note=f"Mean over λ, draws and both tasks; by λ and task {float(level.min()):.1f} to "
                f"{float(level.max()):.1f}.",
            )
        growth = (distance.sel(stage="task 2") - distance.sel(stage="task 1")).sel(
            activation=["relu", "tanh"]
        )
        short = growth.sel(steps=few)
        yield Claim(
            "In ReLU and tanh networks the distance increases after each task",
            measured=growth.sel(steps=many).min(),
            at_least=0,
            source="Figure 4.8",
            note=f"Trained to convergence ({many} steps): smallest mean increase with the second task "
            "over λ. After "
            f"{few} steps descent is not converged and the change is "
            + ", ".join(
                f"{activation} {signed(float(short.sel(activation=activation, lam=lam)), '.1f')} (λ = "
                f"{signed(lam)})"
                for activation in ("relu", "tanh")
                for lam in data.lam.values
            ),
        )
        start = data.fitted.sel(stage="start")
        yield Claim(
            "The best fit of λI to the balance is λ* = tr D",
            measured=np.abs(start - data.lam).max(),
            at_most=1e-9,
            source="Theorem 4.5.1",
            erratum="λ* = tr(D)/N_h, as the proof has it.",
            note="Largest |tr(D)/N_h − λ| of the initial weights, which have D = λI.",
        )
