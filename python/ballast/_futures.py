# SPDX-License-Identifier: Apache-2.0
"""Futures of operations, and the thread that completes them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import ctypes
import os
import threading
import time
import traceback
from typing import Any, Callable, Dict, Generator, Optional, Tuple

from ._library import Result, Worker, library, take_error
from .errors import Cancelled, Forked, Timeout, closed_error

# The library ends the wait when the worker has left.
_FOREVER = 1e9
# Seconds between looks at the failures of other operations during a wait.
_GLANCE = 0.5


class Future(concurrent.futures.Future):
    """The outcome of an operation: a Result, with the counts of ballast_result in ballast.h, or an exception. It can be
    awaited, too. It cannot be cancelled: the servers bound its time. If nobody asks a future that fails, the connection's
    next call raises the exception. Its callbacks may call the connection, and wait for other futures."""

    # For a future whose constructor a signal ends.
    _asked = True

    def __init__(self, what: str, completer: "Completer") -> None:
        super().__init__()
        self.what = what
        self._completer = completer
        self._asked = False
        self.set_running_or_notify_cancel()

    def result(self, timeout: Optional[float] = None) -> Result:
        """Waits for the outcome; Timeout after so many seconds, and the operation goes on."""
        began = time.monotonic()
        try:
            self._completer.prepare_wait(self, timeout)
            return super().result(timeout)
        except concurrent.futures.TimeoutError:
            self._check_done(timeout)
            self._asked = True
            raise
        except BaseException:
            self._asked = True
            raise
        finally:
            self._completer.waited += time.monotonic() - began
            # The exception's traceback refers to this frame, which would refer to the exception.
            del self

    def exception(self, timeout: Optional[float] = None) -> Optional[BaseException]:
        """Waits for the outcome and returns its exception, or None; Timeout as for result."""
        self._completer.prepare_wait(self, timeout)
        try:
            error = super().exception(timeout)
        except concurrent.futures.TimeoutError:
            self._check_done(timeout)
            raise
        self._asked = True
        return error

    def _check_done(self, timeout: Optional[float]) -> None:
        # The operation itself may have failed with a Timeout.
        if not self.done():
            raise _timeout(timeout or 0.0, self) from None

    def __del__(self) -> None:
        if self._asked or not self.done():
            return
        error = super().exception()
        if error is not None and not isinstance(error, Cancelled):
            self._completer.note_ignored(error)

    def __await__(self) -> Generator[Any, None, Result]:
        return asyncio.wrap_future(self).__await__()


def _timeout(seconds: float, future: Future) -> Timeout:
    return Timeout(f"timed out after {seconds:g} s waiting for the {future.what}", 4, "WAIT_TIMEOUT")


class Completer:
    """Owns the futures of a worker's operations, with what their memory belongs to, and the thread that completes
    them. The thread ends when the worker has left and every operation has ended. Any thread may call any method."""

    def __init__(self, worker: Worker) -> None:
        self._worker: Optional[Worker] = worker
        self._process = os.getpid()
        # Held while an operation begins, so that its future is there when it ends.
        self._lock = threading.Lock()
        self.waited = 0.0
        """Seconds that callers have waited for results, in all."""
        self._futures: Dict[int, Tuple[Future, Any]] = {}
        self._ignored: Optional[BaseException] = None
        self._thread = threading.Thread(target=self._run, name="ballast", daemon=True)
        self._thread.start()

    def begin(self, what: str, function: Callable[..., int], arguments: Tuple[Any, ...], owners: Any) -> Future:
        """Starts an operation with a function of the library, which gets the worker and these arguments; `owners` are
        kept alive until it ends."""
        future = Future(what, self)
        with self._lock:
            if self._worker is None:
                raise closed_error()
            # No Python code runs between the function's return and the insertion: a signal's handler that raises an
            # exception there would leave an operation without a future, and free the memory that it uses.
            calls = map(function, (self._worker,), *((argument,) for argument in arguments))
            self._futures.update(zip(calls, ((future, owners),)))
        return future

    def check_process(self) -> None:
        """Raises Forked in a process that was forked from the worker's."""
        if os.getpid() != self._process:
            raise Forked(f"the connection was opened by process {self._process}, and this process, {os.getpid()}, was "
                         "forked from it: call ballast.connect here, too", 9, "FORKED")

    def prepare_wait(self, future: Future, timeout: Optional[float]) -> None:
        """Called before a wait for a future. In a callback, which keeps this object's thread from completing others, it
        completes them. Forked in a process that has no such thread."""
        if future.done():
            return
        self.check_process()
        if not self._is_this_thread():
            return
        deadline = time.monotonic() + (_FOREVER if timeout is None else timeout)
        while not future.done():
            left = deadline - time.monotonic()
            if left <= 0 or not self._complete_one(left):
                return

    def note_ignored(self, error: BaseException) -> None:
        """Keeps the exception of an operation whose future nobody asked, for the next call of the connection."""
        self._ignored = self._ignored or error

    def raise_ignored(self) -> None:
        """Raises the first exception of an operation whose future nobody asked, once."""
        error, self._ignored = self._ignored, None
        if error is not None:
            raise error

    def await_one(self, future: Future, timeout: float) -> None:
        """Waits for a future. Raises its exception, or that of another operation whose future nobody asked: the servers
        may wait for what that one was to send."""
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            if future.done() or left <= _GLANCE or self._is_this_thread():
                # In this thread, futures complete only while it asks for them.
                self.prepare_wait(future, max(left, 0.0))
                if not future.done() and not self._is_this_thread():
                    concurrent.futures.wait([future], max(left, 0.0))
                if not future.done():
                    raise _timeout(timeout, future)
                future.result()
                return
            self.check_process()
            concurrent.futures.wait([future], _GLANCE)
            self.raise_ignored()

    def pending(self) -> int:
        """Returns the number of operations that have not ended."""
        with self._lock:
            return len(self._futures)

    def wait(self, timeout: float) -> None:
        """Waits until all present operations have ended; raises the first one's exception."""
        self.check_process()
        deadline = time.monotonic() + timeout
        with self._lock:
            futures = [future for future, _ in self._futures.values()]
        for future in futures:
            self.await_one(future, max(deadline - time.monotonic(), 0.0))
        self.raise_ignored()

    def join(self, timeout: float) -> None:
        """Waits for the thread to end, after the worker has left; returns at once if this is that thread."""
        if not self._is_this_thread():
            self._thread.join(timeout)

    def _is_this_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def _run(self) -> None:
        while self._complete_one(_FOREVER):
            pass

    def _complete_one(self, timeout: float) -> bool:
        """Waits for an operation and completes its future, with its callbacks. False if there will be none."""
        worker = self._worker
        if worker is None:
            return False
        lib, number, result = library(), ctypes.c_uint64(), Result()
        error = take_error(lib.ballast_wait_any(worker, timeout, ctypes.byref(number), ctypes.byref(result)))
        if number.value == 0:
            if error is None:
                return True
            # The worker has left; another thread may have begun an operation meanwhile.
            with self._lock:
                if not self._futures:
                    self._worker = None
                    return False
                number.value = next(iter(self._futures))
            error = take_error(lib.ballast_wait(worker, number, min(timeout, _GLANCE), ctypes.byref(result)))
            if error is not None and error.reason == "WAIT_TIMEOUT" and error.code == 4:
                return True
        del worker
        with self._lock:
            future, owners = self._futures.pop(number.value)
        del owners
        try:
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
        except BaseException:
            # A callback called sys.exit(), which must not end the thread that the other futures need.
            traceback.print_exc()
        return True
