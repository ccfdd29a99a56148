# SPDX-License-Identifier: Apache-2.0
"""Shared code of the benchmarks with PyTorch."""

import time

import torch


def milliseconds(call, device, warm_up, calls):
    """Returns milliseconds per call, after `warm_up` uncounted calls; issues all calls before it waits."""
    def run(count):
        for _ in range(count):
            call()
        if device == "cuda":
            torch.cuda.synchronize()
    run(warm_up)
    begin = time.perf_counter()
    run(calls)
    return (time.perf_counter() - begin) / calls * 1e3


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
