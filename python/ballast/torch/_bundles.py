# SPDX-License-Identifier: Apache-2.0
"""Parameters of a model that are exchanged with the servers together."""

from __future__ import annotations

from typing import Any, List, Optional

import torch

from .. import _arrays
from .._connection import Connection
from .._exchange import Exchange
from ..errors import InvalidArgument
from . import _device

# Bytes of small parameters that are exchanged together, because each exchange has its own cost.
_SMALL_BYTES = 1 << 18


class Parameter:
    """A parameter in the host's memory. Its values are those of `_memories[_current]`; the others are for the next step,
    so that installing them copies nothing."""

    def __init__(self, name: str, parameter: torch.nn.Parameter, group: int) -> None:
        if not parameter.data.is_contiguous():
            parameter.data = parameter.data.contiguous()
        self.name = name
        self.parameter = parameter
        self.group = group
        # Shares the parameter's version counter, and has no elements.
        self._version_of = parameter.detach().reshape(-1)[:0]
        self._version = parameter._version
        # Number of backward passes that gave it a gradient since the last step.
        self.passes = 0
        self._zeros: Optional[torch.Tensor] = None
        # The node that accumulates the gradient, which has the hook and lives as long as it is referred to.
        self.node: Any = None
        self._make_memory()

    def _make_memory(self) -> None:
        data = self.parameter.data
        self._values = [data, torch.empty_like(data)]
        self._memories = [self._memory(values) for values in self._values]
        self._current = 0

    def _memory(self, values: torch.Tensor) -> _arrays.Memory:
        return _arrays.memory(f'memory for "{self.name}"', values)

    @property
    def host_values(self) -> torch.Tensor:
        """The values before the first step, in the host's memory."""
        return self._values[0]

    def use_host_values(self) -> None:
        """Makes what `host_values` contains the parameter's values, before the first step."""

    def _address(self) -> int:
        """Where the parameter's values must be."""
        return self._memories[self._current].address

    def check_values(self) -> None:
        """Refuses values that the program has changed, which the next ones would replace."""
        parameter = self.parameter
        if parameter._version != self._version or parameter.data_ptr() != self._address():
            raise InvalidArgument(f'parameter "{self.name}": got values that were changed after the DistributedOptimizer '
                                  "was made, want those of the servers: load or change them before")

    def gradient(self, use: bool) -> torch.Tensor:
        """Returns the gradient to send: zeros if there is none."""
        gradient = self.parameter.grad if use else None
        if gradient is None:
            if self._zeros is None:
                self._zeros = torch.zeros_like(self.parameter.data)
            return self._zeros
        if gradient.is_sparse:
            raise InvalidArgument(f'gradient of "{self.name}": got a sparse tensor, want a dense one')
        if gradient.dtype != torch.float32 or not gradient.is_contiguous():
            return gradient.detach().float().contiguous()
        return gradient

    def on_host(self, gradient: torch.Tensor) -> torch.Tensor:
        """Returns the memory that has the gradient, once the copies so far are done."""
        return gradient

    def next_values(self) -> _arrays.Memory:
        """Returns memory of the host for the next values."""
        return self._memories[self._current ^ 1]

    def install(self) -> None:
        """Makes the next values the parameter's. Graphs that saved the old ones refuse to go backward."""
        self._current ^= 1
        self.parameter.data = self._values[self._current]
        self._end_version()

    def _end_version(self) -> None:
        self._version_of.zero_()
        self._version = self.parameter._version

    def refresh(self) -> None:
        """Makes values that came into the memory of the present ones the parameter's."""

    def mark(self) -> Any:
        """Returns a mark behind the copies so far, or None if there are none."""
        return None


class DeviceParameter(Parameter):
    """A parameter in a device's memory, where it stays: gradients and values are copied by way of the host's."""

    def _make_memory(self) -> None:
        self._device = _device.KINDS[self.parameter.device.type](self.parameter.device)
        self._received = self._device.host_memory(self.parameter.data)
        self._received.copy_(self.parameter.data)
        self._sent = self._device.host_memory(self.parameter.data)
        self._memory_received = self._memory(self._received)
        self._address_on_device = self.parameter.data_ptr()

    @property
    def host_values(self) -> torch.Tensor:
        return self._received

    def use_host_values(self) -> None:
        self._device.copy(self.parameter.data, self._received)

    def _address(self) -> int:
        return self._address_on_device

    def on_host(self, gradient: torch.Tensor) -> torch.Tensor:
        self._device.copy(self._sent, gradient)
        return self._sent

    def next_values(self) -> _arrays.Memory:
        return self._memory_received

    def install(self) -> None:
        self._device.copy(self.parameter.data, self._received)
        self._end_version()

    def refresh(self) -> None:
        self.install()

    def mark(self) -> Any:
        return self._device.mark()


def make_parameter(name: str, parameter: torch.nn.Parameter, group: int) -> Parameter:
    """Returns a parameter for where it is; InvalidArgument if it is of another kind than the servers', or elsewhere."""
    device = parameter.device.type
    if parameter.dtype != torch.float32 or device not in _device.KINDS and device != "cpu":
        raise InvalidArgument(f'parameter "{name}": got {parameter.dtype} on {parameter.device}, want torch.float32 on '
                              "cpu or cuda")
    kind = DeviceParameter if device in _device.KINDS else Parameter
    return kind(name, parameter, group)


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
        # The number of the installation of its values, and the connection's number of refreshes then.
        self.installation = 0
        self._refreshes = 0
        self._sent: List[torch.Tensor] = []
        self._versions: List[int] = []
        # Their memory on the host, the step's number of examples, and what the copies so far must have passed before the
        # exchange may begin; only while it has not begun.
        self._on_host: List[torch.Tensor] = []
        self._examples = 0
        self._marks: List[Any] = []

    def connect(self, ps: Connection) -> None:
        """Makes the exchange, once the parameters are declared."""
        self._ps = ps
        self._refreshes = ps._refreshes
        self.exchange = Exchange(ps, [each.name for each in self.parameters])

    def send(self, examples: int, use: bool = True) -> None:
        """Sends the gradients; zeros for parameters without one, or for all. If they are on a device, they are copied
        first, and begin() sends them."""
        for each in self.parameters:
            each.check_values()
        self._sent = sent = [each.gradient(use) for each in self.parameters]
        self._versions = [gradient._version for gradient in sent]
        self._on_host = [each.on_host(gradient) for each, gradient in zip(self.parameters, sent)]
        self._examples = examples
        self._add_marks()
        self.sent_in_step = self.pending = True
        if not self._marks:
            self.begin()

    def _add_marks(self) -> None:
        marks = (each.mark() for each in {each.parameter.device: each for each in self.parameters}.values())
        self._marks += [mark for mark in marks if mark is not None]

    @property
    def copied(self) -> bool:
        """Whether begin() would not wait."""
        return all(mark.query() for mark in self._marks)

    def begin(self) -> None:
        """Begins the exchange, when the gradients are in the host's memory."""
        for mark in self._marks:
            mark.synchronize()
        self._marks = []
        self.exchange.begin([gradient.data_ptr() for gradient in self._on_host],
                            [each.next_values() for each in self.parameters], self._examples, self._on_host)
        self._on_host = []

    @property
    def begun(self) -> bool:
        """Whether the exchange of what was sent has begun."""
        return not self._on_host

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
        self._refreshes = self._ps._refreshes
        for each in self.parameters:
            each.check_values()
            each.install()
        # The next exchange writes to the memory that is being copied.
        self._add_marks()

    def refresh(self) -> None:
        """Takes values that came after the installed ones, because the worker ended steps without a gradient."""
        if self._refreshes != self._ps._refreshes:
            self._refreshes = self._ps._refreshes
            self._ps.wait()
            for each in self.parameters:
                each.refresh()
            self._add_marks()


def bundles_of(parameters: List[Parameter]) -> List[Bundle]:
    """Returns bundles of the parameters of a model, the last ones first: a backward pass ends with the first ones."""
    bundles: List[Bundle] = []
    current: List[Parameter] = []
    size = 0
    for each in reversed(parameters):
        current.append(each)
        size += each.parameter.numel() * 4
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
