# SPDX-License-Identifier: Apache-2.0
"""Tables of rows, such as embeddings. A row begins with the first gradient for its id, which is any 64 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, Optional, Tuple

from . import _arrays
from .errors import InvalidArgument

if TYPE_CHECKING:
    from ._connection import Connection
    from ._futures import Future


class Table:
    """A table of a job: `name`, and `dim` weights in a row. Made by Connection.table()."""

    def __init__(self, connection: "Connection", name: str, number: int, dim: int) -> None:
        self._connection = connection
        self._id = number
        # An EmbeddingBag collects its gradients.
        self._has_bag = False
        self._collected: List[Tuple[Any, Any]] = []
        self.name = name
        self.dim = dim

    def pull(self, ids: Any, into: Any = None, *, timeout: Optional[float] = None) -> Any:
        """Returns the rows of ids, int64 or uint64 of shape [n], as float32 of shape [n, dim]: `into`, or a new array.
        Under policy sync they include the update of this worker's last step of rows. Creates no row."""
        if into is None:
            import numpy
            into = numpy.empty((_ids(self.name, ids).elements, self.dim), numpy.float32)
        self._connection._wait(self.pull_async(ids, into), timeout)
        return into

    def pull_async(self, ids: Any, into: Any) -> "Future":
        """Begins to read the rows of ids into an array of shape [n, dim]."""
        return self._connection._pull_rows(self, ids, into)

    def push(self, ids: Any, gradients: Any, *, examples: int = 1, last: bool = True) -> "Future":
        """Sends gradients of shape [n, dim] for ids of shape [n]; those of a repeated id are added. `last` ends this
        worker's step of rows, at all tables. See Connection.push_rows for several tables."""
        return self._connection.push_rows({self.name: (ids, gradients)}, examples=examples, last=last)

    def _collect(self, ids: Any, gradients: Any) -> None:
        """Keeps gradients of rows until the end of the step."""
        self._collected.append((ids, gradients))

    def _take_collected(self) -> Any:
        """Returns the ids and gradients that were collected, in PyTorch's tensors."""
        import torch
        collected, self._collected = self._collected, []
        return tuple(torch.cat([part[i] for part in collected]).contiguous() for i in range(2))

    def _fill(self, rows: Any, ids: Any, values: Any, what: str, writable: bool) -> Any:
        """Describes rows to the library; returns what the memory belongs to."""
        numbers = _ids(self.name, ids)
        shape = (numbers.elements, self.dim)
        memory = _arrays.memory(f'{what} table "{self.name}"', values, writable=writable, shape=shape)
        rows.table, rows.ids, rows.count = self._id, numbers.address, numbers.elements
        rows.data, rows.elements = memory.address, memory.elements
        return numbers, memory


def _ids(table: str, ids: Any) -> _arrays.Memory:
    """Returns the memory of ids, whose sign does not matter."""
    what = f'ids of table "{table}"'
    unsigned = str(getattr(ids, "dtype", "")) == "uint64"
    memory = _arrays.memory(what, ids, typestr="<u8" if unsigned else "<i8", dtype="uint64" if unsigned else "int64")
    if len(memory.shape) != 1:
        raise InvalidArgument(f"{what}: got shape {memory.shape}, want one dimension")
    return memory
