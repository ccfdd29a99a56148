#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A training loop in the style of a trainer class, with Ballast inside: the model and the data do not know of it.

ballast run --workers 2 -- python3 examples/python/trainer.py
"""

import argparse
import os

import torch
from torch import nn
from torch.nn import functional as F

import ballast.torch


class Callback:
    """What a program adds to a trainer; each method may be overridden."""

    def on_batch(self, trainer, loss):
        pass

    def on_end(self, trainer, loss, accuracy):
        pass


class LogToBallast(Callback):
    """Sends losses and the evaluation of worker 0 to the job's metrics."""

    def on_batch(self, trainer, loss):
        trainer.ps.log(loss)

    def on_end(self, trainer, loss, accuracy):
        if trainer.ps.rank == 0:
            trainer.ps.log(test_loss=loss, test_accuracy=accuracy)


class Trainer:
    """Fits a classifier to a data set with all workers of the job, and evaluates it."""

    def __init__(self, model, optimizer, *, batch_size=50, epochs=3, callbacks=()):
        self.model, self.optimizer = model, optimizer
        self.batch_size, self.epochs = batch_size, epochs
        self.callbacks = callbacks
        self.ps = None

    def fit(self, train, test):
        """Trains, then evaluates and returns loss and accuracy."""
        job = os.environ.get("BALLAST_JOB", "trainer")
        with ballast.connect(job=job, examples=len(train), batch_size=self.batch_size, epochs=self.epochs) as self.ps:
            optimizer = ballast.torch.DistributedOptimizer(self.optimizer, self.model, self.ps)
            loader = torch.utils.data.DataLoader(train, batch_size=self.batch_size)
            self.model.train()
            for inputs, labels in self.ps.leases(loader):
                optimizer.zero_grad()
                loss = F.cross_entropy(self.model(inputs), labels)
                loss.backward()
                optimizer.step()
                for callback in self.callbacks:
                    callback.on_batch(self, loss.detach())
            loss, accuracy = self.evaluate(test)
            for callback in self.callbacks:
                callback.on_end(self, loss, accuracy)
        return loss, accuracy

    @torch.no_grad()
    def evaluate(self, data):
        """Returns loss and accuracy."""
        self.model.eval()
        inputs, labels = data.tensors
        scores = self.model(inputs)
        return F.cross_entropy(scores, labels).item(), (scores.argmax(1) == labels).float().mean().item()


def blobs(count, seed):
    """Returns points around 5 centers, and the number of the center of each."""
    centers = 2 * torch.randn(5, 20, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 5, (count,), generator=generator)
    return torch.utils.data.TensorDataset(centers[labels] + 2 * torch.randn(count, 20, generator=generator), labels)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--examples", type=int, default=20000)
    flags = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
    trainer = Trainer(model, torch.optim.SGD(model.parameters(), 0.05, momentum=0.9), epochs=flags.epochs,
                      callbacks=[LogToBallast()])
    loss, accuracy = trainer.fit(blobs(flags.examples, 1), blobs(2000, 2))
    print(f"worker {trainer.ps.rank} of {trainer.ps.workers}: test accuracy {accuracy:.4f}")
