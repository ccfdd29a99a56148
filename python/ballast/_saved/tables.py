# SPDX-License-Identifier: Apache-2.0
"""Tables of rows in the files of a run: RUN/tables/NAME/manifest.json, and files of rows that it names."""

from __future__ import annotations

import os
from typing import Any, List, NamedTuple, Tuple

import numpy as np

from ..errors import InvalidArgument, NotFound
from . import safetensors
from .fields import Fields, parse_json
from .initial import RowInitializer
from .xxh3 import xxh3


class Bags(NamedTuple):
    """Ids of a field for n examples: those of example i are ids[ends[i - 1]:ends[i]]."""

    # uint64.
    ids: Any
    # int64, [n].
    ends: Any

    def part(self, begin: int, end: int) -> "Bags":
        """Returns the bags of some of the examples."""
        first = int(self.ends[begin - 1]) if begin else 0
        ends = self.ends[begin:end] - first
        return Bags(self.ids[first:first + (int(ends[-1]) if len(ends) else 0)], ends)

    def counts(self) -> Any:
        """Returns the number of ids in each bag."""
        return np.diff(self.ends, prepend=0)


class Rows:
    """The rows of a table. Those that it lacks have their initial values, or are 0 in a table with admission."""

    def __init__(self, name: str, ids: Any, values: Any, initializer: RowInitializer) -> None:
        """`ids`, of shape [rows], are uint64 in any order; `values` have shape [rows, dim]."""
        order = np.argsort(ids, kind="stable")
        ids = ids[order]
        # The last one of equal ids counts.
        is_last = np.append(ids[1:] != ids[:-1], True)[:len(ids)]
        self.name = name
        self.ids = ids[is_last]
        self.values = values[order[is_last]]
        self.initializer = initializer

    def find(self, ids: Any) -> Tuple[Any, Any]:
        """Returns the positions of ids among the rows, and whether there are such rows."""
        if len(self.ids) == 0:
            return np.zeros(len(ids), np.int64), np.zeros(len(ids), bool)
        places = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return places, self.ids[places] == ids

    def __getitem__(self, ids: Any) -> Any:
        """Returns the rows of ids, uint64 of shape [n], as float32 of shape [n, dim]."""
        dim = self.values.shape[1]
        if len(self.ids) == 0:
            return self.initializer(ids, dim)
        places, found = self.find(ids)
        rows = self.values[places]
        if not found.all():
            rows[~found] = self.initializer(ids[~found], dim)
        return rows

    def pool(self, bags: Bags, mean: bool) -> Any:
        """Returns the sum or the mean of the rows of each bag; an empty one is 0."""
        counts = bags.counts()
        pooled = np.zeros((len(counts), self.values.shape[1]), np.float32)
        if len(bags.ids) == 0:
            return pooled
        distinct, places = np.unique(bags.ids, return_inverse=True)
        full = counts > 0
        pooled[full] = np.add.reduceat(self[distinct][places], (bags.ends - counts)[full], axis=0)
        if mean:
            pooled /= np.maximum(counts, 1)[:, None]
        return pooled


def folder_of(folder: str, table: str) -> str:
    """Returns the folder of a table, whose name may have any byte."""
    return os.path.join(folder, table.replace("%", "%25").replace("/", "%2F"))


def read_rows(folder: str, name: str, dim: int) -> Rows:
    """Reads a table. NotFound if it has no manifest, or a file that the manifest names is missing; InvalidArgument
    names a file that is damaged."""
    path = os.path.join(folder, "manifest.json")
    manifest = Fields(path, parse_json(path, bytes(safetensors.read_bytes(path))))
    spec = manifest.message("spec")
    if spec.text("name") != name or spec.integer("dim", 1, 4096) != dim:
        raise InvalidArgument(f'{path}: got rows of table "{spec.text("name")}" of dim {spec.integer("dim", 1, 4096)}, '
                              f'want "{name}" of dim {dim}')
    ids: List[Any] = [np.zeros(0, np.uint64)]
    values: List[Any] = [np.zeros((0, dim), np.float32)]
    for file in manifest.messages("files"):
        of_file = _read_file(folder, file, dim)
        ids.append(of_file[0])
        values.append(of_file[1])
    return Rows(name, np.concatenate(ids), np.concatenate(values), RowInitializer(spec))


def _read_file(folder: str, file: Fields, dim: int) -> Tuple[Any, Any]:
    name = file.text("name")
    if not name or "/" in name or "\0" in name:
        raise file.refuse("name", "a file of this folder")
    path = os.path.join(folder, name)
    contents = safetensors.read_bytes(path)
    checksum, rows = f"{xxh3(contents):016x}", file.integer("rows", 0, 2**63 - 1)
    if len(contents) != file.integer("bytes", 0, 2**63 - 1) or checksum != file.text("xxh3"):
        raise InvalidArgument(f"{path}: got {len(contents)} bytes with checksum {checksum}, want "
                              f"{file.json.get('bytes')} with {file.text('xxh3')} as in the manifest; the file is "
                              "damaged", 15)
    tensors = safetensors.decode(path, contents, ("F32", "BF16", "I64")).tensors
    ids, values = tensors.get("ids"), tensors.get("values")
    fits = ids is not None and values is not None and ids.dtype == np.int64 and values.dtype == np.float32
    if not fits or ids.shape != (rows,) or values.shape != (rows, dim):
        raise InvalidArgument(f"{path}: want two tensors: ids, I64 [{rows}], and values, F32 or BF16 [{rows}, {dim}]")
    return ids.view(np.uint64), values


def read_table(folder: str, name: str, dim: int) -> Rows:
    """Reads a table of a model from the folder of its tables."""
    try:
        return read_rows(folder_of(folder, name), name, dim)
    except NotFound as error:
        raise NotFound(f'the model has table "{name}", whose rows are missing: {error}; a run writes them beside '
                       "model.safetensors at its end") from None
