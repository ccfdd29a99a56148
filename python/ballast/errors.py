# SPDX-License-Identifier: Apache-2.0
"""Exceptions, chosen by the code and the reason of a failure and never by its text."""

from __future__ import annotations

import concurrent.futures
from typing import Dict, Mapping, Type


class Error(Exception):
    """A failure of Ballast: `code` of gRPC, `reason` of error.proto ("" if there is none), and `details`, the names and
    values of what it is about, such as {"rank": "3"}."""

    def __init__(self, message: str, code: int = 2, reason: str = "", details: Mapping[str, str] = {}) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.details: Dict[str, str] = dict(details)


class InvalidArgument(Error, ValueError):
    """An argument does not fit: the message names it, what was got and what is wanted."""

    def __init__(self, message: str, code: int = 3, reason: str = "INVALID_REQUEST",
                 details: Mapping[str, str] = {}) -> None:
        super().__init__(message, code, reason, details)


class NotFound(InvalidArgument, FileNotFoundError):
    """A file is missing."""

    def __init__(self, message: str, code: int = 5) -> None:
        super().__init__(message, code)


# From Python 3.11 on, they are one class.
_TIMEOUTS = (TimeoutError,) if concurrent.futures.TimeoutError is TimeoutError else (
    TimeoutError, concurrent.futures.TimeoutError)


class Timeout(Error, *_TIMEOUTS):  # type: ignore[misc]
    """Something took too long; the message names what was waited for."""


class Unavailable(Error, ConnectionError):
    """A server does not respond."""


class Cancelled(Error):
    """The connection was closed meanwhile."""


class Refused(Error):
    """The job's state does not allow the call."""


class JobFailed(Refused):
    """The job has failed; `details` name the member at fault, if there is one."""


class MemberLost(Refused):
    """The job goes on without this worker, which may connect again."""


class JobDiffers(Refused):
    """Another worker has joined with another definition of the job."""


class TensorDiffers(Refused):
    """A tensor or table was declared before, and differently."""


class ValuesSet(Refused):
    """A tensor has other first values, or has been trained since."""


class NoData(Refused):
    """The job has no examples to lease."""


class JobEnded(Refused):
    """The job has finished: its examples are done, or all its workers have left."""


class VersionsDiffer(Refused):
    """The library and the servers, which the message names with their versions, speak different protocols."""


class AccessDenied(Error, PermissionError):
    """The token or the certificate does not allow the call."""


class ResourceExhausted(Error):
    """A server has no memory, disk or time left for the call."""


class Forked(Error, RuntimeError):
    """The connection belongs to the process that this one was forked from."""


_BY_REASON: Dict[str, Type[Error]] = {
    "JOB_FAILED": JobFailed,
    "MEMBER_LOST": MemberLost,
    "STALE_INCARNATION": MemberLost,
    "JOB_DIFFERS": JobDiffers,
    "TENSOR_DIFFERS": TensorDiffers,
    "VALUES_SET": ValuesSet,
    "NO_DATA": NoData,
    "JOB_ENDED": JobEnded,
    "PROTOCOL_VERSION": VersionsDiffer,
}

# By the codes of gRPC.
_BY_CODE: Dict[int, Type[Error]] = {
    1: Cancelled,
    3: InvalidArgument,
    4: Timeout,
    5: InvalidArgument,
    6: Refused,
    7: AccessDenied,
    8: ResourceExhausted,
    9: Refused,
    10: JobFailed,
    14: Unavailable,
    16: AccessDenied,
}


def closed_error() -> Cancelled:
    """Returns the exception for a call of a connection that was closed."""
    return Cancelled("the connection is closed", 1, "CANCELLED")


def make_error(message: str, code: int, reason: str, details: Mapping[str, str]) -> Error:
    """Returns the exception for a failure."""
    return _BY_REASON.get(reason, _BY_CODE.get(code, Error))(message, code, reason, details)
