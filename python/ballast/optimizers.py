# SPDX-License-Identifier: Apache-2.0
"""Optimizers, which run on the servers. Their formulas are in tensor.proto; most are PyTorch's of the same name."""

from __future__ import annotations

import operator
from typing import Any, Optional, Union

from .errors import InvalidArgument


def _text(fields: dict) -> str:
    """Returns fields in protobuf's text format, without those that are None."""
    return " ".join(f"{name}: {_number(name, value)!r}" for name, value in fields.items() if value is not None)


def _number(name: str, value: Any) -> Union[int, float]:
    """Returns a number, also one of NumPy or PyTorch, as an int or a float. InvalidArgument calls it `name`."""
    try:
        return operator.index(value)
    except TypeError:
        pass
    try:
        if not isinstance(value, (str, bytes)):
            return float(value)
    except (TypeError, ValueError):
        pass
    raise InvalidArgument(f"{name}: got {value!r}, want a number")


class Schedule:
    """The learning rate over a tensor's updates: `kind` is a field of Schedule in tensor.proto, with its fields.

    Schedule("cosine", total=1000, warmup=100). In a job with examples a total of 0 means the job's length.
    """

    def __init__(self, kind: str = "constant", *, warmup: int = 0, **fields: Union[int, float]) -> None:
        self.kind = kind
        self.warmup = warmup
        self.fields = fields

    def text(self) -> str:
        """Returns the Schedule in protobuf's text format."""
        warmup = f" warmup: {_number('warmup', self.warmup)}" if self.warmup else ""
        return f"{self.kind} {{ {_text(self.fields)} }}{warmup}"


class Optimizer:
    """The rule by which servers apply a gradient. All take, besides their own fields, by keyword:

    weight_decay: at least 0; added to the gradient times the weight, decoupled for AdamW, Lamb and Lion.
    clip_value, clip_norm: limits on the gradient's elements and norm, which is taken over a slice of about a million
        elements; 0 does not clip.
    schedule: of the learning rate.
    """

    def __init__(self, kind: str, fields: dict, *, weight_decay: float = 0, clip_value: float = 0, clip_norm: float = 0,
                 schedule: Optional[Schedule] = None) -> None:
        self.kind = kind
        self.fields = fields
        self.common = {"weight_decay": weight_decay or None, "clip_value": clip_value or None,
                       "clip_norm": clip_norm or None}
        self.schedule = schedule

    def text(self) -> str:
        """Returns the Optimizer in protobuf's text format."""
        schedule = f" schedule {{ {self.schedule.text()} }}" if self.schedule else ""
        return f"{self.kind} {{ {_text(self.fields)} }} {_text(self.common)}{schedule}"

    def __repr__(self) -> str:
        return f"<ballast.{type(self).__name__}: {self.text().strip()}>"


class SGD(Optimizer):
    """w -= lr * g."""

    def __init__(self, learning_rate: float, **common: Any) -> None:
        super().__init__("sgd", {"learning_rate": learning_rate}, **common)


class Momentum(Optimizer):
    """v = momentum * v + g; w -= lr * v."""

    def __init__(self, learning_rate: float, momentum: float = 0.9, **common: Any) -> None:
        super().__init__("momentum", {"learning_rate": learning_rate, "momentum": momentum}, **common)


class Nesterov(Optimizer):
    """v = momentum * v + g; w -= lr * (g + momentum * v)."""

    def __init__(self, learning_rate: float, momentum: float = 0.9, **common: Any) -> None:
        super().__init__("nesterov", {"learning_rate": learning_rate, "momentum": momentum}, **common)


class Adam(Optimizer):
    """Kingma and Ba, 2015."""

    def __init__(self, learning_rate: float, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8,
                 **common: Any) -> None:
        super().__init__("adam", {"learning_rate": learning_rate, "beta1": beta1, "beta2": beta2, "epsilon": epsilon},
                         **common)


class AdamW(Optimizer):
    """Adam with decoupled weight decay; Loshchilov and Hutter, 2019."""

    def __init__(self, learning_rate: float, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8,
                 **common: Any) -> None:
        super().__init__("adamw", {"learning_rate": learning_rate, "beta1": beta1, "beta2": beta2, "epsilon": epsilon},
                         **common)


class Adagrad(Optimizer):
    """s += g^2; w -= lr * g / (sqrt(s) + epsilon)."""

    def __init__(self, learning_rate: float, epsilon: float = 1e-10, **common: Any) -> None:
        super().__init__("adagrad", {"learning_rate": learning_rate, "epsilon": epsilon}, **common)


class RMSprop(Optimizer):
    """s = alpha * s + (1 - alpha) * g^2; w -= lr * g / (sqrt(s) + epsilon)."""

    def __init__(self, learning_rate: float, alpha: float = 0.99, epsilon: float = 1e-8, **common: Any) -> None:
        super().__init__("rmsprop", {"learning_rate": learning_rate, "alpha": alpha, "epsilon": epsilon}, **common)


class Lamb(Optimizer):
    """Adam's direction, scaled by the ratio of the norms of weights and direction; You et al., 2020."""

    def __init__(self, learning_rate: float, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-6,
                 **common: Any) -> None:
        super().__init__("lamb", {"learning_rate": learning_rate, "beta1": beta1, "beta2": beta2, "epsilon": epsilon},
                         **common)


class Ftrl(Optimizer):
    """FTRL-proximal; McMahan et al., 2013."""

    def __init__(self, learning_rate: float, beta: float = 1, l1: float = 0, l2: float = 0, **common: Any) -> None:
        super().__init__("ftrl", {"learning_rate": learning_rate, "beta": beta, "l1": l1, "l2": l2}, **common)


class Lion(Optimizer):
    """The sign of an average of gradients and momentum; Chen et al., 2023."""

    def __init__(self, learning_rate: float, beta1: float = 0.9, beta2: float = 0.99, **common: Any) -> None:
        super().__init__("lion", {"learning_rate": learning_rate, "beta1": beta1, "beta2": beta2}, **common)


class RowWiseAdagrad(Optimizer):
    """For tables: Adagrad with one sum for a row."""

    def __init__(self, learning_rate: float, epsilon: float = 1e-10, **common: Any) -> None:
        super().__init__("row_wise_adagrad", {"learning_rate": learning_rate, "epsilon": epsilon}, **common)


class RowWiseAdam(Optimizer):
    """For tables: Adam with one second moment for a row."""

    def __init__(self, learning_rate: float, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8,
                 **common: Any) -> None:
        super().__init__("row_wise_adam", {"learning_rate": learning_rate, "beta1": beta1, "beta2": beta2,
                                           "epsilon": epsilon}, **common)


class GroupFtrl(Optimizer):
    """For tables: FTRL with a group lasso, which makes whole rows 0; Ni et al., 2019."""

    def __init__(self, learning_rate: float, beta: float = 1, l1: float = 0, l2: float = 0, group_lasso: float = 0,
                 **common: Any) -> None:
        super().__init__("group_ftrl", {"learning_rate": learning_rate, "beta": beta, "l1": l1, "l2": l2,
                                        "group_lasso": group_lasso}, **common)


def optimizer_text(optimizer: Union[Optimizer, str]) -> str:
    """Returns the text of an optimizer, or the text itself."""
    if isinstance(optimizer, str):
        return optimizer
    if not isinstance(optimizer, Optimizer):
        raise InvalidArgument(f"optimizer: got {optimizer!r}, want one of ballast's, such as ballast.SGD(0.1), or a text")
    return optimizer.text()
