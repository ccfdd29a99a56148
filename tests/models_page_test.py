#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the code of the guide's page on models, and compares its predictions with those of `ballast predict`.

Usage: models_page_test.py BALLAST SERVER WORKER PAGE
"""

import json
import os
import pathlib
import random
import re
import struct
import subprocess
import sys

TOLERANCE = 1e-4

TABLE_JOB = """name: "table"
data {
  train { csv { path: "train.csv" header: true label: "kind" text_labels: true categories: "color" } }
  normalization { per_column: true }
}
model {
  layers { dense { units: 8 } }
  layers { batch_norm { momentum: 0.3 } }
  layers { relu {} }
  layers { dropout { rate: 0.2 } }
  layers { dense { units: 6 } }
  layers { tanh {} }
  layers { name: "head" dense { units: 3 } }
  loss { softmax_cross_entropy {} }
}
training { epochs: 5 batch_size: 16 }
optimizer { adam { learning_rate: 0.01 } }
"""

IMAGE_JOB = """name: "images"
data {
  train { idx { images: "images" labels: "labels" } }
  normalization { mean: 100 stddev: 50 }
}
model {
  input { height: 8 width: 6 channels: 2 }
  layers { conv2d { filters: 5 kernel: 3 stride: [1, 2] padding: 1 no_bias: true } }
  layers { batch_norm {} }
  layers { relu {} }
  layers { max_pool { kernel: [2, 3] } }
  layers { conv2d { filters: 4 kernel: [2, 1] } }
  layers { gelu {} }
  layers { dense { units: 3 } }
  loss { softmax_cross_entropy {} }
}
training { epochs: 5 batch_size: 16 }
optimizer { adam { learning_rate: 0.01 } }
"""


class Failure(Exception):
    pass


def run(binaries, *words):
    done = subprocess.run(
        [binaries["ballast"], *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120,
        env=dict(os.environ, BALLAST_SERVER_BINARY=binaries["server"], BALLAST_WORKER_BINARY=binaries["worker"]))
    if done.returncode != 0:
        raise Failure(f"ballast {words[0]} ended with {done.returncode}: {done.stderr}")
    return done.stdout


def train(binaries, folder, job):
    (folder / "job.textproto").write_text(job)
    run(binaries, "launch", folder / "job.textproto", "--run-dir", folder / "run", "--device", "cpu", "--threads", "1")


def predict(binaries, folder, data):
    """Returns the classes and the probabilities that Ballast predicts."""
    lines = run(binaries, "predict", folder / "run", "--data", data, "--json", "--device", "cpu").splitlines()
    objects = [json.loads(line) for line in lines]
    return [each["class"] for each in objects], [list(each["probabilities"].values()) for each in objects]


def compare(what, classes, probabilities, names, other):
    """`other` has the probabilities of the page's code; row by row they are those of Ballast."""
    if len(other) != len(probabilities):
        raise Failure(f"{what}: got {len(other)} predictions, want {len(probabilities)}")
    worst = max(abs(float(a) - b) for row, want in zip(other, probabilities) for a, b in zip(row, want))
    if not worst <= TOLERANCE:
        raise Failure(f"{what}: the probabilities differ by {worst}, want at most {TOLERANCE}")
    spread = max(max(row) for row in probabilities) - min(max(row) for row in probabilities)
    if spread < 0.1:
        raise Failure(f"{what}: all predictions are alike, so that the comparison says nothing")
    if [names[max(range(len(row)), key=row.__getitem__)] for row in probabilities] != classes:
        raise Failure(f"{what}: a class is not that of the largest probability")
    print(f"ok: {what}: {len(other)} predictions differ by at most {worst:.1e}")


def check_table(binaries, folder, page):
    generator = random.Random(1)
    rows = []
    for _ in range(400):
        color, width = generator.choice(["red", "green", "dark blue"]), generator.gauss(100, 20)
        kind = "long" if width > 110 else "red one" if color == "red" else "other"
        rows.append([f"{width:.4f}", color, f"{generator.gauss(0, 0.01):.6f}", kind])
    text = "".join(",".join(row) + "\n" for row in rows)
    (folder / "train.csv").write_text("width,color,noise,kind\n" + text)
    (folder / "new.csv").write_text("width,color,noise\n" + "".join(",".join(row[:3]) + "\n" for row in rows))
    train(binaries, folder, TABLE_JOB)
    classes, probabilities = predict(binaries, folder, folder / "new.csv")
    tensors, metadata = page["load"](folder / "run" / "model.safetensors")
    names = json.loads(metadata["table"])["classes"]
    features = page["features_of"](rows, metadata)
    compare("NumPy, table", classes, probabilities, names,
            page["softmax"](page["outputs_of"](features, tensors, metadata)))
    if "torch_model" in page:
        import torch
        with torch.no_grad():
            outputs = page["torch_model"](tensors, metadata)(torch.from_numpy(features))
        compare("PyTorch, table", classes, probabilities, names, torch.softmax(outputs, 1).tolist())


def check_images(binaries, folder, page):
    import torch
    generator = random.Random(2)
    images, labels = bytearray(), bytearray()
    for i in range(300):
        label = i % 3
        labels.append(label)
        images += bytes(
            min(255, generator.randrange(120) + 100 * (channel == label % 2 and (column < 3) == (label < 2)))
            for _ in range(8) for column in range(6) for channel in range(2))
    (folder / "images").write_bytes(struct.pack(">BBBB4I", 0, 0, 8, 4, 300, 8, 6, 2) + images)
    (folder / "labels").write_bytes(struct.pack(">BBBBI", 0, 0, 8, 1, 300) + labels)
    train(binaries, folder, IMAGE_JOB)
    classes, probabilities = predict(binaries, folder, folder / "images")
    tensors, metadata = page["load"](folder / "run" / "model.safetensors")
    normalization = json.loads(metadata["normalization"])
    pixels = torch.frombuffer(images, dtype=torch.uint8).reshape(300, -1).float()
    with torch.no_grad():
        outputs = page["torch_model"](tensors, metadata)((pixels - normalization["mean"]) / normalization["stddev"])
    compare("PyTorch, images", classes, probabilities, ["0", "1", "2"], torch.softmax(outputs, 1).tolist())


def main():
    try:
        import numpy
        print("NumPy", numpy.__version__)
    except ImportError as error:
        print(f"SKIPPED: {error}")
        return 0
    binaries = dict(zip(("ballast", "server", "worker"), (os.path.abspath(path) for path in sys.argv[1:4])))
    blocks = re.findall(r"```python\n(.*?)```", pathlib.Path(sys.argv[4]).read_text(encoding="utf-8"), re.S)
    if len(blocks) != 2:
        print(f"FAILED: the page has {len(blocks)} blocks of Python, want 2")
        return 1
    base = pathlib.Path(os.environ["TEST_TMPDIR"])
    page = {}
    exec(blocks[0], page)
    try:
        exec(blocks[1], page)
    except ImportError as error:
        print(f"SKIPPED the part with PyTorch: {error}")
    try:
        for check in (check_table, check_images) if "torch_model" in page else (check_table,):
            folder = base / check.__name__
            folder.mkdir()
            check(binaries, folder, page)
    except Failure as failure:
        print(f"FAILED: {failure}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
