# SPDX-License-Identifier: Apache-2.0
"""Exchanges of the same tensors, step by step, at the least cost for each."""

from __future__ import annotations

import ctypes
import time
from typing import TYPE_CHECKING, Optional, Sequence

from . import _arrays, _library
from .errors import Error, Timeout

if TYPE_CHECKING:
    from ._connection import Connection

# Seconds of one wait, between looks at the failures of other operations and at Ctrl-C.
_GLANCE = 0.5
# Limit on the wait for one operation. The servers' own limits are shorter.
_PATIENCE = 600.0
_NOT_FOUND = 5


class Exchange:
    """Pushes gradients of some tensors and pulls their new values, in one operation at a time. It needs no future and no
    other thread: the caller must finish() each. Gradients and memory belong to the operation until then."""

    def __init__(self, connection: "Connection", names: Sequence[str]) -> None:
        self._connection = connection
        self._tensors = connection._find(dict.fromkeys(names))
        count = len(self._tensors)
        self._sent = (_library.Tensor * count)()
        self._received = (_library.Tensor * count)()
        for sent, received, tensor in zip(self._sent, self._received, self._tensors):
            sent.id = received.id = tensor.id
            sent.elements = received.elements = _arrays._count(tensor.shape)
        self._step = _library.Step()
        self._step_pointer = ctypes.byref(self._step)
        self._result = _library.Result()
        self._result_pointer = ctypes.byref(self._result)
        self._operation = 0
        self.pending = False
        """Whether an operation has begun and is not finished."""
        self._error: Optional[Error] = None
        self._owners: Sequence[object] = ()

    def begin(self, gradients: Sequence[int], values: Sequence[_arrays.Memory], examples: int,
              owners: Sequence[object]) -> None:
        """Begins a step: gradients by address, and memory for the values; both of the tensors' sizes. `owners` are kept
        alive."""
        connection = self._connection
        worker = connection._use()
        if connection._behind or examples < 0:
            # Refuses.
            connection._step(self._tensors, examples)
        tensors = self._tensors
        number = tensors[0].steps
        for i, tensor in enumerate(tensors):
            if tensor.steps != number:
                connection._common_step(tensors)
            self._sent[i].data = gradients[i]
            memory = values[i]
            self._received[i].data = memory.address
            tensor.into = memory
        step = self._step
        step.step, step.examples, step.position = number, examples, connection._position
        self._owners = owners
        self._operation = connection._lib.ballast_push_pull_owned(worker, self._step_pointer, self._sent, self._received,
                                                                  len(tensors))
        self.pending = True
        connection._exchanges.add(self)
        for tensor in tensors:
            tensor.steps = number + 1

    def finish(self) -> None:
        """Waits for the operation, if one has begun; raises its exception, each time until the next one begins."""
        if self.pending:
            self._take()
        if self._error is not None:
            raise self._error

    def settle(self) -> None:
        """Waits for the operation, if one has begun, and keeps its exception for finish()."""
        if self.pending:
            self._take()

    def _take(self) -> None:
        """Takes the outcome of the operation."""
        connection = self._connection
        began = time.monotonic()
        wait, operation, outcome = connection._lib.ballast_wait, self._operation, self._result_pointer
        late: Optional[Error] = None
        while True:
            error = _library.take_error(wait(connection._use(), operation, _GLANCE, outcome))
            if error is None:
                break
            if error.reason == "WAIT_TIMEOUT":
                if time.monotonic() - began > _PATIENCE:
                    names = ", ".join(f'"{tensor.name}"' for tensor in self._tensors)
                    raise Timeout(f"timed out after {_PATIENCE:g} s waiting for the push-pull of {names} at step "
                                  f"{self._step.step}", 4, "WAIT_TIMEOUT")
                # The wait has timed out, or the operation, which is then gone.
                late = error
                continue
            if error.code == _NOT_FOUND and late is not None:
                error = late
            break
        self.pending, self._owners = False, ()
        connection._exchanges.discard(self)
        self._error = error
        connection._waited += time.monotonic() - began
        if error is None:
            connection._learning_rate = self._result.learning_rate or connection._learning_rate
