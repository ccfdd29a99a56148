# SPDX-License-Identifier: Apache-2.0
"""Embeddings in a table on the servers."""

from __future__ import annotations

from typing import Dict, Optional, Tuple

import torch

from .._futures import Future
from ..errors import InvalidArgument
from ..tables import Table


class EmbeddingBag(torch.nn.Module):
    """torch.nn.EmbeddingBag without a number of embeddings: ids are any int64, and a row begins with the first gradient
    for its id. A forward pass reads the rows of its distinct ids; DistributedOptimizer.step(), or
    Connection.push_collected_rows(), sends their gradients.

    table: of Connection.table(). mode: "sum" or "mean".
    """

    def __init__(self, table: Table, mode: str = "sum") -> None:
        super().__init__()
        if mode not in ("sum", "mean"):
            raise InvalidArgument(f"mode: got {mode!r}, want 'sum' or 'mean'")
        table._has_bag = True
        self.table = table
        self.mode = mode
        self._ahead: Dict[bytes, Tuple[Future, torch.Tensor]] = {}

    def extra_repr(self) -> str:
        return f"table={self.table.name!r}, dim={self.table.dim}, mode={self.mode!r}"

    def prefetch(self, ids: torch.Tensor) -> None:
        """Begins to read the rows of the next forward pass's ids. Under policy sync they arrive with the update of the
        last step that was pushed, so call it after that."""
        distinct = torch.unique(ids.reshape(-1))
        self._ahead[distinct.numpy().tobytes()] = self._begin(distinct)

    def _begin(self, distinct: torch.Tensor) -> Tuple[Future, torch.Tensor]:
        rows = torch.empty((distinct.numel(), self.table.dim), dtype=torch.float32)
        return self.table.pull_async(distinct, rows), rows

    def forward(self, ids: torch.Tensor, offsets: Optional[torch.Tensor] = None) -> torch.Tensor:
        """Returns the sum or mean of the rows of each bag, of shape [bags, dim]: ids of shape [n] with the bags' offsets,
        or ids of shape [bags, ids of a bag]."""
        if ids.dtype != torch.int64:
            raise InvalidArgument(f'ids of table "{self.table.name}": got dtype {ids.dtype}, want int64')
        distinct, places = torch.unique(ids, return_inverse=True)
        future, rows = self._ahead.pop(distinct.numpy().tobytes(), None) or self._begin(distinct)
        self._ahead.clear()
        self.table._connection._wait(future, None)
        if torch.is_grad_enabled() and self.training:
            rows.requires_grad_()
            rows.register_hook(lambda gradient: self.table._collect(distinct, gradient))
        return torch.nn.functional.embedding_bag(places, rows, offsets, mode=self.mode)
