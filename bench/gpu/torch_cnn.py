# SPDX-License-Identifier: Apache-2.0
"""Trains the network of examples/fashion_mnist_cnn.textproto with PyTorch, channels last, BF16, batches of 1024 that are
on the GPU already: examples a second."""

import json

import torch
from torch import nn

BATCH, WARM_UP, STEPS = 1024, 20, 200

torch.backends.cudnn.benchmark = True
torch.manual_seed(1)
model = nn.Sequential(
    nn.Conv2d(1, 24, 3, padding=1, bias=False), nn.MaxPool2d(2), nn.BatchNorm2d(24), nn.ReLU(),
    nn.Conv2d(24, 48, 3, padding=1, bias=False), nn.MaxPool2d(2), nn.BatchNorm2d(48), nn.ReLU(),
    nn.Flatten(), nn.Linear(48 * 49, 128), nn.ReLU(), nn.Dropout(0.4), nn.Linear(128, 10),
).cuda().to(memory_format=torch.channels_last)
optimizer = torch.optim.Adam(model.parameters(), lr=0.002, fused=True)
x = torch.rand(BATCH, 1, 28, 28, device="cuda").to(memory_format=torch.channels_last)
labels = torch.randint(10, (BATCH,), device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x), labels)
    loss.backward()
    optimizer.step()


for _ in range(WARM_UP):
    step()
begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
begin.record()
for _ in range(STEPS):
    step()
end.record()
end.synchronize()
print(json.dumps({
    "what": "cnn", "with": "torch " + torch.__version__, "precision": "bf16",
    "samples_per_second": round(BATCH * STEPS / begin.elapsed_time(end) * 1000),
    "memory_bytes": torch.cuda.max_memory_allocated(),
}))
