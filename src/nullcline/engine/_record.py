"""The file of one point: a netCDF image, then a header line and a checksum over everything before it.

HDF5 ignores what follows its own data, so the file opens in xarray, ncdump and h5py; the tail lets a resumed
sweep judge ten thousand files without opening one of them as HDF5.
"""

import hashlib
import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from ._plan import canonical

Variables = Mapping[str, tuple[tuple[str, ...], np.ndarray]]

_MAGIC = b"\nNULLCLINE1 "
_TAIL = len(_MAGIC) + 8 + 1 + 64 + 1


class BrokenFileError(Exception):
    """A file of the store that must not be trusted; the message says why."""


def seal(image: bytes, header: Mapping[str, Any]) -> bytes:
    """Append ``header`` and the checksum of the whole to the bytes of a netCDF file."""
    line = canonical(header).encode()
    body = image + line
    length = b"%08d" % len(line)
    return body + _MAGIC + length + b" " + _checksum(body, length) + b"\n"


def _checksum(body: bytes, length: bytes) -> bytes:
    return hashlib.sha256(body + length).hexdigest().encode()


def unseal(blob: bytes) -> tuple[dict[str, Any], str]:
    """Verify every byte of a sealed file; return its header and its checksum."""
    tail = blob[-_TAIL:]
    if len(tail) < _TAIL or not tail.startswith(_MAGIC):
        raise BrokenFileError("cut short, or not written by nullcline")
    length, checksum = tail[len(_MAGIC) :][:8], tail[len(_MAGIC) :][9:-1]
    body = blob[:-_TAIL]
    if tail != _MAGIC + length + b" " + _checksum(body, length) + b"\n":
        raise BrokenFileError("its checksum does not match its content")
    # Of our own making, since the checksum holds.
    return json.loads(body[len(body) - int(length) :]), checksum.decode()


def netcdf_image(variables: Variables, attributes: Mapping[str, Any]) -> bytes:
    """Write variables, each with its dimensions, and global attributes as the bytes of a netCDF-4 file."""
    import h5netcdf
    import h5py

    sizes: dict[str, int] = {}
    for name, (dimensions, array) in variables.items():
        for dimension, size in zip(dimensions, array.shape, strict=True):
            if sizes.setdefault(dimension, size) != size:
                raise ValueError(
                    f"Dimension `{dimension}` has length {size} in `{name}` and {sizes[dimension]} elsewhere."
                )
    buffer = io.BytesIO()
    with h5netcdf.File(buffer, "w") as file:
        file.dimensions = sizes
        for name, (dimensions, array) in variables.items():
            if array.dtype.kind == "b":
                # netCDF has no booleans; xarray reads them back from this attribute.
                file.create_variable(name, dimensions, data=array.astype(np.int8)).attrs["dtype"] = "bool"
            elif array.dtype.kind in "UO":
                text = file.create_variable(name, dimensions, dtype=h5py.string_dtype())
                text[...] = array.astype(object)
            else:
                file.create_variable(name, dimensions, data=array)
        for name, value in attributes.items():
            file.attrs[name] = value
    return buffer.getvalue()


def read_record(blob: bytes) -> tuple[dict[str, tuple[tuple[str, ...], np.ndarray]], dict[str, Any]]:
    """Read back what :func:`netcdf_image` wrote, without the cost of building a dataset."""
    import h5netcdf

    variables = {}
    with h5netcdf.File(io.BytesIO(blob), "r", decode_vlen_strings=True) as file:
        for name, variable in file.variables.items():
            array = np.asarray(variable[...])
            if variable.attrs.get("dtype") == "bool":
                array = array.astype(bool)
            variables[name] = (tuple(variable.dimensions), array)
        return variables, dict(file.attrs)
