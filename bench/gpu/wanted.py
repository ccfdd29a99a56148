# SPDX-License-Identifier: Apache-2.0
"""The targets of a GPU worker, and the check against them."""

ACCURACY = {"fashion_mnist": 0.885, "fashion_mnist_cnn": 0.91}
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
WANTED = {
    "mlp_tf32_over_torch": 1.0, "mlp_bf16_over_torch": 1.0, "mlp_bf16_over_gemm_rate": 0.7,
    "mlp_torch_memory_over_ours": 1.0, "cnn_bf16_over_torch": 0.9, "communication_hidden": 0.9,
    "compute_over_transfers": 2.0, "two_workers_over_one": 1.0,
    # 1: clean.
    "gpu_tests": 1, "memcheck": 1, "racecheck": 1,
    **{f"{job}_{precision}_accuracy": wanted for job, wanted in ACCURACY.items() for precision in PRECISIONS},
}


def judge(got):
    """Returns "ratios", "missed" and "not_measured" for the last output line. `got` maps names to measurements."""
    for name in got:
        if name not in WANTED:
            raise KeyError(name)
    return {
        "ratios": {name: {"got": None if got.get(name) is None else round(got[name], 4), "wanted": wanted}
                   for name, wanted in WANTED.items()},
        "missed": [name for name, wanted in WANTED.items() if got.get(name) is not None and got[name] < wanted],
        "not_measured": [name for name in WANTED if got.get(name) is None],
    }


def table(judged):
    """Returns a table for people, one line per ratio."""
    lines = []
    for name, ratio in judged["ratios"].items():
        got = "not measured" if ratio["got"] is None else f"{ratio['got']:12.4f}"
        lines.append(f"{name:34} {got:>12}   wanted {ratio['wanted']:<6} {'MISSED' if name in judged['missed'] else ''}".rstrip())
    return "\n".join(lines)
