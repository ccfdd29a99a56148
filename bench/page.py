#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Measures how fast the live page of a long run shows its first panel, in headless Chromium.

Makes a run directory whose metrics.jsonl has --points lines, and for each round starts `ballast page` on it and opens
the page in a browser that has not seen it. Times, each the median of the rounds, are in seconds:

  start  from the start of the program until it prints the page's address
  first  from opening the address until the first panel shows data
  all    from opening the address until all lines are read

`first` must be at most 1 s for a million points. Needs Chromium. Build //cli:ballast first; nothing else should compute
meanwhile.
"""

import argparse
import json
import math
import os
import pathlib
import random
import select
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "testing"))
import browser  # noqa: E402

LIMIT = 1.0  # Seconds until the first panel.
STEP = 20
JOB = """name: "long"
data { train { csv { path: "data.csv" label_column: -1 } } }
model { layers { dense { units: 2 } } loss { softmax_cross_entropy {} } }
training { epochs: 100 batch_size: 10 }
optimizer { sgd { learning_rate: 0.01 } }
"""
SHOWN = """panels.some(panel => panel.spec.kind !== 'stat' && panel.charts.some(chart => hasData(panel, chart)))"""
READ = "runs.length === 1 && runs[0].loaded && (runs[0].head.read ?? 1) >= 1"


def write_run(folder, points):
    """A run of a job that has ended, with that many lines of training."""
    (folder / "logs").mkdir(parents=True)
    (folder / "job.textproto").write_text(JOB)
    noise = random.Random(1)
    with open(folder / "metrics.jsonl", "w", encoding="ascii") as file:
        for number in range(1, points + 1):
            loss = 2.3 * math.exp(-3 * number / points) + noise.gauss(0, 0.05)
            file.write(json.dumps({
                "kind": "train", "epoch": 1 + 100 * number // (points + 1), "step": STEP * number,
                "examples": 10 * STEP * number, "seconds": 0.1 * number, "over_examples": 10 * STEP,
                "over_seconds": 0.1, "loss": abs(loss), "learning_rate": 0.01, "samples_per_second": 2000.0,
                "staleness": 0.0, "wait_share": 0.25, "max_staleness": 0, "bytes_sent": 106.4,
                "bytes_received": 58.0, "dropped": 0, "skipped_steps": 0}, separators=(",", ":")) + "\n")


def first_line(process, seconds):
    """The first line that the process prints."""
    ready, _, _ = select.select([process.stdout], [], [], seconds)
    line = process.stdout.readline() if ready else b""
    if not line:
        raise SystemExit(f"error: {process.args[0]} page printed nothing within {seconds} s")
    return line


def measure(ballast, run, folder):
    """The times of one round."""
    began = time.monotonic()
    process = subprocess.Popen([ballast, "page", str(run), "--json"], stdout=subprocess.PIPE)
    try:
        url = json.loads(first_line(process, 30))["url"]
        start = time.monotonic() - began
        window = browser.Browser(str(folder))
        try:
            window.resize(1440, 900)
            opened = time.monotonic()
            window.open(url)
            window.wait_for("a panel with data", SHOWN)
            first = time.monotonic() - opened
            window.wait_for("the end of the file", READ)
            whole = time.monotonic() - opened
            if window.problems:
                raise SystemExit(f"error: the page has problems: {window.problems}")
        finally:
            window.close()
        return start, first, whole
    finally:
        process.terminate()
        process.wait(timeout=30)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ballast", default="bazel-bin/cli/ballast", help="the program (%(default)s)")
    parser.add_argument("--points", type=int, default=1_000_000, help="lines of metrics.jsonl (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    flags = parser.parse_args()
    if browser.find() is None:
        raise SystemExit("error: Chromium was not found; install the package chromium")
    if not os.access(flags.ballast, os.X_OK):
        raise SystemExit(f"error: --ballast: {flags.ballast} is no program; build //cli:ballast")
    with tempfile.TemporaryDirectory(prefix="ballast-page-") as name:
        folder = pathlib.Path(name)
        write_run(folder / "run", flags.points)
        size = (folder / "run" / "metrics.jsonl").stat().st_size
        rounds = []
        for number in range(flags.rounds):
            print(f"round {number + 1} of {flags.rounds}", file=sys.stderr, flush=True)
            rounds.append(measure(flags.ballast, folder / "run", folder))
    start, first, whole = (statistics.median(times) for times in zip(*rounds))
    result = {"points": flags.points, "bytes": size, "start_seconds": round(start, 3), "first_seconds": round(first, 3),
              "first_seconds_rounds": [round(times[1], 3) for times in rounds], "all_seconds": round(whole, 3),
              "limit_seconds": LIMIT, "first_to_limit": round(first / LIMIT, 3)}
    if flags.json:
        print(json.dumps(result))
    else:
        print(f"{flags.points:,} points, {size / 1e6:.0f} MB: page after {start:.2f} s, first panel {first:.2f} s later "
              f"({first / LIMIT:.2f} of the limit of {LIMIT:.0f} s), all lines after {whole:.1f} s")


if __name__ == "__main__":
    main()
