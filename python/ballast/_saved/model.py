# SPDX-License-Identifier: Apache-2.0
"""A trained model."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from ..errors import InvalidArgument, NotFound
from . import safetensors
from .fields import Fields, parse_json
from .inputs import Inputs
from .layers import KINDS, ChainBuilder, flatten
from .plans import Layer, Run, Shape
from .tables import Bags, Rows, read_table

if TYPE_CHECKING:
    from ..torch import LoadedModule

# Limits of what is computed at once: examples, and elements of the largest layer, which caches hold.
_BATCH = 256
_BATCH_ELEMENTS = 1 << 19
_LOSSES = ("softmax_cross_entropy", "sigmoid_cross_entropy", "mean_squared_error")
# Layers that a model's text shows.
_SHOWN_LAYERS = 12


def softmax(outputs: Any) -> Any:
    """Returns the probabilities of each row of outputs, as float32."""
    shares = np.exp(outputs.astype(np.float64) - outputs.max(axis=1, keepdims=True))
    return (shares / shares.sum(axis=1, keepdims=True)).astype(np.float32)


def sigmoid(outputs: Any) -> Any:
    """Returns the probability of each logit, as float32."""
    small = np.exp(-np.abs(outputs.astype(np.float64)))
    return (np.where(outputs >= 0, 1, small) / (1 + small)).astype(np.float32)


class _Pass(Run):
    """A pass of some examples through a model."""

    def __init__(self, model: "Model", bags: List[Bags]) -> None:
        self._model = model
        self._bags = bags

    def weight(self, layer: Layer, name: str) -> Any:
        return self._model.weights[f"{layer.name}/{name}"]

    def bags(self, layer: Layer) -> Any:
        options = layer.options
        rows = self._model.tables[options.table]
        return np.concatenate([rows.pool(self._bags[field], options.mean) for field in options.fields], axis=1)

    def layers(self, layers: Sequence[Layer], x: Any) -> Any:
        for layer in layers:
            x = KINDS[layer.kind].forward(layer, self, x)
        return x


class Model:
    """A trained model, made by ballast.load(). Calling it predicts.

    weights: the tensors by name, such as "dense1/weight", as float32; changed values count at the next prediction.
    tables: the rows of each table of embeddings: `ids`, uint64 of shape [rows], and `values` of shape [rows, dim].
    job, step, version: the job's name, its last step, and the version of Ballast that wrote the file.
    features: the number of features of an example, and feature_names their names, None if the data had none.
    fields: the names of the fields of ids.
    loss: "softmax_cross_entropy", "sigmoid_cross_entropy" or "mean_squared_error".
    classes: the texts of the classes, in the order of the probabilities; None for a regression.
    """

    def __init__(self, path: str, file: safetensors.File, custom: Mapping[str, Callable[..., Any]]) -> None:
        """Use ballast.load()."""
        metadata = file.metadata
        if not metadata.get("model"):
            raise InvalidArgument('got no "model" in the metadata, want a model.safetensors of Ballast')
        self.path = path
        self.job = metadata.get("job", "")
        self.version = metadata.get("ballast", "unknown")
        self.weights: Dict[str, Any] = file.tensors
        numbers = Fields("metadata", metadata)
        self.step = numbers.integer("step", 0, 2**64 - 1)
        self.features = numbers.integer("features", 0, 1 << 40)
        config = Fields('metadata "model"', parse_json('metadata "model"', metadata["model"]))
        config.only(("layers", "loss", "input", "tables"))
        self.loss = _loss(config, self.version)
        self.fields = _id_fields(metadata)
        self._dims = _dims(config)
        shape = _input_shape(config, self.features)
        self._inputs = Inputs(self.features, shape, self.fields, metadata)
        self._layers = ChainBuilder(self._dims, self.fields, file.tensors, dict(custom),
                                    self.version).append(config.messages("layers"), shape)
        self._check_layers()
        self._check_weights()
        self.feature_names: Optional[List[str]] = self._inputs.table.features if self._inputs.table else None
        self.classes: Optional[Tuple[str, ...]] = self._class_names()
        largest = max([self.features] + [layer.elements for layer in flatten(self._layers)])
        self._batch = max(1, min(_BATCH, _BATCH_ELEMENTS // largest))
        self.tables: Dict[str, Rows] = {}

    def _check_layers(self) -> None:
        if not self._layers:
            raise InvalidArgument('metadata "model": got no layers, want at least 1')
        names = [layer.name for layer in flatten(self._layers)]
        if len(set(names)) < len(names) or "" in names:
            raise InvalidArgument('metadata "model": got layers without a name or of the same name, want unique names')
        outputs = self._layers[-1].output.elements
        if self.loss != "softmax_cross_entropy" and outputs != 1:
            raise InvalidArgument(f"loss {self.loss}: got {outputs} outputs, want 1")

    def _check_weights(self) -> None:
        for layer in flatten(self._layers):
            for name, want in layer.plan.weights.items():
                array = self.weights.get(f"{layer.name}/{name}")
                if array is None or array.shape != want:
                    raise InvalidArgument(f'tensor "{layer.name}/{name}": got '
                                          f"{'none' if array is None else f'shape {array.shape}'}, want shape {want}")

    def _class_names(self) -> Optional[Tuple[str, ...]]:
        if self.loss == "mean_squared_error":
            return None
        outputs = 2 if self.loss == "sigmoid_cross_entropy" else self._layers[-1].output.elements
        known = self._inputs.table.classes if self._inputs.table else []
        return tuple(known[i] if i < len(known) else str(i) for i in range(outputs))

    def _read_tables(self, folder: str) -> None:
        self.tables = {name: read_table(folder, name, dim) for name, dim in self._dims.items()}

    def __repr__(self) -> str:
        shown = [layer.kind if layer.output == layer.input else f"{layer.kind} {_size(layer.output)}"
                 for layer in self._layers]
        if len(shown) > _SHOWN_LAYERS:
            shown[_SHOWN_LAYERS - 3:-2] = [f"… {len(shown) - _SHOWN_LAYERS + 1} more"]
        weights = sum(array.size for array in self.weights.values())
        rows = "".join(f", {len(rows.ids)} rows of table {name}" for name, rows in self.tables.items())
        return (f"<ballast.Model {self.job!r}: {_size(Shape(*self._inputs.shape))} -> {' -> '.join(shown)} -> "
                f"{self.loss}, {weights} weights{rows}, step {self.step}>")

    def __call__(self, x: Any = None, ids: Optional[Mapping[str, Any]] = None, *, raw: bool = False) -> Any:
        """The same as predict()."""
        return self.predict(x, ids, raw=raw)

    def predict(self, x: Any = None, ids: Optional[Mapping[str, Any]] = None, *, raw: bool = False) -> Any:
        """Returns what `ballast predict` prints, as float32: probabilities of the classes, [n, classes], with
        softmax_cross_entropy; of class 1, [n], with sigmoid_cross_entropy; values, [n], with mean_squared_error. With
        `raw`, returns the outputs of the last layer, [n, outputs].

        x: numbers as in the data's file, before their normalization, of shape [n, features], or [n, height, width,
            channels] for a model of images; or, for a model of CSV data, columns by name: a dict of lists or arrays,
            or a pandas.DataFrame, with texts and missing values as in the file. A table without header has columns
            "0", "1" …
        ids: for a model with tables, the ids of each field, int64 or uint64: of shape [n], one for each example;
            [n, k]; a list of n lists; or (ids, offsets), as for torch.nn.EmbeddingBag. row_id() gives an id. Columns
            have them.

        InvalidArgument if a shape, a dtype, a field or a column does not fit.
        """
        with np.errstate(all="ignore"):
            values, bags = self._prepare(x, ids)
            outputs = np.empty((len(values), self._layers[-1].output.elements), np.float32)
            for begin in range(0, len(values), self._batch):
                end = min(begin + self._batch, len(values))
                of_batch = _Pass(self, [field.part(begin, end) for field in bags])
                outputs[begin:end] = of_batch.layers(self._layers, values[begin:end]).reshape(end - begin, -1)
            if raw:
                return outputs
            if self.loss == "softmax_cross_entropy":
                return softmax(outputs)
            return sigmoid(outputs[:, 0]) if self.loss == "sigmoid_cross_entropy" else outputs[:, 0]

    def classify(self, x: Any = None, ids: Optional[Mapping[str, Any]] = None) -> List[Optional[str]]:
        """Returns the text of the most probable class of each example; None where the probabilities are NaN. The
        arguments are those of predict()."""
        if self.classes is None:
            raise InvalidArgument("classify: got a regression, want a classification")
        outputs = self.predict(x, ids, raw=True)
        if self.loss == "sigmoid_cross_entropy":
            outputs = np.concatenate([np.zeros_like(outputs), outputs], axis=1)
        return [None if np.isnan(row).any() else self.classes[int(row.argmax())] for row in outputs]

    def row_id(self, field: str, value: Any) -> int:
        """Returns the id that the model's data give to a value of a field: a text of CSV data, or a whole number."""
        return self._inputs.row_id(field, value)

    def torch(self) -> "LoadedModule":
        """Returns a torch.nn.Module with copies of the weights as parameters. Called, it returns predict(…, raw=True)
        as a tensor, for tensors of the same shapes; `probabilities`, predict(…)."""
        from ..torch import LoadedModule
        return LoadedModule(self)

    def _prepare(self, x: Any, ids: Optional[Mapping[str, Any]]) -> Tuple[Any, List[Bags]]:
        """Returns the input of the first layer, and the bags of each field."""
        if hasattr(x, "keys"):
            if ids is not None:
                raise InvalidArgument("ids: got them beside columns, want only the columns, which have the ids")
            x, bags = self._inputs.encode(x)
        else:
            bags = self._inputs.bags(ids)
        if x is None:
            if self.features > 0 or not bags:
                raise InvalidArgument(f"x: got none, want shape (n, {self.features})")
            x = np.zeros((len(bags[0].ends), 0))
        values = self._inputs.prepare(x)
        for name, field in zip(self.fields, bags):
            if len(field.ends) != len(values):
                raise InvalidArgument(f'ids of field "{name}": got {len(field.ends)} examples, want {len(values)}, '
                                      "as in x")
        return values, bags


def _size(shape: Shape) -> str:
    return str(shape.channels) if shape.height * shape.width == 1 else str(shape)


def _loss(config: Fields, version: str) -> str:
    kinds = list(config.message("loss").json)
    if len(kinds) != 1 or kinds[0] not in _LOSSES:
        raise InvalidArgument(f"loss: got {', '.join(kinds) or 'none'}, written by Ballast {version}, want one of "
                              f"{', '.join(_LOSSES)}")
    return kinds[0]


def _id_fields(metadata: Mapping[str, str]) -> List[str]:
    text = metadata.get("id_fields")
    fields = parse_json('metadata "id_fields"', f'{{"id_fields": {text}}}') if text else {}
    return Fields("metadata", fields).texts("id_fields")


def _dims(config: Fields) -> Dict[str, int]:
    """Returns the length of the rows of each table."""
    dims: Dict[str, int] = {}
    for table in config.messages("tables"):
        dims[table.text("name")] = table.integer("dim", 1, 4096)
        if not table.text("name") or dims[table.text("name")] == 0:
            raise InvalidArgument(f"{table.what}: got {table.json}, want a name and a dim")
    return dims


def _input_shape(config: Fields, features: int) -> Shape:
    if "input" not in config:
        return Shape(1, 1, features)
    fields = config.message("input")
    shape = Shape(*(fields.integer(name, 1, 1 << 40, 1) for name in ("height", "width", "channels")))
    if shape.elements != features:
        raise InvalidArgument(f"{fields.what}: got {shape}, want {features} features")
    return shape


def _path_of(path: str) -> str:
    """Returns the model's file of a run directory, or the path itself."""
    if not os.path.isdir(path):
        return path
    file = os.path.join(path, "model.safetensors")
    if os.path.exists(file):
        return file
    if os.path.exists(os.path.join(path, "model.json")) or os.path.exists(os.path.join(path, "launch.json")):
        raise NotFound(f"{path}: the run has no model.safetensors yet, which it writes at its end")
    raise NotFound(f"{path}: got a directory without model.safetensors, want a run directory of `ballast launch`")


@contextlib.contextmanager
def _in_context(path: str) -> Iterator[None]:
    """Names the file in the errors of its contents."""
    try:
        yield
    except InvalidArgument as error:
        raise type(error)(f"{path}: {error}", error.code) from None


def open_model(path: str, custom: Mapping[str, Callable[..., Any]]) -> Model:
    """Reads the model that ballast.load() returns."""
    path = _path_of(path)
    file = safetensors.read(path)
    with _in_context(path):
        model = Model(path, file, custom)
        model._read_tables(os.path.join(os.path.dirname(path), "tables"))
    return model
