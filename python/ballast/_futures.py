# SPDX-License-Identifier: Apache-2.0
"""Futures of operations, and the thread that completes them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import ctypes
import threading
import time
from typing import Any, Callable, Dict, Generator, Optional, Tuple

from ._library import Result, library, take_error
from .errors import Cancelled, Timeout

# The library ends the wait when the worker has left.
_FOREVER = 1e9
# Seconds between looks at the failures of other operations during a wait.
_GLANCE = 0.5


class Future(concurrent.futures.Future):
    """The outcome of an operation: a Result, with the counts of ballast_result in ballast.h, or an exception. It can be
    awaited, too. It cannot be cancelled: the servers bound its time. If nobody asks a future that fails, the connection's
    next call raises the exception."""

    def __init__(self, what: str, on_ignored: Callable[[BaseException], None]) -> None:
        super().__init__()
        self.what = what
        self._on_ignored = on_ignored
        self._asked = False
        self.set_running_or_notify_cancel()

    def result(self, timeout: Optional[float] = None) -> Result:
        """Waits for the outcome; Timeout after so many seconds, and the operation goes on."""
        try:
            outcome = super().result(timeout)
        except concurrent.futures.TimeoutError:
            self._check_done(timeout)
            self._asked = True
            raise
        except BaseException:
            self._asked = True
            raise
        return outcome

    def exception(self, timeout: Optional[float] = None) -> Optional[BaseException]:
        """Waits for the outcome and returns its exception, or None; Timeout as for result."""
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
            raise Timeout(f"timed out after {timeout or 0:g} s waiting for the {self.what}", 4, "WAIT_TIMEOUT") from None

    def __del__(self) -> None:
        if self._asked or not self.done():
            return
        error = super().exception()
        if error is not None and not isinstance(error, Cancelled):
            self._on_ignored(error)

    def __await__(self) -> Generator[Any, None, Result]:
        return asyncio.wrap_future(self).__await__()


class Completer:
    """Owns the futures of a worker's operations, with what their memory belongs to, and the thread that completes
    them."""

    def __init__(self, worker: ctypes.c_void_p) -> None:
        self._worker = worker
        # Held while an operation begins, so that its future is there when it ends.
        self._lock = threading.Lock()
        self._futures: Dict[int, Tuple[Future, Any]] = {}
        self._ignored: Optional[BaseException] = None
        self._thread = threading.Thread(target=self._run, name="ballast", daemon=True)
        self._thread.start()

    def begin(self, what: str, start: Callable[[], int], owners: Any) -> Future:
        """Starts an operation; `owners` are kept alive until it ends."""
        future = Future(what, self._note_ignored)
        with self._lock:
            self._futures[start()] = (future, owners)
        return future

    def _note_ignored(self, error: BaseException) -> None:
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
            if future.done() or left <= _GLANCE:
                future.result(max(left, 0.0))
                return
            concurrent.futures.wait([future], _GLANCE)
            self.raise_ignored()

    def pending(self) -> int:
        """Returns the number of operations that have not ended."""
        with self._lock:
            return len(self._futures)

    def wait(self, timeout: float) -> None:
        """Waits until all present operations have ended; raises the first one's exception."""
        with self._lock:
            futures = [future for future, _ in self._futures.values()]
        for future in futures:
            self.await_one(future, timeout)
        self.raise_ignored()

    def join(self) -> bool:
        """Waits for the thread to end, after the worker has left. False if this is that thread."""
        if threading.current_thread() is self._thread:
            return False
        self._thread.join()
        return True

    def _run(self) -> None:
        wait_any = library().ballast_wait_any
        operation = ctypes.c_uint64()
        while True:
            result = Result()
            error = take_error(wait_any(self._worker, _FOREVER, ctypes.byref(operation), ctypes.byref(result)))
            if operation.value == 0:
                if error is not None:
                    return
                continue
            with self._lock:
                future, owners = self._futures.pop(operation.value)
            del owners
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
            del future
