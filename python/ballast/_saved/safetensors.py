# SPDX-License-Identifier: Apache-2.0
"""The safetensors format: the header's length in 8 bytes, a header in JSON, then the values, little-endian."""

from __future__ import annotations

import os
import stat
from typing import Any, Dict, List, NamedTuple, Tuple

import numpy as np

from ..errors import AccessDenied, InvalidArgument, NotFound
from .fields import Fields, parse_json

# Limit of the format's own implementation.
_MAX_HEADER_BYTES = 100_000_000
# The NumPy type of each type of elements that Ballast writes. BF16 is the upper half of a float32.
_TYPES = {"F32": "<f4", "BF16": "<u2", "I64": "<i8"}


class File(NamedTuple):
    """The contents of a file. Arrays of dtype BF16 have become float32."""

    tensors: Dict[str, Any]
    metadata: Dict[str, str]


class _Entry(NamedTuple):
    begin: int
    end: int
    name: str
    dtype: str
    shape: Tuple[int, ...]


def read_bytes(path: str) -> bytearray:
    """Returns the contents of a regular file. NotFound if there is none, AccessDenied if it may not be read."""
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise InvalidArgument(f"{path}: got a device or a pipe, want a file")
            contents = bytearray(status.st_size)
            size = file.readinto(contents)
    except FileNotFoundError:
        raise NotFound(f"{path}: there is no such file") from None
    except PermissionError:
        raise AccessDenied(f"{path}: may not be read", 7) from None
    except (OSError, UnicodeError) as error:
        raise InvalidArgument(f"{path!r}: {getattr(error, 'strerror', error)}, want a file") from None
    if size != len(contents):
        raise InvalidArgument(f"{path}: got {size} bytes of {len(contents)}: it has become shorter meanwhile")
    return contents


def read(path: str, types: Tuple[str, ...] = ("F32",)) -> File:
    """Reads a file whose elements are of these types. Trusts nothing in it: InvalidArgument names the violation.
    Allocates no more than a few times the file's size."""
    return decode(path, read_bytes(path), types)


def decode(path: str, contents: bytearray, types: Tuple[str, ...]) -> File:
    """The same for the contents of a file, of which the arrays are views."""
    if len(contents) < 8:
        raise InvalidArgument(f"{path}: got {len(contents)} bytes, want at least 8 (is it a safetensors file?)")
    length = int.from_bytes(contents[:8], "little")
    most = min(len(contents) - 8, _MAX_HEADER_BYTES)
    if length > most:
        raise InvalidArgument(f"{path}: got a header of {length} bytes, want at most {most} (is the file truncated?)")
    header = parse_json(f"{path}: header", bytes(contents[8:8 + length]))
    metadata = _metadata(path, header.pop("__metadata__", {}))
    entries = sorted(_entry(f'{path}: tensor "{name}"', name, each, types) for name, each in header.items())
    _check_order(path, entries, len(contents) - 8 - length)
    tensors = {}
    for entry in entries:
        elements = (entry.end - entry.begin) // np.dtype(_TYPES[entry.dtype]).itemsize
        values = np.frombuffer(contents, _TYPES[entry.dtype], elements, 8 + length + entry.begin)
        if entry.dtype == "BF16":
            values = (values.astype("<u4") << 16).view("<f4")
        tensors[entry.name] = values.reshape(entry.shape)
    return File(tensors, metadata)


def _metadata(path: str, json: Any) -> Dict[str, str]:
    if not isinstance(json, dict) or not all(isinstance(value, str) for value in json.values()):
        raise InvalidArgument(f"{path}: __metadata__: want an object of texts")
    return json


def _entry(what: str, name: str, json: Any, types: Tuple[str, ...]) -> _Entry:
    fields = Fields(what, json)
    dtype = fields.text("dtype")
    if dtype not in types:
        raise InvalidArgument(f"{what}: got dtype {dtype or 'none'}, want {' or '.join(types)}", 12)
    shape = tuple(fields.integers("shape", 0, 2**63 - 1))
    if len(shape) > 8:
        raise InvalidArgument(f"{what}: got {len(shape)} dimensions, want at most 8")
    offsets = fields.integers("data_offsets", 0, 2**63 - 1)
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise InvalidArgument(f"{what}: data_offsets: got {offsets}, want [begin, end]")
    want = np.dtype(_TYPES[dtype]).itemsize
    for size in shape:
        want *= size
    if offsets[1] - offsets[0] != want:
        raise InvalidArgument(f"{what}: got {offsets[1] - offsets[0]} bytes, want {want} for shape {list(shape)}")
    return _Entry(offsets[0], offsets[1], name, dtype, shape)


def _check_order(path: str, entries: List[_Entry], size: int) -> None:
    """Checks that the tensors cover the values without gaps and overlaps."""
    offset = 0
    for entry in entries:
        if entry.begin != offset or entry.end > size:
            raise InvalidArgument(f'{path}: tensor "{entry.name}": got bytes {entry.begin} to {entry.end} of {size}, '
                                  f"want it to begin at {offset} and to fit")
        offset = entry.end
    if offset != size:
        raise InvalidArgument(f"{path}: got {size} bytes of values, want {offset}")
