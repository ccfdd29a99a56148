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
    Connection.push_collected_rows(), sends their gradients. In eval mode and under no_grad it collects no gradient, so
    it makes no row.

    table: of Connection.table(); several bags may share it. mode: "sum", "mean" or "max".
    include_last_offset: the last of the offsets is the number of ids, as in PyTorch.
    """

    def __init__(self, table: Table, mode: str = "sum", *, include_last_offset: bool = False) -> None:
        super().__init__()
        if mode not in ("sum", "mean", "max"):
            raise InvalidArgument(f"mode: got {mode!r}, want 'sum', 'mean' or 'max'")
        table._has_bag = True
        self.table = table
        self.mode = mode
        self.include_last_offset = include_last_offset
        # By the bytes of the distinct ids: the pull, its memory, and the number of steps of rows that were pushed.
        self._ahead: Dict[bytes, Tuple[Future, torch.Tensor, int]] = {}

    def extra_repr(self) -> str:
        return f"table={self.table.name!r}, dim={self.table.dim}, mode={self.mode!r}"

    def prefetch(self, ids: torch.Tensor) -> None:
        """Begins to read the rows of the next forward pass's ids. Call it after step(): a forward pass reads anew what
        was read before the last one."""
        distinct = torch.unique(self._on_host(ids).reshape(-1))
        self._ahead[distinct.numpy().tobytes()] = self._begin(distinct)

    def _on_host(self, ids: torch.Tensor) -> torch.Tensor:
        if ids.dtype != torch.int64:
            raise InvalidArgument(f'ids of table "{self.table.name}": got dtype {ids.dtype}, want int64')
        return ids.detach().cpu()

    def _begin(self, distinct: torch.Tensor) -> Tuple[Future, torch.Tensor, int]:
        rows = torch.empty((distinct.numel(), self.table.dim), dtype=torch.float32)
        return self.table.pull_async(distinct, rows), rows, self.table._connection._row_steps

    def forward(self, ids: torch.Tensor, offsets: Optional[torch.Tensor] = None,
                per_sample_weights: Optional[torch.Tensor] = None) -> torch.Tensor:
        """Returns the sum, mean or maximum of the rows of each bag, of shape [bags, dim]; 0 for an empty one. ids of
        shape [n] come with the bags' offsets; those of shape [bags, ids of a bag] without. per_sample_weights: factors
        of the shape of ids, for mode "sum"."""
        connection = self.table._connection
        distinct, places = torch.unique(self._on_host(ids), return_inverse=True)
        future, rows, steps = self._ahead.pop(distinct.numpy().tobytes(), None) or self._begin(distinct)
        if steps != connection._row_steps:
            future, rows, steps = self._begin(distinct)
        self._ahead.clear()
        connection._wait(future, None)
        if torch.is_grad_enabled() and self.training:
            rows.requires_grad_()
            rows.register_hook(lambda gradient: self.table._collect(distinct, gradient))
        return torch.nn.functional.embedding_bag(places.to(ids.device), rows.to(ids.device), offsets, mode=self.mode,
                                                 per_sample_weights=per_sample_weights,
                                                 include_last_offset=self.include_last_offset)
