# SPDX-License-Identifier: Apache-2.0
"""Copies between the memory of a device and the host's."""

from __future__ import annotations

from typing import Any, Callable, Dict

import torch


class Cuda:
    """Copies between a CUDA device and pinned memory of the host, in the order of the device's current stream. They do
    not wait."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def host_memory(self, like: torch.Tensor) -> torch.Tensor:
        """Returns float32 memory of the host with a tensor's shape, for copies from and to the device."""
        return torch.empty(like.shape, dtype=torch.float32, pin_memory=True)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Begins to copy one tensor to the other."""
        target.copy_(source, non_blocking=True)

    def mark(self) -> Any:
        """Returns a mark behind all work so far: query() tells whether the device has passed it, synchronize() waits
        for that."""
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event


KINDS: Dict[str, Callable[[torch.device], Any]] = {"cuda": Cuda}
"""How to copy, by the type of the device. Parameters on "cpu" need no copies."""
