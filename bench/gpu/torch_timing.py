# SPDX-License-Identifier: Apache-2.0
"""Shared code of the benchmarks with PyTorch, which measure as gpu_timing.h does."""

import argparse
import json
import sys
import time

import torch

# Same rate as in our benchmarks: each step writes the weights, but changes them too little to affect its time.
LEARNING_RATE = 1e-6


def options_of(doc, **more):
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--precision", choices=["fp32", "tf32", "bf16", "fp16"], default="bf16")
    parser.add_argument("--way", choices=["eager", "graph"], default="eager", help="graph: a CUDA graph, on a GPU")
    parser.add_argument("--seconds", type=float, default=0.5)
    for name, default in more.items():
        parser.add_argument("--" + name, type=int, default=default)
    options = parser.parse_args()
    options.cuda = options.device == "cuda"
    options.half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(options.precision) if options.cuda else None
    torch.set_float32_matmul_precision("high" if options.precision == "tf32" else "highest")
    torch.manual_seed(1)
    return options


def descend(parameters):
    with torch.no_grad():
        torch._foreach_add_(parameters, [parameter.grad for parameter in parameters], alpha=-LEARNING_RATE)


def captured(step):
    """Returns a function that replays the step as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


class LossReader:
    """Copies the loss of each step to the host, and waits for that of the step before, so that the GPU need not wait."""

    def __init__(self, cuda):
        self._cuda = cuda
        if cuda:
            self._slots = [(torch.zeros(1).pin_memory(), torch.cuda.Event()) for _ in range(2)]
            self._count = 0

    def read(self, loss):
        if not self._cuda:
            return loss.item()
        memory, event = self._slots[self._count % 2]
        memory.copy_(loss.detach().reshape(1), non_blocking=True)
        event.record()
        self._count += 1
        memory, event = self._slots[self._count % 2]
        event.synchronize()
        return memory.item()


class Prefetcher:
    """Uploads the next batch from pinned memory while this one is computed."""

    def __init__(self, tensors, device):
        self._device = device
        self._tensors = [tensor.pin_memory() for tensor in tensors] if device == "cuda" else tensors
        self._stream = torch.cuda.Stream() if device == "cuda" else None
        self._next = self._upload()

    def _upload(self):
        if self._stream is None:
            return self._tensors
        with torch.cuda.stream(self._stream):
            return [tensor.to(self._device, non_blocking=True) for tensor in self._tensors]

    def next(self):
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)
            for tensor in self._next:
                tensor.record_stream(torch.cuda.current_stream())
        batch, self._next = self._next, self._upload()
        return batch


def milliseconds(call, seconds, cuda):
    """Returns milliseconds per call: calls for `seconds` without counting, then counts about as many; issues all of
    those before it waits."""
    def run(count):
        begin = time.perf_counter()
        for _ in range(count):
            call()
        if cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - begin
    elapsed = calls = 0
    while elapsed < seconds:
        elapsed += run(10)
        calls += 10
    counted = max(1, int(calls * seconds / elapsed))
    return run(counted) / counted * 1e3


def measure_rounds(about, measure):
    """Prints what the benchmark is, and for each line of standard input what `measure` returns."""
    about = {**about, "with": "torch " + torch.__version__}
    if torch.cuda.is_available():
        about["device"] = torch.cuda.get_device_name()
    print(json.dumps(about), flush=True)
    for _ in sys.stdin:
        print(json.dumps(measure()), flush=True)
