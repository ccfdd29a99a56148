# SPDX-License-Identifier: Apache-2.0
"""What a script has logged and not sent yet."""

from __future__ import annotations

import threading
import time
from typing import Dict, List, Tuple

# Seconds between two messages.
_INTERVAL = 1.0


class Log:
    """Sums of examples and losses by epoch. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: Dict[int, Tuple[int, float]] = {}
        self._sent = time.monotonic()

    def add(self, epoch: int, examples: int, loss: float) -> None:
        """Adds examples of an epoch, and their mean loss."""
        with self._lock:
            count, total = self._sums.get(epoch, (0, 0.0))
            self._sums[epoch] = (count + examples, total + loss * examples)

    def is_due(self) -> bool:
        """Returns whether a message should be sent."""
        return time.monotonic() - self._sent >= _INTERVAL

    def take(self) -> List[Tuple[int, int, float]]:
        """Returns and removes (epoch, examples, sum of losses), in the order of the epochs."""
        with self._lock:
            self._sent = time.monotonic()
            sums, self._sums = self._sums, {}
        return [(epoch, *sums[epoch]) for epoch in sorted(sums)]
