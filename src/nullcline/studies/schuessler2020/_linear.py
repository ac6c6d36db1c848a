"""The simple task of a linear network: simulation through time, and the theory beside it."""

import functools
from typing import Any

import numpy as np

from .._lazy import jax, jnp, jr, lax, lazily

theory: Any = lazily("nullcline.recurrent.theory")

DT = 0.5
FIXATION, DECISION = 2, 2  # steps
EPOCHS = 200
# Networks on which the distance of descent from the flow is measured, for each seed.
GAPS = 9
# Learning rates of the document: eta = eta_0 (1 - g^2)^2.
ETA0 = {0.5: 0.015, 1.0: 0.009, 2.0: 0.003}


def network(neurons: int, g: float, seed: int):
    """Initial weights of strength g, with input and readout vectors of unit norm."""
    w_key, m_key, read_key = jr.split(jr.key(seed), 3)
    w0 = g / np.sqrt(neurons) * jr.normal(w_key, (neurons, neurons))
    m, w = jr.normal(m_key, (neurons,)), jr.normal(read_key, (neurons,))
    return w0, m / jnp.linalg.norm(m), w / jnp.linalg.norm(w)


def trajectory(weights, m, steps: int):
    """States of the network, Eq. (17), from silence with constant input after the fixation; ``steps + 1``."""
    drive = jnp.sqrt(1.0 * m.size) * m

    def step(x, k):
        new = (1 - DT) * x + DT * (weights @ x + jnp.where(k >= FIXATION, 1.0, 0.0) * drive)
        return new, new

    _, states = lax.scan(step, jnp.zeros_like(m), jnp.arange(steps))
    return jnp.concatenate([jnp.zeros_like(states[:1]), states])


def output(weights, m, w, steps: int):
    """Output at every step, read after the input of that step."""
    return trajectory(weights, m, steps)[1:] @ w / np.sqrt(m.size)


def descend(weights, m, w, target, rate, steps: int):
    """One step of gradient descent on the weights; the loss and the last output before it.

    The gradient is that of the simulation through time: one backward pass and one matrix product.
    """
    states = trajectory(weights, m, steps)
    read = w / np.sqrt(m.size)
    error = states[-DECISION:] @ read - target

    def back(adjoint, k):
        # Adjoint of the state after step k: what the outputs from k on make of it.
        hit = jnp.where(k >= steps - DECISION, error[k - steps + DECISION] / DECISION, 0.0)
        here = adjoint + hit * read
        return (1 - DT) * here + DT * (weights.T @ here), here

    _, adjoints = lax.scan(back, jnp.zeros_like(m), jnp.arange(steps), reverse=True)
    gradient = DT * adjoints.T @ states[:-1]
    return weights - rate * gradient, (jnp.mean(error**2) / 2, target + error[-1])


@functools.cache
def _compiled():
    """Epochs in compiled chunks, with the weights after each chunk; compiled once per shape."""

    @functools.partial(jax.jit, static_argnames=("steps", "every", "chunks"))
    def train(weights, m, w, target, rate, steps: int, every: int, chunks: int):
        def chunk(weights, _):
            last, seen = lax.scan(
                lambda weights, _: descend(weights, m, w, target, rate, steps), weights, None, length=every
            )
            return last, (last, seen)

        _, (snapshots, (losses, outputs)) = lax.scan(chunk, weights, None, length=chunks)
        return snapshots, losses.ravel(), outputs.ravel()

    return train


def simulate(w0, m, w, target: float, rate: float, *, duration: float = 101.0, every: int = 10):
    """Train on the simple task by plain gradient descent on the recurrent weights.

    Returns
    -------
    Weight changes after 0, ``every``, … epochs (NumPy), loss and last output before each epoch.
    """
    steps = int(duration / DT + 1e-9)
    snapshots, losses, outputs = _compiled()(w0, m, w, target, rate, steps, every, EPOCHS // every)
    changes = np.concatenate([np.zeros((1, *w0.shape)), np.asarray(snapshots) - np.asarray(w0)])
    return changes, np.asarray(losses), np.asarray(outputs)


def leading(change: np.ndarray, count: int = 5) -> np.ndarray:
    """Leading singular values of a matrix of low rank, by its action on 24 fixed random vectors."""
    probe = np.asarray(jr.normal(jr.key(0), (change.shape[1], 24)))
    basis, _ = np.linalg.qr(change @ probe)
    return np.linalg.svd(basis.T @ change, compute_uv=False)[:count]


def third_order(taus, target: float, g: float):
    """Readout and two singular values to third order, frozen where the readout first exceeds the target."""
    z = np.asarray(theory.readout(taus, target, g))
    values = np.asarray(theory.singular_values(taus, target, g))
    beyond = np.abs(z) > abs(target)
    if beyond.any():
        first = int(np.argmax(beyond))
        z = np.where(np.arange(z.size) >= first, target, z)
        values = np.where(np.arange(z.size)[:, None] >= first, values[max(first - 1, 0)], values)
    return z, values


def learning_curves(target: float, g: float, neurons: int, seed: int):
    """What Figs. 3 and S3 share: loss and singular values in simulation, third order and infinite width.

    Returns
    -------
    The variables, the learning times and the simulated changes at the snapshots.
    """
    w0, m, w = network(neurons, g, seed)
    rate, every = ETA0[target] * (1 - g**2) ** 2, 10
    changes, losses, outputs = simulate(w0, m, w, target, rate, every=every)
    epoch = np.arange(EPOCHS)
    snapshot = np.arange(0, EPOCHS + 1, every)
    # All times in one call, convergence last: every length of ``taus`` is one more compilation.
    taus = jnp.asarray(np.append(rate * np.concatenate([epoch, snapshot]), np.inf))
    limit = theory.infinite_width_flow(target, g, taus)
    readout, _ = third_order(taus[:EPOCHS], target, g)
    _, values = third_order(taus[EPOCHS:-1], target, g)
    variables = {
        "epoch": ("epoch", epoch),
        "snapshot": ("snapshot", snapshot),
        "mode": ("mode", np.arange(1, 6)),
        "effective_time": ("epoch", rate * epoch / (1 - g**2) ** 2),
        "snapshot_time": ("snapshot", rate * snapshot / (1 - g**2) ** 2),
        "loss": ("epoch", losses / (target**2 / 2)),
        "readout": ("epoch", outputs),
        "limit": ("epoch", limit.readout[:EPOCHS]),
        "third": ("epoch", readout),
        "values": (("snapshot", "mode"), np.stack([leading(change) for change in changes])),
        "limit_values": (("snapshot", "mode"), limit.singular_values[EPOCHS:-1, :5]),
        "converged_values": ("mode", limit.singular_values[-1, :5]),
        "third_values": (("snapshot", "pair"), values),
        "pair": ("pair", [1, 2]),
    }
    return variables, taus, changes


def finite_step_gap(target: float, g: float, neurons: int, seed: int) -> tuple[float, float]:
    """Largest distance of descent from the flow of its own weights, and its step over the critical one."""
    w0, m, w = network(neurons, g, seed)
    rate = ETA0[target] * (1 - g**2) ** 2
    # As many times as in ``learning_curves``: one compilation for both.
    taus = jnp.asarray(np.append(rate * np.arange(EPOCHS + 21.0), np.inf))
    descent = theory.descent(w0, m, w, target, rate, EPOCHS - 1).readout
    flow = theory.exact_flow(w0, m, w, target, taus).readout[:EPOCHS]
    ratio = rate / theory.critical_step(w0, m, w, target)
    return float(jnp.max(jnp.abs(descent - flow)) / abs(target)), float(ratio)


def simple_task(target: float, g: float, neurons: int, seed: int):
    """Everything that Fig. 3 shows of one network: also its own map and flow, and what it has learned."""
    variables, taus, changes = learning_curves(target, g, neurons, seed)
    w0, m, w = network(neurons, g, seed)
    rate = float(taus[1])
    left, size, right = np.linalg.svd(changes[-1])
    truncated = np.asarray(w0) + size[0] * np.outer(left[:, 0], right[0])
    rank_one = w @ jnp.linalg.solve(jnp.eye(neurons) - truncated, m)
    steps = int(101 / DT)
    # The gap depends on the network: several of them, by the map that is exact for long trials.
    gaps = np.array([finite_step_gap(target, g, neurons, GAPS * seed + k) for k in range(GAPS)])
    return variables | {
        "step_gap": ("network", gaps[:, 0]),
        "rate_over_critical": ("network", gaps[:, 1]),
        "time": ("time", DT * np.arange(1, steps + 1)),
        "descent": ("epoch", theory.descent(w0, m, w, target, rate, EPOCHS - 1).readout),
        "flow": ("epoch", theory.exact_flow(w0, m, w, target, taus).readout[:EPOCHS]),
        "trained_output": ("time", output(w0 + jnp.asarray(changes[-1]), m, w, steps)),
        "rank_one_loss": ((), (1 - rank_one / target) ** 2),
    }
