# SPDX-License-Identifier: Apache-2.0
"""The sizes of layers: what each kind of layer of job.proto makes of its fields and its input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ..errors import InvalidArgument
from .fields import Fields

if TYPE_CHECKING:
    from .layers import ChainBuilder


# Limit on the elements of a layer's output for one example, which a damaged file cannot exceed.
MAX_ELEMENTS = 1 << 28


class Shape(NamedTuple):
    """The size of an image."""

    height: int
    width: int
    channels: int

    @property
    def elements(self) -> int:
        return self.height * self.width * self.channels

    def __str__(self) -> str:
        return f"{self.height}x{self.width}x{self.channels}"


class Window(NamedTuple):
    """A sliding window; each field is [vertical, horizontal]."""

    kernel: Tuple[int, int]
    stride: Tuple[int, int]
    padding: Tuple[int, int]

    def padded(self, shape: Shape) -> Shape:
        """Returns the size of an image with the padding."""
        return Shape(shape.height + 2 * self.padding[0], shape.width + 2 * self.padding[1], shape.channels)


class Plan(NamedTuple):
    """What a layer makes of its input."""

    output: Shape
    # Shape of each tensor, by its name after that of the layer.
    weights: Dict[str, Tuple[int, ...]] = {}
    # Numbers that its formula needs.
    options: Any = None


class Layer(NamedTuple):
    """A layer of a model."""

    name: str
    kind: str
    input: Shape
    plan: Plan

    @property
    def output(self) -> Shape:
        return self.plan.output

    @property
    def options(self) -> Any:
        return self.plan.options

    @property
    def elements(self) -> int:
        """The number of elements that the formula needs at once for one example."""
        padded = self.options.padded(self.input).elements if isinstance(self.options, Window) else 0
        return max(self.output.elements, padded)


class Run:
    """A forward pass through a model, in NumPy or PyTorch."""

    def weight(self, layer: Layer, name: str) -> Any:
        """Returns a tensor of the layer."""
        raise NotImplementedError

    def bags(self, layer: Layer) -> Any:
        """Returns the vectors of an embedding, [n, elements of all its fields]."""
        raise NotImplementedError

    def layers(self, layers: Sequence[Layer], x: Any) -> Any:
        """Returns the output of a chain of layers."""
        raise NotImplementedError


class Site(NamedTuple):
    """The place of a layer in a model."""

    name: str
    input: Shape
    chain: "ChainBuilder"

    def error(self, text: str) -> InvalidArgument:
        return InvalidArgument(f'layer "{self.name}": {text}')


class Embedding(NamedTuple):
    """The table of an embedding, and the positions of its fields of ids."""

    table: str
    fields: Tuple[int, ...]
    dim: int
    mean: bool


class Residual(NamedTuple):
    """The chains of a residual, whose outputs are added; without layers, the shortcut is the input itself."""

    layers: Tuple[Layer, ...]
    shortcut: Tuple[Layer, ...]


class Custom(NamedTuple):
    """The function of a layer of one's own, and its numbers."""

    function: Callable[[Any, Dict[str, float], Dict[str, Any]], Any]
    numbers: Dict[str, float]


def _weight_and_bias(fields: Fields, shape: Tuple[int, ...]) -> Dict[str, Tuple[int, ...]]:
    return {"weight": shape} if fields.flag("no_bias") else {"weight": shape, "bias": shape[:1]}


def plan_same(fields: Fields, site: Site) -> Plan:
    return Plan(site.input)


def plan_dense(fields: Fields, site: Site) -> Plan:
    units, inputs = fields.integer("units", 1, 1 << 20), site.input.elements
    if units == 0:
        raise fields.refuse("units", "at least 1")
    if fields.integer("inputs", 0, 1 << 40) not in (0, inputs):
        raise fields.refuse("inputs", str(inputs))
    return Plan(Shape(1, 1, units), _weight_and_bias(fields, (units, inputs)))


def plan_dropout(fields: Fields, site: Site) -> Plan:
    return Plan(site.input, options=fields.number("rate", 0, 0, 1))


def _window(fields: Fields, site: Site, kernel: Optional[Tuple[int, int]], stride: Optional[int]) -> Window:
    """Reads the window of a layer; a kernel or stride that is not given is this one, or required, or the kernel."""

    def pair(name: str, least: int, default: Optional[Tuple[int, int]]) -> Tuple[int, int]:
        numbers = fields.integers(name, least, 65536)
        if len(numbers) > 2 or (not numbers and default is None):
            raise fields.refuse(name, "1 or 2 numbers")
        return (numbers[0], numbers[-1]) if numbers else default  # type: ignore[return-value]

    size = pair("kernel", 1, kernel)
    window = Window(size, pair("stride", 1, size if stride is None else (stride, stride)), pair("padding", 0, (0, 0)))
    padded = window.padded(site.input)
    for i in range(2):
        if window.padding[i] >= size[i]:
            raise fields.refuse("padding", f"less than the kernel, {size[0]}x{size[1]}")
        if size[i] > padded[i]:
            raise site.error(f"kernel: got {size[0]}x{size[1]}, want at most the padded input, {padded}")
    if padded.elements > MAX_ELEMENTS:
        raise site.error(f"its padded input is {padded}, want at most {MAX_ELEMENTS} elements")
    return window


def _slide(window: Window, shape: Shape, channels: int) -> Shape:
    height, width = ((have - kernel) // stride + 1 for have, kernel, stride in
                     zip(window.padded(shape)[:2], window.kernel, window.stride))
    return Shape(height, width, channels)


def plan_conv2d(fields: Fields, site: Site) -> Plan:
    filters = fields.integer("filters", 1, 1 << 20)
    if filters == 0:
        raise fields.refuse("filters", "at least 1")
    window = _window(fields, site, None, 1)
    return Plan(_slide(window, site.input, filters),
                _weight_and_bias(fields, (filters, *window.kernel, site.input.channels)), window)


def plan_pool(fields: Fields, site: Site) -> Plan:
    window = _window(fields, site, site.input[:2], None)
    return Plan(_slide(window, site.input, site.input.channels), options=window)


class NormRates(NamedTuple):
    """Numbers of a normalization."""

    epsilon: float
    momentum: float


def _norm_rates(fields: Fields) -> NormRates:
    return NormRates(*(fields.number(name, 0, 0, 1) or default for name, default in
                       (("epsilon", 1e-5), ("momentum", 0.1))))


def plan_layer_norm(fields: Fields, site: Site) -> Plan:
    channels = (site.input.channels,)
    return Plan(site.input, {"scale": channels, "offset": channels}, _norm_rates(fields))


def plan_batch_norm(fields: Fields, site: Site) -> Plan:
    channels = (site.input.channels,)
    return Plan(site.input, {"scale": channels, "offset": channels, "running_mean": channels,
                             "running_variance": channels}, _norm_rates(fields))


def plan_dot_interaction(fields: Fields, site: Site) -> Plan:
    dim, inputs = fields.integer("dim", 1, 4096), site.input.elements
    if dim == 0 or inputs == 0 or inputs % dim != 0:
        raise fields.refuse("dim", f"a divisor of its {inputs} inputs")
    vectors = inputs // dim
    return Plan(Shape(1, 1, dim + vectors * (vectors - 1) // 2), options=dim)


def plan_embedding(fields: Fields, site: Site) -> Plan:
    dims, known = site.chain.dims, site.chain.id_fields
    table = fields.text("table")
    if table not in dims:
        raise fields.refuse("table", f"a table of the model: {', '.join(dims) or 'it has none'}")
    names = fields.texts("fields") or known
    for name in names:
        if name not in known or names.count(name) > 1:
            raise fields.refuse("fields", f"some of the fields of ids: {', '.join(known) or 'there are none'}")
    options = Embedding(table, tuple(known.index(name) for name in names), dims[table],
                        fields.text("pooling", ("SUM", "AVERAGE")) == "AVERAGE")
    return Plan(Shape(1, 1, site.input.elements + len(names) * dims[table]), options=options)


def _projection_stride(of: int, to: int) -> int:
    """Returns the stride with which a convolution of kernel 1 turns `of` pixels into `to`; 0 if there is none."""
    if not 1 <= to <= of:
        return 0
    stride = -(-of // to)
    return stride if (of - 1) // stride + 1 == to else 0


def plan_residual(fields: Fields, site: Site) -> Plan:
    layers = site.chain.deeper(site).append(fields.messages("layers"), site.input)
    if not layers:
        raise fields.refuse("layers", "at least 1")
    output = layers[-1].output
    shortcut = site.chain.deeper(site).append(fields.messages("shortcut"), site.input)
    if not shortcut and output != site.input:
        stride = tuple(_projection_stride(*pair) for pair in zip(site.input[:2], output[:2]))
        if 0 in stride:
            raise site.error(f"its layers give {output} of {site.input}, which no stride gives, want a shortcut")
        plan = Plan(output, {"weight": (output.channels, 1, 1, site.input.channels)},
                    Window((1, 1), stride, (0, 0)))  # type: ignore[arg-type]
        shortcut = [Layer(site.name + "/projection", "conv2d", site.input, plan)]
    if shortcut and shortcut[-1].output != output:
        raise site.error(f"its shortcut gives {shortcut[-1].output}, want {output}, as its layers")
    return Plan(output, options=Residual(tuple(layers), tuple(shortcut)))


def plan_custom(fields: Fields, site: Site) -> Plan:
    kind, functions = fields.text("type"), site.chain.custom
    if kind not in functions:
        raise site.error(f'got the custom type "{kind}", which this package does not have; want its function: '
                         f'load(..., custom={{"{kind}": function}})')
    numbers = {name: fields.message("numbers").number(name) for name in fields.message("numbers").json}
    weights = {name[len(site.name) + 1:]: array for name, array in site.chain.tensors.items()
               if name.startswith(site.name + "/")}
    trial = np.asarray(functions[kind](np.zeros((1, *site.input), np.float32), numbers, weights))
    if trial.ndim != 4 or len(trial) != 1:
        raise site.error(f"its function gave shape {trial.shape}, want (1, height, width, channels)")
    return Plan(Shape(*trial.shape[1:]), {name: array.shape for name, array in weights.items()},
                Custom(functions[kind], numbers))


