# SPDX-License-Identifier: Apache-2.0
"""The formulas of layers in NumPy: functions of the layer, the pass and the input.

Values have shape [n, height, width, channels]; flat ones are the channels of one pixel. torch/_loaded.py has the
formulas in PyTorch.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .plans import Layer, Run


def _flat(x: Any) -> Any:
    return x.reshape(len(x), int(np.prod(x.shape[1:])))


def _as_pixels(x: Any) -> Any:
    return x.reshape(len(x), 1, 1, x.shape[1])


def same(layer: Layer, run: Run, x: Any) -> Any:
    return x


def dense(layer: Layer, run: Run, x: Any) -> Any:
    y = _flat(x) @ run.weight(layer, "weight").T
    return _as_pixels(y + run.weight(layer, "bias") if "bias" in layer.plan.weights else y)


def relu(layer: Layer, run: Run, x: Any) -> Any:
    return np.maximum(x, 0)


def tanh(layer: Layer, run: Run, x: Any) -> Any:
    return np.tanh(x)


# The error function at multiples of a step, between which a cubic polynomial is exact to 1e-9; it is 1 beyond.
_ERF_STEPS, _ERF_END = 64, 6
_ERF = np.array([math.erf(i / _ERF_STEPS) for i in range(_ERF_STEPS * _ERF_END + 2)])
_ERF_SLOPES = 2 / math.sqrt(math.pi) / _ERF_STEPS * np.exp(-(np.arange(len(_ERF)) / _ERF_STEPS)**2)


def erf(x: Any) -> Any:
    """Returns the error function of each element."""
    at = np.clip(np.abs(np.nan_to_num(x)), 0, _ERF_END).astype(np.float64) * _ERF_STEPS
    i = at.astype(np.int64)
    t = at - i
    left, right = _ERF[i], _ERF[i + 1]
    bent = (_ERF_SLOPES[i] * (1 - t) - _ERF_SLOPES[i + 1] * t + (left - right) * (1 - 2 * t)) * (1 - t) * t
    return np.copysign(left + (right - left) * t + bent, x)


def gelu(layer: Layer, run: Run, x: Any) -> Any:
    return (x * (0.5 + 0.5 * erf(x * math.sqrt(0.5)))).astype(np.float32)


def _pad(layer: Layer, x: Any, fill: float) -> Any:
    down, right = layer.options.padding
    return np.pad(x, ((0, 0), (down, down), (right, right), (0, 0)), constant_values=fill)


# Elements of the pixels that are multiplied at once.
_PATCH_ELEMENTS = 1 << 21


def conv2d(layer: Layer, run: Run, x: Any) -> Any:
    weight, (down, right), (height, width, filters) = run.weight(layer, "weight"), layer.options.stride, layer.output
    padded, channels = _pad(layer, x, 0), layer.input.channels
    positions = list(np.ndindex(*layer.options.kernel))
    at_once = max(1, _PATCH_ELEMENTS // (len(x) * height * width * channels))
    y = np.zeros((len(x) * height * width, filters), np.float32)
    for begin in range(0, len(positions), at_once):
        pixels = [padded[:, i:i + down * (height - 1) + 1:down, j:j + right * (width - 1) + 1:right]
                  for i, j in positions[begin:begin + at_once]]
        factors = weight.reshape(filters, len(positions), channels)[:, begin:begin + at_once].reshape(filters, -1)
        y += np.concatenate(pixels, axis=3).reshape(len(y), -1) @ factors.T
    if "bias" in layer.plan.weights:
        y += run.weight(layer, "bias")
    return y.reshape(len(x), *layer.output)


def _pool(layer: Layer, x: Any, combine: Any) -> Any:
    """Combines the pixels of each window, first down, then to the right."""
    for axis, (kernel, stride, size) in enumerate(zip(layer.options.kernel, layer.options.stride, layer.output[:2]), 1):
        parts = [x[(slice(None),) * axis + (slice(i, i + stride * (size - 1) + 1, stride),)] for i in range(kernel)]
        x = parts[0].copy()
        for part in parts[1:]:
            combine(x, part, out=x)
    return x


def max_pool(layer: Layer, run: Run, x: Any) -> Any:
    return _pool(layer, _pad(layer, x, -np.inf), np.maximum)


def average_pool(layer: Layer, run: Run, x: Any) -> Any:
    ones = np.ones((1, *layer.input), np.float32)
    sums, counts = (_pool(layer, _pad(layer, each, 0), np.add) for each in (x, ones))
    return sums / counts


def layer_norm(layer: Layer, run: Run, x: Any) -> Any:
    centered = x - x.mean(axis=-1, keepdims=True)
    variance = np.square(centered).mean(axis=-1, keepdims=True)
    return centered / np.sqrt(variance + np.float32(layer.options.epsilon)) * run.weight(layer, "scale") + \
        run.weight(layer, "offset")


def batch_norm(layer: Layer, run: Run, x: Any) -> Any:
    scale = run.weight(layer, "scale") / np.sqrt(run.weight(layer, "running_variance") +
                                                 np.float32(layer.options.epsilon))
    return (x - run.weight(layer, "running_mean")) * scale + run.weight(layer, "offset")


def dot_interaction(layer: Layer, run: Run, x: Any) -> Any:
    vectors = x.reshape(len(x), layer.input.elements // layer.options, layer.options)
    first, second = np.tril_indices(vectors.shape[1], -1)
    products = (vectors @ vectors.transpose(0, 2, 1))[:, first, second]
    return _as_pixels(np.concatenate([vectors[:, 0], products], axis=1))


def embedding(layer: Layer, run: Run, x: Any) -> Any:
    return _as_pixels(np.concatenate([_flat(x), run.bags(layer)], axis=1))


def residual(layer: Layer, run: Run, x: Any) -> Any:
    return run.layers(layer.options.layers, x) + run.layers(layer.options.shortcut, x)


def custom(layer: Layer, run: Run, x: Any) -> Any:
    """Calls the function of a layer of one's own; in PyTorch, too."""
    weights = {name: run.weight(layer, name) for name in layer.plan.weights}
    return layer.options.function(x, layer.options.numbers, weights)


