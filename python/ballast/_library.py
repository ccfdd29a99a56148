# SPDX-License-Identifier: Apache-2.0
"""libballast.so, whose functions and structures are those of ballast.h."""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any, Optional

from .errors import Error, make_error


class Options(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("coordinator", c_char_p), ("job", c_char_p), ("rank_plus_1", c_uint32),
                ("examples", c_uint64), ("tls_ca", c_char_p), ("tls_cert", c_char_p), ("tls_key", c_char_p),
                ("token_file", c_char_p), ("gather_seconds", c_double)]


class Worker(c_void_p):
    """The library's worker. It is freed once the last thread that uses it has dropped it, but not in a forked process,
    which lacks its threads."""

    process = 0
    free: Any = None

    def __del__(self) -> None:
        if self.value and self.free is not None and self.process == _getpid():
            self.free(self)


class Membership(ctypes.Structure):
    _fields_ = [("rank", c_uint32), ("workers", c_uint32), ("servers", c_uint32), ("returns", c_int32),
                ("first_step", c_uint64)]


class Tensor(ctypes.Structure):
    _fields_ = [("id", c_uint32), ("data", c_void_p), ("elements", c_uint64)]


class Step(ctypes.Structure):
    _fields_ = [("step", c_uint64), ("examples", c_uint32), ("position", c_double)]


class Rows(ctypes.Structure):
    _fields_ = [("table", c_uint32), ("ids", c_void_p), ("count", c_uint64), ("data", c_void_p), ("elements", c_uint64),
                ("versions", c_void_p)]


class Result(ctypes.Structure):
    """What an operation has done: sums over its slices or rows, as ballast_result in ballast.h."""

    _fields_ = [("applied", c_uint64), ("buffered", c_uint64), ("dropped", c_uint64), ("max_staleness", c_uint64),
                ("created", c_uint64), ("bytes_sent", c_uint64), ("bytes_received", c_uint64),
                ("learning_rate", c_float)]

    def __repr__(self) -> str:
        return f"Result({', '.join(f'{name}={getattr(self, name):g}' for name, _ in self._fields_)})"


class Lease(ctypes.Structure):
    _fields_ = [("id", c_uint64), ("epoch", c_uint32), ("steps", c_uint32), ("begin", c_uint64), ("end", c_uint64),
                ("share_begin", c_double), ("share_end", c_double), ("behind", c_int32)]


class Progress(ctypes.Structure):
    _fields_ = [("step", c_uint64), ("epoch", c_uint32), ("learning_rate", c_float), ("examples", c_uint64),
                ("loss_sum", c_double), ("steps", c_uint64), ("seconds", c_double), ("wait_seconds", c_double),
                ("evaluated", c_int32), ("epochs_done", c_uint32), ("test_loss", c_double), ("test_accuracy", c_double)]


# Arguments and result of each function; an error is a pointer.
_FUNCTIONS = {
    "version": ([], c_char_p),
    "error_code": ([c_void_p], c_int),
    "error_reason": ([c_void_p], c_char_p),
    "error_message": ([c_void_p], c_char_p),
    "error_details": ([c_void_p], c_size_t),
    "error_detail_name": ([c_void_p, c_size_t], c_char_p),
    "error_detail_value": ([c_void_p, c_size_t], c_char_p),
    "error_free": ([c_void_p], None),
    "join": ([POINTER(Options), POINTER(c_void_p)], c_void_p),
    "leave": ([c_void_p, c_char_p], c_void_p),
    "free": ([c_void_p], None),
    "get_membership": ([c_void_p, POINTER(Membership)], None),
    "declare": ([c_void_p, POINTER(c_char_p), c_size_t, POINTER(c_uint32)], c_void_p),
    "declare_tables": ([c_void_p, POINTER(c_char_p), c_size_t, POINTER(c_uint32)], c_void_p),
    "set_values": ([c_void_p, POINTER(Tensor), c_size_t], c_uint64),
    "push": ([c_void_p, POINTER(Step), POINTER(Tensor), c_size_t], c_uint64),
    "pull": ([c_void_p, c_uint64, POINTER(Tensor), c_size_t], c_uint64),
    "push_pull": ([c_void_p, POINTER(Step), POINTER(Tensor), POINTER(Tensor), c_size_t], c_uint64),
    "push_pull_owned": ([c_void_p, POINTER(Step), POINTER(Tensor), POINTER(Tensor), c_size_t], c_uint64),
    "pull_rows": ([c_void_p, c_uint64, POINTER(Rows), c_size_t], c_uint64),
    "push_rows": ([c_void_p, POINTER(Step), POINTER(Rows), c_size_t, c_int], c_uint64),
    "wait": ([c_void_p, c_uint64, c_double, POINTER(Result)], c_void_p),
    "wait_any": ([c_void_p, c_double, POINTER(c_uint64), POINTER(Result)], c_void_p),
    "next_lease": ([c_void_p, c_double, POINTER(Lease), POINTER(c_int)], c_void_p),
    "complete_lease": ([c_void_p, c_uint64, c_uint64, c_uint64], c_void_p),
    "pause": ([c_void_p], c_void_p),
    "catch_up": ([c_void_p, POINTER(Tensor), c_size_t, POINTER(c_uint64)], c_void_p),
    "shuffled": ([c_uint64, c_uint64, c_uint32, c_uint64, c_uint64, POINTER(c_uint64)], c_void_p),
    "report": ([c_void_p, POINTER(Progress)], c_void_p),
}

# Version of the library that this package was made for: kVersion of common/program/this_process.h.
VERSION = "0.1.0"

# The interpreter clears modules before it deletes their last objects.
_getpid = os.getpid

_loaded: Optional[ctypes.CDLL] = None


def library() -> Any:
    """Returns the library, loading it at the first call: $BALLAST_LIBRARY, or the one beside this file."""
    global _loaded
    if _loaded is None:
        path = os.environ.get("BALLAST_LIBRARY") or os.path.join(os.path.dirname(__file__), "libballast.so")
        try:
            loaded = ctypes.CDLL(path)
            for name, (arguments, result) in _FUNCTIONS.items():
                function = getattr(loaded, "ballast_" + name)
                function.argtypes, function.restype = arguments, result
        except (OSError, AttributeError) as error:
            raise ImportError(f"cannot load Ballast's library: {error}; $BALLAST_LIBRARY may name another one"
                              ) from None
        version = loaded.ballast_version().decode(errors="replace")
        if version != VERSION:
            raise ImportError(f"{path}: got Ballast's library of version {version}, want {VERSION}, the version of "
                              f"{os.path.dirname(os.path.abspath(__file__))}")
        _loaded = loaded
    return _loaded


def take_error(pointer: Optional[int]) -> Optional[Error]:
    """Returns the exception for an error of the library, which it frees; None for none."""
    if not pointer:
        return None
    lib = library()
    details = {lib.ballast_error_detail_name(pointer, i).decode(): lib.ballast_error_detail_value(pointer, i).decode()
               for i in range(lib.ballast_error_details(pointer))}
    error = make_error(lib.ballast_error_message(pointer).decode(errors="replace"), lib.ballast_error_code(pointer),
                       lib.ballast_error_reason(pointer).decode(), details)
    lib.ballast_error_free(pointer)
    return error


def check(pointer: Optional[int]) -> None:
    """Raises the exception for an error of the library, if there is one."""
    error = take_error(pointer)
    if error is not None:
        raise error
