# SPDX-License-Identifier: Apache-2.0
"""The connections of a process: their opening, the newest one's log, and their end with the interpreter."""

from __future__ import annotations

import atexit
import os
import sys
from typing import Any, Dict, Optional

from . import _arguments
from ._connection import Connection, close_quietly, failure_of, opened
from ._leases import Batches
from ._stop import ends_when_lost
from .errors import InvalidArgument

_DURABILITIES = ("none", "checkpoint", "wal", "wal_sync", "standby")


def _close_all() -> None:
    # An interactive session goes on after an exception.
    interactive = hasattr(sys, "ps1") or sys.flags.interactive
    error = None if interactive else getattr(sys, "last_value", None)
    for connection in list(opened.values()):
        close_quietly(connection, None if error is None else failure_of(error))


atexit.register(_close_all)


def connect(coordinator: Optional[str] = None, job: Optional[str] = None, *, policy: str = "sync {}",
            rank: Optional[int] = None, examples: int = 0, batch_size: int = 0, epochs: int = 0, seed: int = 0,
            durability: str = "none", codec: Optional[str] = None, wait_seconds: int = 60,
            gather_timeout: Optional[float] = None, tls_ca: Optional[str] = None, tls_cert: Optional[str] = None,
            tls_key: Optional[str] = None, token_file: Optional[str] = None) -> Connection:
    """Joins a job as one of its workers, and waits until all servers and workers have joined.

    Under `ballast run`, no argument is needed to find the servers, and its flags replace job, policy, codec and
    durability.

    coordinator: host:port of server 0; default: $BALLAST_COORDINATOR, or 127.0.0.1:7700.
    job: its name, of a-z, 0-9, _ and -; default: $BALLAST_JOB. All workers give the same job,
        policy, durability, codec and examples; JobDiffers otherwise.
    policy: text of a ConsistencyPolicy in tensor.proto: "sync {}", "async {}", "bounded { steps_ahead: 4 }".
    rank: of this worker; default: $BALLAST_RANK, or the lowest free one.
    examples, batch_size, epochs: the data that leases() shares out, in an order that depends on `seed`.
    durability: "none", "checkpoint", "wal", "wal_sync" or "standby", as the servers were started.
    codec: text of a Codec: "gradients: ENCODING_BF16".
    wait_seconds: limit on the servers' waits for other workers, 1 to 600.
    gather_timeout: seconds until all must have joined; Timeout then names those that are missing. Default:
        $BALLAST_GATHER_TIMEOUT, or 300.
    tls_ca, tls_cert, tls_key, token_file: paths; default: $BALLAST_TLS_CA and so on.
    """
    job = job or os.environ.get("BALLAST_JOB", "")
    if not job:
        raise InvalidArgument('job: got none, want a name: connect(job="mine"), or `ballast run`, which sets '
                              "$BALLAST_JOB")
    if durability not in _DURABILITIES:
        raise InvalidArgument(f"durability: got {durability!r}, want one of {', '.join(_DURABILITIES)}")
    examples = _arguments.number("examples", examples, 0, 2**63 - 1)
    text = [f"name: {_arguments.quoted('job', job)} seed: {_arguments.number('seed', seed, 0, 2**64 - 1)} "
            f"policy {{ {policy} }} durability {{ mode: {durability.upper()} }}"]
    if codec:
        text.append(f"codec {{ {codec} }}")
    training = f"wait_seconds: {_arguments.number('wait_seconds', wait_seconds, 1, 600)}"
    if examples > 0:
        training += (f" epochs: {_arguments.number('epochs', epochs, 1, _arguments.MOST)} "
                     f"batch_size: {_arguments.number('batch_size', batch_size, 1, _arguments.MOST)}")
    text.append(f"training {{ {training} }}")
    files = {"tls_ca": tls_ca, "tls_cert": tls_cert, "tls_key": tls_key, "token_file": token_file}
    options: Dict[str, Any] = {name: _arguments.text(name, path) for name, path in files.items() if path}
    rank_plus_1 = 0 if rank is None else _arguments.number("rank", rank, 0, _arguments.MOST - 1) + 1
    options.update(rank_plus_1=rank_plus_1, examples=examples,
                   gather_seconds=0 if gather_timeout is None else _arguments.seconds("gather_timeout", gather_timeout))
    ends_when_lost()
    connection = Connection(coordinator, " ".join(text), options)
    if examples > 0:
        connection._batches = Batches(examples, batch_size, seed)
    return connection


def log(loss: Any = None, **figures: Any) -> None:
    """Calls Connection.log() of this process's newest open connection; does nothing if there is none, so that a script
    also runs without Ballast."""
    for connection in reversed(list(opened.values())):
        if connection._worker is not None and connection._process == os.getpid():
            connection.log(loss, **figures)
            return
