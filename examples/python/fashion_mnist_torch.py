#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A network on Fashion-MNIST in PyTorch; any number of workers, each example once per epoch.

ballast run --workers 2 -- python3 examples/python/fashion_mnist_torch.py
"""

import argparse
import gzip
import os

import torch
from torch import nn
from torch.nn import functional as F

import ballast.torch


def read(name, header):
    with gzip.open(f"/usr/share/datasets/fashion-mnist/{name}-ubyte.gz") as file:
        return torch.frombuffer(bytearray(file.read()[header:]), dtype=torch.uint8)


def read_set(name):
    return read(f"{name}-images-idx3", 16).reshape(-1, 784).float() / 255, read(f"{name}-labels-idx1", 8).long()


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--examples", type=int, default=60000)
flags = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(1)
x, y = (part[:flags.examples] for part in read_set("train"))
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=100)
model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)

job = os.environ.get("BALLAST_JOB", "fashion_torch")
ps = ballast.connect(job=job, examples=len(x), batch_size=100, epochs=flags.epochs)  # Ballast: 1
optimizer = ballast.torch.DistributedOptimizer(optimizer, model, ps)  # Ballast: 2
for images, labels in ps.leases(loader):  # Ballast: 3; it was: for each epoch, for each batch of the loader.
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    ps.log(loss)

with torch.no_grad():
    images, labels = read_set("t10k")
    scores = model(images)
    accuracy = (scores.argmax(1) == labels).float().mean().item()
if ps.rank == 0:
    ps.log(test_loss=F.cross_entropy(scores, labels), test_accuracy=accuracy)
    if "BALLAST_RUN_DIR" in os.environ:
        torch.save(model.state_dict(), os.path.join(os.environ["BALLAST_RUN_DIR"], "model.pt"))
ps.close()
print(f"worker {ps.rank} of {ps.workers}: test accuracy {accuracy:.4f}")
