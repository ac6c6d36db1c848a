"""Read recurrent weights from a checkpoint: safetensors or a PyTorch state dictionary, never a pickle."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np

from nullcline.operators._torch_layers import UNSUPPORTED, recognize

_WEIGHT = re.compile(r"(?P<prefix>(?:.*\.)?)(?P<name>(?:weight|bias)_(?:ih|hh))(?P<layer>_l\d+)?")


@dataclasses.dataclass(frozen=True)
class Network:
    """The weights of a recurrent network by PyTorch's names, and what they are.

    ``kind`` is ``"rnn"``, ``"gru"`` or ``"lstm"``, ``source`` the file they come from, ``prefix`` what stood
    before their names.
    """

    weights: dict[str, np.ndarray]
    kind: str
    hidden: int
    layers: int
    prefix: str
    source: Path

    @property
    def inputs(self) -> int:
        """Number of input channels."""
        return self.weights["weight_ih_l0"].shape[1]


def read_network(path: Path | str, prefix: str | None = None) -> Network:
    """Read a checkpoint and find its recurrent network.

    Parameters
    ----------
    path
        A safetensors file, or a state dictionary (possibly inside a larger checkpoint) that
        ``torch.save`` wrote. Only tensors are read: no code of the file runs.
    prefix
        What stands before ``weight_ih_l0`` in the names; found by itself where there is one network.
    """
    path = Path(path)
    arrays = _read(path)
    unknown = sorted(name for name in arrays if UNSUPPORTED.fullmatch(name.rpartition(".")[2]))
    found: dict[str, dict[str, np.ndarray]] = {}
    for name, array in arrays.items():
        match = _WEIGHT.fullmatch(name)
        if match is not None:
            own = found.setdefault(match["prefix"], {})
            own[match["name"] + (match["layer"] or "_l0")] = array
    found = {start: own for start, own in found.items() if "weight_hh_l0" in own}
    if not found:
        raise ValueError(
            f"{path} holds no recurrent network of PyTorch: no name ends in `weight_hh_l0` or `weight_hh`. "
            f"It holds {_few(sorted(arrays))}."
        )
    if prefix is None and len(found) > 1:
        raise ValueError(
            f"{path} holds {len(found)} recurrent networks, {', '.join(map(repr, sorted(found)))}: choose "
            "one with --prefix."
        )
    chosen = next(iter(found)) if prefix is None else prefix
    if chosen not in found and f"{chosen}." in found:
        chosen = f"{chosen}."
    if chosen not in found:
        raise ValueError(
            f"--prefix: {path} holds no recurrent network {prefix!r}; it holds "
            f"{', '.join(map(repr, sorted(found)))}."
        )
    wrong = [name for name in unknown if name.startswith(chosen)]
    if wrong:
        raise ValueError(
            f"{path}: {_few(wrong)} belong to a bidirectional network or one with `proj_size`, which no step "
            "leads through: inspect takes forward RNNs, GRUs and LSTMs."
        )
    weights = found[chosen]
    try:
        kind, hidden, layers = recognize(weights)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    for name, array in weights.items():
        if not np.all(np.isfinite(array)):
            raise ValueError(f"{path}: `{chosen}{name}` is not finite.")
    return Network(weights, kind, hidden, layers, chosen, path)


def _read(path: Path) -> dict[str, np.ndarray]:
    if not path.is_file():
        raise ValueError(f"There is no file {path}.")
    with path.open("rb") as file:
        start = file.read(9)
    if start[8:] == b"{":
        return _read_safetensors(path)
    if start[:4] == b"PK\x03\x04":
        return _read_torch(path)
    if start[:1] == b"\x80":
        raise ValueError(
            f"{path} is a bare pickle, which is never loaded. Save `model.state_dict()` with `torch.save` of "
            "PyTorch 1.6 or newer, or as safetensors."
        )
    raise ValueError(
        f"{path} is neither a safetensors file nor a PyTorch state dictionary. Save one with "
        "`safetensors.torch.save_file(model.state_dict(), path)` or `torch.save(model.state_dict(), path)`."
    )


def _need(name: str, path: Path) -> ValueError:
    return ValueError(f"{path} needs the package {name} to be read: pip install 'nullcline[torch]'.")


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise _need("safetensors", path) from None
    try:
        with safe_open(path, framework="numpy") as file:
            # Only the recurrent weights are loaded: other tensors may have types that NumPy does not know.
            names = {name: bool(_WEIGHT.fullmatch(name)) for name in file.keys()}  # noqa: SIM118
            return {
                name: _array(path, name, file.get_tensor(name)) if is_ours else np.zeros(0)
                for name, is_ours in names.items()
            }
    except (SafetensorError, TypeError) as error:
        raise ValueError(
            f"{path} cannot be read as safetensors: {error}. Save the weights again, in float32 or float64."
        ) from None


def _read_torch(path: Path) -> dict[str, np.ndarray]:
    try:
        import torch
    except ImportError:
        raise _need("torch", path) from None
    import pickle

    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError) as error:
        raise ValueError(
            f"{path} is no whole file of `torch.save`: it is cut short, or another kind of archive (an .npz, "
            f"say). Save `model.state_dict()` again. ({_reason(error)})"
        ) from None
    except (pickle.UnpicklingError, ValueError) as error:
        raise ValueError(
            f"{path} is not a PyTorch file of tensors alone, and nothing else is ever loaded. Save "
            f"`model.state_dict()`, not the model. ({_reason(error)})"
        ) from None
    found: dict[str, np.ndarray] = {}

    def walk(value: Any, name: str) -> None:
        if isinstance(value, torch.Tensor):
            found[name] = _array(path, name, value)
        elif isinstance(value, dict):
            for key, part in value.items():
                walk(part, f"{name}.{key}" if name else str(key))

    walk(content, "")
    return found


def _reason(error: Exception) -> str:
    """The first sentence alone: what follows is advice on how to load the file after all."""
    return str(error).strip().partition("\n")[0].partition(". ")[0].rstrip(".")


def _array(path: Path, name: str, value: Any) -> np.ndarray:
    if hasattr(value, "detach"):
        value = value.detach()
        value = (value.double() if value.is_floating_point() else value).numpy()
    array = np.asarray(value)
    if array.dtype.name == "bfloat16":  # a type that NumPy itself does not count among its own
        array = array.astype(np.float64)
    if _WEIGHT.fullmatch(name) and not np.issubdtype(array.dtype, np.floating):
        raise ValueError(f"{path}: `{name}` is {array.dtype}, not floating point.")
    return array.astype(np.float64) if np.issubdtype(array.dtype, np.floating) else array


def read_inputs(path: Path | str, network: Network, *, is_time_first: bool = False) -> np.ndarray:
    """Read inputs (batch, time, inputs) that fit a network from an ``.npy`` file; no pickle is read."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"--inputs: there is no file {path}.")
    try:
        inputs = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(f"--inputs: {path} is not an .npy file of numbers: {error}") from None
    if not isinstance(inputs, np.ndarray) or inputs.dtype.kind not in "fiub":
        kind = getattr(inputs, "dtype", "several arrays")
        raise ValueError(f"--inputs: {path} must hold one array of real numbers, got {kind}.")
    axes = "(time, batch, inputs)" if is_time_first else "(batch, time, inputs)"
    if inputs.ndim != 3 or 0 in inputs.shape or inputs.shape[2] != network.inputs:
        raise ValueError(
            f"--inputs: {path} must have shape {axes} with {network.inputs} inputs, as the network in "
            f"{network.source} takes; got {inputs.shape}."
        )
    if not np.all(np.isfinite(inputs)):
        raise ValueError(f"--inputs: {path} is not finite.")
    inputs = inputs.astype(np.float64)
    return np.swapaxes(inputs, 0, 1) if is_time_first else inputs


def _few(names: list[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:6])
    return f"{shown} and {len(names) - 6} more" if len(names) > 6 else shown or "nothing"
