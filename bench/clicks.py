#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a DLRM on planted clicks with Ballast and with PyTorch, and prints AUC and samples/s of both.

For each seed it writes planted clicks with `ballast data ctr`, trains PyTorch (one process; EmbeddingBag(sparse=True)
and dense layers under Adagrad, the better of 1 and 2 threads for speed) and then Ballast in each mode with each number
of workers (2 servers, one thread for each worker) on the same files, with the same model, initial distributions,
learning rates, batch size and one epoch. In sync mode a worker's batch is the batch divided by the number of workers,
so that an update has as many examples as PyTorch's.

The last line of the output is one JSON object with every run and, for each mode and number of workers, the mean AUC
over the seeds less PyTorch's, and the ratio of samples/s to PyTorch's. Build //cli:ballast //server:ballast_server
//worker:ballast_worker first; nothing else should compute meanwhile.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BALLAST = os.path.join(ROOT, "bazel-bin/cli/ballast")
DIM = 16
FIELDS = 26
ROW_SPREAD = 0.05
# Share of a second for which the slow worker's periods of work and rest together last.
PERIOD = 0.05

MODES = {
    "sync": ("policy { sync {} }", ""),
    "async": ("policy { async {} }", ""),
    "async_scaled": ("policy { async { scale_by_staleness: true } }", ""),
    "async_scaled_table": ("policy { async { scale_by_staleness: true staleness_of: TABLE } }", ""),
    "bounded": ("policy { bounded { steps_ahead: 4 } }", ""),
    "hybrid": ("policy { sync {} }", "policy { async {} }"),
}

JOB = """name: "clicks"
seed: {seed}
data {{
  train {{ criteo {{ path: "{data}/train.tsv" }} }}
  test {{ criteo {{ path: "{data}/test.tsv" }} }}
}}
model {{
  tables {{
    name: "ids"
    dim: 16
    initializer {{ uniform {{ low: -0.05 high: 0.05 }} }}
    optimizer {{ adagrad {{ learning_rate: {row_rate} }} }}
    {table}
  }}
  layers {{ dense {{ units: 64 }} }}
  layers {{ relu {{}} }}
  layers {{ dense {{ units: 16 }} }}
  layers {{ relu {{}} }}
  layers {{ embedding {{ table: "ids" }} }}
  layers {{ dot_interaction {{ dim: 16 }} }}
  layers {{ dense {{ units: 64 }} }}
  layers {{ relu {{}} }}
  layers {{ dense {{ units: 1 }} }}
  loss {{ sigmoid_cross_entropy {{}} }}
}}
training {{ epochs: 1 batch_size: {batch} }}
optimizer {{ adagrad {{ learning_rate: {rate} }} }}
{policy}
"""


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--test-rows", type=int, default=100_000)
    parser.add_argument("--ids", type=int, default=100_000, help="limit on the ids of a field")
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--workers", default="1,2,4")
    parser.add_argument("--modes", default="sync,async,async_scaled,hybrid,bounded")
    parser.add_argument("--table", default="", help="fields of the table, like 'admission { min_uses: 4 }'")
    parser.add_argument("--rate", type=float, default=0.02, help="learning rate of the layers")
    parser.add_argument("--row-rate", type=float, default=0.05, help="learning rate of the rows")
    parser.add_argument("--slow", type=float, default=1, help="the last worker computes this many times slower")
    parser.add_argument("--no-torch", action="store_true", help="leave PyTorch out")
    parser.add_argument("--directory", default="", help="directory for the data, kept; default: a temporary one")
    return parser.parse_args()


def log(text):
    print(text, file=sys.stderr, flush=True)


def write_data(args, seed, directory):
    data = os.path.join(directory, f"clicks-{args.rows}-{args.test_rows}-{args.ids}-{seed}")
    if not os.path.exists(os.path.join(data, "truth.json")):
        subprocess.run([BALLAST, "data", "ctr", data, "--rows", str(args.rows), "--test-rows", str(args.test_rows),
                        "--ids", str(args.ids), "--seed", str(seed)], check=True, stdout=subprocess.DEVNULL)
    with open(os.path.join(data, "truth.json"), encoding="utf-8") as file:
        return data, json.load(file)


def read_clicks(path):
    """Returns labels, numbers (transformed as by the reader of Criteo's format) and categories, -1 if missing."""
    import numpy
    labels, numbers, categories = [], [], []
    with open(path, encoding="ascii") as file:
        for line in file:
            words = line.rstrip("\n").split("\t")
            labels.append(words[0] == "1")
            numbers.append([float(word or 0) for word in words[1:14]])
            categories.append([int(word, 16) if word else -1 for word in words[14:]])
    numbers = numpy.array(numbers)
    numbers = numpy.sign(numbers) * numpy.log1p(numpy.abs(numbers))
    return numpy.array(labels, numpy.float32), numbers.astype(numpy.float32), numpy.array(categories, numpy.int64)


def area_under_curve(labels, scores):
    """Area under the ROC curve, where equal scores count half (Mann-Whitney)."""
    import numpy
    _, place, count = numpy.unique(scores, return_inverse=True, return_counts=True)
    ranks = (numpy.cumsum(count) - (count - 1) / 2)[place]
    positive = float(numpy.sum(labels == 1))
    return float((ranks[labels == 1].sum() - positive * (positive + 1) / 2) / (positive * (len(labels) - positive)))


def train_torch(args, seed, data, threads):
    """Returns AUC, log loss and samples/s of one epoch; the reading of the files is not measured."""
    import numpy
    import torch
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    labels, numbers, train_ids = read_clicks(os.path.join(data, "train.tsv"))
    test_labels, test_numbers, test_ids = read_clicks(os.path.join(data, "test.tsv"))
    # Row 0 stays 0: missing values. Ids that only the test data have keep their initial values.
    offset = 1
    columns, test_columns = [], []
    for field in range(FIELDS):
        known = numpy.unique(numpy.concatenate([train_ids[:, field], test_ids[:, field]]))
        known = known[known >= 0]
        for ids, to in ((train_ids, columns), (test_ids, test_columns)):
            places = numpy.searchsorted(known, ids[:, field]) + offset
            to.append(numpy.where(ids[:, field] < 0, 0, places))
        offset += len(known)
    train_places = torch.from_numpy(numpy.stack(columns, 1))
    test_places = torch.from_numpy(numpy.stack(test_columns, 1))

    def layers(*sizes):
        made = []
        for inputs, outputs in zip(sizes, sizes[1:]):
            made += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
            torch.nn.init.kaiming_normal_(made[-2].weight, nonlinearity="relu")
            torch.nn.init.zeros_(made[-2].bias)
        return made

    bottom = torch.nn.Sequential(*layers(13, 64, DIM))
    top = torch.nn.Sequential(*layers(DIM + (FIELDS + 1) * FIELDS // 2, 64, 1)[:-1])
    bag = torch.nn.EmbeddingBag(offset, DIM, mode="sum", sparse=True, padding_idx=0)
    torch.nn.init.uniform_(bag.weight, -ROW_SPREAD, ROW_SPREAD)
    lower = torch.tril_indices(FIELDS + 1, FIELDS + 1, -1)

    def forward(x, places):
        first = bottom(x)
        vectors = bag(places.reshape(-1, 1)).reshape(len(x), FIELDS, DIM)
        vectors = torch.cat([first.unsqueeze(1), vectors], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))[:, lower[0], lower[1]]
        return top(torch.cat([first, products], 1)).squeeze(1)

    dense = torch.optim.Adagrad([*bottom.parameters(), *top.parameters()], lr=args.rate)
    sparse = torch.optim.Adagrad(bag.parameters(), lr=args.row_rate)
    criterion = torch.nn.BCEWithLogitsLoss()
    x, y = torch.from_numpy(numbers), torch.from_numpy(labels)
    order = torch.randperm(len(y))
    begin = time.monotonic()
    for first in range(0, len(y), args.batch):
        batch = order[first:first + args.batch]
        loss = criterion(forward(x[batch], train_places[batch]), y[batch])
        dense.zero_grad()
        sparse.zero_grad()
        loss.backward()
        dense.step()
        sparse.step()
    seconds = time.monotonic() - begin
    with torch.no_grad():
        scores = torch.cat([forward(torch.from_numpy(test_numbers[i:i + 4096]), test_places[i:i + 4096])
                            for i in range(0, len(test_labels), 4096)]).double().numpy()
    return {"auc": area_under_curve(test_labels, scores),
            "log_loss": float(numpy.mean(numpy.logaddexp(0, scores) - test_labels * scores)),
            "samples_per_second": len(y) / seconds}


def run_torch(args, seed, data, threads):
    """Trains in a process of its own, because PyTorch keeps its threads."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        with os.fdopen(write, "w") as to:
            json.dump(train_torch(args, seed, data, threads), to)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as result:
        text = result.read()
    os.waitpid(child, 0)
    return json.loads(text)


def slow_down(launch, factor, ended):
    """Stops the launch's last worker for all but 1 / factor of the time."""
    while not ended.wait(0.2):
        found = subprocess.run(["pgrep", "-P", str(launch.pid), "ballast_worker"], stdout=subprocess.PIPE, text=True,
                               check=False).stdout.split()
        if not found:
            continue
        worker = int(found[-1])
        while not ended.is_set():
            try:
                os.kill(worker, signal.SIGCONT)
                ended.wait(PERIOD / factor)
                os.kill(worker, signal.SIGSTOP)
                ended.wait(PERIOD - PERIOD / factor)
            except ProcessLookupError:
                break
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGCONT)


def run_ballast(args, seed, data, mode, workers, directory):
    policy, of_table = MODES[mode]
    in_step = policy.startswith("policy { sync")
    job = os.path.join(directory, "job.textproto")
    with open(job, "w", encoding="utf-8") as file:
        file.write(JOB.format(seed=seed, data=os.path.abspath(data), policy=policy, table=of_table + " " + args.table,
                              rate=args.rate, row_rate=args.row_rate,
                              batch=args.batch // workers if in_step else args.batch))
    run = os.path.join(directory, f"{mode}-{workers}-{seed}-{time.monotonic_ns()}")
    launch = subprocess.Popen([BALLAST, "launch", job, "--servers", "2", "--workers", str(workers), "--threads", "1",
                               "--device", "cpu", "--run-dir", run, "--json"], stdout=subprocess.PIPE, text=True)
    ended = threading.Event()
    slow = threading.Thread(target=slow_down, args=(launch, args.slow, ended))
    if args.slow > 1:
        slow.start()
    text = launch.communicate()[0]
    ended.set()
    if args.slow > 1:
        slow.join()
    if launch.returncode != 0:
        sys.exit(f"clicks: ballast launch failed: {text}")
    summary = json.loads(text.strip().splitlines()[-1])
    return {"auc": summary["test_auc"], "log_loss": summary["log_loss"], "rows": summary["rows"],
            "samples_per_second": summary["samples_per_second"]}


def main():
    args = parse_arguments()
    names = args.modes.split(",")
    for name in names:
        if name not in MODES:
            sys.exit(f"clicks: --modes: got {name}, want some of {', '.join(MODES)}")
    seeds = [int(seed) for seed in args.seeds.split(",")]
    runs = []
    with tempfile.TemporaryDirectory() as temporary:
        directory = args.directory or temporary
        os.makedirs(directory, exist_ok=True)
        for seed in seeds:
            data, truth = write_data(args, seed, directory)
            log(f"seed {seed}: Bayes AUC {truth['bayes_auc']:.5f}")
            todo = [] if args.no_torch else [("torch", 1), ("torch", 2)]
            todo += [(mode, int(workers)) for mode in names for workers in args.workers.split(",")]
            for mode, workers in todo:
                result = (run_torch(args, seed, data, workers) if mode == "torch"
                          else run_ballast(args, seed, data, mode, workers, temporary))
                runs.append({"seed": seed, "mode": mode, "workers": workers, "bayes_auc": truth["bayes_auc"], **result})
                log(f"  {mode:14} {workers}: AUC {result['auc']:.5f}, log loss {result['log_loss']:.5f}, "
                    f"{result['samples_per_second']:,.0f} samples/s")

    def mean(figure, mode, workers):
        return statistics.mean(run[figure] for run in runs if run["mode"] == mode and run["workers"] == workers)

    table = []
    for mode, workers in sorted({(run["mode"], run["workers"]) for run in runs if run["mode"] != "torch"}):
        row = {"mode": mode, "workers": workers, "auc": mean("auc", mode, workers),
               "samples_per_second": mean("samples_per_second", mode, workers)}
        if not args.no_torch:
            row["auc_less_torch"] = row["auc"] - statistics.mean(mean("auc", "torch", n) for n in (1, 2))
            row["speed_to_torch"] = row["samples_per_second"] / max(
                mean("samples_per_second", "torch", n) for n in (1, 2))
        table.append(row)
        log("  ".join(f"{key} {value:.5g}" if isinstance(value, float) else f"{key} {value}"
                      for key, value in row.items()))
    print(json.dumps({"arguments": vars(args) | {"directory": None}, "table": table, "runs": runs}))


if __name__ == "__main__":
    main()
