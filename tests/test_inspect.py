"""The command ``nullcline inspect``: two checkpoints in, a report out; and what it refuses."""

import json
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

from nullcline import cli, operators
from nullcline.inspect import figures, read_inputs, read_network
from nullcline.inspect._write import check_folder

B, T, N, H = 4, 5, 2, 6
COMMAND = Path(sys.executable).with_name("nullcline")


def gru(prefix="rnn."):
    torch.manual_seed(0)
    state = torch.nn.GRU(N, H, batch_first=True).state_dict()
    return {prefix + name: value.numpy() for name, value in state.items()}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A GRU before and after a change of rank one, in the two formats, one of them inside a checkpoint."""
    folder = tmp_path_factory.mktemp("inspect")
    before = gru()
    after = {name.replace("rnn.", ""): torch.tensor(value) for name, value in before.items()}
    column, row = np.linspace(-1, 1, 3 * H), np.linspace(1, 2, H)
    after["weight_hh_l0"] = after["weight_hh_l0"].double() + torch.tensor(np.outer(column, row))
    save_file(before, folder / "before.safetensors")
    content = {"epoch": 3, "model": {"rnn": after}, "optimizer": {"state": {0: {"exp_avg": torch.ones(2)}}}}
    torch.save(content, folder / "after.pt")
    np.save(folder / "x.npy", np.random.default_rng(0).normal(size=(T, B, N)).astype(np.float32))
    return folder


@pytest.fixture(scope="module")
def report(files):
    words = [COMMAND, "inspect", "before.safetensors", "after.pt", "--inputs", "x.npy", "--time-first"]
    done = subprocess.run(
        [*words, "--out", "out"], cwd=files, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    return files / "out", done


def test_the_command_writes_a_report(report):
    out, done = report
    assert done.stdout == "report: out/report.html\n"
    assert (
        "before: K over 20 trials and times" in done.stderr and "after: 6 Lyapunov exponents" in done.stderr
    )
    names = ("weights", "operators", "dynamics")
    figures = {f"{name}.{kind}" for name in names for kind in ("png", "pdf")}
    assert {path.name for path in out.iterdir()} == {"report.html", "data.nc", "numbers.json"} | figures
    page = (out / "report.html").read_text()
    assert (
        "What training did to this network" in page
        and "GRU of 6 units, 2 inputs, 4 trials of 5 steps" in page
    )
    assert page.count("data:image/png;base64,") == 3 and not re.search(
        r"""(src|href)=["']?(https?:)?//""", page
    )
    for name in re.findall(r'href="([^"#]+)"', page):
        assert name == "data:," or (out / name).is_file()


def test_the_numbers_are_those_of_the_network(report, files):
    out, _ = report
    found = json.loads((out / "numbers.json").read_text())
    assert found["change_rank"] == {"weight_hh_l0": 1, "weight_ih_l0": 0}
    assert found["change_numerical_rank"]["weight_hh_l0"] == 1
    assert found["change_size"]["bias_ih_l0"] == 0 and found["kernel_method"] == "kernel"
    networks = [read_network(files / name) for name in ("before.safetensors", "after.pt")]
    x = read_inputs(files / "x.npy", networks[0], is_time_first=True)
    assert x.shape == (B, T, N)
    with xr.open_dataset(out / "data.nc", engine="h5netcdf") as data:
        for moment, network in zip(("before", "after"), networks, strict=True):
            module = torch.nn.GRU(N, H, batch_first=True).double()
            module.load_state_dict({name: torch.tensor(value) for name, value in network.weights.items()})
            states = module(torch.tensor(x))[0].detach().numpy().reshape(-1, H)
            variances = np.linalg.eigvalsh(np.cov(states.T, bias=True))[::-1]
            now = data.sel(moment=moment)
            np.testing.assert_allclose(now.variances, variances, rtol=1e-9, atol=1e-15)
            ratio = variances.sum() ** 2 / np.sum(variances**2)
            np.testing.assert_allclose(found["activity_participation"][moment], ratio, rtol=1e-9)
        # Of the network after training: K and P as dense matrices.
        flow = operators.from_torch(module, x)
        white = np.asarray(flow.parameter_operator.whitened()).reshape(B * T, H, B * T, H)
        kernel = np.linalg.eigvalsh(np.einsum("aibi->ab", white) / H)[::-1]
        np.testing.assert_allclose(now.kernel_values, kernel, rtol=0, atol=1e-12 * kernel[0])
        values = np.linalg.svd(flow.propagator.dense(), compute_uv=False)
        np.testing.assert_allclose(now.propagator_top, values[:10], rtol=1e-10)
        share = np.cumsum(values**2) / np.sum(values**2)
        assert float(now.propagator_rank) == np.sum(share < 0.95) + 1
        total = np.linalg.slogdet(operators.transition_matrices(flow)[:, -1])[1] / T
        np.testing.assert_allclose(now.exponents.sum("exponent"), total, rtol=1e-9)


def test_half_precision_is_read_and_activity_that_never_varies_is_drawn(report, files):
    out, _ = report
    network = read_network(files / "before.safetensors")
    for kind in (torch.float16, torch.bfloat16):
        save_torch({name: torch.tensor(w).to(kind) for name, w in network.weights.items()}, files / "short")
        for name, weight in read_network(files / "short").weights.items():
            np.testing.assert_allclose(weight, network.weights[name], rtol=2**-8, atol=1e-6)
    with xr.open_dataset(out / "data.nc", engine="h5netcdf") as data:
        page = figures(data.assign(variances=0 * data.variances))["dynamics"]
    assert "the activity does not vary" in {text.get_text() for text in page.axes[1].texts}


def call(capsys, *words):
    try:
        status = cli.main(["inspect", *map(str, words)])
    except SystemExit as stop:
        status = stop.code
    return status, capsys.readouterr().err


@pytest.fixture
def bad(tmp_path, monkeypatch):
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)
    monkeypatch.setattr(cli.os, "environ", dict(cli.os.environ))
    two = gru() | gru("ema.rnn.")
    save_file(two, tmp_path / "two")
    save_file(gru(), tmp_path / "one")
    save_file({"fc.weight": np.ones((2, 2))}, tmp_path / "none")
    save_file({name: value for name, value in gru().items() if "bias_hh" not in name}, tmp_path / "half")
    save_file({**gru(), "rnn.weight_hh_l0_reverse": np.ones((3, 3))}, tmp_path / "bidirectional")
    save_file({name: np.full_like(value, np.nan) for name, value in gru().items()}, tmp_path / "nan")
    save_file(
        {name: value[:, :3] if "hh" in name and value.ndim == 2 else value for name, value in gru().items()},
        tmp_path / "odd",
    )
    save_file({"rnn.weight_ih_l0": np.ones((H, N)), "rnn.weight_hh_l0": np.eye(H)}, tmp_path / "rnn")
    torch.save(torch.nn.GRU(N, H), tmp_path / "module")
    torch.save(torch.nn.GRU(N, H).state_dict(), tmp_path / "short")
    (tmp_path / "short").write_bytes((tmp_path / "short").read_bytes()[:-100])
    np.savez(tmp_path / "arrays.npz", **gru())
    (tmp_path / "pickle").write_bytes(pickle.dumps({"rnn.weight_hh_l0": np.eye(3)}))
    (tmp_path / "text").write_text("weights")
    np.save(tmp_path / "x.npy", np.zeros((B, T, N)))
    np.save(tmp_path / "flat.npy", np.zeros((B, N)))
    np.save(tmp_path / "wide.npy", np.zeros((B, T, N + 1)))
    np.save(tmp_path / "inf.npy", np.full((B, T, N), np.inf))
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/thesis.tex").write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("before", "after", "options", "message"),
    [
        ("gone", "one", {}, "There is no file"),
        ("text", "one", {}, "neither a safetensors file nor a PyTorch state dictionary. Save one with"),
        ("none", "one", {}, "no name ends in `weight_hh_l0` or `weight_hh`. It holds `fc.weight`"),
        ("two", "one", {}, "holds 2 recurrent networks, 'ema.rnn.', 'rnn.': choose one with --prefix"),
        ("two", "one", {"--prefix": "lstm"}, "no recurrent network 'lstm'; it holds 'ema.rnn.', 'rnn.'"),
        (
            "half",
            "one",
            {},
            r"half: The weights are not those of a GRU of 1 layers: bias_hh_l0 .want \(18,\)",
        ),
        ("bidirectional", "one", {}, "`rnn.weight_hh_l0_reverse` belong to a bidirectional network"),
        ("nan", "one", {}, "`rnn.bias_hh_l0` is not finite"),
        ("odd", "one", {}, r"must have shape \(n hidden, hidden\) with n = 1 \(RNN\), 3 \(GRU\) or 4"),
        ("module", "one", {}, "nothing else is ever loaded. Save `model.state_dict.*`, not the model"),
        ("short", "one", {}, "short is no whole file of `torch.save`: it is cut short, or another kind"),
        ("arrays.npz", "one", {}, "arrays.npz is no whole file .*another kind of archive .an .npz, say"),
        ("pickle", "one", {}, "is a bare pickle, which is never loaded"),
        ("rnn", "one", {}, r"not of one network .*RNN, 1 layers of 6 units.*GRU, 1 layers of 6 units"),
        ("one", "one", {"--inputs": "gone.npy"}, "--inputs: there is no file"),
        ("one", "one", {"--inputs": "one"}, "one is not an .npy file of numbers"),
        (
            "one",
            "one",
            {"--inputs": "objects.npy"},
            "objects.npy is not an .npy file of numbers: .*allow_pickle",
        ),
        (
            "one",
            "one",
            {"--inputs": "flat.npy"},
            r"shape \(batch, time, inputs\) with 2 inputs.*got \(4, 2\)",
        ),
        (
            "one",
            "one",
            {"--inputs": "wide.npy"},
            r"with 2 inputs, as the network in .*one takes; got \(4, 5, 3\)",
        ),
        ("one", "one", {"--inputs": "inf.npy"}, "inf.npy is not finite"),
        ("one", "one", {"--trials": 5}, "--trials must be from 1 to 4, the trials of the inputs, got 5"),
        (
            "one",
            "one",
            {"--out": "full"},
            r"full holds other things \(thesis.tex\); give a new or empty folder",
        ),
        ("one", "one", {"--out": "text"}, "text is a file; give a folder"),
        ("one", "one", {"--out": "text/out"}, "text is a file; give a folder"),
        ("one", "one", {"--nonlinearity": "sine"}, "sine"),
    ],
)
def test_bad_usage_is_answered_before_anything_is_computed(bad, capsys, before, after, options, message):
    options = {"--inputs": "x.npy", "--out": "out"} | options
    words = [bad / before, bad / after]
    for name, value in options.items():
        words += [name, value if name in ("--prefix", "--trials", "--nonlinearity") else bad / value]
    status, err = call(capsys, *words)
    assert status == 2 and re.search(message, re.sub(r"\s+", " ", err)), err
    assert not (bad / "out").exists()


def test_what_a_killed_writer_left_is_no_obstacle(tmp_path):
    for name in ("data.nc.part", f"report.html.{'0f' * 16}.part", "weights.png"):
        (tmp_path / name).write_bytes(b"")
    check_folder(tmp_path)
    (tmp_path / "thesis.tex.part").write_bytes(b"")
    with pytest.raises(ValueError, match=r"other things \(thesis.tex.part\)"):
        check_folder(tmp_path)


def test_cells_and_prefixes_are_recognized(bad):
    assert read_network(bad / "two", "ema.rnn").prefix == "ema.rnn."
    state = torch.nn.LSTMCell(N, H).state_dict()
    torch.save({f"module.cell.{name}": value for name, value in state.items()}, bad / "cell")
    network = read_network(bad / "cell")
    assert (network.kind, network.hidden, network.layers, network.prefix) == ("lstm", H, 1, "module.cell.")
    assert sorted(network.weights) == ["bias_hh_l0", "bias_ih_l0", "weight_hh_l0", "weight_ih_l0"]
    np.testing.assert_array_equal(network.weights["weight_hh_l0"], state["weight_hh"])
    assert read_network(bad / "rnn").kind == "rnn"
