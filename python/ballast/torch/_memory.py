# SPDX-License-Identifier: Apache-2.0
"""The memory of gradients, which each step allocates anew."""

from __future__ import annotations

import ctypes
import os

# Parameters of mallopt(), from malloc.h in glibc.
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_MOST = 2**31 - 1
# Bytes beside gradients that a step frees, such as outputs of layers.
_OTHERS = 256 << 20


def keep_freed_memory(model_bytes: int) -> None:
    """Makes glibc keep what a step frees for the next one, as Ballast's own programs do. Otherwise it returns large
    tensors to the system each time, and their next use costs a page fault for every 4 KiB. Does nothing if malloc's own
    variables are set, or BALLAST_KEEP_FREED_MEMORY=0."""
    environment = os.environ
    if (environment.get("BALLAST_KEEP_FREED_MEMORY") == "0" or "glibc.malloc" in environment.get("GLIBC_TUNABLES", "")
            or any(name in environment for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_",
                                                    "MALLOC_MMAP_THRESHOLD_"))):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, min(2 * model_bytes + _OTHERS, _MOST))
