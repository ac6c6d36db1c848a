"""Operators of recurrent networks against the naive way, or the authors' package, in one run on one core.

Run as ``python benchmarks/bench_operators.py [rate gru lstm]`` (N = 256, 30 trials, 90 steps, float32),
or with ``memory`` for one large network (N = 1000, 100 trials, 100 steps). The naive way stores the
Jacobian of every step and calls SciPy's ``svds`` on the matrix-free operator, for ten modes of P and twenty
of K, each run whole (a quarter of an hour for the modes of P of an LSTM). Compilation and the one check of
each new flow are left out of all times, which are CPU seconds of the process (pin it to one core); medians of
several runs where a run takes less than a second.

With ``--kpflow`` the other side is the package of the authors of hazelden2025, if it is installed: its P with
stored Jacobians, its K, and its ``svd``, on the same network, inputs and states.

"all modes of K" times ``operators.consensus(K).values``: the gains and features of every state, their Gram
matrix and all its eigenvalues, no modes. "plain program" is the least one can write for a rate network in
JAX, features and eigenvalues of their Gram matrix: a yardstick for machines.
"""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import platform
import resource
import statistics
import time
from importlib.util import find_spec

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
    """Ten modes of P by SciPy from a product and its adjoint."""
    size = int(np.prod(shape))

    def apply(function):
        return lambda v: np.asarray(function(jnp.asarray(v, jnp.float32).reshape(shape))).ravel()

    operator = LinearOperator((size, size), matvec=apply(product), rmatvec=apply(adjoint), dtype=np.float32)
    return svds(operator, k=10, tol=1e-2, return_singular_vectors="u", rng=np.random.default_rng(0))[1]


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


def once(function):
    """Result and time of one call."""
    start = time.process_time()
    found = function()
    return found, time.process_time() - start


def gap(ours, theirs):
    """Largest difference, as a share of the largest number."""
    ours = np.asarray(ours)
    return float(np.max(np.abs(ours - np.asarray(theirs))) / np.max(np.abs(ours)))


def show(task, mine, other=None, difference=None):
    line = f"  {task:30} {mine:9.4f} s"
    if other is not None:
        line += f"   other {other:9.3f} s   ratio {other / mine:7.1f}"
    print(line + (f"   gap {difference:.1e}" if difference is not None else ""), flush=True)


def compare(name, other):
    """Time our operators, then those of the other side; ``other`` yields (task, seconds, gap)."""
    flow = flow_of(name)
    P, K = flow.propagator, flow.parameter_operator
    q = jr.normal(jr.key(2), flow.states.shape, jnp.float32)
    print(f"\n{name}: states {flow.states.shape}")
    ours = {
        "P product": seconds(lambda: P @ q),
        "P* product": seconds(lambda: P.T @ q),
        "K product": seconds(lambda: K @ q),
        "P K P* product": seconds(lambda: (P @ K @ P.T) @ q),
        "all modes of K": seconds(lambda: operators.consensus(K).values, 15),
        "60 modes and trace of K": seconds(lambda: operators.consensus(K).top(60).values),
        "ten modes of P": seconds(lambda: modes_of_p(P).values, 3),
    }
    if name == "rate":
        plain = seconds(lambda: plain_modes_of_k(flow.states, flow.inputs), 15)
        ours["all modes of K, plain program"] = plain
        assert gap(operators.consensus(K).values[:20], plain_modes_of_k(flow.states, flow.inputs)[:20]) < 1e-5
    theirs, gaps = {}, {}
    for task, time_of_other, difference in other(name, flow, q):
        theirs[task], gaps[task] = time_of_other, difference
        show(task, ours[task.partition(" (")[0]], time_of_other, difference)
    compared = {task.partition(" (")[0] for task in theirs}
    for task in [task for task in ours if task not in compared]:
        show(task, ours[task])
    return {"ours": ours, "other": theirs, "gaps": gaps}


def naive(name, flow, q):
    """Stored Jacobians, and SciPy on products with them."""
    P, K = flow.propagator, flow.parameter_operator
    modes, spent = once(lambda: naive_modes_of_k(K, flow.states.shape))
    difference = gap(operators.consensus(K).values[:20], np.sort(modes)[::-1])
    for task in ("all modes of K", "60 modes and trace of K"):
        yield task, spent, difference
    jacobians = stored_jacobians(flow)
    forward, back = lambda q: stored_product(jacobians, q), lambda r: stored_adjoint(jacobians, r)
    yield "P product", seconds(lambda: forward(q)), gap(P @ q, forward(q))
    yield "P* product", seconds(lambda: back(q)), gap(P.T @ q, back(q))
    values, spent = once(lambda: svds_of_p(forward, back, flow.states.shape))
    yield "ten modes of P", spent, gap(modes_of_p(P).values, np.sort(values)[::-1])


def kpflow(name, flow, q):
    """The authors' package, by its public names.

    Its K sums over trials where ours takes the mean. Its P is linearised at the states it is given: here
    those before each step. Its ``svd`` of K over (trial, time) averages over copies along the units, which
    for these cells is the trace; by default it takes roots of the modes of K K*, with ``grammian=False`` the
    modes of K.
    """
    import torch
    from kpflow.architecture import BasicRNNCell
    from kpflow.parameter_op import ParameterOperator
    from kpflow.propagation_op import PropagationOperator_LinearForm

    torch.set_num_threads(1)

    def tensor(array):
        return torch.from_numpy(np.array(array))

    params = flow.model.params
    weights = {"weight_ih": params["w_in"].T, "weight_hh": params["w"]}
    if name == "rate":
        cell = BasicRNNCell(*params["w_in"].shape)
    else:
        cell = torch.nn.GRUCell(params["w_in"].shape[0], params["w"].shape[1])
        weights |= {"bias_ih": params["b_in"], "bias_hh": params["b"]}
    with torch.no_grad():
        for leaf, value in weights.items():
            getattr(cell, leaf).copy_(tensor(value))
    P, K = flow.propagator, flow.parameter_operator
    their_p = PropagationOperator_LinearForm(cell, tensor(flow.inputs), tensor(flow.states_before))
    their_k = ParameterOperator(cell, tensor(flow.inputs), tensor(flow.states))
    their_pkp, batch, r = their_p @ their_k @ their_p.T, len(flow.inputs), tensor(q)
    yield "P product", seconds(lambda: their_p(r)), gap(P @ q, their_p(r))
    yield "P* product", seconds(lambda: their_p.adjoint_call(r)), gap(P.T @ q, their_p.adjoint_call(r))
    yield "K product", seconds(lambda: their_k(r)), gap(K @ q, their_k(r) / batch)
    yield "P K P* product", seconds(lambda: their_pkp(r)), gap((P @ K @ P.T) @ q, their_pkp(r) / batch)
    of_k = operators.consensus(K).values[:20]
    for note, keywords in (("", {}), (" (grammian=False)", {"grammian": False})):
        values, spent = once(lambda k=keywords: their_k.svd(20, keep_dims=(0, 1), **k))
        for task in ("all modes of K", "60 modes and trace of K"):
            yield task + note, spent, gap(of_k, values / batch)
    values, spent = once(lambda: their_p.svd(10, tol=1e-2))
    yield "ten modes of P", spent, gap(modes_of_p(P).values, values)


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


def main():
    parser = argparse.ArgumentParser(description="Operators against the naive way, or the authors' package.")
    parser.add_argument("cases", nargs="*", metavar="CASE", help="rate, gru, lstm, memory; all by default")
    parser.add_argument("--kpflow", action="store_true", help="compare with that package: rate and gru only")
    given = parser.parse_args()
    cases = given.cases or (["rate", "gru"] if given.kpflow else [*CELLS, "memory"])
    if unknown := set(cases) - {*CELLS, "memory"}:
        parser.error(f"unknown cases {sorted(unknown)}: choose from {[*CELLS, 'memory']}.")
    if given.kpflow and not {"rate", "gru"}.issuperset(cases):
        parser.error("--kpflow goes with rate and gru: the package has no LSTM.")
    missing = [name for name in ("torch", "kpflow") if given.kpflow and find_spec(name) is None]
    if missing:
        parser.error(f"--kpflow needs {missing}: install PyTorch and put the authors' package on PYTHONPATH.")
    print(f"{platform.machine()}, JAX {jax.__version__}, {len(os.sched_getaffinity(0))} cores, float32")
    other = kpflow if given.kpflow else naive
    results = {name: memory() if name == "memory" else compare(name, other) for name in cases}
    print(json.dumps(results))


if __name__ == "__main__":
    main()
