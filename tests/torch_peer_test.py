#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Compares two workers in deterministic sync mode with PyTorch on the joint batch.

Trains small networks for 50 steps, twice: by `ballast launch` with two workers, and by PyTorch in this process, from
the same initial weights, on the same batches. The weights agree to a relative error of 1e-5.

Usage: torch_peer_test.py BALLAST SERVER WORKER PROTO...
"""

import json
import os
import pathlib
import random
import select
import struct
import subprocess
import sys
import time

TOLERANCE = 1e-5
WORKERS = 2
BATCH = 8
# 25 steps an epoch: a round of 16 batches per worker, then one of 9, whose last batches have 7 and 6 examples.
EXAMPLES = 397
EPOCHS = 2
STEPS = 50
FEATURES = 20
HIDDEN = 32
CLASSES = 5
SEED = 11

OPTIMIZERS = {
    "sgd": "sgd { learning_rate: 0.1 }",
    "momentum": "momentum { learning_rate: 0.02 momentum: 0.9 }",
    "adam": "adam { learning_rate: 0.002 }",
}
CASES = [("relu", "sgd"), ("relu", "momentum"), ("relu", "adam"), ("tanh", "adam"), ("gelu", "momentum")]

SHAPES = {
    "dense1/weight": [HIDDEN, FEATURES],
    "dense1/bias": [HIDDEN],
    "dense2/weight": [CLASSES, HIDDEN],
    "dense2/bias": [CLASSES],
}

JOB = """name: "peer"
seed: {seed}
data {{ train {{ csv {{ path: "train.csv" label_column: -1 }} }} }}
model {{
  layers {{ dense {{ units: {hidden} }} }}
  layers {{ {activation} {{}} }}
  layers {{ dense {{ units: {classes} }} }}
  loss {{ softmax_cross_entropy {{}} }}
}}
training {{ epochs: {epochs} batch_size: {batch} no_shuffle: true }}
optimizer {{ {optimizer} }}
policy {{ sync {{ deterministic: true }} }}
"""


class Failure(Exception):
    pass


def float32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def make_data():
    """Returns rows of features, with 9 digits so that both readers get the same float32, and their labels."""
    generator = random.Random(1)
    centres = [[generator.gauss(0, 1) for _ in range(FEATURES)] for _ in range(CLASSES)]
    features, labels = [], []
    for _ in range(EXAMPLES):
        label = generator.randrange(CLASSES)
        features.append([float32(centre + generator.gauss(0, 1)) for centre in centres[label]])
        labels.append(label)
    return features, labels


def ranges_of(examples):
    """Yields an epoch's rounds of 16 batches per worker, each cut into one contiguous range per rank."""
    begin = 0
    while begin < examples:
        size = min(examples - begin, WORKERS * 16 * BATCH)
        share, more = divmod(size, WORKERS)
        at, cut = begin, []
        for rank in range(WORKERS):
            end = at + share + (1 if rank < more else 0)
            cut.append((at, end))
            at = end
        yield cut
        begin += size


def joint_batches():
    """Yields the examples of all workers together, step by step."""
    for _ in range(EPOCHS):
        for cut in ranges_of(EXAMPLES):
            longest = max(end - begin for begin, end in cut)
            for offset in range(0, longest, BATCH):
                batch = []
                for begin, end in cut:
                    batch += range(min(begin + offset, end), min(begin + offset + BATCH, end))
                yield batch


def initial_weights(server_binary, folder, stubs, optimizer):
    """Returns a fresh server's values of the tensors that the workers declare."""
    sys.path.insert(0, str(stubs))
    import grpc
    import numpy
    from ballast.v1 import parameter_service_pb2 as ps
    from ballast.v1 import parameter_service_pb2_grpc as ps_grpc
    from google.protobuf import text_format

    address_file = folder / "address"
    with open(folder / "server.log", "w") as log:
        server = subprocess.Popen([server_binary, "--listen", "127.0.0.1:0", "--address_file", str(address_file)],
                                  stderr=log)
    try:
        ended = os.pidfd_open(server.pid)
        deadline = time.monotonic() + 60
        while not address_file.exists():
            if select.select([ended], [], [], 0.02)[0] or time.monotonic() > deadline:
                raise Failure("the server did not start: " + (folder / "server.log").read_text())
        with grpc.insecure_channel(address_file.read_text().strip()) as channel:
            stub = ps_grpc.ParameterServiceStub(channel)
            declare = ps.DeclareTensorsRequest(job="peer", workers=WORKERS)
            declare.policy.sync.deterministic = True
            pull = ps.PullRequest(job="peer", step=0)
            for tensor, (name, shape) in enumerate(SHAPES.items()):
                spec = declare.tensors.add().spec
                spec.id, spec.name, spec.seed = tensor, name, SEED
                spec.shape.extend(shape)
                if name.endswith("weight"):
                    spec.initializer.he_normal.SetInParent()
                else:
                    spec.initializer.zeros.SetInParent()
                text_format.Parse(OPTIMIZERS[optimizer], spec.optimizer)
                pull.slices.add(tensor_id=tensor, slice_index=0)
            stub.DeclareTensors(declare, timeout=60)
            values = stub.Pull(pull, timeout=60).values
        return {
            name: numpy.frombuffer(value.payload, "<f4").reshape(shape).copy()
            for (name, shape), value in zip(SHAPES.items(), values)
        }
    finally:
        server.kill()
        server.wait()


def train_with_ballast(binaries, folder, activation, optimizer, features, labels):
    """Returns the final weights of a launched run; checks the number of steps."""
    (folder / "train.csv").write_text("".join(
        ",".join(f"{x:.9g}" for x in row) + f",{label}\n" for row, label in zip(features, labels)))
    (folder / "job.textproto").write_text(
        JOB.format(seed=SEED, hidden=HIDDEN, classes=CLASSES, activation=activation, epochs=EPOCHS, batch=BATCH,
                   optimizer=OPTIMIZERS[optimizer]))
    run = subprocess.run(
        [binaries["ballast"], "launch", str(folder / "job.textproto"), "--servers", "2", "--workers", str(WORKERS),
         "--threads", "1", "--device", "cpu", "--run-dir", str(folder / "run"), "--json"],
        env=dict(os.environ, BALLAST_SERVER_BINARY=binaries["server"], BALLAST_WORKER_BINARY=binaries["worker"]),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120)
    if run.returncode != 0:
        raise Failure(f"launch ended with {run.returncode}: {run.stderr}")
    steps = json.loads(run.stdout.splitlines()[-1])["steps"]
    if steps != STEPS:
        raise Failure(f"got {steps} steps, want {STEPS}")
    return read_safetensors(folder / "run" / "model.safetensors")


def read_safetensors(path):
    import numpy
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    tensors = json.loads(data[8:8 + size])
    tensors.pop("__metadata__", None)
    body = data[8 + size:]
    return {
        name: numpy.frombuffer(body[slice(*tensor["data_offsets"])], "<f4").reshape(tensor["shape"])
        for name, tensor in tensors.items()
    }


def train_with_torch(activation, optimizer, weights, features, labels):
    import torch
    torch.set_num_threads(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(FEATURES, HIDDEN),
        {"relu": torch.nn.ReLU, "tanh": torch.nn.Tanh, "gelu": torch.nn.GELU}[activation](),
        torch.nn.Linear(HIDDEN, CLASSES),
    )
    parameters = [model[0].weight, model[0].bias, model[2].weight, model[2].bias]
    with torch.no_grad():
        for parameter, value in zip(parameters, weights.values()):
            parameter.copy_(torch.from_numpy(value))
    rule = {
        "sgd": lambda: torch.optim.SGD(parameters, lr=0.1),
        "momentum": lambda: torch.optim.SGD(parameters, lr=0.02, momentum=0.9),
        "adam": lambda: torch.optim.Adam(parameters, lr=0.002),
    }[optimizer]()
    x = torch.tensor(features, dtype=torch.float32)
    y = torch.tensor(labels)
    steps = 0
    for batch in joint_batches():
        rule.zero_grad()
        torch.nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        rule.step()
        steps += 1
    assert steps == STEPS, steps
    return {name: parameter.detach().numpy() for name, parameter in zip(SHAPES, parameters)}


def compare(initial, ours, theirs):
    """Returns the worst relative errors of all tensors: of the norm, and of an element to its tensor's largest."""
    import numpy
    if set(ours) != set(SHAPES):
        raise Failure(f"model.safetensors holds {sorted(ours)}, want {sorted(SHAPES)}")
    worst = [0.0, 0.0]
    for name in SHAPES:
        ours64, theirs64 = ours[name].astype("f8"), theirs[name].astype("f8")
        moved = numpy.abs(theirs64 - initial[name]).max()
        if not moved > 1e-3:
            raise Failure(f"{name} was not trained: it moved by {moved}, want more than 1e-3")
        difference = ours64 - theirs64
        errors = (numpy.linalg.norm(difference) / numpy.linalg.norm(theirs64),
                  numpy.abs(difference).max() / numpy.abs(theirs64).max())
        worst = [max(pair) for pair in zip(worst, errors)]
    return worst


def main():
    try:
        import torch
        print("PyTorch", torch.__version__)
    except ImportError as error:
        print(f"SKIPPED: {error}")
        return 0
    binaries = dict(zip(("ballast", "server", "worker"), (os.path.abspath(path) for path in sys.argv[1:4])))
    base = pathlib.Path(os.environ["TEST_TMPDIR"])
    stubs = base / "stubs"
    stubs.mkdir()
    subprocess.run(["protoc", "-I", "proto", f"--python_out={stubs}", f"--grpc_out={stubs}",
                    "--plugin=protoc-gen-grpc=/usr/bin/grpc_python_plugin"] + sys.argv[4:], check=True, timeout=60)
    features, labels = make_data()
    failed = False
    for activation, optimizer in CASES:
        folder = base / f"{activation}-{optimizer}"
        folder.mkdir()
        initial = initial_weights(binaries["server"], folder, stubs, optimizer)
        ours = train_with_ballast(binaries, folder, activation, optimizer, features, labels)
        theirs = train_with_torch(activation, optimizer, initial, features, labels)
        norm, element = compare(initial, ours, theirs)
        good = norm <= TOLERANCE and element <= TOLERANCE
        failed = failed or not good
        print(f"{'ok' if good else 'FAILED'}: {activation}, {optimizer}: relative error {norm:.2e} of the norm, "
              f"{element:.2e} of the largest element, want at most {TOLERANCE:.0e}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
