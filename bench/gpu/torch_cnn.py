# SPDX-License-Identifier: Apache-2.0
"""Times the network of examples/fashion_mnist_cnn.textproto with PyTorch, channels last: the gradients of a batch on the
host (uploaded from pinned memory during the computation), as in model_benchmark, and whole training steps with Adam.

  torch_cnn.py [--device cuda|cpu] [--batch 1024] [--batches 200]

It uses BF16 on a GPU and fp32 on the CPU."""

import argparse
import json

import torch
from torch import nn

from torch_timing import milliseconds

parser = argparse.ArgumentParser()
parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
parser.add_argument("--batch", type=int, default=1024)
parser.add_argument("--batches", type=int, default=200)
options = parser.parse_args()
cuda = options.device == "cuda"

torch.backends.cudnn.benchmark = True
torch.manual_seed(1)
model = nn.Sequential(
    nn.Conv2d(1, 24, 3, padding=1, bias=False), nn.MaxPool2d(2), nn.BatchNorm2d(24), nn.ReLU(),
    nn.Conv2d(24, 48, 3, padding=1, bias=False), nn.MaxPool2d(2), nn.BatchNorm2d(48), nn.ReLU(),
    nn.Flatten(), nn.Linear(48 * 49, 128), nn.ReLU(), nn.Dropout(0.4), nn.Linear(128, 10),
).to(options.device).to(memory_format=torch.channels_last)
optimizer = torch.optim.Adam(model.parameters(), lr=0.002, **({"fused": True} if cuda else {}))
host_x = torch.rand(options.batch, 1, 28, 28)
host_labels = torch.randint(10, (options.batch,))
if cuda:
    host_x, host_labels = host_x.pin_memory(), host_labels.pin_memory()


def gradients():
    x = host_x.to(options.device, non_blocking=True).to(memory_format=torch.channels_last)
    labels = host_labels.to(options.device, non_blocking=True)
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast(options.device, dtype=torch.bfloat16, enabled=cuda):
        loss = nn.functional.cross_entropy(model(x), labels)
    loss.backward()


def train():
    gradients()
    optimizer.step()


warm_up = max(1, options.batches // 10)
gradient_ms = milliseconds(gradients, options.device, warm_up, options.batches)
memory = torch.cuda.max_memory_allocated() if cuda else None
training_ms = milliseconds(train, options.device, warm_up, options.batches)
print(json.dumps({
    "what": "model", "with": "torch " + torch.__version__, "job": "fashion_mnist_cnn",
    "precision": "bf16" if cuda else "fp32", "batch": options.batch, "gradient_ms": round(gradient_ms, 4),
    "samples_per_second": round(options.batch / gradient_ms * 1e3), "training_ms": round(training_ms, 4),
    "trained_samples_per_second": round(options.batch / training_ms * 1e3), "memory_bytes": memory,
}))
