#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a DLRM on planted clicks with Ballast and with PyTorch, and compares AUC and samples/s.

Parts (--part), each with data of its own (`ballast data ctr`), for each seed in turn:

  auc        The test AUC of each mode with 1, 2 and 4 workers, beside PyTorch's on the same files and Bayes'.
  speed      Samples/s of 2 workers with one thread each, beside PyTorch in one process, the better of 1 and 2 threads;
             on planted ids, and on uniform ones with 10^5 ids in each field. Without evaluation.
  staleness  The test AUC with 4 workers, of which one computes 5 times slower: async, with the rate scaled by the
             staleness of each row or of the table, and sync.
  admission  The test AUC and the servers' memory of tables with a row for each id, and with those of ids that have 4
             uses, counted exactly and by a sketch; beside an oracle that trains on files without the ids that have
             fewer uses in all training data.

PyTorch (bench/peers/clicks_peer.py) has the same model, initial distributions, learning rates, batch size and number of
epochs (1). Ballast has 2 servers. Peers and Ballast alternate.

In sync mode a worker's batch is the batch divided by the number of workers, so that an update has as many examples as
PyTorch's. In the part "auc" it is so in all modes, so that as many examples are between pull and push; without lock
step, each worker's share is then an update of its own. "async_whole" has whole batches, and so have the other parts
without lock step.

With --runs FILE each run is added to FILE when it ends, and a run that FILE already has is not repeated: so a long
comparison may be interrupted, or made in pieces. Ratios are of the means over all seeds.

Build //cli:ballast //server:ballast_server //worker:ballast_worker first; nothing else should compute meanwhile.
"""

import argparse
import collections
import contextlib
import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import conclusion

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BALLAST = os.path.join(ROOT, "bazel-bin/cli/ballast")
PEER = os.path.join(ROOT, "bench/peers/clicks_peer.py")
NUMBERS = 13
FIELDS = 26
UNIFORM_IDS = 100_000
MIN_USES = 4
# Seconds for which the slow worker's periods of work and rest together last.
PERIOD = 0.05
SLOW = 5

MODES = {
    "sync": ("policy { sync {} }", ""),
    "async": ("policy { async {} }", ""),
    "async_scaled": ("policy { async { scale_by_staleness: true } }", ""),
    "async_scaled_table": ("policy { async { scale_by_staleness: true staleness_of: TABLE } }", ""),
    "bounded": ("policy { bounded { steps_ahead: 4 } }", ""),
    "hybrid": ("policy { sync {} }", "policy { async {} }"),
    # With the whole batch for each worker; see batch_of.
    "async_whole": ("policy { async {} }", ""),
}
# Tables of the part "admission".
ADMISSIONS = {
    "all": "",
    "exact": f"admission {{ min_uses: {MIN_USES} }}",
    "sketch": f"admission {{ min_uses: {MIN_USES} sketch: true }}",
    "oracle": "",
}

JOB = """name: "clicks"
seed: {seed}
data {{
  train {{ criteo {{ path: "{data}/train.tsv" }} }}
  {test}
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

# One training. `data`: "planted", "uniform" or "frequent", which lacks the ids with few uses. `who`: a mode, a table of
# ADMISSIONS, or "torch", whose `workers` are threads.
Run = collections.namedtuple("Run", ["part", "seed", "data", "who", "workers"])


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default=",".join(PARTS), help="comma-separated; default: all")
    parser.add_argument("--rows", type=int, default=1_000_000, help="examples to train with")
    parser.add_argument("--test-rows", type=int, default=100_000)
    parser.add_argument("--ids", type=int, default=0,
                        help="limit on the ids of a field; default: 10131227 for admission, 100000 for the others")
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--workers", default="", help="default: that of each part")
    parser.add_argument("--modes", default="", help="modes of auc, speed and staleness; default: those of each part")
    parser.add_argument("--rate", type=float, default=0.02, help="learning rate of the layers")
    parser.add_argument("--row-rate", type=float, default=0.05, help="learning rate of the rows")
    parser.add_argument("--runs", default="", help="file of runs to continue")
    parser.add_argument("--directory", default="", help="directory for the data, kept; default: a temporary one")
    parser.add_argument("--ballast", default=BALLAST, help="program; its servers and workers are beside it")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    args = parser.parse_args()
    for flag, words, known in (("part", args.part, PARTS), ("modes", args.modes, MODES)):
        for word in filter(None, words.split(",")):
            if word not in known:
                parser.error(f"--{flag}: got {word}, want some of {', '.join(known)}")
    args.seeds = [int(seed) for seed in args.seeds.split(",")]
    return args


def log(text):
    print(text, flush=True)


# --- the data ---

def write_planted(args, seed, ids, directory):
    """Writes planted clicks, unless `directory` has them. Returns their directory."""
    data = os.path.join(directory, f"clicks-{args.rows}-{args.test_rows}-{ids}-{seed}")
    if not os.path.exists(os.path.join(data, "truth.json")):
        subprocess.run([args.ballast, "data", "ctr", data, "--rows", str(args.rows), "--test-rows", str(args.test_rows),
                        "--ids", str(ids), "--seed", str(seed)], check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
    return data


def bayes_auc(data):
    with open(os.path.join(data, "truth.json"), encoding="utf-8") as file:
        return json.load(file)["bayes_auc"]


def write_uniform(args, seed, directory):
    """Writes clicks whose ids are uniform and say nothing about the labels. Returns their directory."""
    import numpy
    data = os.path.join(directory, f"uniform-{args.rows}-{seed}")
    path = os.path.join(data, "train.tsv")
    if os.path.exists(path):
        return data
    os.makedirs(data, exist_ok=True)
    random = numpy.random.default_rng(seed)
    with open(path + ".new", "w", encoding="ascii") as file:
        for first in range(0, args.rows, 10_000):
            count = min(10_000, args.rows - first)
            labels = random.random(count) < 0.25
            numbers = random.integers(0, 1000, (count, NUMBERS))
            ids = random.integers(0, UNIFORM_IDS, (count, FIELDS))
            file.writelines("\t".join([str(int(label)), *map(str, row), *map("{:x}".format, categories)]) + "\n"
                            for label, row, categories in zip(labels, numbers.tolist(), ids.tolist()))
    os.rename(path + ".new", path)
    return data


def write_frequent(planted):
    """Writes planted clicks without the ids that the training data have fewer than MIN_USES times."""
    data = planted + "-frequent"
    if os.path.exists(os.path.join(data, "test.tsv")):
        return data
    os.makedirs(data, exist_ok=True)
    uses = [collections.Counter() for _ in range(FIELDS)]
    with open(os.path.join(planted, "train.tsv"), encoding="ascii") as file:
        for line in file:
            for counter, word in zip(uses, line.rstrip("\n").split("\t")[1 + NUMBERS:]):
                counter[word] += 1
    frequent = [{word for word, count in counter.items() if count >= MIN_USES} for counter in uses]
    for name in ("train.tsv", "test.tsv"):
        path = os.path.join(data, name)
        with open(os.path.join(planted, name), encoding="ascii") as file, open(path + ".new", "w",
                                                                             encoding="ascii") as to:
            for line in file:
                words = line.rstrip("\n").split("\t")
                words[1 + NUMBERS:] = [word if word in known else ""
                                       for word, known in zip(words[1 + NUMBERS:], frequent)]
                to.write("\t".join(words) + "\n")
        os.rename(path + ".new", path)
    return data


# --- the runs ---

def run_torch(args, run, data):
    words = [PEER, data, "--seed", str(run.seed), "--threads", str(run.workers), "--batch", str(args.batch), "--rate",
             str(args.rate), "--row-rate", str(args.row_rate)]
    done = subprocess.run(words + ["--no-test"] * (run.part == "speed"), stdout=subprocess.PIPE, text=True,
                          check=False)
    if done.returncode != 0:
        sys.exit(f"clicks: {' '.join(words)} ended with {done.returncode}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def slow_down(launch, ended):
    """Stops the launch's last worker for all but 1 / SLOW of the time."""
    while not ended.wait(0.2):
        found = subprocess.run(["pgrep", "-P", str(launch.pid), "ballast_worker"], stdout=subprocess.PIPE, text=True,
                               check=False).stdout.split()
        if not found:
            continue
        worker = int(found[-1])
        while not ended.is_set():
            try:
                os.kill(worker, signal.SIGCONT)
                ended.wait(PERIOD / SLOW)
                os.kill(worker, signal.SIGSTOP)
                ended.wait(PERIOD - PERIOD / SLOW)
            except ProcessLookupError:
                break
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGCONT)


def batch_of(args, run, policy):
    """A worker's batch."""
    shared = run.part == "auc" and run.who != "async_whole" or policy.startswith("policy { sync")
    return args.batch // run.workers if shared else args.batch


def run_ballast(args, run, data, directory):
    policy, table = MODES[run.who] if run.who in MODES else (MODES["async"][0], ADMISSIONS[run.who])
    test = "" if run.part == "speed" else f'test {{ criteo {{ path: "{os.path.abspath(data)}/test.tsv" }} }}'
    job = os.path.join(directory, "job.textproto")
    with open(job, "w", encoding="utf-8") as file:
        file.write(JOB.format(seed=run.seed, data=os.path.abspath(data), test=test, policy=policy, table=table,
                              rate=args.rate, row_rate=args.row_rate, batch=batch_of(args, run, policy)))
    run_directory = os.path.join(directory, f"run-{time.monotonic_ns()}")
    errors = os.path.join(directory, "errors.txt")
    with open(errors, "w", encoding="utf-8") as file:
        launch = subprocess.Popen([args.ballast, "launch", job, "--servers", "2", "--workers", str(run.workers),
                                   "--threads", "1", "--device", "cpu", "--run-dir", run_directory, "--json"],
                                  stdout=subprocess.PIPE, stderr=file, text=True)
    ended = threading.Event()
    slow = threading.Thread(target=slow_down, args=(launch, ended))
    if run.part == "staleness":
        slow.start()
    text = launch.communicate()[0]
    ended.set()
    if run.part == "staleness":
        slow.join()
    if launch.returncode != 0:
        with open(errors, encoding="utf-8") as file:
            sys.exit(f"clicks: ballast launch failed: {file.read()}{text}")
    shutil.rmtree(run_directory)
    summary = json.loads(text.strip().splitlines()[-1])
    figures = ["rows", "table_bytes", "samples_per_second", "mean_staleness", "max_staleness", "wait_share", "version"]
    return {"auc": summary["test_auc"], "log_loss": summary["log_loss"],
            **{figure: summary.get(figure) for figure in figures}}


class Ledger:
    """The results of all runs, and the file that keeps them."""

    def __init__(self, path):
        self.path, self.results = path, {}
        if path and os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                for line in file:
                    result = json.loads(line)
                    self.results[Run(*(result[key] for key in Run._fields))] = result

    def add(self, run, result):
        self.results[run] = {**run._asdict(), **result}
        if self.path:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(self.results[run]) + "\n")

    def mean(self, figure, part, who, workers, data="planted"):
        """The mean over the seeds; None without a run."""
        found = [result[figure] for run, result in self.results.items()
                 if (run.part, run.data, run.who, run.workers) == (part, data, who, workers)]
        return statistics.mean(found) if found else None

    def peer_speed(self, seed, data):
        return max((result["samples_per_second"] for run, result in self.results.items()
                    if (run.part, run.seed, run.data, run.who) == ("speed", seed, data, "torch")), default=None)


def busy_seconds():
    """CPU seconds of all processes so far, and of those that this one has started and that have ended."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, interrupts, soft, *_ = map(int, file.readline().split()[1:])
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (user + nice + system + interrupts + soft) / os.sysconf("SC_CLK_TCK"), own.ru_utime + own.ru_stime


def perform(args, run, ledger, directory, scratch):
    ids = args.ids or (10_131_227 if run.part == "admission" else 100_000)
    if run.data == "uniform":
        data = write_uniform(args, run.seed, directory)
    else:
        data = planted = write_planted(args, run.seed, ids, directory)
        if run.data == "frequent":
            data = write_frequent(planted)
    began, (busy, own) = time.monotonic(), busy_seconds()
    result = run_torch(args, run, data) if run.who == "torch" else run_ballast(args, run, data, scratch)
    others = [now - then for now, then in zip(busy_seconds(), (busy, own))]
    # Cores that other programs used meanwhile, which makes samples/s smaller.
    result = {**result, "cores_of_others": round((others[0] - others[1]) / (time.monotonic() - began), 2)}
    if run.data != "uniform":
        result["bayes_auc"] = bayes_auc(planted)
    ledger.add(run, result)


def report(run, result):
    auc = "" if result.get("auc") is None else f"AUC {result['auc']:.5f}, log loss {result['log_loss']:.5f}, "
    memory = f", {result['table_bytes'] / 2**20:,.1f} MiB" if result.get("table_bytes") else ""
    log(f"{run.part:10} seed {run.seed} {run.data:8} {run.who:18} {run.workers}: {auc}"
        f"{result['samples_per_second']:9,.0f} samples/s, {result['rows']:,} rows{memory}; others used "
        f"{result['cores_of_others']:.2f} cores")


# --- the parts: their runs in order, and their ratios ---

def chosen(args, workers, modes):
    return ([int(word) for word in args.workers.split(",")] if args.workers else workers,
            args.modes.split(",") if args.modes else [mode for mode in modes if mode in MODES])


def plan_auc(args, seed):
    workers, modes = chosen(args, [1, 2, 4], ["sync", "async", "hybrid", "bounded", "async_whole"])
    yield Run("auc", seed, "planted", "torch", 1)
    for mode in modes:
        for count in workers:
            if mode != "async_whole" or count > 1:
                yield Run("auc", seed, "planted", mode, count)


def judge_auc(args, ledger):
    peer = ledger.mean("auc", "auc", "torch", 1)
    if peer is None:
        return
    yield conclusion.Ratio("bayes_auc", "Bayes AUC", ledger.mean("bayes_auc", "auc", "torch", 1))
    yield conclusion.Ratio("torch_auc", "test AUC of PyTorch", peer)
    for _, who, workers in sorted({(list(MODES).index(run.who), run.who, run.workers) for run in ledger.results
                                   if run.part == "auc" and run.who != "torch"}):
        yield conclusion.Ratio(f"{who}_{workers}_auc_less_torch", f"test AUC, {who}, {workers} workers, less PyTorch's",
                               ledger.mean("auc", "auc", who, workers) - peer, -0.001)


def plan_speed(args, seed):
    workers, modes = chosen(args, [2], ["async", "bounded", "hybrid", "sync"])
    for data in ("planted", "uniform"):
        for number, mode in enumerate(modes):
            if number < 2:
                yield Run("speed", seed, data, "torch", number + 1)
            for count in workers:
                yield Run("speed", seed, data, mode, count)


def judge_speed(args, ledger):
    """The ratio of each seed's runs, and of these the median; PyTorch's better number of threads counts."""
    for data, what in (("planted", "planted ids"), ("uniform", "26 x 10^5 uniform ids")):
        ratios = collections.defaultdict(list)
        for run, result in ledger.results.items():
            peer = ledger.peer_speed(run.seed, data)
            if (run.part, run.data) == ("speed", data) and run.who != "torch" and peer is not None:
                ratios[run.who, run.workers].append(result["samples_per_second"] / peer)
        for (who, workers), values in ratios.items():
            yield conclusion.Ratio(f"{who}_{workers}_speed_to_torch_{data}",
                                   f"samples/s, {what}, {who}, {workers} workers, to PyTorch",
                                   statistics.median(values), 2)


def plan_staleness(args, seed):
    workers, modes = chosen(args, [4], ["sync", "async", "async_scaled", "async_scaled_table"])
    for mode in modes:
        for count in workers:
            yield Run("staleness", seed, "planted", mode, count)


def judge_staleness(args, ledger):
    for workers in sorted({run.workers for run in ledger.results if run.part == "staleness"}):
        aucs = {who: ledger.mean("auc", "staleness", who, workers) for who in MODES}
        if aucs["sync"] is None or aucs["async"] is None:
            continue
        gap = aucs["sync"] - aucs["async"]
        yield conclusion.Ratio(f"staleness_sync_{workers}_auc", f"test AUC, sync, {workers} workers, one slow",
                               aucs["sync"])
        yield conclusion.Ratio(f"staleness_async_{workers}_gap", f"gap of async to sync, {workers} workers, one slow",
                               gap)
        for who, limit in (("async_scaled", gap / 2), ("async_scaled_table", None)):
            if aucs.get(who) is not None:
                yield conclusion.Ratio(f"staleness_{who}_{workers}_gap", f"gap of {who} to sync, {workers} workers",
                                       aucs["sync"] - aucs[who], limit, at_most=True)


def plan_admission(args, seed):
    workers, _ = chosen(args, [2], [])
    for who in ADMISSIONS:
        for count in workers:
            yield Run("admission", seed, "frequent" if who == "oracle" else "planted", who, count)


def judge_admission(args, ledger):
    for workers in sorted({run.workers for run in ledger.results if run.part == "admission"}):
        def mean(figure, who):
            return ledger.mean(figure, "admission", who, workers, "frequent" if who == "oracle" else "planted")
        if any(mean("auc", who) is None for who in ADMISSIONS):
            continue
        for who in ("exact", "sketch"):
            name = f"{who} counts" if who == "exact" else "a sketch"
            yield conclusion.Ratio(f"admission_{who}_memory", f"memory of a row for each id, to that with {name}",
                                   mean("table_bytes", "all") / mean("table_bytes", who), 3)
            for peer, of in (("all", "that with a row for each id"), ("oracle", "the oracle's")):
                yield conclusion.Ratio(f"admission_{who}_auc_less_{peer}", f"test AUC with {name}, less {of}",
                                       mean("auc", who) - mean("auc", peer), -0.001)


PARTS = {
    "auc": (plan_auc, judge_auc),
    "speed": (plan_speed, judge_speed),
    "staleness": (plan_staleness, judge_staleness),
    "admission": (plan_admission, judge_admission),
}


def main():
    args = parse_arguments()
    conclusion.use_native_openblas()
    ledger = Ledger(args.runs)
    with tempfile.TemporaryDirectory() as scratch:
        directory = args.directory or scratch
        os.makedirs(directory, exist_ok=True)
        for part in args.part.split(","):
            for seed in args.seeds:
                for run in PARTS[part][0](args, seed):
                    if run not in ledger.results:
                        perform(args, run, ledger, directory, scratch)
                    report(run, ledger.results[run])
    ratios = [ratio for part in args.part.split(",") for ratio in PARTS[part][1](args, ledger)]
    version = next((result["version"] for run, result in ledger.results.items() if run.who != "torch"), "unknown")
    rows = [result for run, result in ledger.results.items() if run.part in args.part.split(",")]
    settings = {key: value for key, value in vars(args).items() if key not in ("directory", "runs", "ballast", "json")}
    conclusion.conclude("clicks", version, settings, rows, ratios, [], args.json)


if __name__ == "__main__":
    main()
