# SPDX-License-Identifier: Apache-2.0
"""The data of a model: numbers to normalize, columns of a table that become features and ids, and classes."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ..errors import InvalidArgument
from .fields import Fields, parse_json
from .tables import Bags
from .xxh3 import xxh3

_MISSING = ("", "?", "na", "nan", "null")
_CRITEO = ("criteo", "planted_clicks")


class Column(NamedTuple):
    """A column of the table from which a model was trained."""

    # The name, or the position as text in a table without names.
    name: str
    kind: str
    mean: float
    stddev: float
    fill: float
    indicator: bool
    categories: List[str]
    field: int
    texts: Dict[str, int]

    def features(self) -> List[str]:
        """Returns the names of the column's features."""
        return [self.name] if self.kind == "number" else [f"{self.name}={text}" for text in self.categories]


def _column(position: int, fields: Fields) -> Column:
    kind = fields.text("kind")
    if kind not in ("number", "category", "label", "ignored", "hashed", "looked_up"):
        raise fields.refuse("kind", "number, category, label, ignored, hashed or looked_up")
    return Column(fields.text("name") or str(position), kind, fields.number("mean"), fields.number("stddev", 1, 0),
                  fields.number("fill"), fields.flag("indicator"),
                  fields.texts("categories") if kind == "category" else [], fields.integer("field", 0, 2**20),
                  {text: i + 1 for i, text in enumerate(fields.texts("texts"))})


def is_missing(value: Any) -> bool:
    """Returns whether a value of a table is missing: None, NaN, or a text that means so."""
    if isinstance(value, str):
        return len(value) <= 4 and value.lower() in _MISSING
    return value is None or bool(value != value)


class Table:
    """The columns of a CSV file, as the worker's TableSchema describes them."""

    def __init__(self, json: str) -> None:
        fields = Fields('metadata "table"', parse_json('metadata "table"', json))
        self.columns = [_column(i, each) for i, each in enumerate(fields.messages("columns"))]
        self.classes = fields.texts("classes")
        self.refuses_missing = fields.text("missing", ("REFUSE", "MEAN", "INDICATOR")) == "REFUSE"
        self.separator = fields.text("id_separator")
        self.features = [name for column in self.columns for name in column.features()]
        self.features += [f"{column.name} is missing" for column in self.columns if column.indicator]

    def scale(self) -> Tuple[Any, Any]:
        """Returns the mean and the standard deviation of each feature."""
        mean, stddev = np.zeros(len(self.features)), np.ones(len(self.features))
        numbers = [(column.kind == "number", column) for column in self.columns for _ in column.features()]
        for i, (is_number, column) in enumerate(numbers):
            if is_number:
                mean[i], stddev[i] = column.mean, column.stddev or np.inf
        return mean, stddev

    def values(self, columns: Mapping[str, Any], column: Column) -> List[Any]:
        """Returns the values of a column."""
        if column.name not in columns:
            raise InvalidArgument(f'columns: got no "{column.name}", want '
                                  f"{', '.join(c.name for c in self.columns if c.kind not in ('label', 'ignored'))}")
        values = list(columns[column.name])
        if self.refuses_missing and column.kind in ("number", "category"):
            for i, value in enumerate(values):
                if is_missing(value):
                    raise InvalidArgument(f'column "{column.name}": example {i}: got a missing value, want none, as in '
                                          "the training data")
        return values

    def _write(self, values: List[Any], column: Column, x: Any) -> None:
        """Writes the features of a column."""
        if column.kind == "number":
            try:
                x[:, 0] = [column.fill if is_missing(value) else float(value) for value in values]
            except (TypeError, ValueError) as error:
                raise InvalidArgument(f'column "{column.name}": {error}, want numbers') from None
            return
        positions = {text: i for i, text in enumerate(column.categories)}
        for i, value in enumerate(values):
            at = None if is_missing(value) else positions.get(str(value))
            if at is not None:
                x[i, at] = 1

    def _bags(self, values: List[Any], column: Column) -> Bags:
        known: Dict[str, int] = {}
        ids: List[int] = []
        ends = []
        for value in values:
            parts = [] if is_missing(value) else [str(value)]
            if self.separator:
                parts = [part.strip(" \t\n\v\f\r") for text in parts for part in text.split(self.separator)]
                parts = [part for part in parts if not is_missing(part)]
            for text in parts:
                if text not in known:
                    known[text] = self.row_id(column, text)
                ids.append(known[text])
            ends.append(len(ids))
        return Bags(np.array(ids, np.uint64), np.array(ends, np.int64))

    @staticmethod
    def row_id(column: Column, text: str) -> int:
        """Returns the id of a text."""
        if column.kind == "hashed":
            return xxh3(text.encode(), column.field)
        return xxh3(column.texts.get(text, 0).to_bytes(8, "little"), column.field)

    def encode(self, columns: Mapping[str, Any]) -> Tuple[Any, List[Bags]]:
        """Returns the features before the normalization, [n, features], and the bags of each field of ids."""
        used = [column for column in self.columns if column.kind not in ("label", "ignored")]
        values = {column.name: self.values(columns, column) for column in used}
        lengths = {name: len(each) for name, each in values.items()}
        n = next(iter(lengths.values()), 0)
        for name, length in lengths.items():
            if length != n:
                raise InvalidArgument(f'column "{name}": got {length} values, want {n}, as in the others')
        x = np.zeros((n, len(self.features)))
        bags: Dict[int, Bags] = {}
        at, indicator = 0, sum(len(column.features()) for column in self.columns)
        for column in self.columns:
            width = len(column.features())
            if width:
                self._write(values[column.name], column, x[:, at:at + width])
            if column.kind in ("hashed", "looked_up"):
                bags[column.field] = self._bags(values[column.name], column)
            if column.indicator:
                x[:, indicator] = [is_missing(value) for value in values.get(column.name, [])]
                indicator += 1
            at += width
        return x, [bags[field] for field in sorted(bags)]


class Inputs:
    """Turns the data of a model's users into the inputs of its first layer."""

    def __init__(self, features: int, shape: Tuple[int, int, int], id_fields: List[str],
                 metadata: Mapping[str, str]) -> None:
        """`shape` is that of the first layer's input. Reads the rest of the metadata of the model's file."""
        self.features = features
        self.shape = shape
        self.id_fields = id_fields
        self.source = next(iter(self._json(metadata, "source").json), "")
        self.table: Optional[Table] = Table(metadata["table"]) if metadata.get("table") else None
        if self.table is None:
            normalization = self._json(metadata, "normalization")
            self.mean: Any = np.float64(normalization.number("mean"))
            self.stddev: Any = np.float64(normalization.number("stddev", 1, 0))
            if self.stddev == 0:
                raise normalization.refuse("stddev", "a number above 0")
        else:
            self.mean, self.stddev = self.table.scale()
            if len(self.table.features) != features:
                raise InvalidArgument(f'metadata "table": got {len(self.table.features)} features, want {features}')
            fields = [column.name for column in sorted(self.table.columns, key=lambda column: column.field)
                      if column.kind in ("hashed", "looked_up")]
            if fields != id_fields:
                raise InvalidArgument(f'metadata "table": got the fields of ids {fields}, want {id_fields}')

    @staticmethod
    def _json(metadata: Mapping[str, str], key: str) -> Fields:
        what = f'metadata "{key}"'
        return Fields(what, parse_json(what, metadata[key]) if metadata.get(key) else {})

    @property
    def takes_logarithms(self) -> bool:
        """True if a number x becomes sign(x) ln(1 + |x|), and a missing one 0."""
        return self.source in _CRITEO

    def check_shape(self, shape: Sequence[int]) -> None:
        """Refuses an array that is not [n, features], or [n, height, width, channels]."""
        wants = [(self.features,)] + ([tuple(self.shape)] if self.shape[0] * self.shape[1] > 1 else [])
        if self.shape[2] == 1 and self.shape[0] * self.shape[1] > 1:
            wants.append(tuple(self.shape[:2]))
        if tuple(shape[1:]) not in wants or len(shape) == 0:
            texts = [f"(n, {', '.join(map(str, want))})" for want in wants]
            raise InvalidArgument(f"x: got shape {tuple(shape)}, want {' or '.join(texts)}")

    def prepare(self, x: Any) -> Any:
        """Returns x, normalized, as float32 of shape [n, height, width, channels]."""
        try:
            array = np.asarray(x)
            array = array if array.dtype == np.float64 else array.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"x: {error}, want an array of numbers") from None
        self.check_shape(array.shape)
        if self.takes_logarithms:
            array = np.nan_to_num(np.copysign(np.log1p(np.abs(array)), array), posinf=np.inf, neginf=-np.inf)
        array = array.reshape(len(array), self.features)
        return ((array - self.mean) / self.stddev).astype(np.float32).reshape(len(array), *self.shape)

    def bags(self, ids: Optional[Mapping[str, Any]]) -> List[Bags]:
        """Returns the bags of each field; see Model.predict for the forms of ids."""
        given = {} if ids is None else {name: ids[name] for name in ids.keys()}
        if sorted(given) != sorted(self.id_fields):
            raise InvalidArgument(f"ids: got the fields {', '.join(map(str, given)) or 'none'}, want "
                                  f"{', '.join(self.id_fields) or 'none'}")
        return [_bags(name, given[name]) for name in self.id_fields]

    def encode(self, columns: Mapping[str, Any]) -> Tuple[Any, List[Bags]]:
        """Returns features before the normalization, and bags, of columns by their names."""
        if self.table is None:
            raise InvalidArgument(f"columns: got them for a model of {self.source or 'unknown'} data, want x "
                                  f"{'and ids ' if self.id_fields else ''}as arrays: only CSV data have columns")
        return self.table.encode(columns)

    def row_id(self, field: str, value: Any) -> int:
        """Returns the id of a value of a field, as an unsigned number."""
        if field not in self.id_fields:
            raise InvalidArgument(f"field: got {field!r}, want one of {', '.join(self.id_fields) or 'none'}")
        if self.table is not None:
            column = next(column for column in self.table.columns
                          if column.name == field and column.kind in ("hashed", "looked_up"))
            return self.table.row_id(column, str(value))
        try:
            number = int(value, 16) if isinstance(value, str) and self.source in _CRITEO else int(value)
            return xxh3(number.to_bytes(8, "little"), self.id_fields.index(field))
        except (OverflowError, TypeError, ValueError):
            raise InvalidArgument(f'value of field "{field}": got {value!r}, want a whole number of 64 bits') from None


def _unsigned(what: str, ids: Any) -> Any:
    array = np.asarray(ids)
    if array.size == 0:
        array = array.astype(np.int64)
    if array.dtype not in (np.int64, np.uint64, np.int32, np.uint32):
        raise InvalidArgument(f"{what}: got dtype {array.dtype}, want int64 or uint64")
    return np.ascontiguousarray(array.astype(array.dtype.kind + "8")).view(np.uint64)


def _bags(field: str, values: Any) -> Bags:
    what = f'ids of field "{field}"'
    if isinstance(values, tuple):
        if len(values) != 2:
            raise InvalidArgument(f"{what}: got {len(values)} arrays, want ids and offsets")
        ids, offsets = _unsigned(what, values[0]), np.asarray(values[1])
        begins = np.append(offsets, len(ids)).astype(np.int64) if ids.ndim == offsets.ndim == 1 else np.zeros(1, int)
        if ids.ndim != 1 or offsets.ndim != 1 or begins[0] != 0 or np.any(np.diff(begins) < 0):
            raise InvalidArgument(f"{what}: got ids of shape {ids.shape} and offsets of shape {offsets.shape}, want "
                                  "one dimension each, and offsets that ascend from 0 to at most the number of ids")
        return Bags(ids, begins[1:])
    if isinstance(values, list) and any(isinstance(each, (list, np.ndarray)) for each in values):
        parts = [_unsigned(what, each).reshape(-1) for each in values]
        return Bags(np.concatenate(parts), np.cumsum([len(part) for part in parts], dtype=np.int64))
    ids = _unsigned(what, values)
    if ids.ndim not in (1, 2):
        raise InvalidArgument(f"{what}: got shape {ids.shape}, want (n,) or (n, ids of an example)")
    width = ids.shape[1] if ids.ndim == 2 else 1
    return Bags(ids.reshape(-1), np.arange(1, len(ids) + 1, dtype=np.int64) * width)
