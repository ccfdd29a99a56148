# SPDX-License-Identifier: Apache-2.0
"""Objects in JSON, such as protobuf writes them, of which nothing is trusted."""

from __future__ import annotations

import json
import math
from typing import Any, Dict, Iterable, List, Optional, Tuple

from ..errors import InvalidArgument


def _integer(text: str) -> int:
    # Python takes quadratic time for a number of many digits.
    if len(text) > 20:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def _refuse(text: str) -> None:
    raise ValueError(f"the number {text}")


def _unique(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a name twice in one object")
    return made


def parse_json(what: str, text: Any) -> Dict[str, Any]:
    """Returns the object that a text or bytes in UTF-8 describe. InvalidArgument, which begins with `what`, if they
    describe none."""
    try:
        if isinstance(text, bytes):
            text = text.decode()
        parsed = json.loads(text, parse_int=_integer, parse_constant=_refuse, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{what}: not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise InvalidArgument(f"{what}: got JSON of a {type(parsed).__name__}, want an object")
    return parsed


class Fields:
    """The fields of a message. A missing field has its default; InvalidArgument names a field, what was got and what is
    wanted. Integers of 64 bits are numbers or texts."""

    def __init__(self, what: str, json: Any) -> None:
        if not isinstance(json, dict):
            raise InvalidArgument(f"{what}: got JSON of a {type(json).__name__}, want an object")
        self.what = what
        self.json = json

    def __contains__(self, name: str) -> bool:
        return self.json.get(name) is not None

    def refuse(self, name: str, want: str) -> InvalidArgument:
        """Returns the error for a field."""
        got = repr(self.json.get(name))
        return InvalidArgument(f"{self.what}: {name}: got {got if len(got) < 100 else got[:100] + '…'}, want {want}")

    def only(self, known: Iterable[str]) -> None:
        """Refuses a field that is not known, such as one of a newer version."""
        unknown = sorted(set(self.json) - set(known))
        if unknown:
            raise InvalidArgument(f"{self.what}: got the field \"{unknown[0]}\", want only "
                                  f"{', '.join(sorted(known)) or 'none'}")

    def _integer(self, name: str, value: Any, least: int, most: int) -> int:
        if isinstance(value, str) and len(value) <= 20:
            try:
                value = int(value)
            except ValueError:
                pass
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.refuse(name, f"{least} to {most}")
        return value

    def integer(self, name: str, least: int, most: int, default: int = 0) -> int:
        """Returns a number from least to most, or the default."""
        return self._integer(name, self.json[name], least, most) if name in self else default

    def integers(self, name: str, least: int, most: int) -> List[int]:
        """Returns a list of numbers from least to most."""
        return [self._integer(name, each, least, most) for each in self._list(name)]

    def number(self, name: str, default: float = 0, least: float = -math.inf, most: float = math.inf) -> float:
        """Returns a finite number from least to most, or the default."""
        if name not in self:
            return default
        value = self.json[name]
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or not least <= value <= most:
            raise self.refuse(name, f"a number from {least} to {most}")
        return float(value)

    def flag(self, name: str) -> bool:
        """Returns a bool, which is False by default."""
        if not isinstance(self.json.get(name, False), bool):
            raise self.refuse(name, "true or false")
        return self.json.get(name, False)

    def text(self, name: str, choices: Optional[Tuple[str, ...]] = None) -> str:
        """Returns a text, or the first choice if it is missing, or ""."""
        value = self.json.get(name)
        if value is None:
            return choices[0] if choices else ""
        if not isinstance(value, str) or (choices and value not in choices):
            raise self.refuse(name, " or ".join(choices) if choices else "a text")
        return value

    def texts(self, name: str) -> List[str]:
        """Returns a list of texts."""
        if not all(isinstance(each, str) for each in self._list(name)):
            raise self.refuse(name, "a list of texts")
        return self._list(name)

    def message(self, name: str) -> "Fields":
        """Returns an object, which is empty by default."""
        return Fields(f"{self.what}: {name}", self.json.get(name, {}))

    def messages(self, name: str) -> List["Fields"]:
        """Returns a list of objects."""
        return [Fields(f"{self.what}: {name} {i}", each) for i, each in enumerate(self._list(name))]

    def _list(self, name: str) -> List[Any]:
        value = self.json.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.refuse(name, "a list")
        return value
