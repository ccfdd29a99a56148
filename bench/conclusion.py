# SPDX-License-Identifier: Apache-2.0
"""The end of a benchmark in Python: its ratios, their targets and one JSON object, as `ballast bench` prints them."""

import json
import os
import platform


class Ratio:
    """A result, relative to a peer of the same run, and its target; without one, `limit` is None."""

    def __init__(self, name, what, value, limit=None, at_most=False):
        self.name, self.what, self.value, self.limit, self.at_most = name, what, value, limit, at_most

    def reached(self):
        return self.value <= self.limit if self.at_most else self.value >= self.limit

    def line(self):
        if self.limit is None:
            return f"figure: {self.what:<75} {self.value:9.5f}"
        return (f"ratio: {self.what:<76} {self.value:9.5f}, want {'at most' if self.at_most else 'at least'} "
                f"{self.limit:g}{'' if self.reached() else '  (missed)'}")

    def wanted(self):
        return {"at_most" if self.at_most else "at_least": self.limit, "reached": self.reached()}


def use_native_openblas():
    """Lets OpenBLAS, both ours and PyTorch's, choose its kernels for this CPU. Call it before any program starts."""
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        os.environ.pop(name, None)


def machine():
    cpu = "unknown"
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith("model name"):
                cpu = line.split(":", 1)[1].strip()
                break
    return {"cpu": cpu, "cores": os.cpu_count(), "kernel": f"{platform.system()} {platform.release()}",
            "load_average": round(os.getloadavg()[0], 2)}


def conclude(benchmark, version, settings, rows, ratios, notes, as_json):
    """Prints the machine, the ratios and the notes, and then, if `as_json`, one object as the last line."""
    facts = machine()
    print(f"machine: {facts['cpu']}, {facts['cores']} cores, {facts['kernel']}, load average "
          f"{facts['load_average']:.2f}; ballast {version}")
    for ratio in ratios:
        print(ratio.line())
    for note in notes:
        print(f"note: {note}")
    if as_json:
        print(json.dumps({
            "benchmark": benchmark, "version": version, "machine": facts, "settings": settings, "rows": rows,
            "ratios": {ratio.name: ratio.value for ratio in ratios},
            "wanted": {ratio.name: ratio.wanted() for ratio in ratios if ratio.limit is not None}, "notes": notes}))
