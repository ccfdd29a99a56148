# SPDX-License-Identifier: Apache-2.0
"""The initial values of the rows of a table: a function of the table's seed and name, the row's id and the element."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import InvalidArgument
from .fields import Fields

_MASK = 2**64 - 1


def _mix(x: Any) -> Any:
    """SplitMix64 of each element of an array of uint64."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return x ^ x >> np.uint64(31)


def _signed(half: Any) -> Any:
    return half.astype(np.uint32).view(np.int32).astype(np.float64)


class RowInitializer:
    """Returns the values of rows that do not exist, as ballast_server sends them, but for their last bits."""

    def __init__(self, spec: Fields) -> None:
        """`spec` is the TableSpec."""
        initializer = spec.message("initializer")
        initializer.only(("zeros", "constant", "uniform", "normal"))
        if len(initializer.json) > 1:
            raise InvalidArgument(f"{initializer.what}: got {', '.join(initializer.json)}, want one kind")
        self._kind = "zeros" if "admission" in spec.json else next(iter(initializer.json), "zeros")
        numbers = initializer.message(self._kind)
        first, second = {"uniform": ("low", "high"), "normal": ("mean", "stddev"), "constant": ("value", ""),
                         "zeros": ("", "")}[self._kind]
        most = float(np.finfo(np.float32).max)
        self._first, self._second = (np.float32(numbers.number(name, 0, -most, most)) for name in (first, second))
        stream = np.array([spec.integer("seed", 0, _MASK)], np.uint64)
        stream = _mix(stream)
        for byte in spec.text("name").encode():
            stream = _mix(stream ^ np.uint64(byte))
        self._stream = stream

    def __call__(self, ids: Any, dim: int) -> Any:
        """Returns the values of the rows of ids, uint64 of shape [n], as float32 of shape [n, dim]."""
        if self._kind in ("zeros", "constant"):
            return np.full((len(ids), dim), self._first, np.float32)
        bits = _mix(_mix(ids ^ self._stream)[:, None] + np.arange(dim, dtype=np.uint64))
        high, low = _signed(bits >> np.uint64(32)), _signed(bits & np.uint64(0xFFFFFFFF))
        first, second = np.float64(self._first), np.float64(self._second)
        if self._kind == "uniform":
            values = (first + (high + 2**31) * ((second - first) * 2**-32)).astype(np.float32)
            return np.minimum(values, np.nextafter(self._second, self._first))
        # Box and Muller, 1958.
        normal = np.sqrt(-2 * np.log((high + (2**31 + 0.5)) * 2**-32)) * np.sin(np.pi * (low * 2**-32))
        return (first + second * normal).astype(np.float32)
