"""Operators of recurrent networks against the naive way, in one run on one core.

Run as ``python benchmarks/bench_operators.py [rate gru lstm]`` (N = 256, 30 trials, 90 steps, float32),
or with ``memory`` for one large network (N = 1000, 100 trials, 100 steps). The naive way stores the
Jacobian of every step and calls SciPy's ``svds`` on the matrix-free operator, for ten modes of P and twenty
of K. Compilation and the one check of each new flow are left out of all times, which are CPU seconds of the
process (pin it to one core); medians of several runs where a run takes less than a second.

"all modes of K" times ``operators.consensus(K).values``: the factors of every state, their Gram matrix and
all its eigenvalues, no modes. "plain program" is the least one can write for a rate network in JAX, features
and eigenvalues of their Gram matrix: a yardstick for machines.

With the stored Jacobians of an LSTM (2.8 GB) ``svds`` would take a quarter of an hour. Its time is put
together from three that are measured: ``svds`` on our P, the same operator and start, so the same products,
which are counted; less our time for that many products, plus the naive time for them. The same sum is printed
for the other cells, beside the time of the whole naive run, to show how far it can be trusted.
"""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import json
import platform
import resource
import statistics
import sys
import time

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from scipy.sparse.linalg import LinearOperator, svds

from nullcline import operators, recurrent

CELLS = {
    "rate": lambda n, key: recurrent.rate_cell(3, n, 3, g=1.0, dt=1.0, dtype=jnp.float32, key=key),
    "gru": lambda n, key: recurrent.gru_cell(3, n, 3, dtype=jnp.float32, key=key),
    "lstm": lambda n, key: recurrent.lstm_cell(3, n, 3, dtype=jnp.float32, key=key),
}

PUT_TOGETHER = ("lstm",)
"""Cells whose naive modes of P are not run whole."""


def seconds(function, repeats=5):
    """Median time of a call after a first one; a single timed call if it takes longer than a second."""
    jax.block_until_ready(function())
    times = []
    for _ in range(repeats):
        start = time.process_time()
        jax.block_until_ready(function())
        times.append(time.process_time() - start)
        if times[-1] > 1:
            break
    return statistics.median(times)


def flow_of(name, hidden=256, batch=30, steps=90):
    key = jr.key(0)
    inputs = jr.normal(jr.fold_in(key, 1), (batch, steps, 3), jnp.float32)
    return operators.linearize(CELLS[name](hidden, key), inputs)


@jax.jit
def stored_jacobians(flow):
    jacobian = jax.jacrev(lambda z, x: flow.model.step({}, z, x))
    rows = (jnp.swapaxes(flow.states_before, 0, 1), jnp.swapaxes(flow.inputs, 0, 1))
    return jax.lax.map(lambda row: jax.vmap(jacobian)(*row), rows)


@jax.jit
def stored_product(jacobians, q):
    def step(p, now):
        p = jnp.einsum("bij,bj->bi", now[0], p) + now[1]
        return p, p

    return jnp.swapaxes(
        jax.lax.scan(step, jnp.zeros_like(q[:, 0]), (jacobians, jnp.swapaxes(q, 0, 1)))[1], 0, 1
    )


@jax.jit
def stored_adjoint(jacobians, r):
    def step(carry, now):
        a = carry + now[1]
        return jnp.einsum("bji,bj->bi", now[0], a), a

    start = jnp.zeros_like(r[:, 0])
    return jnp.swapaxes(jax.lax.scan(step, start, (jacobians, jnp.swapaxes(r, 0, 1)), reverse=True)[1], 0, 1)


def modes_of_p(P):
    # Residuals of 1 %: singular values are then right to about 1e-4, on both sides of the comparison.
    return operators.spectrum(P, 10, with_modes=False, tolerance=1e-2)


def svds_of_p(product, adjoint, shape):
    """Ten modes of P by SciPy from a product and its adjoint; the values, CPU seconds, products of each."""
    size, counts = int(np.prod(shape)), [0, 0]

    def apply(which, function):
        def product(v):
            counts[which] += 1
            return np.asarray(function(jnp.asarray(v, jnp.float32).reshape(shape))).ravel()

        return product

    operator = LinearOperator(
        (size, size), matvec=apply(0, product), rmatvec=apply(1, adjoint), dtype=np.float32
    )
    start = time.process_time()
    values = svds(operator, k=10, tol=1e-2, return_singular_vectors="u", rng=np.random.default_rng(0))[1]
    return values, time.process_time() - start, counts


@jax.jit
def plain_modes_of_k(states, inputs):
    """All modes of K of a rate network (dt = 1) over (trial, time), as one would write it down."""
    before = jnp.concatenate([jnp.zeros_like(states[:, :1]), states[:, :-1]], axis=1)
    features = jnp.concatenate([inputs, jnp.tanh(before)], axis=2)
    features = features.reshape(-1, features.shape[2])
    return jnp.linalg.eigvalsh(features.T @ features / len(states))[::-1]


def naive_modes_of_k(K, shape, hidden=256):
    """Twenty modes over (trial, time), each product by copies along the units.

    The state of an LSTM has two components per unit, which K mixes: one product for each.
    """
    rows, size = shape[0] * shape[1], shape[2]
    masks = [jnp.repeat(jnp.eye(size // hidden, dtype=jnp.float32)[i], hidden) for i in range(size // hidden)]

    def apply(v):
        v = jnp.asarray(v, jnp.float32).reshape(*shape[:2], 1)
        return np.asarray(sum((K @ (v * mask)) @ mask for mask in masks) / size).ravel()

    operator = LinearOperator((rows, rows), matvec=apply, rmatvec=apply, dtype=np.float32)
    return svds(operator, k=20, tol=1e-2, return_singular_vectors="u", rng=np.random.default_rng(0))[1]


def compare(name):
    flow = flow_of(name)
    P, K = flow.propagator, flow.parameter_operator
    q = jr.normal(jr.key(2), flow.states.shape, jnp.float32)
    ours = {
        "P product": seconds(lambda: P @ q),
        "P* product": seconds(lambda: P.T @ q),
        "K product": seconds(lambda: K @ q),
        "all modes of K": seconds(lambda: operators.consensus(K).values, 15),
        "60 modes and trace of K": seconds(lambda: operators.consensus(K).top(60).values),
        "ten modes of P": seconds(lambda: modes_of_p(P).values, 3),
    }
    of_k, of_p = np.asarray(operators.consensus(K).values[:20]), np.asarray(modes_of_p(P).values)
    if name == "rate":
        ours["all modes of K, plain program"] = seconds(
            lambda: plain_modes_of_k(flow.states, flow.inputs), 15
        )
        plain = np.asarray(plain_modes_of_k(flow.states, flow.inputs))[:20]
        assert np.max(np.abs(plain - of_k)) < 1e-5 * of_k[0]
    naive = {}
    start = time.process_time()
    modes = naive_modes_of_k(K, flow.states.shape)
    naive["all modes of K"] = naive["60 modes and trace of K"] = time.process_time() - start
    jacobians = stored_jacobians(flow)
    forward, back = lambda q: stored_product(jacobians, q), lambda r: stored_adjoint(jacobians, r)
    naive["P product"], naive["P* product"] = seconds(lambda: forward(q)), seconds(lambda: back(q))
    gap = float(jnp.max(jnp.abs(forward(q) - P @ q)) / jnp.max(jnp.abs(P @ q)))
    values, whole, counts = svds_of_p(lambda q: P @ q, lambda r: P.T @ r, flow.states.shape)
    slower = [naive[task] - ours[task] for task in ("P product", "P* product")]
    naive["ten modes of P"] = put_together = whole + float(np.dot(counts, slower))
    if name not in PUT_TOGETHER:
        values, naive["ten modes of P"], _ = svds_of_p(forward, back, flow.states.shape)
    gaps = {
        "P product": gap,
        "all modes of K": float(np.max(np.abs(np.sort(modes)[::-1] - of_k)) / of_k[0]),
        "ten modes of P": float(np.max(np.abs(np.sort(values)[::-1] - of_p)) / of_p[0]),
    }
    print(f"\n{name}: states {flow.states.shape}")
    for task, mine in ours.items():
        if task in naive:
            note = f"  relative gap {gaps[task]:.1e}" if task in gaps else ""
            ratio = naive[task] / mine
            print(f"  {task:30} {mine:9.4f} s   naive {naive[task]:9.3f} s   ratio {ratio:7.1f}{note}")
        else:
            print(f"  {task:30} {mine:9.4f} s")
    print(f"  svds on our P {whole:.1f} s with {counts} products; naive, put together: {put_together:.1f} s")
    if name in PUT_TOGETHER:
        print("  the naive time of ten modes of P is the one put together")
    return {"ours": ours, "naive": naive, "gaps": gaps, "products": counts, "put together": put_together}


def memory():
    start = time.perf_counter()  # all of it, compilation included
    flow = flow_of("rate", 1000, 100, 100)
    P, K = flow.propagator, flow.parameter_operator
    q = jr.normal(jr.key(2), flow.states.shape, jnp.float32)
    found = {"linearize": time.perf_counter() - start}
    for task, function in {
        "P product": lambda: P @ q,
        "K product": lambda: K @ q,
        "PKP* product": lambda: (P @ K @ P.T) @ q,
        "all modes of K": lambda: operators.consensus(K).values,
        "five modes of P": lambda: operators.spectrum(P, 5, with_modes=False).values,
        "effective rank of P": lambda: operators.effective_rank(P, probes=2, steps=15).rank,
    }.items():
        start = time.perf_counter()
        jax.block_until_ready(function())
        found[task] = time.perf_counter() - start
    found["peak memory in GB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"\nmemory: states {flow.states.shape}, a dense operator would have {flow.states.size**2:.0e} entries"
    )
    for task, value in found.items():
        print(f"  {task:20} {value:8.2f}")
    return found


def main(names):
    print(f"{platform.machine()}, JAX {jax.__version__}, {len(os.sched_getaffinity(0))} cores, float32")
    results = {name: memory() if name == "memory" else compare(name) for name in names}
    print(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1:] or [*CELLS, "memory"])
