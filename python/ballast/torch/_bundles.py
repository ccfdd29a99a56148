# SPDX-License-Identifier: Apache-2.0
"""Parameters of a model that are exchanged with the servers together."""

from __future__ import annotations

from typing import Any, List, Optional

import torch

from .. import _arrays
from .._connection import Connection
from .._exchange import Exchange
from ..errors import InvalidArgument

# Bytes of small parameters that are exchanged together, because each exchange has its own cost.
_SMALL_BYTES = 1 << 18


class Parameter:
    """A parameter, and its memory. Its values are those of `memories[current]`; the others are for the next step."""

    def __init__(self, name: str, parameter: torch.nn.Parameter, group: int) -> None:
        if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
            raise InvalidArgument(f'parameter "{name}": got {parameter.dtype} on {parameter.device}, want torch.float32 '
                                  "on cpu")
        if not parameter.data.is_contiguous():
            parameter.data = parameter.data.contiguous()
        self.name = name
        self.parameter = parameter
        self.group = group
        self.values = [parameter.data, torch.empty_like(parameter.data)]
        self.memories = [_arrays.memory(f'memory for "{name}"', values) for values in self.values]
        self.current = 0
        # Shares the parameter's version counter, and has no elements.
        self._version_of = parameter.detach().reshape(-1)[:0]
        self._version = parameter._version
        # Number of backward passes that gave it a gradient since the last step.
        self.passes = 0
        self._zeros: Optional[torch.Tensor] = None
        # The node that accumulates the gradient, which has the hook and lives as long as it is referred to.
        self.node: Any = None

    def check_values(self) -> None:
        """Refuses values that the program has changed, which the next ones would replace."""
        parameter = self.parameter
        if parameter._version != self._version or parameter.data_ptr() != self.memories[self.current].address:
            raise InvalidArgument(f'parameter "{self.name}": got values that were changed after the DistributedOptimizer '
                                  "was made, want those of the servers: load or change them before")

    def gradient(self, use: bool) -> torch.Tensor:
        """Returns the gradient to send: zeros if there is none."""
        gradient = self.parameter.grad if use else None
        if gradient is None:
            if self._zeros is None:
                self._zeros = torch.zeros_like(self.values[0])
            return self._zeros
        if gradient.is_sparse:
            raise InvalidArgument(f'gradient of "{self.name}": got a sparse tensor, want a dense one')
        if gradient.dtype != torch.float32 or not gradient.is_contiguous():
            return gradient.detach().float().contiguous()
        return gradient

    def swap(self) -> None:
        """Makes the next step's values the parameter's. Graphs that saved the old ones refuse to go backward."""
        self.current ^= 1
        self.parameter.data = self.values[self.current]
        self._version_of.zero_()
        self._version = self.parameter._version


class Bundle:
    """Parameters that one operation sends and receives. A step fills it with gradients and sends it; the next forward
    pass that needs one of its parameters installs the new values."""

    def __init__(self, parameters: List[Parameter]) -> None:
        self.parameters = parameters
        self.exchange: Optional[Exchange] = None
        # Parameters whose gradient is complete.
        self.ready = 0
        # Sent since the last step(): its values belong to the next step.
        self.sent_in_step = False
        # Sent, and not installed.
        self.pending = False
        # The number of the installation of its values.
        self.installation = 0
        self._sent: List[torch.Tensor] = []
        self._versions: List[int] = []

    def connect(self, ps: Connection) -> None:
        """Makes the exchange, once the parameters are declared."""
        self.exchange = Exchange(ps, [each.name for each in self.parameters])

    def send(self, examples: int, use: bool = True) -> None:
        """Sends the gradients; zeros for parameters without one, or for all."""
        for each in self.parameters:
            each.check_values()
        self._sent = sent = [each.gradient(use) for each in self.parameters]
        self._versions = [gradient._version for gradient in sent]
        self.exchange.begin([gradient.data_ptr() for gradient in sent],
                            [each.memories[each.current ^ 1] for each in self.parameters], examples, sent)
        self.sent_in_step = self.pending = True

    def check_gradients(self) -> None:
        """Refuses gradients that were changed while they may have been on their way."""
        for each, gradient, version in zip(self.parameters, self._sent, self._versions):
            if gradient._version != version:
                raise InvalidArgument(f'gradient of "{each.name}": got it changed after it was sent, want '
                                      "push_in_step=True to change gradients between backward() and step(), and "
                                      "zero_grad() of the DistributedOptimizer instead of the model's")

    def end_step(self) -> None:
        """Begins the next step."""
        self.check_gradients()
        self.ready = 0
        self.sent_in_step = False
        for each in self.parameters:
            each.passes = 0

    def install(self, number: int) -> None:
        """Waits for the new values and makes them the parameters'."""
        self.exchange.finish()
        self.check_gradients()
        self._sent = []
        self.pending = False
        self.installation = number
        for each in self.parameters:
            each.check_values()
            each.swap()


def bundles_of(parameters: List[Parameter]) -> List[Bundle]:
    """Returns bundles of the parameters of a model, the last ones first: a backward pass ends with the first ones."""
    bundles: List[Bundle] = []
    current: List[Parameter] = []
    size = 0
    for each in reversed(parameters):
        current.append(each)
        size += each.values[0].numel() * 4
        if size >= _SMALL_BYTES:
            bundles.append(Bundle(current))
            current, size = [], 0
    if current:
        if bundles and size < _SMALL_BYTES:
            # For instance the bias of the first layer stays with its weight.
            bundles[-1] = Bundle(bundles[-1].parameters + current)
        else:
            bundles.append(Bundle(current))
    return bundles
