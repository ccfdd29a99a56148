#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Trains examples/flights.textproto with Ballast, scikit-learn and PyTorch, and compares AUC and log loss.

The peers are those of bench/peers/flights_peers.py, on the same files: PyTorch has the same network, learning rates,
batch size and number of epochs, scikit-learn a logistic regression. Ballast has 2 servers and 2 workers with one thread
each.

examples/flights/convert.mjs writes the data; the job file says how. Build //cli:ballast //server:ballast_server
//worker:ballast_worker first; nothing else should compute meanwhile.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

import conclusion

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BALLAST = os.path.join(ROOT, "bazel-bin/cli/ballast")
JOB = os.path.join(ROOT, "examples/flights.textproto")
PEERS = os.path.join(ROOT, "bench/peers/flights_peers.py")
DATA = os.path.join(ROOT, "examples/flights/data")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default="", help="output of bench/peers/flights_peers.py --json, not to run it")
    parser.add_argument("--ballast", default=BALLAST, help="program; its servers and workers are beside it")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    return parser.parse_args()


def last_object(text):
    return json.loads(text.strip().splitlines()[-1])


def run_peers(path):
    if path:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        print(text.rstrip("\n").rpartition("\n")[0], flush=True)
        return last_object(text)
    peers = subprocess.Popen([PEERS, DATA, "--json"], stdout=subprocess.PIPE, text=True)
    last = ""
    for line in peers.stdout:
        if not line.startswith("{"):
            print(line, end="", flush=True)
        last = line
    if peers.wait() != 0:
        sys.exit(f"flights: {PEERS} ended with {peers.returncode}")
    return json.loads(last)


def run_ballast(program, directory):
    done = subprocess.run([program, "launch", JOB, "--servers", "2", "--workers", "2", "--threads", "1", "--device",
                           "cpu", "--run-dir", os.path.join(directory, "run"), "--json"], stdout=subprocess.PIPE,
                          text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"flights: ballast launch failed: {done.stdout}")
    summary = last_object(done.stdout)
    print(f"Ballast: AUC {summary['test_auc']:.4f}, log loss {summary['log_loss']:.4f}, {summary['seconds']:.0f} s with "
          f"the evaluation, {summary['samples_per_second']:.0f} samples/s, {summary['rows']:,} rows", flush=True)
    return summary


def main():
    args = parse_arguments()
    conclusion.use_native_openblas()
    peers = run_peers(args.peers)
    with tempfile.TemporaryDirectory() as directory:
        summary = run_ballast(args.ballast, directory)
    rows = [{"who": "ballast", "auc": summary["test_auc"], "log_loss": summary["log_loss"], "mode": summary["mode"],
             **{key: summary[key] for key in ("seconds", "samples_per_second", "rows", "table_bytes")}}]
    ratios = []
    for who, name in (("torch", "PyTorch"), ("sklearn", "scikit-learn")):
        rows.append({"who": who, **peers[who]})
        ratios.append(conclusion.Ratio(f"auc_less_{who}", f"test AUC, less {name}'s",
                                       summary["test_auc"] - peers[who]["auc"], -0.001))
        ratios.append(conclusion.Ratio(f"log_loss_less_{who}", f"log loss, less {name}'s",
                                       summary["log_loss"] - peers[who]["log_loss"], 0.001, at_most=True))
    settings = {key: peers[key] for key in ("rows", "test_rows", "fields", "ids")}
    conclusion.conclude("flights", summary["version"], settings, rows, ratios, [], args.json)


if __name__ == "__main__":
    main()
