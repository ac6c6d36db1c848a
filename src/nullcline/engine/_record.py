"""The file of one point: a netCDF image, then a header line and a checksum over everything before it.

HDF5 ignores what follows its own data, so the file opens in xarray, ncdump and h5py; the tail lets a resumed
sweep judge ten thousand files without opening one of them as HDF5.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
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
    """Write variables, each with its dimensions, and global attributes as the bytes of a netCDF-4 file.

    This is what h5netcdf writes, an order of magnitude faster for many small files: HDF5 in memory, whose
    dimension scales are the dimensions of netCDF.
    """
    import h5py

    sizes: dict[str, int] = {}
    for name, (dimensions, array) in variables.items():
        for dimension, size in zip(dimensions, array.shape, strict=True):
            if sizes.setdefault(dimension, size) != size:
                raise ValueError(
                    f"Dimension `{dimension}` has length {size} in `{name}` and {sizes[dimension]} elsewhere."
                )
    with h5py.File("image", "w", driver="core", backing_store=False) as file:
        for name, value in attributes.items():
            file.attrs[name] = value
        made: dict[str, Any] = {}
        for name, (dimensions, array) in variables.items():
            if name in sizes and dimensions != (name,):
                raise ValueError(
                    f"`{name}` is a dimension, so its values must be a coordinate along itself alone."
                )
            if array.dtype.kind in "UO":
                made[name] = file.create_dataset(name, data=array.astype(object), dtype=h5py.string_dtype())
            elif array.dtype.kind == "b":
                # netCDF has no booleans; xarray reads them back from this attribute.
                made[name] = file.create_dataset(name, data=array.astype(np.int8))
                made[name].attrs["dtype"] = "bool"
            else:
                made[name] = file.create_dataset(name, data=array)
        for number, (dimension, size) in enumerate(sizes.items()):
            title = dimension
            if dimension not in variables:
                made[dimension] = file.create_dataset(dimension, shape=(size,), dtype=">f4")
                title = f"This is a netCDF dimension but not a netCDF variable. {size:10d}"
            made[dimension].make_scale(title)
            made[dimension].attrs["_Netcdf4Dimid"] = np.int32(number)
        for name, (dimensions, _) in variables.items():
            for place, dimension in enumerate(dimensions):
                if name != dimension:
                    made[name].dims[place].attach_scale(made[dimension])
        file.flush()
        return file.id.get_file_image()


def read_variables(
    path: Path, dimensions: Mapping[str, Sequence[str]]
) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
    """Read the variables of a point, whose dimensions its header tells, without building a dataset."""
    import h5py

    variables = {}
    with h5py.File(path, "r", locking=False) as file:
        for name, names in dimensions.items():
            values: Any = file[name]
            if values.dtype.kind == "O":
                array = np.asarray(values.asstr()[()], dtype=object)
            else:
                array = np.asarray(values[()])
                if array.dtype == np.int8 and values.attrs.get("dtype") == "bool":
                    array = array.astype(bool)
            variables[name] = (tuple(names), array)
    return variables
