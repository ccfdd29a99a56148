#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""DLRM in PyTorch: embeddings in tables on the servers, dense layers beside them, on clicks with a planted model.

ballast run --workers 2 -- python3 examples/python/dlrm_torch.py
"""

import argparse
import os

import torch
from torch import nn
from torch.nn import functional as F

import ballast.torch

FIELDS, IDS, DENSE, DIM = 4, 200, 4, 8


def clicks(count, seed):
    """Returns ids, dense features and clicks; users and items have hidden vectors whose products decide."""
    hidden = torch.randn(FIELDS, IDS, 4, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, IDS, (count, FIELDS), generator=generator)
    dense = torch.randn(count, DENSE, generator=generator)
    of_id = torch.stack([hidden[field, ids[:, field]] for field in range(FIELDS)], 1)
    score = (of_id[:, 0] * of_id[:, 1]).sum(1) + (of_id[:, 2, 0] + of_id[:, 3, 0]) + dense[:, 0]
    return ids, dense, (torch.rand(count, generator=generator) < torch.sigmoid(2 * score)).float()


class DLRM(nn.Module):
    """A bottom MLP for dense features, a bag per field, their products, and a top MLP."""

    def __init__(self, ps):
        super().__init__()
        rule = ballast.Adagrad(0.1)
        tables = [ps.table(f"field{field}", DIM, rule, initializer="normal { stddev: 0.1 }") for field in range(FIELDS)]
        self.bags = nn.ModuleList(ballast.torch.EmbeddingBag(table) for table in tables)
        self.bottom = nn.Sequential(nn.Linear(DENSE, 16), nn.ReLU(), nn.Linear(16, DIM), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(DIM + FIELDS * (FIELDS + 1) // 2, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, ids, dense):
        bottom = self.bottom(dense)
        vectors = torch.stack([bottom] + [bag(ids[:, [field]]) for field, bag in enumerate(self.bags)], 1)
        left, right = torch.triu_indices(FIELDS + 1, FIELDS + 1, offset=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))[:, left, right]
        return self.top(torch.cat([bottom, products], 1)).squeeze(1)


def auc(scores, labels):
    """Returns the probability that a click has a higher score than another example."""
    ranks = torch.empty(len(scores), dtype=torch.float64)
    ranks[scores.argsort()] = torch.arange(1, len(scores) + 1, dtype=torch.float64)
    positive = labels.sum().item()
    return ((ranks[labels > 0].sum() - positive * (positive + 1) / 2) / (positive * (len(labels) - positive))).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--examples", type=int, default=100000)
    flags = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    data = torch.utils.data.TensorDataset(*clicks(flags.examples, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=100)
    job = os.environ.get("BALLAST_JOB", "dlrm_torch")
    with ballast.connect(job=job, examples=len(data), batch_size=100, epochs=flags.epochs) as ps:
        model = DLRM(ps)
        optimizer = ballast.torch.DistributedOptimizer(torch.optim.Adam(model.parameters(), 2e-3), model, ps)
        for ids, dense, labels in ps.leases(loader):
            optimizer.zero_grad()
            loss = F.binary_cross_entropy_with_logits(model(ids, dense), labels)
            loss.backward()
            optimizer.step()
            ps.log(loss)
        model.eval()
        ids, dense, labels = clicks(10000, 2)
        with torch.no_grad():
            scores = model(ids, dense)
        if ps.rank == 0:
            ps.log(test_loss=F.binary_cross_entropy_with_logits(scores, labels))
        print(f"worker {ps.rank} of {ps.workers}: test AUC {auc(scores, labels):.4f}")


if __name__ == "__main__":
    main()
