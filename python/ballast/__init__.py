# SPDX-License-Identifier: Apache-2.0
"""Ballast's client for Python: weights and their optimizers live on parameter servers.

    with ballast.connect("127.0.0.1:7700", job="mf") as ps:
        ps.declare({"w": w}, optimizer=ballast.Adam(1e-3))
        ps.pull({"w": w})
        for x, y in batches:
            ps.push_pull({"w": gradient(w, x, y)}, into={"w": w}, examples=len(x)).result(60)

docs/guide/python.md describes it.
"""

import importlib
from typing import Any

from ._connect import connect, log
from ._connection import Connection
from ._futures import Future
from ._library import Result, library
from ._load import load
from .errors import (AccessDenied, Cancelled, Error, Forked, InvalidArgument, JobDiffers, JobEnded, JobFailed, MemberLost,
                     NoData, NotFound, Refused, ResourceExhausted, TensorDiffers, Timeout, Unavailable, ValuesSet,
                     VersionsDiffer)
from .optimizers import (SGD, Adagrad, Adam, AdamW, Ftrl, GroupFtrl, Lamb, Lion, Momentum, Nesterov, Optimizer, RMSprop,
                         RowWiseAdagrad, RowWiseAdam, Schedule)
from .tables import Table

__all__ = [
    "AccessDenied", "Adagrad", "Adam", "AdamW", "Cancelled", "Connection", "Error", "Forked", "Ftrl", "Future",
    "GroupFtrl", "InvalidArgument", "JobDiffers", "JobEnded", "JobFailed", "Lamb", "Lion", "MemberLost", "Momentum",
    "Nesterov", "NoData", "NotFound", "Optimizer", "RMSprop", "Refused", "ResourceExhausted", "Result", "RowWiseAdagrad",
    "RowWiseAdam", "SGD", "Schedule", "Table", "TensorDiffers", "Timeout", "Unavailable", "ValuesSet", "VersionsDiffer",
    "connect", "load", "log",
]


def __getattr__(name: str) -> Any:
    # The library, NumPy and PyTorch are loaded when they are used.
    if name == "__version__":
        return library().ballast_version().decode()
    if name == "Model":
        return importlib.import_module("._saved.model", __name__).Model
    if name == "torch":
        return importlib.import_module(".torch", __name__)
    raise AttributeError(f"module 'ballast' has no attribute {name!r}")
