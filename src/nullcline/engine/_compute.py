"""Compute one point and give the bytes of its record, whatever happens in between."""

import functools
import platform
import re
import subprocess
import time
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from ._plan import canonical, identity
from ._record import Variables, netcdf_image, seal
from ._study import Study


class Float64Error(RuntimeError):
    """JAX would compute in float32 without a word."""


def require_float64() -> None:
    """Refuse to compute where JAX's 64-bit switch is off."""
    import jax

    if not jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
        raise Float64Error(
            "Studies are computed in float64, and JAX's 64-bit switch is off. Set the environment variable "
            "JAX_ENABLE_X64=1, or call jax.config.update('jax_enable_x64', True) before anything else."
        )


def record(study: Study, parameters: Mapping[str, Any]) -> bytes:
    """Compute a point and encode the result; an exception or a NaN is encoded as a failure."""
    require_float64()
    start = time.perf_counter()
    try:
        variables = named(study, parameters, study.compute(**arguments(study, parameters)))
        message = _not_finite(study, variables)
        return encode(study, parameters, variables, message, time.perf_counter() - start)
    except Float64Error:
        raise
    except (Exception, SystemExit) as error:  # a point that gives up must not end the others
        return failure(study, parameters, raised(error, study.compute), time.perf_counter() - start)


def raised(error: BaseException, function: Any) -> str:
    """Say what a function of a study raised, and at which line of the file that defines it."""
    frames = traceback.extract_tb(error.__traceback__)
    code = getattr(function, "__code__", None)
    own = [frame for frame in frames if code and frame.filename == code.co_filename]
    where = (own or frames)[-1]
    return f"{type(error).__name__}: {error} ({Path(where.filename).name}, line {where.lineno})"


def failure(study: Study, parameters: Mapping[str, Any], message: str, seconds: float) -> bytes:
    """Encode a failure that was seen from outside: a time-out, or a process that died."""
    return encode(study, parameters, {}, message, seconds)


def encode(
    study: Study, parameters: Mapping[str, Any], variables: Variables, message: str, seconds: float
) -> bytes:
    """Encode the record of a point: its variables, or the message of its failure."""
    this = identity(study, parameters)
    # Text of HDF5 ends at a NUL, and is UTF-8.
    message = message.replace("\0", "\\x00").encode(errors="backslashreplace").decode()
    variables = {} if message else variables
    status = "failed" if message else "done"
    plain = this["parameters"]
    attributes = {
        "study": study.source,
        "version": study.version,
        "parameters": canonical(plain),
        "seed": canonical(plain.get("seed")),
        "status": status,
        "message": message,
        "wall_time": seconds,
        "dtype": ",".join(sorted({str(a.dtype) for _, a in variables.values() if a.dtype.kind in "fc"})),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        **{name: this[name] for name in ("supplied",) if name in this},
        **provenance(),
    }
    header = {
        **this,
        "status": status,
        "message": message,
        "seconds": round(seconds, 6),
        "dimensions": {name: dimensions for name, (dimensions, _) in variables.items()},
        "provenance": {"dtype": attributes["dtype"], **provenance()},
    }
    return seal(netcdf_image(variables, attributes), header)


def arguments(study: Study, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``compute``: a vectorized axis as an array, the others as plain values."""
    return {
        name: np.asarray(value) if name in study.vectorized else value for name, value in parameters.items()
    }


def named(study: Study, parameters: Mapping[str, Any], result: Any) -> Variables:
    """Give every array of a result its dimensions, and the vectorized axes their coordinates."""
    axes = tuple(name for name in parameters if name in study.vectorized)
    lengths = tuple(len(parameters[name]) for name in axes)
    variables: dict[str, tuple[tuple[str, ...], np.ndarray]] = {
        name: ((name,), np.asarray(parameters[name])) for name in axes
    }
    if not isinstance(result, Mapping):
        raise TypeError(
            "`compute` must return a mapping of names to arrays, or an xarray.Dataset; "
            f"got {type(result).__name__}."
        )
    if hasattr(result, "data_vars"):
        result = {str(k): (tuple(map(str, v.dims)), v.values) for k, v in result.variables.items()}  # pyright: ignore[reportAttributeAccessIssue]
    for name, value in result.items():
        _check_name("a variable", name)
        if isinstance(value, tuple):
            dimensions, value = value
            dimensions = (dimensions,) if isinstance(dimensions, str) else tuple(dimensions)
            array = np.asarray(value)
            if array.ndim != len(dimensions):
                raise ValueError(f"`{name}` has shape {array.shape}, but dimensions {dimensions}.")
        else:
            dimensions, array = axes, np.asarray(value)
            if array.shape != lengths:
                raise ValueError(
                    f"`{name}` has shape {array.shape}; the vectorized axes {axes} ask for {lengths}. "
                    "Give further dimensions a name: (('lam', 'time'), array)."
                )
        if array.dtype.kind not in "biufUO":
            raise ValueError(
                f"`{name}` is {array.dtype}; netCDF holds booleans, integers, floats and text "
                "(store the real and the imaginary part)."
            )
        if name in axes and not np.array_equal(array, variables[name][1]):
            raise ValueError(f"`{name}` is an axis of the study; `compute` must not change its values.")
        if name in parameters and name not in axes:
            raise ValueError(f"`{name}` is an axis of the study; give the result another name.")
        for dimension, size in zip(dimensions, array.shape, strict=True):
            _check_name(f"a dimension of `{name}`", dimension)
            if dimension in parameters and dimension not in axes:
                raise ValueError(
                    f"`{name}` has a dimension `{dimension}`, an axis of the study, of which `compute` sees "
                    "one value at a time; give the dimension another name."
                )
            if dimension in axes and size != lengths[axes.index(dimension)]:
                raise ValueError(f"`{name}` has length {size} along `{dimension}`, which has other values.")
        variables[name] = (dimensions, array)
    return variables


def _check_name(what: str, name: object) -> None:
    """Raise on what cannot be a name in netCDF; in HDF5 a slash would make a group, which nobody reads."""
    if not (isinstance(name, str) and re.fullmatch(r"[^/\x00-\x1f]+", name) and name.strip(" .")):
        raise ValueError(f"The name of {what} must be text without slashes, got {name!r}.")


def _not_finite(study: Study, variables: Variables) -> str:
    """Say which variables hold NaN or infinity that the study did not announce."""
    bad = []
    for name, (_, array) in variables.items():
        if name not in study.may_be_nan and array.dtype.kind == "f":
            count = int(np.count_nonzero(~np.isfinite(array)))
            if count:
                bad.append(f"`{name}` is not finite in {count} of {array.size} values")
    return "; ".join(bad)


@functools.cache
def provenance() -> dict[str, str]:
    """Versions, device and commit: the same for every point of a process."""
    import jax

    device = jax.devices()[0]
    return {
        "nullcline": metadata.version("nullcline"),
        "commit": commit(),
        "jax": metadata.version("jax"),
        "numpy": metadata.version("numpy"),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "device": f"{device.platform} ({device.device_kind})",
    }


@functools.cache
def commit() -> str:
    """The commit of the checkout that this package lies in; empty for an installed package."""
    git = ["git", "-C", str(Path(__file__).parents[1])]
    try:
        tracked = subprocess.run(
            [*git, "ls-files", "--error-unmatch", "engine/_compute.py"], capture_output=True, timeout=10
        )
        if tracked.returncode:
            return ""
        head = subprocess.run(
            [*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, timeout=10, text=True
        )
        changed = subprocess.run(
            [*git, "diff", "--quiet", "HEAD", "--", "."], capture_output=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return head.stdout.strip() + ("+changes" if changed.returncode == 1 else "")
