# SPDX-License-Identifier: Apache-2.0
"""The servers' counterparts of PyTorch's optimizers."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional

import torch

from ..errors import InvalidArgument
from ..optimizers import SGD, Adagrad, Adam, AdamW, Momentum, Nesterov, Optimizer, RMSprop, Schedule

# Options of a parameter group that the servers do not have, and the value that turns each off.
_OFF: Dict[type, Mapping[str, Any]] = {
    torch.optim.SGD: {"dampening": 0, "maximize": False},
    torch.optim.Adam: {"amsgrad": False, "maximize": False},
    torch.optim.AdamW: {"amsgrad": False, "maximize": False},
    torch.optim.Adagrad: {"lr_decay": 0, "initial_accumulator_value": 0, "maximize": False},
    torch.optim.RMSprop: {"momentum": 0, "centered": False, "maximize": False},
}


def rule_of(optimizer: torch.optim.Optimizer, index: int, schedule: Optional[Schedule]) -> Optimizer:
    """Returns the servers' optimizer for a parameter group. InvalidArgument names a class or an option that they
    lack."""
    kind = type(optimizer)
    if kind not in _OFF:
        names = ", ".join(known.__name__ for known in _OFF)
        raise InvalidArgument(f"optimizer: got {kind.__module__}.{kind.__qualname__}, want exactly one of "
                              f"torch.optim's {names}")
    group = optimizer.param_groups[index]
    for option, off in _OFF[kind].items():
        if group.get(option, off) != off:
            raise InvalidArgument(f"optimizer: parameter group {index} of {kind.__name__} has {option}="
                                  f"{group[option]}, want {off}, because the servers lack it")
    common: Dict[str, Any] = {"weight_decay": group["weight_decay"], "schedule": schedule}
    rate = group["lr"]
    if kind is torch.optim.SGD:
        if group["momentum"] == 0:
            return SGD(rate, **common)
        return (Nesterov if group["nesterov"] else Momentum)(rate, group["momentum"], **common)
    if kind is torch.optim.Adagrad:
        return Adagrad(rate, group["eps"], **common)
    if kind is torch.optim.RMSprop:
        return RMSprop(rate, group["alpha"], group["eps"], **common)
    return (Adam if kind is torch.optim.Adam else AdamW)(rate, *group["betas"], group["eps"], **common)
