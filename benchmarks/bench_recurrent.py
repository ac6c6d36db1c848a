# ruff: noqa: E402
"""Training a rate network on the flip-flop task: this library against a plain PyTorch loop, on one thread.

Run as ``python benchmarks/bench_recurrent.py [sizes]``. Both train W, the inputs and the readout with Adam on
32 fresh trials an epoch; epochs of the two alternate in blocks, so that a busy machine slows both alike.
Bars: 6 times faster at N = 64, 3 times at 128, 1.8 times at 256. The table also has the hand-written adjoint
against autodiff of the same scan, and many networks at once against one after the other.
"""

import os

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = "1"

import json
import platform
import statistics
import sys
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import torch

from nullcline import recurrent

BARS = {64: 6.0, 128: 3.0, 256: 1.8}
EPOCHS, BLOCKS, BATCH = 20, 7, 32
TASK = recurrent.FlipFlop()


def torch_trials(generator: np.random.Generator) -> tuple[torch.Tensor, ...]:
    """Draw a batch as a plain loop would: trial by trial, pulse by pulse."""
    inputs, targets, mask = (np.zeros((BATCH, 100, 2), np.float32) for _ in range(3))
    for trial in range(BATCH):
        onset = 2
        while onset < 100:
            following = onset + int((generator.uniform(5, 25) + 5) / 0.5)
            channel, sign = generator.integers(2), generator.choice([-1.0, 1.0])
            inputs[trial, onset : onset + 2, channel] = sign
            targets[trial, onset + 10 : following, channel] = 0.5 * sign
            mask[trial, onset + 10 : following] = 1
            onset = following
    return torch.from_numpy(inputs), torch.from_numpy(targets), torch.from_numpy(mask)


class TorchLoop:
    """The network and its training as a plain PyTorch program."""

    def __init__(self, cell: recurrent.RateCell):
        self.w_in, self.w, self.w_out = (
            torch.nn.Parameter(torch.tensor(np.array(a))) for a in (cell.w_in, cell.w, cell.w_out)
        )
        self.optimizer = torch.optim.Adam([self.w_in, self.w, self.w_out], lr=0.05 / cell.hidden)
        self.generator = np.random.default_rng(0)

    def train(self, epochs: int) -> None:
        """Take ``epochs`` steps of Adam."""
        for _ in range(epochs):
            inputs, targets, mask = torch_trials(self.generator)
            state = torch.zeros(BATCH, self.w.shape[0])
            outputs = []
            for step in range(inputs.shape[1]):
                drive = torch.tanh(state) @ self.w.T + inputs[:, step] @ self.w_in
                state = 0.5 * state + 0.5 * drive
                outputs.append(torch.tanh(state) @ self.w_out)
            error = mask * (torch.stack(outputs, dim=1) - targets) ** 2
            loss = error.sum() / (2 * mask.sum())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()


def plain_training(cell: recurrent.RateCell):
    """One jitted scan over epochs with autodiff of the scan over time: the reference for the adjoint."""

    @eqx.filter_jit
    def train(cell, key):
        def epoch(cell, key):
            trials = TASK.sample_for(cell, BATCH, key=key)

            def objective(cell):
                return recurrent.loss(recurrent.run(cell, trials.inputs)[1], trials)

            gradient = eqx.filter_grad(objective)(cell)
            return jax.tree.map(lambda p, d: p - 1e-4 * d, cell, gradient), None

        return jax.lax.scan(epoch, cell, jr.split(key, EPOCHS))[0]

    return lambda: jax.block_until_ready(train(cell, jr.key(0)).w)


def timed(function) -> float:
    start = time.perf_counter()
    function()
    return (time.perf_counter() - start) / EPOCHS * 1e3


def measure(hidden: int) -> dict[str, float]:
    cells = [
        recurrent.rate_cell(2, hidden, 2, g=0.9, dtype=jnp.float32, key=jr.key(seed)) for seed in range(5)
    ]
    loop = TorchLoop(cells[0])

    def many(method):
        result = recurrent.train_many(cells, TASK, steps=EPOCHS, method=method, key=jr.key(1))
        jax.block_until_ready(result.losses)

    contenders = {
        "torch": lambda: loop.train(EPOCHS),
        "train": lambda: jax.block_until_ready(
            recurrent.train(cells[0], TASK, steps=EPOCHS, key=jr.key(1)).losses
        ),
        "autodiff": plain_training(cells[0]),
        "map": lambda: many("map"),
        "vmap": lambda: many("vmap"),
    }
    compile_s = {}
    for name, function in contenders.items():
        start = time.perf_counter()
        function()
        compile_s[name] = time.perf_counter() - start
    times = {name: [] for name in contenders}
    for _ in range(BLOCKS):
        for name, function in contenders.items():
            times[name].append(timed(function))
    median = {name: statistics.median(values) for name, values in times.items()}
    ratio = statistics.median(a / b for a, b in zip(times["torch"], times["train"], strict=True))
    return {
        "hidden": hidden,
        "torch_ms": round(median["torch"], 2),
        "nullcline_ms": round(median["train"], 2),
        "ratio": round(ratio, 2),
        "bar": BARS.get(hidden, float("nan")),
        "adjoint_gain": round(median["autodiff"] / median["train"], 2),
        "map_ms_per_network": round(median["map"] / 5, 2),
        "vmap_ms_per_network": round(median["vmap"] / 5, 2),
        "first_call_s": round(compile_s["train"], 2),
    }


def main() -> int:
    torch.set_num_threads(1)
    sizes = [int(size) for size in sys.argv[1:]] or list(BARS)
    rows = [measure(size) for size in sizes]
    machine = f"{platform.machine()}, {platform.system()}, jax {jax.__version__}, torch {torch.__version__}"
    print(json.dumps({"task": "flip-flop, batch 32, one thread", "machine": machine, "rows": rows}, indent=1))
    return 0 if all(not row["ratio"] < row["bar"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
