#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The PyTorch peer of `ballast bench step`: trains one of the same MLPs on the same data and prints its speed.

Methods:
  ddp  DistributedDataParallel on Gloo.
  rpc  A parameter server over torch.distributed.rpc (TensorPipe), as in PyTorch's tutorial "Implementing Batch RPC
       Processing Using Asynchronous Executions": one process holds the model; trainers send their gradients with
       rpc_sync; after the last one it applies their mean and returns the new model to each. On one machine TensorPipe
       moves tensors through shared memory.
  rpc-tcp  The same over TCP, as between machines.

The data is in memory as fp32, normalized before the measurement, and batches are selected by index: no DataLoader.
Each process computes with one thread. The last line of the output is one JSON object.
"""

import argparse
import ctypes
import gzip
import json
import multiprocessing
import multiprocessing.connection
import os
import signal
import statistics
import sys
import tempfile
import threading
import time

# Set before torch is imported, which reads them once.
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", TP_SOCKET_IFNAME="lo")
try:
    import torch
    import torch.distributed as dist
    import torch.distributed.rpc as rpc
except ImportError as error:
    print(f"torch_peer: no PyTorch: {error}", file=sys.stderr)
    sys.exit(3)

MODELS = {"small": [784, 512, 256, 10], "large": [784, 4096, 4096, 10]}
LEARNING_RATE = 0.05
MEAN, STDDEV = 72.94, 90.02
# Steps that warm up and determine how many steps fit into the requested time.
CALIBRATION_STEPS = 20
CHUNKS = 5


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", choices=["ddp", "rpc", "rpc-tcp"], required=True)
    parser.add_argument("--model", choices=sorted(MODELS), required=True)
    parser.add_argument("--images", required=True, help="IDX file, gzip")
    parser.add_argument("--labels", required=True, help="IDX file, gzip")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10)
    return parser.parse_args()


def load(args):
    with gzip.open(args.images) as file:
        pixels = torch.frombuffer(bytearray(file.read()[16:]), dtype=torch.uint8)
    with gzip.open(args.labels) as file:
        labels = torch.frombuffer(bytearray(file.read()[8:]), dtype=torch.uint8).long()
    features = (pixels.reshape(len(labels), -1).float() - MEAN) / STDDEV
    return features, labels


def make_model(name):
    torch.manual_seed(1)
    sizes = MODELS[name]
    layers = []
    for inputs, outputs in zip(sizes, sizes[1:]):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


class Batches:
    """Endless batches, reshuffled each epoch; a worker takes every `workers`-th batch."""

    def __init__(self, features, labels, args, rank):
        self.features, self.labels, self.args, self.rank = features, labels, args, rank
        self.epoch = 0
        self.iterator = iter(())

    def next(self):
        picked = next(self.iterator, None)
        if picked is None:
            generator = torch.Generator().manual_seed(self.epoch)
            self.epoch += 1
            order = torch.randperm(len(self.labels), generator=generator)
            whole = len(order) // (self.args.batch * self.args.workers) * self.args.workers
            self.iterator = iter([order[i * self.args.batch:(i + 1) * self.args.batch]
                                  for i in range(self.rank, whole, self.args.workers)])
            picked = next(self.iterator)
        return self.features[picked], self.labels[picked]


def timed(step, agree, seconds):
    """Returns the steps per second of several chunks, `seconds` in total. `agree` makes all ranks use one number."""
    for _ in range(CALIBRATION_STEPS // 2):
        step()
    begin = time.perf_counter()
    for _ in range(CALIBRATION_STEPS // 2):
        step()
    per_step = (time.perf_counter() - begin) / (CALIBRATION_STEPS // 2)
    steps = agree(max(1, int(seconds / CHUNKS / per_step)))
    rates = []
    for _ in range(CHUNKS):
        begin = time.perf_counter()
        for _ in range(steps):
            step()
        rates.append(steps / (time.perf_counter() - begin))
    return rates, steps * CHUNKS


def train_step(model, optimizer, batches):
    features, labels = batches.next()
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(features), labels)
    loss.backward()
    optimizer.step()


def train_ddp(rank, args, data, store, result):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=args.workers)
    model = torch.nn.parallel.DistributedDataParallel(make_model(args.model), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    batches = Batches(*data, args, rank)

    def step():
        train_step(model, optimizer, batches)

    def agree(number):
        shared = torch.tensor([number])
        dist.broadcast(shared, 0)
        return int(shared[0])

    rates, steps = timed(step, agree, args.seconds)
    dist.barrier()
    if rank == 0:
        result.send((rates, steps))


class ParameterServer:
    """The tutorial's BatchUpdateParameterServer."""

    def __init__(self, name, workers):
        self.model = make_model(name)
        self.workers = workers
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LEARNING_RATE)
        self.lock = threading.Lock()
        self.future = torch.futures.Future()
        self.count = 0
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)

    def get_model(self):
        return self.model


@rpc.functions.async_execution
def update_and_fetch(server, gradients):
    self = server.local_value()
    with self.lock:
        self.count += 1
        for parameter, gradient in zip(self.model.parameters(), gradients):
            parameter.grad += gradient
        future = self.future
        if self.count == self.workers:
            for parameter in self.model.parameters():
                parameter.grad /= self.workers
            self.count = 0
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=False)
            future.set_result(self.model)
            self.future = torch.futures.Future()
    return future


def rpc_options(args, store):
    ways = {"_transports": ["uv"], "_channels": ["basic"]} if args.method == "rpc-tcp" else {}
    return rpc.TensorPipeRpcBackendOptions(init_method="file://" + store, rpc_timeout=120, **ways)


def serve_rpc(args, store):
    options = rpc_options(args, store)
    rpc.init_rpc("ps", rank=0, world_size=args.workers + 1, rpc_backend_options=options)
    rpc.shutdown()


def train_rpc(rank, args, data, store, result):
    options = rpc_options(args, store)
    rpc.init_rpc(f"trainer{rank}", rank=rank + 1, world_size=args.workers + 1, rpc_backend_options=options)
    # Every trainer uses the first one's server and number of steps, which it learns from the parameter server.
    server = rpc.rpc_sync("ps", shared_server, args=(args.model, args.workers))
    state = {"model": server.rpc_sync().get_model()}
    batches = Batches(*data, args, rank)

    def step():
        features, labels = batches.next()
        torch.nn.functional.cross_entropy(state["model"](features), labels).backward()
        state["model"] = rpc.rpc_sync("ps", update_and_fetch,
                                      args=(server, [p.grad for p in state["model"].parameters()]))

    def agree(number):
        return rpc.rpc_sync("ps", first_number, args=(number,))

    rates, steps = timed(step, agree, args.seconds)
    if rank == 0:
        result.send((rates, steps))
    rpc.shutdown()


SHARED = {}
SHARED_LOCK = multiprocessing.get_context("fork").Lock()


def shared_server(name, workers):
    with SHARED_LOCK:
        if "server" not in SHARED:
            SHARED["server"] = rpc.RRef(ParameterServer(name, workers))
        return SHARED["server"]


def first_number(number):
    with SHARED_LOCK:
        return SHARED.setdefault("number", number)


def child(role, rank, args, data, store, result):
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: killed when the parent ends, for any reason.
    torch.set_num_threads(1)
    if role == "ps":
        serve_rpc(args, store)
    elif args.method == "ddp":
        train_ddp(rank, args, data, store, result)
    else:
        train_rpc(rank, args, data, store, result)


def main():
    args = parse_arguments()
    torch.set_num_threads(1)
    data = load(args)
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        roles = [("trainer", rank) for rank in range(args.workers)]
        if args.method != "ddp":
            roles.insert(0, ("ps", 0))
        processes = [context.Process(target=child, args=(role, rank, args, data, folder + "/store", sender))
                     for role, rank in roles]
        for process in processes:
            process.start()
        sender.close()
        deadline = time.monotonic() + 120 + 4 * args.seconds
        waiting = {process.sentinel: process for process in processes}
        failed = []
        while waiting and not failed:
            ended = multiprocessing.connection.wait(waiting, max(0, deadline - time.monotonic()))
            for sentinel in ended:
                process = waiting.pop(sentinel)
                process.join()
                failed += [process.exitcode] if process.exitcode != 0 else []
            if not ended:
                failed = ["the time that they may take"]
        for process in waiting.values():
            process.kill()
            process.join()
        if failed or not receiver.poll():
            print(f"torch_peer: processes ended with {failed}", file=sys.stderr)
            return 1
        rates, steps = receiver.recv()
    samples = args.batch * args.workers
    print(json.dumps({
        "method": args.method,
        "model": args.model,
        "torch": torch.__version__,
        "workers": args.workers,
        "batch": args.batch,
        "steps": steps,
        "samples_per_second": statistics.median(rates) * samples,
        "samples_per_second_chunks": [rate * samples for rate in rates],
    }))
    return 0


if __name__ == "__main__":
    sys.exit(main())
