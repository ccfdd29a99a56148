# SPDX-License-Identifier: Apache-2.0
"""The optimizer of a PyTorch model whose weights, and optimizer, are on the servers."""

from __future__ import annotations

import collections
import weakref
from typing import Any, Callable, Deque, Dict, Iterator, List, Mapping, Optional

import torch

from .._connection import Connection
from ..errors import InvalidArgument
from ..optimizers import Schedule
from ._bundles import Bundle, Parameter, bundles_of, make_parameter
from ._memory import keep_freed_memory
from ._rules import rule_of


class DistributedOptimizer(torch.optim.Optimizer):
    """Trains a model with its weights on the servers, by the rule of a torch.optim optimizer.

    Made after the optimizer and before the first step; the model then has the job's values, which are those of worker 0
    in a new job. A backward pass sends each gradient when it is ready; the next forward pass waits, module by module,
    for the new values. step() therefore does not change the weights: model.state_dict() waits for them, but call
    synchronize() before they are read in another way than by a forward pass or by it.

    optimizer: exactly torch.optim's SGD, Adam, AdamW, Adagrad or RMSprop; InvalidArgument names another one, or an
        option that the servers lack. Its parameter groups are kept, and their learning rates must not change: use
        `schedule`.
    model: float32, on the CPU, or on CUDA devices by way of pinned memory of the host. Parameters that the optimizer
        does not have are not exchanged, nor are buffers: those of batch norm on worker 0, which evaluates and saves, are
        the model's.
    ps: the connection.
    backward_passes_per_step: backward passes whose gradients are summed before they are sent.
    examples: number of examples of each step, by which gradients of workers are weighted. Within ps.leases() it is the
        length of the batch. Assign `examples` before a backward pass if it varies otherwise.
    push_in_step: send gradients in step() instead of in the backward pass, so that the program may change them in
        between, as for clipping. torch's GradScaler needs it.

    Never are gradients of old values applied as if they were of new ones: InvalidArgument names the parameter if a
    backward pass belongs to a forward pass before the last step, if the program changes a parameter, or a gradient that
    was sent.
    """

    # GradScaler.step() calls step() in any case, with itself.
    _step_supports_amp_scaling = True

    # Not that of torch.optim.Optimizer: the parameters and their state belong to the given one.
    def __init__(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module, ps: Connection, *,
                 backward_passes_per_step: int = 1, examples: int = 1, schedule: Optional[Schedule] = None,
                 push_in_step: bool = False) -> None:
        if backward_passes_per_step < 1:
            raise InvalidArgument(f"backward_passes_per_step: got {backward_passes_per_step}, want at least 1")
        self.examples = examples
        self.push_in_step = push_in_step
        self.defaults = optimizer.defaults
        self.state: Dict[Any, Any] = {}
        self._optimizer = optimizer
        self._ps = ps
        self._passes_per_step = backward_passes_per_step
        self._rates = [group["lr"] for group in optimizer.param_groups]
        self._parameters = self._find(optimizer, model)
        self._bundles = bundles_of(self._parameters)
        self._installations = 0
        # Sent bundles whose gradients are still being copied from a device to the host.
        self._copying: Deque[Bundle] = collections.deque()
        rules = [rule_of(optimizer, index, schedule) for index in range(len(optimizer.param_groups))]
        values = {each.name: each.host_values for each in self._parameters}
        ps.declare(values, {each.name: rules[each.group] for each in self._parameters})
        ps.pull(values)
        for each in self._parameters:
            each.use_host_values()
        for bundle in self._bundles:
            bundle.connect(ps)
        self._handles: List[Any] = []
        for bundle in self._bundles:
            self._handles += [self._hook_gradient(bundle, each) for each in bundle.parameters]
        self._hook_modules(model)
        keep_freed_memory(4 * sum(each.parameter.numel() for each in self._parameters))

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "step":
            # The schedulers of torch.optim replace it.
            raise InvalidArgument("learning rate: got a scheduler of torch.optim.lr_scheduler, want DistributedOptimizer("
                                  "..., schedule=ballast.Schedule(...)), because the servers' optimizer has the rate")
        object.__setattr__(self, name, value)

    @property
    def param_groups(self) -> List[Dict[str, Any]]:
        """The parameter groups of the optimizer."""
        return self._optimizer.param_groups

    def add_param_group(self, param_group: Any) -> None:
        """Refuses: parameters are declared once."""
        raise InvalidArgument("parameter groups: got another one, want them in the optimizer that DistributedOptimizer "
                              "is given")

    @staticmethod
    def _find(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> List[Parameter]:
        names = {parameter: name for name, parameter in model.named_parameters()}
        groups: Dict[torch.nn.Parameter, int] = {}
        for index, group in enumerate(optimizer.param_groups):
            for position, parameter in enumerate(group["params"]):
                if parameter not in names:
                    raise InvalidArgument(f"optimizer: parameter {position} of group {index}, of shape "
                                          f"{tuple(parameter.shape)}, is none of the model's")
                groups[parameter] = index
        return [make_parameter(name, parameter, groups[parameter]) for parameter, name in names.items()
                if parameter in groups and parameter.requires_grad]

    # --- a backward pass ---

    def _hook_gradient(self, bundle: Bundle, each: Parameter) -> Any:
        # The model must not keep this object alive by its hooks.
        reference = weakref.ref(self)

        def ready(*_: Any) -> None:
            optimizer = reference()
            if optimizer is not None:
                optimizer._on_gradient(bundle, each)

        if hasattr(each.parameter, "register_post_accumulate_grad_hook"):
            return each.parameter.register_post_accumulate_grad_hook(ready)
        each.node = each.parameter.expand_as(each.parameter).grad_fn.next_functions[0][0]
        return each.node.register_hook(ready)

    def _on_gradient(self, bundle: Bundle, each: Parameter) -> None:
        if bundle.pending and not bundle.sent_in_step:
            raise InvalidArgument(f'gradient of "{each.name}": got one of values before the last step, want a forward '
                                  "pass of the module that has it after step(), or synchronize()")
        each.passes += 1
        if each.passes < self._passes_per_step:
            return
        if each.passes > self._passes_per_step:
            raise InvalidArgument(f'gradient of "{each.name}": got another one in the same step, want '
                                  f"{self._passes_per_step} backward passes before step(); backward_passes_per_step "
                                  "sets their number, and checkpoints need use_reentrant=False")
        bundle.ready += 1
        if bundle.ready == len(bundle.parameters) and not self.push_in_step:
            self._send(bundle, self._ps._batch_examples or self.examples)

    def _send(self, bundle: Bundle, examples: int, use: bool = True) -> None:
        # Gradients of a device are copied in the order in which they are sent.
        self._begin(wait=False)
        bundle.send(examples, use)
        if not bundle.begun:
            self._copying.append(bundle)

    def _begin(self, wait: bool) -> None:
        """Begins the exchanges whose gradients are in the host's memory, or waits for all."""
        while self._copying and (wait or self._copying[0].copied):
            self._copying.popleft().begin()

    def step(self, closure: None = None, *, grad_scaler: Any = None) -> None:
        """Ends the step: sends what the backward pass has not sent, with zeros for each parameter that has no gradient,
        and the rows of EmbeddingBags. Waits until a CUDA device has ended the backward pass, and for nothing else.
        `grad_scaler` is for GradScaler.step(): gradients that are not finite are not sent, and the worker ends the step
        without a contribution."""
        if closure is not None:
            raise InvalidArgument("step: got a closure, want none, because gradients are sent by the backward pass")
        for group, rate in zip(self._optimizer.param_groups, self._rates):
            if group["lr"] != rate:
                raise InvalidArgument(f"learning rate: got {group['lr']} instead of {rate}, want it unchanged, because "
                                      "the servers' optimizer has it; see `schedule`")
        examples = self._ps._batch_examples or self.examples
        if grad_scaler is not None and not self._unscale(grad_scaler):
            examples = 0
        for bundle in self._bundles:
            if not bundle.sent_in_step:
                if bundle.pending:
                    # No forward pass has used it.
                    self._install(bundle)
                self._send(bundle, examples, use=examples > 0)
        self._begin(wait=True)
        for bundle in self._bundles:
            bundle.end_step()
        self._ps.push_collected_rows(examples=examples)

    def _unscale(self, scaler: Any) -> bool:
        """Divides the gradients by a GradScaler's scale; returns whether all are finite."""
        if not self.push_in_step:
            raise InvalidArgument("GradScaler: got gradients that the backward pass has sent, want "
                                  "DistributedOptimizer(..., push_in_step=True)")
        # GradScaler offers no other way to an optimizer that needs to know the outcome.
        state = scaler._per_optimizer_states[id(self)]
        if not state["found_inf_per_device"]:
            scaler.unscale_(self)
        found = list(state["found_inf_per_device"].values())
        scale = scaler.get_scale()
        rows = [gradient for table in self._ps._tables.values() for _, gradient in table._collected]
        finite = all(bool(torch.isfinite(gradient.mul_(1 / scale)).all()) for gradient in rows)
        if not finite:
            for flag in found:
                flag.fill_(1.0)
        return finite and not any(flag.item() for flag in found)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Removes all gradients, or replaces them by zeros: their memory may be on its way."""
        for each in self._parameters:
            if each.parameter.grad is not None:
                each.parameter.grad = None if set_to_none else torch.zeros_like(each.parameter.data)

    # --- a forward pass ---

    def _hook_modules(self, model: torch.nn.Module) -> None:
        reference = weakref.ref(self)
        mine = {each.parameter: bundle for bundle in self._bundles for each in bundle.parameters}
        # Bundles that a forward pass of the model has used so far, and those without a module that is called.
        self._used: List[Bundle] = []
        self._eager: List[Bundle] = []

        def calls(method: Callable[..., None], *fixed: Any) -> Any:
            def hook(module: Any, inputs: Any, *output: Any) -> None:
                optimizer = reference()
                if optimizer is not None:
                    method(optimizer, *fixed, *output)
            return hook

        kind = DistributedOptimizer
        self._handles.append(model.register_forward_pre_hook(calls(kind._begin_forward)))
        for module in model.modules():
            own = list({mine[parameter]: None for parameter in module.parameters(recurse=False) if parameter in mine})
            if own:
                self._handles.append(module.register_forward_pre_hook(calls(kind._await, own)))
                self._handles.append(module._register_state_dict_hook(self._on_state_dict(reference, own)))
        self._handles.append(model.register_forward_hook(calls(kind._end_forward)))

    @staticmethod
    def _on_state_dict(reference: Any, own: List[Bundle]) -> Any:
        def replace(module: torch.nn.Module, state: Dict[str, Any], prefix: str, _: Any) -> None:
            optimizer = reference()
            if optimizer is None or not any(bundle.pending for bundle in own):
                return
            optimizer._await(own)
            for name, parameter in module._parameters.items():
                if prefix + name in state and parameter is not None:
                    kept = isinstance(state[prefix + name], torch.nn.Parameter)
                    state[prefix + name] = parameter if kept else parameter.detach()
        return replace

    def _begin_forward(self) -> None:
        self._used = []
        self._await(self._eager)

    def _await(self, bundles: List[Bundle]) -> None:
        for bundle in bundles:
            # Until step(), the values are those of before it.
            if not bundle.pending:
                bundle.refresh()
            elif not bundle.sent_in_step:
                self._install(bundle)
        self._used += bundles

    def _install(self, bundle: Bundle) -> None:
        self._installations += 1
        bundle.install(self._installations)

    def _end_forward(self, output: Any) -> None:
        used = self._used
        if len(used) < len(self._bundles) or len(set(used)) < len(self._bundles):
            # A module that is not called may still lend its parameters to others: the next passes begin with them.
            self._eager += [each for each in self._bundles if each not in used and each not in self._eager]
        if torch.is_grad_enabled():
            number, reference = self._installations, weakref.ref(self)

            def check(_: Any) -> None:
                optimizer = reference()
                if optimizer is not None and optimizer._installations != number:
                    optimizer._check_values(used, number)

            for tensor in _tensors(output):
                if tensor.requires_grad:
                    tensor.register_hook(check)

    @staticmethod
    def _check_values(used: List[Bundle], number: int) -> None:
        for bundle in used:
            if bundle.installation > number:
                raise InvalidArgument(f'gradient of "{bundle.parameters[0].name}": got a backward pass whose forward '
                                      "pass used the values before the last step, want it before the next forward pass")

    def synchronize(self) -> None:
        """Waits until the model has the values of the last step."""
        for bundle in self._bundles:
            if bundle.pending and not bundle.sent_in_step:
                self._install(bundle)

    def remove_hooks(self) -> None:
        """Ends the exchange; the model is an ordinary one again, with the values of the last step."""
        self.synchronize()
        for handle in self._handles:
            handle.remove()
        self._handles = []

    # --- state ---

    def state_dict(self) -> Dict[str, Any]:
        """Returns the number of steps, and of each parameter group the options, with the names and shapes of its
        parameters. Moments are in the checkpoints of the servers, not in this."""
        groups = []
        for index, group in enumerate(self._optimizer.param_groups):
            mine = [each for each in self._parameters if each.group == index]
            groups.append({**{name: value for name, value in group.items() if name != "params"},
                           "params": [each.name for each in mine],
                           "shapes": [tuple(each.parameter.shape) for each in mine]})
        return {"state": {}, "param_groups": groups, "step": self._ps.step}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Checks that the state is of the same parameters and options; InvalidArgument names what differs. The servers
        have their own moments and number of steps, which stay."""
        mine, given = self.state_dict()["param_groups"], state_dict["param_groups"]
        if len(given) != len(mine):
            raise InvalidArgument(f"state of the optimizer: got {len(given)} parameter groups, want {len(mine)}")
        for index, (got, want) in enumerate(zip(given, mine)):
            shapes = dict(zip(got.get("params", []), got.get("shapes", [])))
            for name, shape in zip(want["params"], want["shapes"]):
                if tuple(shapes.get(name, ())) != shape or name not in shapes:
                    found = f"shape {tuple(shapes[name])}" if name in shapes else "no such parameter"
                    raise InvalidArgument(f'state of the optimizer: group {index} has {found} for "{name}", want shape '
                                          f"{shape}")
            for name in sorted(set(got) | set(want)):
                if name != "shapes" and got.get(name) != want.get(name):
                    raise InvalidArgument(f"state of the optimizer: group {index} has {name}={got.get(name)!r}, want "
                                          f"{want.get(name)!r}")


def _tensors(output: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors of a module's output."""
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, (list, tuple)):
        for part in output:
            yield from _tensors(part)
    elif isinstance(output, Mapping):
        for part in output.values():
            yield from _tensors(part)
