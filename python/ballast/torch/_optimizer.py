# SPDX-License-Identifier: Apache-2.0
"""The optimizer of a PyTorch model whose weights, and optimizer, are on the servers."""

from __future__ import annotations

import weakref
from typing import Any, Dict, Iterable, List, Optional, Set

import torch

from .._connection import Connection
from .._futures import Future
from ..errors import InvalidArgument
from ..optimizers import Schedule
from ._rules import rule_of


class _Parameter:
    """A parameter, and its exchange with the servers."""

    def __init__(self, name: str, parameter: torch.nn.Parameter, group: int) -> None:
        self.name = name
        self.parameter = parameter
        self.group = group
        # Memory for the values of the next step; what was the parameter's before.
        self.incoming = torch.empty_like(parameter.data)
        # The exchange whose values are not the parameter's yet, and the gradient that it sends.
        self.exchange: Optional[Future] = None
        self.sent: Optional[torch.Tensor] = None
        # A gradient's memory that nothing uses.
        self.spare: Optional[torch.Tensor] = None
        self.passes = 0
        self.pushed = False
        # The node that accumulates the gradient, which has the hook and lives as long as it is referred to.
        self.node: Any = None


class DistributedOptimizer:
    """Trains a model with its weights on the servers, by the rule of a torch.optim optimizer.

    Made after the optimizer and before the first step; the model then has the job's values, which are those of worker 0
    in a new job. A backward pass sends each gradient when it is ready; the next forward pass waits, module by module,
    for the new values. step() therefore does not change the weights: after the last step, before the weights are read
    without a forward pass, call synchronize().

    optimizer: exactly torch.optim's SGD, Adam, AdamW, Adagrad or RMSprop; InvalidArgument names another one, or an
        option that the servers lack. Its parameter groups are kept, and their learning rates must not change: use
        `schedule`.
    model: float32, on the CPU. Parameters that the optimizer does not have are not exchanged.
    ps: the connection.
    backward_passes_per_step: backward passes whose gradients are summed before they are sent.
    examples: number of examples of each step, by which gradients of workers are weighted. Within ps.leases() it is the
        length of the batch. Assign `examples` before a backward pass if it varies otherwise.

    Use this object's zero_grad(), because a gradient may still be on its way.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module, ps: Connection, *,
                 backward_passes_per_step: int = 1, examples: int = 1, schedule: Optional[Schedule] = None) -> None:
        if backward_passes_per_step < 1:
            raise InvalidArgument(f"backward_passes_per_step: got {backward_passes_per_step}, want at least 1")
        self.examples = examples
        self._optimizer = optimizer
        self._ps = ps
        self._passes_per_step = backward_passes_per_step
        self._rates = [group["lr"] for group in optimizer.param_groups]
        self._parameters = self._find(optimizer, model)
        rules = [rule_of(optimizer, index, schedule) for index in range(len(optimizer.param_groups))]
        ps.declare({each.name: each.parameter.data for each in self._parameters},
                   {each.name: rules[each.group] for each in self._parameters})
        ps.pull({each.name: each.parameter.data for each in self._parameters})
        self._handles = [self._hook_gradient(each) for each in self._parameters]
        self._hook_modules(model)

    @property
    def param_groups(self) -> List[Dict[str, Any]]:
        """The parameter groups of the optimizer."""
        return self._optimizer.param_groups

    @staticmethod
    def _find(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> List[_Parameter]:
        names = {parameter: name for name, parameter in model.named_parameters()}
        found = []
        for index, group in enumerate(optimizer.param_groups):
            for position, parameter in enumerate(group["params"]):
                if parameter not in names:
                    raise InvalidArgument(f"optimizer: parameter {position} of group {index}, of shape "
                                          f"{tuple(parameter.shape)}, is none of the model's")
                if not parameter.requires_grad:
                    continue
                if not parameter.data.is_contiguous():
                    parameter.data = parameter.data.contiguous()
                found.append(_Parameter(names[parameter], parameter, index))
        return found

    # --- a backward pass ---

    def _hook_gradient(self, each: _Parameter) -> Any:
        # The model must not keep this object alive by its hooks.
        reference = weakref.ref(self)

        def ready(*_: Any) -> None:
            optimizer = reference()
            if optimizer is not None:
                optimizer._on_gradient(each)

        if hasattr(each.parameter, "register_post_accumulate_grad_hook"):
            return each.parameter.register_post_accumulate_grad_hook(ready)
        each.node = each.parameter.expand_as(each.parameter).grad_fn.next_functions[0][0]
        return each.node.register_hook(ready)

    def _on_gradient(self, each: _Parameter) -> None:
        if each.pushed:
            raise InvalidArgument(f'gradient of "{each.name}": got another one in the same step, want '
                                  f"{self._passes_per_step} backward passes before step(); backward_passes_per_step "
                                  "sets their number, and checkpoints need use_reentrant=False")
        each.passes += 1
        if each.passes == self._passes_per_step:
            self._push(each, each.parameter.grad)

    def _push(self, each: _Parameter, gradient: torch.Tensor) -> None:
        # A forward pass that does not use the parameter leaves its values where they are.
        self._install(each)
        if not gradient.is_contiguous() or gradient.dtype != torch.float32:
            gradient = gradient.detach().contiguous()
        each.sent = gradient
        each.exchange = self._ps.push_pull({each.name: gradient.detach()}, into={each.name: each.incoming},
                                           examples=self._ps._batch_examples or self.examples)
        each.pushed = True

    def step(self, closure: None = None) -> None:
        """Ends the step: sends zeros for each parameter that has no gradient, and the rows of EmbeddingBags. Does not
        wait."""
        if closure is not None:
            raise InvalidArgument("step: got a closure, want none, because gradients are sent by the backward pass")
        for group, rate in zip(self._optimizer.param_groups, self._rates):
            if group["lr"] != rate:
                raise InvalidArgument(f"learning rate: got {group['lr']} instead of {rate}, want it unchanged, because "
                                      "the servers' optimizer has it; see `schedule`")
        examples = self._ps._batch_examples or self.examples
        for each in self._parameters:
            if not each.pushed:
                if each.passes and each.parameter.grad is not None:
                    self._push(each, each.parameter.grad)
                else:
                    self._push(each, torch.zeros_like(each.parameter.data))
            each.pushed = False
            each.passes = 0
        self._ps.push_collected_rows(examples=examples)

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Sets all gradients to zero, or removes them."""
        for each in self._parameters:
            gradient = each.parameter.grad
            if gradient is None:
                continue
            if set_to_none:
                each.parameter.grad = None
            elif gradient is each.sent and each.exchange is not None and not each.exchange.done():
                each.parameter.grad, each.spare = self._zeros(each), gradient
            else:
                gradient.detach_()
                gradient.zero_()

    @staticmethod
    def _zeros(each: _Parameter) -> torch.Tensor:
        # The spare memory was sent in an earlier step, whose exchange has ended.
        return torch.zeros_like(each.parameter.data) if each.spare is None else each.spare.zero_()

    # --- a forward pass ---

    def _hook_modules(self, model: torch.nn.Module) -> None:
        reference = weakref.ref(self)
        mine = {each.parameter: each for each in self._parameters}
        # Parameters whose module was called in this forward pass of the model, and those that need no module's call.
        self._awaited: Set[_Parameter] = set()
        self._eager: List[_Parameter] = []

        def before(own: List[_Parameter]) -> Any:
            def wait(*_: Any) -> None:
                optimizer = reference()
                if optimizer is not None:
                    optimizer._await(own)
            return wait

        def begin(*_: Any) -> None:
            optimizer = reference()
            if optimizer is not None:
                optimizer._await(optimizer._eager)

        def end(*_: Any) -> None:
            optimizer = reference()
            if optimizer is not None:
                optimizer._note_unawaited()

        self._handles.append(model.register_forward_pre_hook(begin))
        for module in model.modules():
            own = [mine[parameter] for parameter in module.parameters(recurse=False) if parameter in mine]
            if own:
                self._handles.append(module.register_forward_pre_hook(before(own)))
        self._handles.append(model.register_forward_hook(end))

    def _await(self, parameters: Iterable[_Parameter]) -> None:
        for each in parameters:
            self._awaited.add(each)
            self._install(each)

    def _note_unawaited(self) -> None:
        # A module that is not called may still lend its parameters to others: the next passes begin with them.
        missed = [each for each in self._parameters if each not in self._awaited]
        self._eager.extend(each for each in missed if each not in self._eager)
        self._awaited.clear()

    def _install(self, each: _Parameter) -> None:
        """Waits for the parameter's new values and makes them its own."""
        if each.exchange is None:
            return
        self._ps._wait(each.exchange, None)
        each.exchange = None
        each.parameter.data, each.incoming = each.incoming, each.parameter.data

    def synchronize(self) -> None:
        """Waits until the model has the values of the last step."""
        for each in self._parameters:
            self._install(each)

    def remove_hooks(self) -> None:
        """Ends the exchange; the model is an ordinary one again, with the values of the last step."""
        self.synchronize()
        for handle in self._handles:
            handle.remove()
        self._handles = []
