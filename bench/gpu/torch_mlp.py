# SPDX-License-Identifier: Apache-2.0
"""Times what mlp_benchmark times, with PyTorch and a CUDA graph. Arguments: precisions (fp32, tf32, bf16, fp16)."""

import json
import sys

import torch

WIDTH, LAYERS, WARM_UP, STEPS = 4096, 4, 5, 30


def milliseconds(call):
    for _ in range(WARM_UP):
        call()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(STEPS):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / STEPS


def captured(step):
    """The step as a CUDA graph."""
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


def run(precision):
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    torch.manual_seed(1)
    layers = []
    for i in range(LAYERS):
        layers.append(torch.nn.Linear(WIDTH, WIDTH))
        if i + 1 < LAYERS:
            layers.append(torch.nn.ReLU())
    model = torch.nn.Sequential(*layers).cuda()
    x = torch.rand(WIDTH, WIDTH, device="cuda") * 2 - 1
    labels = torch.zeros(WIDTH, dtype=torch.int64, device="cuda")

    def step():
        model.zero_grad(set_to_none=True)
        # The cache of casts may not live from one capture to the next.
        with torch.autocast("cuda", dtype=half, enabled=half is not None, cache_enabled=False):
            loss = torch.nn.functional.cross_entropy(model(x), labels)
        loss.backward()

    torch.cuda.reset_peak_memory_stats()
    step_ms = milliseconds(captured(step))
    memory = torch.cuda.max_memory_allocated()
    a, b = x.to(half or torch.float32), model[0].weight.detach().to(half or torch.float32)
    product_ms = milliseconds(lambda: a @ b.T)
    flops = 2.0 * WIDTH**3
    print(json.dumps({
        "what": "mlp", "with": "torch " + torch.__version__, "precision": precision, "step_ms": round(step_ms, 4),
        "step_tflops": round(flops * (3 * LAYERS - 1) / step_ms * 1e-9, 1),
        "product_tflops": round(flops / product_ms * 1e-9, 1), "memory_bytes": memory,
        "device": torch.cuda.get_device_name(),
    }))


for each in sys.argv[1:]:
    run(each)
