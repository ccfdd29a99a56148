#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Logistic regression on Fashion-MNIST in NumPy; any number of workers, each example once per epoch.

ballast_server & PYTHONPATH=python examples/python/fashion_mnist_numpy.py
"""

import gzip

import numpy as np

import ballast


def read(name, header):
    with gzip.open(f"/usr/share/datasets/fashion-mnist/{name}-ubyte.gz") as file:
        return np.frombuffer(file.read(), np.uint8, offset=header)


x = read("train-images-idx3", 16).reshape(-1, 784).astype(np.float32) / 255
y = read("train-labels-idx1", 8)
with ballast.connect(job="fashion_numpy", examples=len(x), batch_size=100, epochs=3) as ps:
    w, b = np.zeros((784, 10), np.float32), np.zeros(10, np.float32)
    ps.declare({"w": w, "b": b}, optimizer=ballast.Adam(1e-3))
    ps.pull({"w": w, "b": b})
    for batch in ps.leases():
        p = np.exp(x[batch] @ w + b)
        p /= p.sum(axis=1, keepdims=True)
        loss = -np.log(p[np.arange(len(batch)), y[batch]]).mean()
        p[np.arange(len(batch)), y[batch]] -= 1
        gradients = {"w": x[batch].T @ p / len(batch), "b": p.mean(axis=0)}
        ps.push_pull(gradients, into={"w": w, "b": b}, examples=len(batch)).result()
        ps.log(loss)
    ps.pull({"w": w, "b": b})
    guess = (read("t10k-images-idx3", 16).reshape(-1, 784) / 255 @ w + b).argmax(axis=1)
    print(f"worker {ps.rank} of {ps.workers}: test accuracy {(guess == read('t10k-labels-idx1', 8)).mean():.4f}")
