# SPDX-License-Identifier: Apache-2.0
"""Does the measurements of mlp_benchmark with PyTorch: forward and backward with autocast, then SGD's change.

  echo | torch_mlp.py [--device cuda|cpu] [--precision bf16] [--way eager|graph] [--width 4096] [--seconds 0.5]

The CPU always uses fp32 and is eager."""

import torch

from torch_timing import captured, descend, measure_rounds, milliseconds, options_of

LAYERS = 4

options = options_of(__doc__, width=4096)
cuda, half, width = options.cuda, options.half, options.width
layers = []
for i in range(LAYERS):
    layers.append(torch.nn.Linear(width, width))
    if i + 1 < LAYERS:
        layers.append(torch.nn.ReLU())
model = torch.nn.Sequential(*layers).to(options.device)
parameters = list(model.parameters())
# In the type of the activations, as ours are.
x = (torch.rand(width, width, device=options.device) * 2 - 1).to(half or torch.float32)
labels = torch.zeros(width, dtype=torch.int64, device=options.device)


def step():
    model.zero_grad(set_to_none=True)
    # Each weight is cast once a step; the cache of casts must not be used by another capture.
    with torch.autocast(options.device, dtype=half or torch.bfloat16, enabled=half is not None, cache_enabled=False):
        loss = torch.nn.functional.cross_entropy(model(x), labels)
    loss.backward()
    descend(parameters)


if cuda:
    torch.cuda.reset_peak_memory_stats()
take_step = captured(step) if cuda and options.way == "graph" else step
for _ in range(3):
    take_step()
memory = torch.cuda.max_memory_allocated() if cuda else None
a, b = x, model[0].weight.detach().to(half or torch.float32)
measure_rounds(
    {"what": "mlp", "way": options.way, "precision": options.precision, "width": width, "memory_bytes": memory},
    lambda: {"step_ms": round(milliseconds(take_step, options.seconds, cuda), 4),
             "product_ms": round(milliseconds(lambda: a @ b.T, options.seconds / 4, cuda), 5)})
