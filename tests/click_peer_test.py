#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Compares models of clicks with PyTorch, and their evaluation with scikit-learn.

PyTorch: two workers in deterministic sync mode train a model with two tables (sums and means of bags, some of them
empty), a dot interaction and a sigmoid cross entropy for 50 steps, and PyTorch trains the same model on the joint
batches, from the same initial weights and rows. Layers and rows agree to a relative error of 1e-5. The ids of rows are
computed here, as any other program would.

scikit-learn: `ballast eval` gives the AUC, log loss and calibration that roc_auc_score, log_loss and sums of the same
predictions give: with ties, skewed labels, and logits for which probabilities are 0 or 1.

Usage: click_peer_test.py BALLAST SERVER WORKER PROTO...
"""

import json
import math
import os
import pathlib
import random
import re
import select
import struct
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from torch_peer_test import BATCH, EPOCHS, EXAMPLES, SEED, STEPS, WORKERS, Failure, float32, joint_batches  # noqa: E402
from torch_peer_test import read_safetensors  # noqa: E402

TOLERANCE = 1e-5
DIM = 4
COLORS, TAGS = 7, 23

# By name: the optimizer of layers and tables as in a job file.
OPTIMIZERS = {"sgd": "sgd { learning_rate: 0.2 }", "adagrad": "adagrad { learning_rate: 0.1 }"}
UNIFORM = "uniform { low: -0.5 high: 0.5 }"
SHAPES = {"bottom/weight": [DIM, 2], "bottom/bias": [DIM], "top/weight": [1, DIM + 6], "top/bias": [1]}

JOB = """name: "clicks"
seed: {seed}
data {{
  train {{
    csv {{ path: "train.csv" header: true label: "clicked" looked_up: "color" looked_up: "tags" id_separator: "|" }}
  }}
}}
model {{
  tables {{ name: "sums" dim: {dim} initializer {{ {uniform} }} optimizer {{ {optimizer} }} }}
  tables {{ name: "means" dim: {dim} initializer {{ {uniform} }} optimizer {{ {optimizer} }} }}
  layers {{ name: "bottom" dense {{ units: {dim} }} }}
  layers {{ tanh {{}} }}
  layers {{ embedding {{ table: "sums" fields: "tags" fields: "color" }} }}
  layers {{ embedding {{ table: "means" fields: "tags" pooling: AVERAGE }} }}
  layers {{ dot_interaction {{ dim: {dim} }} }}
  layers {{ name: "top" dense {{ units: 1 }} }}
  loss {{ sigmoid_cross_entropy {{}} }}
}}
training {{ epochs: {epochs} batch_size: {batch} no_shuffle: true }}
optimizer {{ {optimizer} }}
policy {{ sync {{ deterministic: true }} }}
"""

# A logit for each example: the weight becomes 1 and the bias 0.
LOGIT_JOB = """name: "logits"
data { train { csv { path: "train.csv" label_column: -1 } } }
model { layers { dense { units: 1 } } loss { sigmoid_cross_entropy {} } }
training { epochs: 1 batch_size: 4 }
optimizer { sgd { learning_rate: 0.1 } }
"""

CLICK_JOB = """name: "planted"
seed: 3
data { train { planted_clicks { rows: 20000 ids: 100 drift: 0 } } }
model {
  tables { name: "ids" dim: 4 }
  layers { embedding { table: "ids" fields: "C1" fields: "C2" } }
  layers { dense { units: 1 } }
  loss { sigmoid_cross_entropy {} }
}
training { epochs: 1 batch_size: 128 }
optimizer { adagrad { learning_rate: 0.1 } }
"""


def run(binaries, *words):
    done = subprocess.run(
        [binaries["ballast"], *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120,
        env=dict(os.environ, BALLAST_SERVER_BINARY=binaries["server"], BALLAST_WORKER_BINARY=binaries["worker"]))
    if done.returncode != 0:
        raise Failure(f"ballast {words[0]} ended with {done.returncode}: {done.stderr}")
    return done.stdout


def launch(binaries, folder, job, *flags):
    (folder / "job.textproto").write_text(job)
    printed = run(binaries, "launch", folder / "job.textproto", "--run_dir", folder / "run", "--threads", 1, "--device",
                  "cpu", "--json", *flags)
    return json.loads(printed.splitlines()[-1])


# --- PyTorch ---


def row_id(number, field):
    """XXH3-64 of the number's 8 bytes, seeded with the number of the field: docs/guide/recommendation.md."""
    mask = 2**64 - 1
    secret = [int.from_bytes(bytes.fromhex(part), "little") for part in ("7c01812cf721ad1c", "ded46de9839097db")]
    seed = field ^ int.from_bytes(field.to_bytes(4, "big"), "little") << 32
    low, high = number & 0xffffffff, number >> 32
    h = (high + (low << 32)) ^ ((secret[0] ^ secret[1]) - seed & mask)
    h ^= (h << 49 | h >> 15) & mask ^ (h << 24 | h >> 40) & mask
    h = h * 0x9FB21C651E98DF25 & mask
    h ^= (h >> 35) + 8
    h = h * 0x9FB21C651E98DF25 & mask
    return h ^ h >> 28


def make_visits():
    """Returns examples as (numbers, color or None, tags, label)."""
    generator = random.Random(2)
    visits = []
    for _ in range(EXAMPLES):
        numbers = [float32(generator.gauss(0, 1)) for _ in range(2)]
        color = generator.randrange(COLORS) if generator.random() < 0.9 else None
        tags = [generator.randrange(TAGS) for _ in range(generator.randrange(5))]
        logit = numbers[0] + (color or 0) / 3 - 1 + sum(1 if tag % 2 else -1 for tag in tags)
        visits.append((numbers, color, tags, int(generator.random() < 1 / (1 + math.exp(-logit)))))
    return visits


def write_visits(path, visits):
    lines = ["clicked,x,tags,y,color"]
    for (x, y), color, tags, label in visits:
        text = "|".join(f"t{tag:02}" for tag in tags)
        lines.append(f"{label},{x:.9g},{text},{y:.9g},{'' if color is None else f'c{color}'}")
    path.write_text("\n".join(lines) + "\n")


def places(values):
    """The position of each value among the distinct ones, from 1."""
    return {value: i + 1 for i, value in enumerate(sorted(set(values)))}


class Server:
    """A ballast_server with the job's tensors and tables, for their initial values."""

    def __init__(self, binary, folder):
        address_file = folder / "address"
        with open(folder / "server.log", "w") as log:
            self.process = subprocess.Popen([binary, "--listen", "127.0.0.1:0", "--address_file", str(address_file)],
                                            stderr=log)
        ended = os.pidfd_open(self.process.pid)
        deadline = time.monotonic() + 60
        while not address_file.exists():
            if select.select([ended], [], [], 0.02)[0] or time.monotonic() > deadline:
                raise Failure("the server did not start: " + (folder / "server.log").read_text())
        import grpc
        from ballast.v1 import parameter_service_pb2_grpc
        self.channel = grpc.insecure_channel(address_file.read_text().strip())
        self.stub = parameter_service_pb2_grpc.ParameterServiceStub(self.channel)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.channel.close()
        self.process.kill()
        self.process.wait()

    def initial(self, ids):
        """Returns the layers' weights by name, and for each table the rows of these ids."""
        import numpy
        from ballast.v1 import parameter_service_pb2 as ps
        from ballast.v1 import table_pb2
        from google.protobuf import text_format
        declare = ps.DeclareTensorsRequest(job="clicks", workers=1)
        declare.policy.sync.deterministic = True
        pull = ps.PullRequest(job="clicks", step=0)
        pull_rows = ps.PullRowsRequest(job="clicks")
        for tensor, (name, shape) in enumerate(SHAPES.items()):
            spec = declare.tensors.add().spec
            spec.id, spec.name, spec.seed = tensor, name, SEED
            spec.shape.extend(shape)
            kind = spec.initializer.he_normal if name.endswith("weight") else spec.initializer.zeros
            kind.SetInParent()
            text_format.Parse(OPTIMIZERS["sgd"], spec.optimizer)
            pull.slices.add(tensor_id=tensor, slice_index=0)
        for i, name in enumerate(("sums", "means")):
            spec = table_pb2.TableSpec(id=100 + i, name=name, dim=DIM, seed=SEED, range_bits=6)
            text_format.Parse(UNIFORM, spec.initializer)
            text_format.Parse(OPTIMIZERS["sgd"], spec.optimizer)
            declare.tables.add(spec=spec).spans.add(first=0, count=64, shard=0)
            pull_rows.queries.add(table_id=100 + i, ids=struct.pack(f"<{len(ids)}Q", *ids), unordered=True)
        self.stub.DeclareTensors(declare, timeout=60)
        weights = self.stub.Pull(pull, timeout=60).values
        rows = self.stub.PullRows(pull_rows, timeout=60).values
        return ({name: numpy.frombuffer(value.payload, "<f4").reshape(shape).copy()
                 for (name, shape), value in zip(SHAPES.items(), weights)},
                [numpy.frombuffer(value.payload, "<f4").reshape(-1, DIM).copy() for value in rows])


def train_with_torch(optimizer, visits, weights, tables, color_rows, tag_rows):
    """`color_rows` and `tag_rows` give the row of each color and tag. Returns the weights by name and the tables."""
    import torch
    torch.set_num_threads(1)
    bottom, top = torch.nn.Linear(2, DIM), torch.nn.Linear(DIM + 6, 1)
    bags = [torch.nn.EmbeddingBag(len(rows), DIM, mode=mode, sparse=True, _weight=torch.from_numpy(rows))
            for rows, mode in zip(tables, ("sum", "mean"))]
    layers = [bottom.weight, bottom.bias, top.weight, top.bias]
    with torch.no_grad():
        for parameter, value in zip(layers, weights.values()):
            parameter.copy_(torch.from_numpy(value))
    make = {"sgd": lambda p: torch.optim.SGD(p, lr=0.2), "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1)}[optimizer]
    rules = [make(layers), make([bag.weight for bag in bags])]
    loss_of = torch.nn.BCEWithLogitsLoss()
    lower = torch.tril_indices(4, 4, -1)

    def vectors(bag, lists):
        offsets = [0]
        for rows in lists:
            offsets.append(offsets[-1] + len(rows))
        return bag(torch.tensor([row for rows in lists for row in rows], dtype=torch.int64),
                   torch.tensor(offsets[:-1]))

    steps = 0
    for batch in joint_batches():
        examples = [visits[i] for i in batch]
        x = torch.tensor([numbers for numbers, _, _, _ in examples])
        y = torch.tensor([float(label) for _, _, _, label in examples])
        tags = [[tag_rows[tag] for tag in tags] for _, _, tags, _ in examples]
        colors = [[] if color is None else [color_rows[color]] for _, color, _, _ in examples]
        dense = torch.tanh(bottom(x))
        stacked = torch.stack([dense, vectors(bags[0], tags), vectors(bags[0], colors), vectors(bags[1], tags)], 1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))[:, lower[0], lower[1]]
        loss = loss_of(top(torch.cat([dense, products], 1))[:, 0], y)
        for rule in rules:
            rule.zero_grad()
        loss.backward()
        for rule in rules:
            rule.step()
        steps += 1
    assert steps == STEPS, steps
    return ({name: layer.detach().numpy() for name, layer in zip(SHAPES, layers)},
            [bag.weight.detach().numpy() for bag in bags])


def read_table(folder):
    """Returns the rows by id."""
    rows = {}
    for path in sorted(folder.glob("rows-*.safetensors")):
        data = path.read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        header, body = json.loads(data[8:8 + size]), data[8 + size:]
        (first, last), (begin, end) = (header[name]["data_offsets"] for name in ("ids", "values"))
        values = struct.iter_unpack(f"<{DIM}f", body[begin:end])
        rows.update(zip((id for id, in struct.iter_unpack("<Q", body[first:last])), values))
    return rows


def relative_error(initial, ours, theirs):
    """Returns the larger of those of the norm and of an element to the largest one."""
    import numpy
    ours, theirs = numpy.asarray(ours, "f8"), numpy.asarray(theirs, "f8")
    if not numpy.abs(theirs - initial).max() > 1e-3:
        raise Failure("nothing was trained")
    difference = ours - theirs
    return max(numpy.linalg.norm(difference) / numpy.linalg.norm(theirs),
               numpy.abs(difference).max() / numpy.abs(theirs).max())


def compare_training(binaries, folder, optimizer, visits):
    folder.mkdir()
    write_visits(folder / "train.csv", visits)
    colors = places(color for _, color, _, _ in visits if color is not None)
    tags = places(tag for _, _, all_tags, _ in visits for tag in all_tags)
    color_ids = {color: row_id(place, 0) for color, place in colors.items()}
    tag_ids = {tag: row_id(place, 1) for tag, place in tags.items()}
    ids = sorted({*color_ids.values(), *tag_ids.values()})
    index = {id: i for i, id in enumerate(ids)}
    with Server(binaries["server"], folder) as server:
        weights, tables = server.initial(ids)
    job = JOB.format(seed=SEED, dim=DIM, uniform=UNIFORM, optimizer=OPTIMIZERS[optimizer], epochs=EPOCHS, batch=BATCH)
    summary = launch(binaries, folder, job, "--servers", 2, "--workers", WORKERS)
    if summary["steps"] != STEPS:
        raise Failure(f"got {summary['steps']} steps, want {STEPS}")
    layers, rows = train_with_torch(optimizer, visits, weights, [table.copy() for table in tables],
                                    {color: index[id] for color, id in color_ids.items()},
                                    {tag: index[id] for tag, id in tag_ids.items()})
    ours = read_safetensors(folder / "run" / "model.safetensors")
    errors = {name: relative_error(weights[name], ours[name], layers[name]) for name in SHAPES}
    wanted_ids = {"sums": set(ids), "means": set(tag_ids.values())}
    for i, name in enumerate(("sums", "means")):
        table = read_table(folder / "run" / "tables" / name)
        if set(table) != wanted_ids[name]:
            raise Failure(f"table {name} has {len(table)} rows, want those of the {len(wanted_ids[name])} ids")
        chosen = [index[id] for id in table]
        errors[name] = relative_error(tables[i][chosen], list(table.values()), rows[i][chosen])
    worst = max(errors, key=errors.get)
    good = errors[worst] <= TOLERANCE
    print(f"{'ok' if good else 'FAILED'}: {optimizer}: relative error {errors[worst]:.2e} of {worst}, want at most "
          f"{TOLERANCE:.0e}")
    return good


# --- scikit-learn ---


def logit_cases():
    """Yields names, logits and labels."""
    generator = random.Random(5)

    def labels(logits):
        return [int(generator.random() < 1 / (1 + math.exp(-logit))) for logit in logits]

    normal = [float32(generator.gauss(0, 2)) for _ in range(3000)]
    yield "no ties", normal, labels(normal)
    tied = [round(logit) / 2 for logit in normal]
    yield "ties", tied, labels(tied)
    yield "all logits equal", [0.25] * 1000, labels([0.25] * 1000)
    rare = [float32(logit - 7) for logit in normal]
    yield "1 label in 200 is 1", rare, labels(rare)
    yield "one label is 1", normal, [int(i == 17) for i in range(len(normal))]
    yield "one label is 0", normal, [int(i != 17) for i in range(len(normal))]
    yield "in order", sorted(normal), [int(i >= 1000) for i in range(len(normal))]
    yield "in reverse order", sorted(normal), [int(i < 1000) for i in range(len(normal))]
    # Probabilities of some are 0 or 1 even in float64, but the order and the loss are those of the logits.
    extreme = [float32(20 * logit) for logit in normal]
    yield "extreme logits", extreme, labels([max(-30.0, min(30.0, logit)) for logit in extreme])
    yield "extreme and wrong", [-1000.0, 1000.0, 3e38, -3e38], [1, 0, 1, 0]


def set_logit_weights(path):
    """Makes the model's output its only feature."""
    data = path.read_bytes()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:start])
    for name, value in (("dense1/weight", 1.0), ("dense1/bias", 0.0)):
        begin, end = (start + offset for offset in header[name]["data_offsets"])
        data = data[:begin] + struct.pack("<f", value) + data[end:]
    path.write_bytes(data)


def compare_evaluation(name, result, logits, labels, tolerance):
    """Compares what eval printed with scikit-learn's figures of the same logits."""
    import numpy
    from sklearn.metrics import log_loss, roc_auc_score
    logits, labels = numpy.asarray(logits, "f8"), numpy.asarray(labels)
    with numpy.errstate(over="ignore"):
        probabilities = 1 / (1 + numpy.exp(-logits))
    # Beyond that, scikit-learn's probabilities of the wrong label are 0, and it takes another one in their place.
    if numpy.abs(logits).max() < 30:
        loss = log_loss(labels, probabilities)
    else:
        loss = numpy.logaddexp(0, numpy.where(labels == 1, -logits, logits)).mean()
    want = {"auc": roc_auc_score(labels, logits), "loss": loss, "calibration": probabilities.sum() / labels.sum()}
    if result["examples"] != len(labels):
        raise Failure(f"{name}: got {result['examples']} examples, want {len(labels)}")
    errors = {key: abs(result[key] - value) / max(abs(value), 1e-3) for key, value in want.items()}
    good = all(error <= tolerance for error in errors.values())
    print(f"{'ok' if good else 'FAILED'}: {name}: AUC {want['auc']:.6f}, log loss {want['loss']:.6g}, calibration "
          f"{want['calibration']:.6g}; relative errors "
          f"{', '.join(f'{error:.1e} of {key}' for key, error in errors.items())}, want at most {tolerance:.0e}")
    return good


def check_logits(binaries, folder):
    folder.mkdir()
    (folder / "train.csv").write_text("1,1\n-1,0\n2,1\n-2,0\n")
    launch(binaries, folder, LOGIT_JOB)
    set_logit_weights(folder / "run" / "model.safetensors")
    good = True
    for name, logits, labels in logit_cases():
        data = folder / (re.sub(r"\W", "_", name) + ".csv")
        data.write_text("".join(f"{logit:.9g},{label}\n" for logit, label in zip(logits, labels)))
        result = json.loads(run(binaries, "eval", folder / "run", "--data", data, "--json", "--device", "cpu"))
        # The loss is summed batch by batch in float32.
        good = compare_evaluation(name, result, logits, labels, 1e-6) and good
    for label in (0, 1):
        data = folder / f"all_{label}.csv"
        data.write_text(f"1,{label}\n2,{label}\n")
        result = json.loads(run(binaries, "eval", folder / "run", "--data", data, "--json", "--device", "cpu"))
        if result["auc"] != 0.5 or ("calibration" in result) != (label == 1):
            raise Failure(f"all labels are {label}: got {result}")
    print("ok: labels that are all equal: scikit-learn has no AUC, Ballast 0.5")
    return good


def check_clicks(binaries, folder):
    folder.mkdir()
    run(binaries, "data", "ctr", folder / "data", "--rows", 100, "--test_rows", 3000, "--ids", 100, "--drift", 0,
        "--seed", 3)
    launch(binaries, folder, CLICK_JOB, "--servers", 2, "--workers", 2)
    test = folder / "data" / "test.tsv"
    labels = [int(line[0]) for line in test.read_text().splitlines()]
    predictions = [json.loads(line)["probabilities"]
                   for line in run(binaries, "predict", folder / "run", "--data", test, "--json", "--device",
                                   "cpu").splitlines()]
    # Both have the digits of a float32, and the smaller one is the more precise.
    logits = [math.log(p["1"] / p["0"]) for p in predictions]
    result = json.loads(run(binaries, "eval", folder / "run", "--data", test, "--json", "--device", "cpu"))
    return compare_evaluation("planted clicks by their predictions", result, logits, labels, 1e-6)


def main():
    binaries = dict(zip(("ballast", "server", "worker"), (os.path.abspath(path) for path in sys.argv[1:4])))
    base = pathlib.Path(os.environ["TEST_TMPDIR"])
    stubs = base / "stubs"
    stubs.mkdir()
    subprocess.run(["protoc", "-I", "proto", f"--python_out={stubs}", f"--grpc_out={stubs}",
                    "--plugin=protoc-gen-grpc=/usr/bin/grpc_python_plugin"] + sys.argv[4:], check=True, timeout=60)
    sys.path.insert(0, str(stubs))
    good = True
    try:
        import sklearn
        print("scikit-learn", sklearn.__version__)
        good = check_logits(binaries, base / "logits")
        good = check_clicks(binaries, base / "clicks") and good
    except ImportError as error:
        print(f"SKIPPED the evaluation: {error}")
    try:
        import torch
        print("PyTorch", torch.__version__)
        visits = make_visits()
        for optimizer in OPTIMIZERS:
            good = compare_training(binaries, base / optimizer, optimizer, visits) and good
    except ImportError as error:
        print(f"SKIPPED the training: {error}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
