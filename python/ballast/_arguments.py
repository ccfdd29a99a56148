# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments, and their forms for the library."""

from __future__ import annotations

import ctypes
import operator
import os
from typing import Any, List, Mapping, Tuple

from .errors import InvalidArgument
from .optimizers import optimizer_text

# The largest uint32.
MOST = 2**32 - 1


def quoted(what: str, text: Any) -> str:
    """Returns a string of protobuf's text format, with all but ASCII's printable characters as octal numbers."""
    if not isinstance(text, str):
        raise InvalidArgument(f"{what}: got {text!r}, want a str")
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what}: got {text!r}, want text that UTF-8 can encode") from None
    characters = (chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:03o}" for byte in encoded)
    return '"' + "".join(characters) + '"'


def number(what: str, number: Any, least: int, most: int) -> int:
    """Returns a number as an int. InvalidArgument, which calls it `what`, unless it is one in that range."""
    try:
        value = operator.index(number)
    except TypeError:
        value = least - 1
    if not least <= value <= most:
        raise InvalidArgument(f"{what}: got {number!r}, want an integer from {least} to {most}")
    return value


def seconds(what: str, seconds: Any) -> float:
    """Returns a time as a float. InvalidArgument unless it is a number above 0."""
    try:
        value = float(seconds)
    except (TypeError, ValueError):
        value = 0.0
    if not value > 0:
        raise InvalidArgument(f"{what}: got {seconds!r}, want a number of seconds above 0")
    return value


def mapping(what: str, arrays: Any) -> Mapping[str, Any]:
    if not isinstance(arrays, Mapping):
        raise InvalidArgument(f"{what}: got {type(arrays).__name__}, want a dict by name")
    return arrays


def names(mapping: Mapping[str, Any]) -> List[str]:
    return sorted(map(str, mapping))


def shape(name: str, sizes: Any) -> Tuple[int, ...]:
    try:
        return tuple(number(f'shape of "{name}"', size, 0, 2**63 - 1) for size in sizes)
    except TypeError:
        raise InvalidArgument(f'shape of "{name}": got {sizes!r}, want a tuple of integers') from None


def text(what: str, text: Any) -> bytes:
    """Returns text as the library takes it."""
    if not isinstance(text, (str, os.PathLike)):
        raise InvalidArgument(f"{what}: got {text!r}, want a str")
    encoded = os.fsencode(text)
    if b"\0" in encoded:
        raise InvalidArgument(f"{what}: got {text!r}, want text without the character 0")
    return encoded


def texts(specs: List[str]) -> Any:
    return (ctypes.c_char_p * max(len(specs), 1))(*[text("declaration", spec) for spec in specs])


def optimizer_of(optimizer: Any, name: str) -> str:
    if isinstance(optimizer, Mapping):
        if name not in optimizer:
            raise InvalidArgument(f'optimizers: got none for "{name}", want one for each tensor')
        optimizer = optimizer[name]
    return optimizer_text(optimizer)
