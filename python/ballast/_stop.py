# SPDX-License-Identifier: Apache-2.0
"""The end of a script that `ballast run` started: told to stop, or lost."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from typing import Any, Iterator

from .errors import MemberLost

# `ballast run` starts a worker again that ends so.
_EXIT_LOST = 3


class Stop:
    """Whether a loop should end."""

    asked = False


@contextlib.contextmanager
def stops_on_sigterm() -> Iterator[Stop]:
    """Under `ballast run`, makes a first SIGTERM ask the loop to stop, so that the script goes on after it; a second one
    ends the process. Does nothing in other threads than the main one, or if the script handles the signal."""
    stop = Stop()
    if (not os.environ.get("BALLAST_RUN_DIR") or threading.current_thread() is not threading.main_thread()
            or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL):
        yield stop
        return

    def ask(*_: Any) -> None:
        stop.asked = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    signal.signal(signal.SIGTERM, ask)
    try:
        yield stop
    finally:
        if signal.getsignal(signal.SIGTERM) is ask:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


_hooked = False


def ends_when_lost() -> None:
    """Under `ballast run`, makes a script that was declared lost, and does not handle MemberLost, end so that it is
    started again."""
    global _hooked
    if _hooked or not os.environ.get("BALLAST_RUN_DIR"):
        return
    _hooked = True
    before = sys.excepthook

    def hook(kind: Any, error: Any, trace: Any) -> None:
        before(kind, error, trace)
        if isinstance(error, MemberLost):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(_EXIT_LOST)

    sys.excepthook = hook
