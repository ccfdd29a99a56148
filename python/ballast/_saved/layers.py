# SPDX-License-Identifier: Apache-2.0
"""The kinds of layers of job.proto, one row of KINDS each, and chains of layers."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

from ..errors import InvalidArgument
from . import formulas, plans
from .fields import Fields
from .plans import MAX_ELEMENTS, Layer, Plan, Residual, Run, Shape, Site

_MAX_DEPTH = 8


class Kind(NamedTuple):
    """What this package knows of a kind of layer: the fields of its message, its sizes, and its formula in NumPy."""

    fields: Tuple[str, ...]
    plan: Callable[[Fields, Site], Plan]
    forward: Callable[[Layer, Run, Any], Any]


_POOL = ("kernel", "stride", "padding")

KINDS: Dict[str, Kind] = {
    "average_pool": Kind(_POOL, plans.plan_pool, formulas.average_pool),
    "batch_norm": Kind(("epsilon", "momentum"), plans.plan_batch_norm, formulas.batch_norm),
    "conv2d": Kind(("filters", *_POOL, "no_bias", "initializer"), plans.plan_conv2d, formulas.conv2d),
    "custom": Kind(("type", "numbers"), plans.plan_custom, formulas.custom),
    "dense": Kind(("units", "no_bias", "initializer", "inputs"), plans.plan_dense, formulas.dense),
    "dot_interaction": Kind(("dim",), plans.plan_dot_interaction, formulas.dot_interaction),
    "dropout": Kind(("rate",), plans.plan_dropout, formulas.same),
    "embedding": Kind(("table", "fields", "pooling"), plans.plan_embedding, formulas.embedding),
    "gelu": Kind((), plans.plan_same, formulas.gelu),
    "layer_norm": Kind(("epsilon",), plans.plan_layer_norm, formulas.layer_norm),
    "max_pool": Kind(_POOL, plans.plan_pool, formulas.max_pool),
    "relu": Kind((), plans.plan_same, formulas.relu),
    "residual": Kind(("layers", "shortcut"), plans.plan_residual, formulas.residual),
    "tanh": Kind((), plans.plan_same, formulas.tanh),
}

# Fields of a layer that do not matter for predictions.
_COMMON = ("name", "device", "recompute")


class ChainBuilder(NamedTuple):
    """Makes the layers of a model of their descriptions."""

    # Dimensions of the tables.
    dims: Dict[str, int]
    id_fields: List[str]
    tensors: Dict[str, Any]
    custom: Dict[str, Any]
    # Version of Ballast that wrote the model.
    version: str
    depth: int = 0

    def deeper(self, site: Site) -> "ChainBuilder":
        """Returns the builder of the layers inside a residual."""
        if self.depth == _MAX_DEPTH:
            raise site.error(f"it is more than {_MAX_DEPTH} residuals deep")
        return self._replace(depth=self.depth + 1)

    def append(self, configs: List[Fields], shape: Shape) -> List[Layer]:
        """Returns a chain whose first layer gets this shape. InvalidArgument names a layer that does not fit."""
        layers: List[Layer] = []
        for config in configs:
            layers.append(self._layer(config, layers[-1].output if layers else shape))
        return layers

    def _layer(self, config: Fields, shape: Shape) -> Layer:
        name = config.text("name")
        site = Site(name, shape, self)
        kinds = [key for key in config.json if key not in _COMMON]
        if len(kinds) != 1 or kinds[0] not in KINDS:
            raise site.error(f"got the kind {', '.join(kinds) or 'none'}, written by Ballast {self.version}, want one "
                             f"of {', '.join(KINDS)}")
        kind = KINDS[kinds[0]]
        fields = Fields(f'layer "{name}" ({kinds[0]}, written by Ballast {self.version})', config.json[kinds[0]])
        fields.only(kind.fields)
        layer = Layer(name, kinds[0], shape, kind.plan(fields, site))
        if layer.output.elements > MAX_ELEMENTS:
            raise site.error(f"it gives {layer.output}, want at most {MAX_ELEMENTS} elements")
        return layer


def flatten(layers: Sequence[Layer]) -> List[Layer]:
    """Returns the layers, and after each residual those inside it."""
    found: List[Layer] = []
    for layer in layers:
        found.append(layer)
        if isinstance(layer.options, Residual):
            found += flatten(layer.options.layers) + flatten(layer.options.shortcut)
    return found
