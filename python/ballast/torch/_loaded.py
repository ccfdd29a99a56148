# SPDX-License-Identifier: Apache-2.0
"""A trained model as a module of PyTorch."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

import torch
from torch.nn import functional as F

from .._saved.formulas import custom
from .._saved.layers import flatten
from .._saved.model import Model
from .._saved.plans import Layer, Run
from .._saved.tables import Bags, Rows
from ..errors import InvalidArgument


def _flat(x: torch.Tensor) -> torch.Tensor:
    return x.flatten(1)


def _as_pixels(x: torch.Tensor) -> torch.Tensor:
    return x[:, None, None]


def _channels_first(x: torch.Tensor) -> torch.Tensor:
    return x.permute(0, 3, 1, 2)


def _channels_last(x: torch.Tensor) -> torch.Tensor:
    return x.permute(0, 2, 3, 1)


def _bias(layer: Layer, run: Run) -> Optional[torch.Tensor]:
    return run.weight(layer, "bias") if "bias" in layer.plan.weights else None


def _dense(layer: Layer, run: "_Pass", x: torch.Tensor) -> torch.Tensor:
    return _as_pixels(F.linear(_flat(x), run.weight(layer, "weight"), _bias(layer, run)))


def _conv2d(layer: Layer, run: "_Pass", x: torch.Tensor) -> torch.Tensor:
    window = layer.options
    stride = window.stride
    weight = run.weight(layer, "weight")
    if tuple(weight.shape[1:3]) == (1, 1) and not any(window.padding):
        # Leaves out here what the window skips: oneDNN 2.6, which PyTorch 1.13 has, writes out of bounds in the backward
        # pass of such windows if there are few channels.
        x = x[:, ::stride[0], ::stride[1]]
        stride = (1, 1)
    return _channels_last(F.conv2d(_channels_first(x), _channels_first(weight), _bias(layer, run), stride,
                                   window.padding))


def _pad(layer: Layer, x: torch.Tensor, fill: float) -> torch.Tensor:
    # The pools of PyTorch pad by at most half of the kernel.
    down, right = layer.options.padding
    return F.pad(_channels_first(x), (right, right, down, down), value=fill)


def _max_pool(layer: Layer, run: "_Pass", x: torch.Tensor) -> torch.Tensor:
    padded = _pad(layer, x, float("-inf"))
    return _channels_last(F.max_pool2d(padded, layer.options.kernel, layer.options.stride))


def _average_pool(layer: Layer, run: "_Pass", x: torch.Tensor) -> torch.Tensor:
    kernel, stride = layer.options.kernel, layer.options.stride
    ones = torch.ones((1, *layer.input), dtype=x.dtype, device=x.device)
    sums, counts = (F.avg_pool2d(_pad(layer, each, 0), kernel, stride, divisor_override=1) for each in (x, ones))
    return _channels_last(sums / counts)


def _layer_norm(layer: Layer, run: "_Pass", x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], run.weight(layer, "scale"), run.weight(layer, "offset"), layer.options.epsilon)


def _batch_norm(layer: Layer, run: "_Pass", x: torch.Tensor) -> torch.Tensor:
    mean, variance = run.weight(layer, "running_mean"), run.weight(layer, "running_variance")
    return _channels_last(F.batch_norm(_channels_first(x), mean, variance, run.weight(layer, "scale"),
                                       run.weight(layer, "offset"), run.training, layer.options.momentum,
                                       layer.options.epsilon))


def _dot_interaction(layer: Layer, run: "_Pass", x: torch.Tensor) -> torch.Tensor:
    vectors = x.reshape(len(x), layer.input.elements // layer.options, layer.options)
    first, second = torch.tril_indices(vectors.shape[1], vectors.shape[1], -1, device=x.device)
    products = (vectors @ vectors.transpose(1, 2))[:, first, second]
    return _as_pixels(torch.cat([vectors[:, 0], products], 1))


def _embedding(layer: Layer, run: "_Pass", x: torch.Tensor) -> torch.Tensor:
    return _as_pixels(torch.cat([_flat(x), run.bags(layer)], 1))


def _residual(layer: Layer, run: "_Pass", x: torch.Tensor) -> torch.Tensor:
    return run.layers(layer.options.layers, x) + run.layers(layer.options.shortcut, x)


# The formula of each kind of layer; _saved/layers.py has the rest of it.
FORWARD: Dict[str, Callable[[Layer, Any, torch.Tensor], torch.Tensor]] = {
    "average_pool": _average_pool,
    "batch_norm": _batch_norm,
    "conv2d": _conv2d,
    "custom": custom,
    "dense": _dense,
    "dot_interaction": _dot_interaction,
    "dropout": lambda layer, run, x: F.dropout(x, layer.options, run.training),
    "embedding": _embedding,
    "gelu": lambda layer, run, x: F.gelu(x),
    "layer_norm": _layer_norm,
    "max_pool": _max_pool,
    "relu": lambda layer, run, x: F.relu(x),
    "residual": _residual,
    "tanh": lambda layer, run, x: torch.tanh(x),
}


class _Pass(Run):
    """A pass of some examples through a module."""

    def __init__(self, module: "LoadedModule", bags: List[Bags]) -> None:
        self._module = module
        self._bags = bags
        self.training = module.training

    def weight(self, layer: Layer, name: str) -> torch.Tensor:
        return self._module.tensor(f"{layer.name}/{name}")

    def bags(self, layer: Layer) -> torch.Tensor:
        options = layer.options
        rows, weight = self._module.rows[options.table], self._module.tensor(f"{options.table}/rows")
        return torch.cat([_pool(rows, weight, self._bags[field], options.mean) for field in options.fields], 1)

    def layers(self, layers: Sequence[Layer], x: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            x = FORWARD[layer.kind](layer, self, x)
        return x


def _pool(rows: Rows, weight: torch.Tensor, bags: Bags, mean: bool) -> torch.Tensor:
    """Returns the sum or the mean of the rows of each bag. `weight` has the values of those that the table has."""
    counts = torch.as_tensor(bags.counts(), device=weight.device)
    places, found = rows.find(bags.ids)
    # The other rows are constants.
    values = torch.as_tensor(rows.initializer(bags.ids, weight.shape[1]), dtype=weight.dtype, device=weight.device)
    if found.any():
        values = torch.where(torch.as_tensor(found, device=weight.device)[:, None],
                             F.embedding(torch.as_tensor(places, device=weight.device), weight), values)
    bag = torch.repeat_interleave(torch.arange(len(counts), device=weight.device), counts)
    pooled = weight.new_zeros((len(counts), weight.shape[1])).index_add(0, bag, values)
    return pooled / counts.clamp(min=1)[:, None] if mean else pooled


class LoadedModule(torch.nn.Module):
    """A trained model with its weights as parameters, which can be trained further. Made by Model.torch().

    The parameters have the names of the file, with "_" for ".": "dense1/weight". A table `ids` has the parameter
    "ids/rows", of shape [rows, dim]; rows that it lacks stay as they are. Running statistics are buffers.
    """

    def __init__(self, model: Model) -> None:
        """Use Model.torch()."""
        super().__init__()
        self._model = model
        self._names: Dict[str, str] = {}
        self.rows = dict(model.tables)
        inputs = model._inputs
        self.register_buffer("mean", torch.tensor(inputs.mean, dtype=torch.float64), persistent=False)
        self.register_buffer("stddev", torch.tensor(inputs.stddev, dtype=torch.float64), persistent=False)
        for layer in flatten(model._layers):
            for name in layer.plan.weights:
                self._add(f"{layer.name}/{name}", torch.tensor(model.weights[f"{layer.name}/{name}"]),
                          name in ("running_mean", "running_variance"))
        for name, rows in self.rows.items():
            self._add(name + "/rows", torch.tensor(rows.values), False)
        self.eval()

    def _add(self, name: str, tensor: torch.Tensor, is_buffer: bool) -> None:
        key = name.replace(".", "_")
        while hasattr(self, key):
            key += "_"
        self._names[name] = key
        if is_buffer:
            self.register_buffer(key, tensor)
        else:
            self.register_parameter(key, torch.nn.Parameter(tensor))

    def tensor(self, name: str) -> torch.Tensor:
        """Returns a parameter or buffer by its name in the file."""
        return getattr(self, self._names[name])

    def extra_repr(self) -> str:
        return repr(self._model)

    def forward(self, x: Optional[torch.Tensor] = None, ids: Optional[Mapping[str, Any]] = None) -> torch.Tensor:
        """Returns the outputs of the last layer, float32 of shape [n, outputs]. The arguments are those of
        Model.predict(), with tensors instead of arrays, and without columns. In training mode, dropout and the
        statistics of batches are those of PyTorch."""
        inputs = self._model._inputs
        bags = inputs.bags(None if ids is None else {name: _arrays(ids[name]) for name in ids.keys()})
        if x is None:
            x = torch.zeros((len(bags[0].ends) if bags else 0, 0), device=self.mean.device)
        inputs.check_shape(x.shape)
        for name, field in zip(self._model.fields, bags):
            if len(field.ends) != len(x):
                raise InvalidArgument(f'ids of field "{name}": got {len(field.ends)} examples, want {len(x)}, '
                                      "as in x")
        x = _flat(x).to(self.mean.dtype)
        if inputs.takes_logarithms:
            x = torch.nan_to_num(torch.sign(x) * torch.log1p(x.abs()), posinf=float("inf"), neginf=float("-inf"))
        x = ((x - self.mean) / self.stddev).to(next(self.parameters()).dtype).reshape(len(x), *inputs.shape)
        return _flat(_Pass(self, bags).layers(self._model._layers, x))

    def probabilities(self, x: Optional[torch.Tensor] = None, ids: Optional[Mapping[str, Any]] = None) -> torch.Tensor:
        """Returns what Model.predict() does: probabilities of a classification, values of a regression."""
        outputs = self(x, ids)
        if self._model.loss == "softmax_cross_entropy":
            return torch.softmax(outputs, 1)
        return torch.sigmoid(outputs[:, 0]) if self._model.loss == "sigmoid_cross_entropy" else outputs[:, 0]


def _arrays(ids: Any) -> Any:
    """Returns ids as arrays of NumPy."""
    if isinstance(ids, torch.Tensor):
        return ids.detach().cpu().numpy()
    return type(ids)(_arrays(each) for each in ids) if isinstance(ids, (list, tuple)) else ids
