# SPDX-License-Identifier: Apache-2.0
"""Does the measurements of mlp_benchmark with PyTorch and, on a GPU, a CUDA graph.

  torch_mlp.py [--device cuda|cpu] [--width 4096] fp32|tf32|bf16|fp16 ...

The CPU always uses fp32."""

import argparse
import json

import torch

from torch_timing import captured, milliseconds

LAYERS, WARM_UP, STEPS = 4, 5, 30


def run(precision, device, width):
    cuda = device == "cuda"
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision) if cuda else None
    torch.manual_seed(1)
    layers = []
    for i in range(LAYERS):
        layers.append(torch.nn.Linear(width, width))
        if i + 1 < LAYERS:
            layers.append(torch.nn.ReLU())
    model = torch.nn.Sequential(*layers).to(device)
    x = torch.rand(width, width, device=device) * 2 - 1
    labels = torch.zeros(width, dtype=torch.int64, device=device)

    def step():
        model.zero_grad(set_to_none=True)
        # The cache of casts must not be used by another capture.
        with torch.autocast(device, dtype=half or torch.bfloat16, enabled=half is not None, cache_enabled=False):
            loss = torch.nn.functional.cross_entropy(model(x), labels)
        loss.backward()

    if cuda:
        torch.cuda.reset_peak_memory_stats()
    step_ms = milliseconds(captured(step) if cuda else step, device, WARM_UP, STEPS)
    memory = torch.cuda.max_memory_allocated() if cuda else None
    a, b = x.to(half or torch.float32), model[0].weight.detach().to(half or torch.float32)
    product_ms = milliseconds(lambda: a @ b.T, device, WARM_UP, STEPS)
    flops = 2.0 * width**3
    print(json.dumps({
        "what": "mlp", "with": "torch " + torch.__version__, "precision": precision, "width": width,
        "step_ms": round(step_ms, 4), "step_tflops": round(flops * (3 * LAYERS - 1) / step_ms * 1e-9, 4),
        "product_tflops": round(flops / product_ms * 1e-9, 4), "memory_bytes": memory,
        "device": torch.cuda.get_device_name() if cuda else "cpu",
    }), flush=True)


parser = argparse.ArgumentParser()
parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
parser.add_argument("--width", type=int, default=4096)
parser.add_argument("precisions", nargs="+", choices=["fp32", "tf32", "bf16", "fp16"])
options = parser.parse_args()
for each in options.precisions:
    run(each, options.device, options.width)
