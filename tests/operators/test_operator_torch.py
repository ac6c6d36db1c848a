"""Modules of PyTorch under the operators: states, gradients and K as PyTorch itself has them."""

import copy

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import torch

from nullcline import operators

B, T, N, H = 3, 4, 2, 3
ETAS = (1e-3, 5e-4)
WEIGHTS = np.array([0.5, 0.2, 0.3])
CASES = {
    "rnn": lambda: torch.nn.RNN(N, H, batch_first=True),
    "relu": lambda: torch.nn.RNN(N, H, 2, "relu", bias=False),
    "gru": lambda: torch.nn.GRU(N, H, 2, batch_first=True),
    "lstm": lambda: torch.nn.LSTM(N, H),
    "stack": lambda: torch.nn.LSTM(N, H, 3, bias=False),
}


def close(actual, expected, rtol=1e-13):
    expected = np.asarray(expected)
    np.testing.assert_allclose(np.asarray(actual), expected, rtol=0, atol=rtol * np.abs(expected).max())


class Adapting(torch.nn.Module):
    """A custom cell: a pair as its state, a buffer, a scalar parameter, and a layer that it does not use."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = torch.nn.Linear(H, H, bias=False), torch.nn.Linear(N, H)
        self.strength = torch.nn.Parameter(torch.tensor(0.4))
        self.readout = torch.nn.Linear(H, 2)
        self.register_buffer("decay", torch.linspace(0.5, 0.9, H))

    def forward(self, x, state):
        h, a = state
        h = torch.tanh(self.inner(h) + self.outer(x) - self.strength * a * h)
        return h, self.decay * a + h**2


def data(module):
    """Inputs and an initial state as the module takes them."""
    torch.manual_seed(1)
    x = torch.randn(B, T, N, dtype=torch.float64)
    start = 0.3 * torch.randn(2, module.num_layers, B, H, dtype=torch.float64)
    start = tuple(start) if isinstance(module, torch.nn.LSTM) else start[0]
    return x if module.batch_first else x.transpose(0, 1), start


def states_of(module, x, start):
    """All states of all layers, (batch, time, hidden), by running PyTorch up to every step."""
    rows = []
    for t in range(1, T + 1):
        last = module(x[:, :t] if module.batch_first else x[:t], start)[1]
        parts = torch.stack(last, 1) if isinstance(last, tuple) else last[:, None]  # layer, (h, c), batch
        rows.append(parts.permute(2, 0, 1, 3).reshape(B, -1))
    return torch.stack(rows, 1)


def loss_of(module, readout, x, start, targets):
    top = module(x, start)[0]
    y = readout(top if module.batch_first else top.transpose(0, 1))
    return (torch.as_tensor(WEIGHTS) * ((y - targets) ** 2).sum((1, 2))).sum()


@pytest.fixture(
    scope="module", params=["rnn", "relu", "gru", "lstm", pytest.param("stack", marks=pytest.mark.slow)]
)
def case(request):
    torch.manual_seed(0)
    module = CASES[request.param]().double()
    readout = torch.nn.Linear(H, 2).double()
    x, start = data(module)
    flow = operators.from_torch(module, x, start, jnp.asarray(WEIGHTS), readout=readout)
    return module, readout, x, start, flow


def test_states_leaves_and_gradients_are_those_of_torch(case):
    module, readout, x, start, flow = case
    close(flow.states, states_of(module, x, start).detach())
    names = [name for name, _ in module.named_parameters()]
    assert sorted(flow.model.step_names) == sorted(names)
    assert flow.model.readout_names == ("readout.bias", "readout.weight")
    targets = torch.randn(B, T, 2, dtype=torch.float64)
    close(flow.outputs, readout(states_of(module, x, start)[..., top_of(module)]).detach())
    y = jnp.asarray(targets.numpy())
    gradient = flow.gradient(y, jnp.ones_like(y))
    expected = torch.autograd.grad(loss_of(module, readout, x, start, targets), list(module.parameters()))
    for name, found in zip(names, expected, strict=True):
        close(gradient[name], found, 1e-12)


def top_of(module):
    width = 2 * H if isinstance(module, torch.nn.LSTM) else H
    return slice((module.num_layers - 1) * width, (module.num_layers - 1) * width + H)


def test_a_step_of_torch_changes_the_states_as_predicted(case):
    module, readout, x, start, flow = case
    targets = torch.ones(B, T, 2, dtype=torch.float64)
    y = jnp.asarray(targets.numpy())
    change = np.asarray(flow.predicted_change(y, jnp.ones_like(y)))
    gaps = []
    for eta in ETAS:
        moved = copy.deepcopy(module)
        loss_of(moved, readout, x, start, targets).backward()
        torch.optim.SGD(moved.parameters(), lr=eta).step()
        after = states_of(moved, x, start).detach().numpy()
        gaps.append(np.linalg.norm((after - np.asarray(flow.states)) / eta - change))
    assert gaps[0] < 0.05 * np.linalg.norm(change) and 1.9 < gaps[0] / gaps[1] < 2.1


def dense_tangent(step, params, before, x):
    """Rows (trial, time, component), columns all parameters, by reverse differentiation in PyTorch."""
    rows = []
    for z, now in zip(before.reshape(-1, before.shape[2]), x.reshape(-1, N), strict=True):
        for value in step(z[None], now[None])[0]:
            grads = torch.autograd.grad(value, params, retain_graph=True, allow_unused=True)
            parts = [torch.zeros_like(p) if g is None else g for g, p in zip(grads, params, strict=True)]
            rows.append(torch.cat([part.flatten() for part in parts]))
    return torch.stack(rows).numpy()


@pytest.mark.parametrize("name", ["gru", "lstm"])
def test_k_is_made_of_the_jacobians_of_torch(name):
    torch.manual_seed(0)
    module = CASES[name]().double()
    x, start = data(module)
    flow = operators.from_torch(module, x, start, jnp.asarray(WEIGHTS))
    layers, is_pair = module.num_layers, name == "lstm"

    def step(z, now):
        parts = z.reshape(1, layers, -1, H).permute(1, 2, 0, 3).contiguous()  # layer, (h, c), batch
        state = (parts[:, 0].contiguous(), parts[:, 1].contiguous()) if is_pair else parts[:, 0].contiguous()
        after = module(now[:, None] if module.batch_first else now[None], state)[1]
        after = torch.stack(after, 1) if is_pair else after[:, None]
        return after.permute(2, 0, 1, 3).reshape(1, -1)

    before = torch.as_tensor(np.array(flow.states_before))
    rows = x if module.batch_first else x.transpose(0, 1)
    tangent = dense_tangent(step, list(module.parameters()), before, rows)
    root = np.sqrt(np.repeat(WEIGHTS, T * flow.states.shape[2]))[:, None]
    white = (root * tangent) @ (root * tangent).T
    K = flow.parameter_operator
    close(K.whitened(), white)
    # Two biases, the same derivative: each counts.
    terms = K.terms
    q = jr.normal(jr.key(0), flow.states.shape)
    if is_pair:
        close(terms["bias_ih_l0"] @ q, terms["bias_hh_l0"] @ q)
        assert K.left.in_space.size == sum(p.numel() for p in module.parameters())
        found = operators.spectrum(K)
        assert found.method == "units"
        close(found.values, np.linalg.eigvalsh(white)[::-1][: len(found.values)])


@pytest.fixture(scope="module")
def custom():
    torch.manual_seed(0)
    module = Adapting().double()
    x = torch.randn(B, T, N, dtype=torch.float64)
    start = (torch.zeros(H), torch.full((H,), 0.2))
    return module, x, operators.from_torch(module, x, start, jnp.asarray(WEIGHTS), readout=module.readout)


def custom_states(module, x):
    state = (torch.zeros(B, H, dtype=torch.float64), torch.full((B, H), 0.2, dtype=torch.float64))
    rows = []
    for t in range(T):
        state = module(x[:, t], state)
        rows.append(torch.cat(state, 1))
    return torch.stack(rows, 1)


@pytest.fixture(scope="module")
def dense(custom):
    """G and P of the custom cell from Jacobians of PyTorch."""
    module, x, flow = custom
    params = [dict(module.named_parameters())[name] for name in flow.model.step_names]

    def step(z, now):
        return torch.cat(module(now, (z[:, :H], z[:, H:])), 1)

    before = torch.as_tensor(np.array(flow.states_before))
    tangent = np.sqrt(np.repeat(WEIGHTS, T * 2 * H))[:, None] * dense_tangent(step, params, before, x)
    jacobians = [
        torch.autograd.functional.jacobian(lambda z, i=i: step(z[None], x.reshape(-1, N)[i : i + 1])[0], row)
        for i, row in enumerate(before.reshape(-1, 2 * H))
    ]
    jacobians = torch.stack(jacobians).numpy().reshape(B, T, 2 * H, 2 * H)
    inverse = np.eye(B * T * 2 * H).reshape(B, T, 2 * H, B, T, 2 * H)
    for b in range(B):
        for t in range(1, T):
            inverse[b, t, :, b, t - 1, :] -= jacobians[b, t]
    return tangent @ tangent.T, np.linalg.inv(inverse.reshape(B * T * 2 * H, -1)), jacobians


def test_a_custom_cell_has_the_operators_of_torch(custom, dense):
    module, x, flow = custom
    white, propagator, _ = dense
    close(flow.states, custom_states(module, x).detach(), 1e-6)  # the start is given in float32
    # The readout is no part of the step.
    assert flow.model.step_names == ("inner.weight", "outer.bias", "outer.weight", "strength")
    q = jr.normal(jr.key(0), flow.states.shape)
    K, P, space = flow.parameter_operator, flow.propagator, flow.space
    close(space.to_vector(K @ q), white @ space.to_vector(q))
    close((P @ q).ravel(), propagator @ np.ravel(q))
    close((P.T @ q).ravel(), propagator.T @ np.ravel(q))


@pytest.mark.slow
def test_spectra_and_exponents_of_a_custom_cell(custom, dense):
    _, _, flow = custom
    white, propagator, jacobians = dense
    K, P = flow.parameter_operator, flow.propagator
    close(K.whitened(), white)
    # Without the closed forms: from the parameters, and matrix-free.
    whole = operators.spectrum(K)
    assert whole.method == "dense"
    close(whole.values, np.linalg.eigvalsh(white)[::-1][: len(whole.values)])
    top = operators.spectrum(P, 2, method="krylov", tolerance=1e-6)
    close(top.values, np.linalg.svd(propagator, compute_uv=False)[:2], 1e-9)
    total = np.linalg.slogdet(jacobians)[1].mean(axis=1)
    close(jnp.sum(operators.lyapunov(flow), axis=1), total, 1e-11)


def test_a_step_of_torch_moves_a_custom_cell_as_predicted(custom):
    module, x, flow = custom
    before = custom_states(module, x).detach()
    y = jnp.zeros((B, T, 2))
    change = np.asarray(flow.predicted_change(y, jnp.ones_like(y)))
    gaps = []
    for eta in ETAS:
        moved = copy.deepcopy(module)
        trained = [p for name, p in moved.named_parameters() if not name.startswith("readout")]
        outputs = moved.readout(custom_states(moved, x)[..., :H])
        (torch.as_tensor(WEIGHTS) * (outputs**2).sum((1, 2))).sum().backward()
        torch.optim.SGD(trained, lr=eta).step()
        after = custom_states(moved, x).detach()
        gaps.append(np.linalg.norm((after - before).numpy() / eta - change))
    # The start in float32 leaves 1e-8 relative to the change.
    assert gaps[0] < 0.05 * np.linalg.norm(change) and 1.9 < gaps[0] / gaps[1] < 2.1


@pytest.mark.parametrize("kind", ["GRU", pytest.param("LSTM", marks=pytest.mark.slow)])
def test_cells_of_equinox_are_those_of_torch_but_for_one_bias(kind):
    torch.manual_seed(0)
    module = getattr(torch.nn, kind)(N, H, batch_first=True).double()
    x = torch.randn(B, T, N, dtype=torch.float64)
    flow = operators.from_torch(module, x)
    w = {name: jnp.asarray(value.detach().numpy()) for name, value in module.named_parameters()}
    cell = getattr(eqx.nn, f"{kind}Cell")(N, H, key=jr.key(0))
    both = w["bias_ih_l0"] + w["bias_hh_l0"]
    bias = jnp.concatenate([both[: 2 * H], w["bias_ih_l0"][2 * H :]]) if kind == "GRU" else both
    cell = eqx.tree_at(
        lambda c: (c.weight_ih, c.weight_hh, c.bias), cell, (w["weight_ih_l0"], w["weight_hh_l0"], bias)
    )
    if kind == "GRU":
        cell = eqx.tree_at(lambda c: c.bias_n, cell, w["bias_hh_l0"][2 * H :])
    start = jnp.zeros(H) if kind == "GRU" else (jnp.zeros(H), jnp.zeros(H))
    merged = operators.linearize(lambda cell, z, x: cell(x, z), flow.inputs, start, params=cell)
    close(merged.states, flow.states, 1e-12)
    # The same function and the same weights, but K counts one bias instead of two.
    q = jr.normal(jr.key(0), flow.states.shape)
    close(merged.propagator @ q, flow.propagator @ q, 1e-12)
    ours, theirs = (f.parameter_operator.terms for f in (flow, merged))
    close(theirs["weight_hh"] @ q, ours["weight_hh_l0"] @ q, 1e-12)
    whole, less = (f.parameter_operator @ q for f in (flow, merged))
    assert np.linalg.norm(whole - less) > 1e-3 * np.linalg.norm(whole)


def test_float32_modules_compute_in_float32_or_as_asked():
    torch.manual_seed(0)
    cell = torch.nn.RNNCell(N, H)
    x = torch.randn(B, T, N)
    flow = operators.from_torch(cell, x)
    assert flow.states.dtype == jnp.float32
    h = cell(x[:, 0])
    close(flow.states[:, 0], h.detach(), 1e-6)
    exact = operators.from_torch(cell, x, torch.ones(B, H), dtype="float64")
    assert exact.states.dtype == jnp.float64
    close(exact.states[:, 0], cell.double()(x[:, 0].double(), torch.ones(B, H).double()).detach())


class Returns(torch.nn.Module):
    """A cell that returns outputs beside its state."""

    def __init__(self, result):
        super().__init__()
        self.w, self.result = torch.nn.Parameter(torch.eye(H)), result
        self.hidden_size, self.calls = H, 0

    def forward(self, x, h):
        h = torch.tanh(h @ self.w.T)
        self.calls += 1
        if self.result == "normal":
            return torch.nn.functional.batch_norm(h, None, None, training=True)
        return {
            "pair": (h, h),
            "short": h[:, :2],
            "mixed": h - h.mean(0),
            "random": h + torch.rand(()),
            "memory": h + self.calls,
            "fixed": 0.5 * h.detach(),
        }[self.result]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torch.nn.GRU(N, H, bidirectional=True), "bidirectional GRU: its states depend on later"),
        (lambda: torch.nn.LSTM(N, H, proj_size=2), "LSTM with proj_size = 2, which is not supported"),
        (lambda: torch.nn.RNN(N, H, 2, dropout=0.3), r"dropout = 0.3, training mode.*Call `module.eval\(\)`"),
        (
            lambda: torch.nn.utils.parametrizations.weight_norm(torch.nn.RNN(N, H), "weight_hh_l0"),
            "known are",
        ),
        (lambda: type("Mine", (torch.nn.GRU,), {})(N, H), "`module` is a Mine with parameters"),
        (lambda: np.eye(3), "`module` must be a torch.nn.Module, got ndarray"),
        (lambda: torch.nn.RNN(N + 1, H), r"with 3 inputs, as `weight_ih_l0` has columns; got \(4, 3, 2\)"),
        (lambda: torch.nn.Tanh(), r"`module` \(Tanh\) has no floating-point parameter"),
        (lambda: torch.nn.Bilinear(H, H, H), "`initial_state` is needed: `module` .Bilinear. has no"),
        (lambda: Returns("pair"), r"return the next state alone.*got \[\(2, 3\), \(2, 3\)\]"),
        (lambda: Returns("short"), r"tensors of shape \[\(2, 3\)\] for 2 rows, got \[\(2, 2\)\]"),
        (lambda: Returns("mixed"), "mixes the rows of its batch"),
        (lambda: Returns("normal"), r"mixes the rows of its batch .*call `module.eval\(\)`"),
        (lambda: Returns("random"), "different results for the same arguments: it draws random numbers"),
        (lambda: Returns("memory"), "or keeps state of its own"),
        (lambda: Returns("fixed"), "No parameter of `module` .Returns. reaches its next state"),
    ],
)
def test_from_torch_refuses(make, message):
    with pytest.raises(ValueError, match=message):
        operators.from_torch(make(), torch.zeros(B, T, N))


@pytest.mark.slow
def test_dropout_of_a_module_that_is_evaluated_is_allowed():
    module = torch.nn.RNN(N, H, 2, dropout=0.3).eval()
    assert operators.from_torch(module, torch.zeros(T, B, N)).states.shape == (B, T, 2 * H)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            dict(initial_state=np.zeros((1, B, H))),
            r"a pair \(h, c\) of shape .* = \(1, 3, 3\), got \[\(1, 3, 3\)\]",
        ),
        (dict(readout=(np.zeros((2, H + 1)), None)), r"W of shape \(outputs, 3\), got \(2, 4\)"),
        (dict(readout=(np.zeros((2, H)), np.zeros(3))), r"b must have shape \(2,\), got \(3,\)"),
        (dict(readout=3.0), r"must be a pair \(W, b\) or an `nn.Linear`"),
        (dict(prefix="rnn."), "There is no `rnn.weight_hh_l0` among the weights"),
        (dict(nonlinearity="sigmoid"), "`nonlinearity` must be 'tanh' or 'relu', got 'sigmoid'"),
        (dict(dtype="float16"), "Operators compute in float32 or float64, got float16"),
        (dict(drop="bias_hh_l0"), r"not those of a LSTM of 1 layers: bias_hh_l0 \(want \(12,\), got none\)"),
        (dict(drop="weight_hh_l0"), "no RNN, GRU or LSTM of PyTorch. Found"),
        (dict(weight_hh_l0=np.zeros((6, 3))), r"n = 1 \(RNN\), 3 \(GRU\) or 4 \(LSTM\), got \(6, 3\)"),
        (dict(bias_ih_l0=np.zeros(12, np.float32)), r"several types, \['float32', 'float64'\]"),
    ],
)
def test_from_state_dict_refuses(arguments, message):
    arguments = dict(arguments)
    state = {name: value.numpy() for name, value in torch.nn.LSTM(N, H).double().state_dict().items()}
    state.pop(arguments.pop("drop", None), None)
    state |= {name: arguments.pop(name) for name in list(arguments) if "_l0" in name}
    with pytest.raises(ValueError, match=message):
        operators.from_state_dict(state, np.zeros((B, T, N)), **arguments)


def test_half_of_a_bidirectional_network_is_not_taken_for_it():
    state = torch.nn.GRU(N, H, bidirectional=True).state_dict()
    with pytest.raises(ValueError, match=r"`state` holds bias_hh_l0_reverse, of a bidirectional"):
        operators.from_state_dict(state, np.zeros((B, T, N)))
