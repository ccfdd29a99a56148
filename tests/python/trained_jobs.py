# SPDX-License-Identifier: Apache-2.0
"""Small jobs, which together have all kinds of layers, data and losses, and their predictions by `ballast predict`.

Each class has the text of its job. write(folder) makes the training data and returns the file to predict from; then
data(model) returns the arguments for that file and Model.predict().
"""

import csv
import json
import random
import struct
import subprocess

import numpy as np

END = """
training { epochs: 3 batch_size: 16 }
optimizer { adam { learning_rate: 0.01 } }
"""
# Lengths of texts for which XXH3 has its own ways.
LENGTHS = (1, 3, 5, 8, 9, 16, 17, 60, 128, 129, 200, 240, 241, 300, 1030)


def run(ballast, *arguments):
    """Runs a command of the program `ballast`; returns its output."""
    done = subprocess.run([ballast, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=120, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"ballast {' '.join(map(str, arguments))}: {done.stderr}")
    return done.stdout


class Images:
    """Images in IDX, with all layers of images. Windows have two sizes and more padding than half of the kernel."""

    job = """
data { train { idx { images: "images" labels: "labels" } } normalization { mean: 100 stddev: 60 } }
model {
  input { height: 9 width: 8 }
  layers { conv2d { filters: 4 kernel: 3 padding: 1 } } layers { batch_norm { epsilon: 0.01 } }
  layers { max_pool { kernel: [3, 2] stride: [2, 1] padding: [2, 1] } }
  layers { residual {
    layers { conv2d { filters: 6 kernel: [3, 1] stride: [2, 1] padding: [1, 0] no_bias: true } } layers { gelu {} } } }
  layers { residual { layers { layer_norm {} } layers { residual { layers { tanh {} } } } } }
  layers { residual { layers { conv2d { filters: 5 kernel: 2 } } layers { batch_norm {} }
    shortcut { conv2d { filters: 5 kernel: 2 no_bias: true } } } }
  layers { average_pool { kernel: [3, 2] stride: [1, 2] padding: [2, 1] } } layers { max_pool { kernel: [2, 1] } }
  layers { gelu {} } layers { average_pool {} } layers { dropout { rate: 0.2 } }
  layers { dense { units: 8 no_bias: true } } layers { relu {} } layers { layer_norm { epsilon: 0.1 } }
  layers { dense { units: 3 } }
  loss { softmax_cross_entropy {} } }"""

    def write(self, folder):
        labels = np.array([i % 3 for i in range(90)], np.uint8)
        images = np.random.default_rng(1).integers(0, 120, (90, 9, 8)) + 60 * labels[:, None, None]
        self.images = images.astype(np.uint8)
        (folder / "images").write_bytes(struct.pack(">4B3I", 0, 0, 8, 3, 90, 9, 8) + self.images.tobytes())
        (folder / "labels").write_bytes(struct.pack(">4BI", 0, 0, 8, 1, 90) + labels.tobytes())
        return folder / "images"

    def data(self, model):
        return (self.images.reshape(90, -1),), {}


class Columns:
    """A table with columns of all kinds, and two tables of embeddings."""

    job = """
data { train { csv { path: "train.csv" header: true label: "kind" text_labels: true categories: "color" ignore: "note"
    missing: INDICATOR hashed: ["tags", "user"] looked_up: "country" id_separator: ";" } }
  normalization { per_column: true } }
model {
  tables { name: "a/b" dim: 3 initializer { normal { mean: 0.5 stddev: 1 } } }
  tables { name: "rare" dim: 2 initializer { uniform { low: -2 high: 1 } } }
  layers { dense { units: 3 } }
  layers { embedding { table: "a/b" fields: ["user", "tags"] pooling: AVERAGE } }
  layers { dot_interaction { dim: 3 } }
  layers { embedding { table: "rare" fields: "country" } }
  layers { dense { units: 6 } } layers { tanh {} } layers { dense { units: 3 } }
  loss { softmax_cross_entropy {} } }"""
    kinds = ["oak", 'the "big" one', "ash, or elm"]

    def write(self, folder):
        draw = random.Random(1)
        for name, rows, users in (("train", 120, len(LENGTHS)), ("new", 60, len(LENGTHS) + 6)):
            with open(folder / f"{name}.csv", "w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerow(["age", "color", "note", "user", "kind", "tags", "country", "size"])
                for i in range(rows):
                    user = i % users
                    text = ("é" if user == 7 else chr(97 + user)) * LENGTHS[user % len(LENGTHS)]
                    tags = ";".join(draw.choice(["x", "yy ", " zzz", "NA", "", "long " * 20]) for _ in range(i % 4))
                    country = draw.choice(["de", "fr;de", "xx" if name == "new" else "it", ""])
                    age, color = draw.choice(["?", "7.5", f"{2000 + i % 9}"]), draw.choice(["red", "blue", "NA", "ä"])
                    writer.writerow([age, color, f"n{i}", text, self.kinds[i % 3], tags, country, i % 3 + i / 100])
        self.file = folder / "new.csv"
        return self.file

    def data(self, model):
        with open(self.file, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        return ({name: [row[name] for row in rows] for name in rows[0]},), {}


class Clicks:
    """Criteo's format: logarithms of numbers, and hexadecimal ids. Rows that do not exist have their initial values."""

    job = """
data { train { criteo { path: "clicks" } } normalization { mean: 1 stddev: 2 } }
model {
  tables { name: "ids" dim: 4 initializer { normal { stddev: 1 } } admission { min_uses: 2 } }
  tables { name: "one" dim: 1 initializer { uniform { low: -1 high: 3 } } }
  layers { embedding { table: "one" fields: ["C2", "C26"] } }
  layers { dense { units: 4 } } layers { embedding { table: "ids" } } layers { dense { units: 1 } }
  loss { sigmoid_cross_entropy {} } }"""

    def write(self, folder):
        draw = random.Random(2)
        for name, values in (("clicks", 30), ("new", 60)):
            self.rows = [[str(i % 2)] + [draw.choice(["", "0", "-3", "17", f"{10**i % 1009}"]) for _ in range(13)] +
                         [draw.choice(["", f"{draw.randrange(values) << 50:x}"]) for _ in range(26)]
                         for i in range(100)]
            (folder / name).write_text("".join("\t".join(row) + "\n" for row in self.rows), encoding="ascii")
        return folder / "new"

    def data(self, model):
        x = np.array([[float(text or "nan") for text in row[1:14]] for row in self.rows])
        ids = {f"C{f + 1}": [[] if text == "" else [model.row_id(f"C{f + 1}", text)] for text in
                             [row[14 + f] for row in self.rows]] for f in range(26)}
        ids = {name: [np.array(each, np.uint64) for each in lists] for name, lists in ids.items()}
        return (x, ids), {}


class Fields:
    """libffm: ids without any features."""

    job = """
data { train { libffm { path: "fields" fields: 3 } } }
model { tables { name: "t" dim: 2 initializer { constant { value: 0.5 } } }
  layers { embedding { table: "t" } } layers { dense { units: 2 } } loss { softmax_cross_entropy {} } }"""

    def write(self, folder):
        draw = random.Random(3)
        for name, values in (("fields", 5), ("new", 8)):
            self.ids = [[draw.randrange(values) for _ in range(3)] for _ in range(60)]
            lines = [" ".join([str(sum(ids) % 2)] + [f"{f}:{i}:1" for f, i in enumerate(ids)]) for ids in self.ids]
            (folder / name).write_text("\n".join(lines), encoding="ascii")
        return folder / "new"

    def data(self, model):
        ids = {str(f): [model.row_id(str(f), row[f]) for row in self.ids] for f in range(3)}
        return (), {"ids": {name: np.array(each, np.uint64).view(np.int64) for name, each in ids.items()}}


class Numbers:
    """A regression on LIBSVM."""

    job = """
data { train { libsvm { path: "numbers" features: 4 } } normalization { mean: 0.5 stddev: 3 } }
model { layers { dense { units: 5 inputs: 4 } } layers { relu {} } layers { dense { units: 1 } }
  loss { mean_squared_error {} } }"""

    def write(self, folder):
        self.x = np.random.default_rng(2).normal(size=(300, 4)).astype(np.float32)
        lines = [" ".join([str(sum(x))] + [f"{i}:{value!r}" for i, value in enumerate(x, 1)]) for x in self.x.tolist()]
        (folder / "numbers").write_text("\n".join(lines), encoding="ascii")
        return folder / "numbers"

    def data(self, model):
        return (self.x,), {}


def train(program, case, folder):
    """Trains a case's job with the program `ballast`; adds the run directory and its predictions to the case."""
    folder.mkdir()
    file = case.write(folder)
    name = type(case).__name__.lower()
    (folder / "job.textproto").write_text(f'name: "{name}"\nseed: 7\n{case.job}{END}', encoding="utf-8")
    case.run = folder / "run"
    run(program, "launch", folder / "job.textproto", "--run-dir", case.run, "--threads", 1, "--device", "cpu",
        "--insecure", "--json")
    lines = run(program, "predict", case.run, "--data", file, "--device", "cpu", "--threads", 1, "--json")
    case.want = [json.loads(line) for line in lines.splitlines()]
