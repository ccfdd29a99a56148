# SPDX-License-Identifier: Apache-2.0
"""Times training steps of the network of examples/fashion_mnist_cnn.textproto with PyTorch, channels last, as
model_benchmark does: the batch is on the host and is uploaded during the step before, the loss is read, and SGD changes
the weights.

  echo | torch_cnn.py [--device cuda|cpu] [--precision bf16] [--way eager|graph] [--batch 1024] [--seconds 0.5]

The CPU always uses fp32 and is eager."""

import torch
from torch import nn

from torch_timing import LossReader, Prefetcher, captured, descend, measure_rounds, milliseconds, options_of

options = options_of(__doc__, batch=1024)
cuda, half = options.cuda, options.half
torch.backends.cudnn.benchmark = True
torch.backends.cudnn.allow_tf32 = options.precision == "tf32"
model = nn.Sequential(
    nn.Conv2d(1, 24, 3, padding=1, bias=False), nn.MaxPool2d(2), nn.BatchNorm2d(24), nn.ReLU(),
    nn.Conv2d(24, 48, 3, padding=1, bias=False), nn.MaxPool2d(2), nn.BatchNorm2d(48), nn.ReLU(),
    nn.Flatten(), nn.Linear(48 * 49, 128), nn.ReLU(), nn.Dropout(0.4), nn.Linear(128, 10),
).to(options.device).to(memory_format=torch.channels_last)
parameters = list(model.parameters())
batches = Prefetcher([torch.rand(options.batch, 1, 28, 28), torch.randint(10, (options.batch,))], options.device)
losses = LossReader(cuda)


def compute(x, labels):
    model.zero_grad(set_to_none=True)
    # Each weight is cast once a step; the cache of casts must not be used by another capture.
    with torch.autocast(options.device, dtype=half or torch.bfloat16, enabled=half is not None, cache_enabled=False):
        loss = nn.functional.cross_entropy(model(x.to(memory_format=torch.channels_last)), labels)
    loss.backward()
    descend(parameters)
    return loss


def eager():
    losses.read(compute(*batches.next()))


def with_graph():
    """Returns a step that copies the batch to where the graph reads it."""
    inputs = [tensor.clone() for tensor in batches.next()]
    results = {}

    def step():
        results["loss"] = compute(*inputs)

    replay = captured(step)

    def take_step():
        for to, tensor in zip(inputs, batches.next()):
            to.copy_(tensor)
        replay()
        losses.read(results["loss"])
    return take_step


if cuda:
    torch.cuda.reset_peak_memory_stats()
take_step = with_graph() if cuda and options.way == "graph" else eager
for _ in range(5):
    take_step()
memory = torch.cuda.max_memory_allocated() if cuda else None
measure_rounds({"what": "model", "job": "fashion_mnist_cnn", "way": options.way, "precision": options.precision,
                "batch": options.batch, "memory_bytes": memory},
               lambda: {"step_ms": round(milliseconds(take_step, options.seconds, cuda), 4)})
