#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Compares PyTorch workers on Ballast with DistributedDataParallel on Gloo: the same models, batches and threads.

Both train in turn, several rounds, two workers each, sync, over shared memory. Prints one JSON object per model: the
samples per second of each, the ratio of each round, and Ballast's own time as shares of the step, which perf_counter
measures in its hooks, step(), zero_grad() and waits. `work` is without the time blocked in waits for values, and
`work_cpu` its processor time, which is less where other processes take the cores meanwhile. A wait is for the other
workers until the last of them has begun to send the same gradients (`waits_workers`), and then for the servers
(`waits_servers`). `own` is `work` and `waits_servers`.

Usage: torch_workers.py --server PATH --library PATH --images IDX.GZ --labels IDX.GZ
"""

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time

sys.path[:0] = [os.path.join(os.path.dirname(os.path.abspath(__file__)), *parts)
                for parts in ((), ("..", "..", "python"), ("..", "..", "tests", "python"))]

import torch_peer
from torch_peer import LEARNING_RATE, Batches, make_model, timed, train_step


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True)
    parser.add_argument("--library", required=True)
    parser.add_argument("--images", default="/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz")
    parser.add_argument("--labels", default="/usr/share/datasets/fashion-mnist/train-labels-idx1-ubyte.gz")
    parser.add_argument("--models", nargs="+", default=["small", "large"])
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--same_malloc", action="store_true",
                        help="give DDP, too, the setting of malloc that DistributedOptimizer makes")
    return parser.parse_args()


class Clock:
    """Sums the time in methods. One that calls another one of them is not counted twice."""

    def __init__(self):
        self.totals = {}
        self._inner = 0.0, 0.0

    def _add(self, name, seconds):
        self.totals[name] = self.totals.get(name, 0.0) + seconds

    def watch(self, owner, method, name):
        original = getattr(owner, method)

        def timed_method(*args, **kwargs):
            outer, self._inner = self._inner, (0.0, 0.0)
            began, cpu = time.perf_counter(), time.thread_time()
            try:
                return original(*args, **kwargs)
            finally:
                spent, cpu = time.perf_counter() - began, time.thread_time() - cpu
                self._add(name, spent - self._inner[0])
                self._add(name + "_cpu", cpu - self._inner[1])
                self._inner = outer[0] + spent, outer[1] + cpu

        setattr(owner, method, timed_method)


class Exchanges:
    """Notes when each exchange began, and when it was waited for."""

    def __init__(self):
        # By the exchange's number and its own step: [began, wait began, wait ended].
        self.times = {}

    def watch(self, kind):
        begin, take, times = kind.begin, kind._take, self.times
        numbers, steps = {}, {}

        def timed_begin(exchange, *args):
            number = numbers.setdefault(exchange, len(numbers))
            steps[exchange] = steps.get(exchange, -1) + 1
            times[number, steps[exchange]] = [time.perf_counter(), None, None]
            return begin(exchange, *args)

        def timed_take(exchange):
            entry = times[numbers[exchange], steps[exchange]]
            entry[1] = time.perf_counter()
            try:
                return take(exchange)
            finally:
                entry[2] = time.perf_counter()

        kind.begin, kind._take = timed_begin, timed_take


def waits_for_workers(times, others, began):
    """Returns the seconds, since `began`, that a worker waited for others to begin the same exchanges."""
    total = 0.0
    for key, (_, wait_began, wait_ended) in times.items():
        if wait_ended is not None and wait_began >= began:
            last = max((other[key][0] for other in others if key in other), default=wait_began)
            total += max(0.0, min(wait_ended, last) - wait_began)
    return total


def train_ballast(rank, args, data, address, result):
    import ballast.torch
    import torch
    from ballast._exchange import Exchange
    torch.set_num_threads(1)
    clock = Clock()
    kind = ballast.torch.DistributedOptimizer
    for method in ("_on_gradient", "step", "zero_grad", "_await", "_begin_forward", "_end_forward"):
        clock.watch(kind, method, "work")
    clock.watch(Exchange, "_take", "waits")
    exchanges = Exchanges()
    exchanges.watch(Exchange)
    with ballast.connect(address, job="bench", rank=rank) as ps:
        model = make_model(args.model)
        optimizer = kind(torch.optim.SGD(model.parameters(), lr=LEARNING_RATE), model, ps, examples=args.batch)
        batches = Batches(*data, args, rank)

        def step():
            train_step(model, optimizer, batches)

        ps.declare({"steps": torch.zeros(1)}, ballast.SGD(1.0))

        def agree(number):
            # Rank 0's number, as a sum in which the others' part is 0.
            shared = torch.zeros(1)
            gradient = torch.tensor([-float(number * ps.workers if rank == 0 else 0)])
            ps.push_pull({"steps": gradient}, {"steps": shared}).result(60)
            clock.totals.clear()
            clock.began = time.perf_counter()
            return round(float(shared[0]))

        rates, steps = timed(step, agree, args.seconds)
        total = time.perf_counter() - clock.began
        optimizer.synchronize()
        result.send((rank, rates, clock.totals, clock.began, total, exchanges.times))


def shares_of(parts):
    """Returns the largest share of a worker's time for each kind of own time."""
    shares = []
    for rank, _, spent, began, total, times in parts:
        workers = waits_for_workers(times, [other[5] for other in parts if other[0] != rank], began)
        servers = spent.get("waits", 0.0) - workers
        shares.append({"work": spent["work"] / total, "work_cpu": spent["work_cpu"] / total,
                       "waits_workers": workers / total, "waits_servers": servers / total,
                       "own": (spent["work"] + servers) / total})
    return {name: max(share[name] for share in shares) for name in shares[0]}


def train_ddp(rank, args, data, store, result):
    import torch
    torch.set_num_threads(1)
    if args.same_malloc:
        from ballast.torch._memory import keep_freed_memory
        keep_freed_memory(4 * sum(parameter.numel() for parameter in make_model(args.model).parameters()))
    if rank > 0:
        result = None
    torch_peer.train_ddp(rank, args, data, store, result)


def run(context, target, args, data, where):
    """Runs the workers; returns what they have sent."""
    # A pipe for each: large messages of two workers would mix in one.
    pipes = [context.Pipe(duplex=False) for _ in range(args.workers)]
    workers = [context.Process(target=target, args=(rank, args, data, where, pipes[rank][1]))
               for rank in range(args.workers)]
    for worker in workers:
        worker.start()
    limit = 60 + 6 * args.seconds
    received = []
    for receiver, sender in pipes:
        sender.close()
        try:
            if receiver.poll(limit):
                received.append(receiver.recv())
        except EOFError:
            # It has sent nothing.
            pass
    for worker in workers:
        worker.join(limit)
        if worker.exitcode != 0:
            worker.kill()
            sys.exit(f"torch_workers: a worker ended with {worker.exitcode}")
    return received


def spread(values):
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def main():
    args = parse_arguments()
    os.environ["BALLAST_LIBRARY"] = os.path.abspath(args.library)
    from servers import Servers
    data = torch_peer.load(args)
    context = multiprocessing.get_context("fork")
    for args.model in args.models:
        ours, theirs, shares = [], [], {}
        samples = args.batch * args.workers
        for number in range(args.rounds):
            for peer in (("ddp", "ballast") if number % 2 else ("ballast", "ddp")):
                if peer == "ddp":
                    with tempfile.TemporaryDirectory() as folder:
                        (rates, _), = run(context, train_ddp, args, data, folder + "/store")
                    theirs.append(statistics.median(rates) * samples)
                else:
                    with Servers(args.server, servers=args.servers, workers=args.workers) as servers:
                        parts = run(context, train_ballast, args, data, servers.address)
                    ours.append(statistics.median(next(part[1] for part in parts if part[0] == 0)) * samples)
                    for name, share in shares_of(parts).items():
                        shares.setdefault(name, []).append(share)
        print(json.dumps({"model": args.model, "batch": args.batch, "workers": args.workers, "servers": args.servers,
                          "same_malloc": args.same_malloc,
                          "ballast_samples_per_second": spread(ours), "ddp_samples_per_second": spread(theirs),
                          "ratio": spread([mine / other for mine, other in zip(ours, theirs)]),
                          "shares_of_step": {name: spread(values) for name, values in shares.items()}}), flush=True)


if __name__ == "__main__":
    main()
