#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Trains scikit-learn and PyTorch on the flights of examples/flights.textproto, and prints AUC and log loss of both.

DIR has train.csv and test.csv, as examples/flights/convert.mjs writes them.

  scikit-learn  Logistic regression on the standardized numbers and one column for each id, hashed to 2^BITS columns:
                liblinear's coordinate descent on the dual (of scikit-learn's solvers the fastest here by far) with
                each C of --penalties. The best by log loss of the test data counts, which favors it.
  PyTorch       The model of the job file: EmbeddingBag(sparse=True) and dense layers under Adagrad, with the job's
                initial distributions, learning rates, batch size and epochs.

Seconds are those of the training, without reading. The last line of the output is one JSON object.

Needs scikit-learn (apt-get install python3-sklearn) and PyTorch (python3-torch), and ends with 3 if one is missing.
"""

import argparse
import json
import os
import sys
import time
import warnings

try:
    import numpy
    import scipy.sparse
    import sklearn
    import sklearn.exceptions
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import log_loss, roc_auc_score
    import text_columns
except ImportError as error:
    print(f"flights_peers: {error}: install it with: apt-get install python3-sklearn", file=sys.stderr)
    sys.exit(3)
try:
    import torch
except ImportError as error:
    print(f"flights_peers: {error}: install it with: apt-get install python3-torch", file=sys.stderr)
    sys.exit(3)

# Columns between the label and the first id.
NUMBERS = ["log_distance", "day_sine", "day_cosine", "year_sine", "year_cosine"]
# Equal to examples/flights.textproto.
DIM = 16
ROW_SPREAD = 0.05
HIDDEN = 64
# Rows whose ids are numbered field by field; see number_ids.
BLOCK = 100_000


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", metavar="DIR")
    parser.add_argument("--rows", type=int, default=0, help="every n-th row, so that about this many train; 0: all")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2, help="PyTorch's")
    parser.add_argument("--bits", type=int, default=22)
    parser.add_argument("--penalties", default="0.3,1,3", help="values of C; empty: no scikit-learn")
    parser.add_argument("--passes", type=int, default=20, help="passes of scikit-learn over the data")
    parser.add_argument("--epochs", type=int, default=1, help="PyTorch's; 0: no PyTorch")
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--rate", type=float, default=0.05, help="learning rate of the layers")
    parser.add_argument("--row-rate", type=float, default=0.1, help="learning rate of the rows")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    return parser.parse_args()


def log(text):
    print(text, flush=True)


def read_flights(path, every):
    """Fields, labels, numbers and, for each row and field, a hash of its id's text."""
    with open(path, "rb") as file:
        header = file.readline().decode("ascii").rstrip("\n").split(",")
        first_id = 1 + len(NUMBERS)
        if header[:first_id] != ["label"] + NUMBERS:
            sys.exit(f"flights_peers: {path}: got the columns {header[:first_id]}, want label, {NUMBERS}")
        labels, numbers, hashes = [], [], []
        for cells in text_columns.read_cells(file, ",", len(header), every):
            labels.append(cells.decimals(0).astype(numpy.float32))
            numbers.append(numpy.stack([cells.decimals(column) for column in range(1, first_id)], 1)
                           .astype(numpy.float32))
            hashes.append(numpy.stack([cells.hashes(column) for column in range(first_id, len(header))], 1))
    return header[first_id:], numpy.concatenate(labels), numpy.concatenate(numbers), numpy.concatenate(hashes)


def number_ids(parts):
    """The places of the ids of each part, and the number of ids in the first part and in all.

    Ids are numbered from 0 in the order of their first use, in blocks of BLOCK rows, field by field; equal texts in two
    fields are two ids.
    """
    rows = numpy.concatenate([numpy.arange(len(part)) for part in parts])
    block = rows // BLOCK + numpy.repeat([0, 1 << 40], [len(part) for part in parts])
    inverses, order, counts = [], [], []
    for field in range(parts[0].shape[1]):
        _, first, inverse = numpy.unique(numpy.concatenate([part[:, field] for part in parts]), return_index=True,
                                         return_inverse=True)
        inverses.append(inverse)
        order.append((rows[first], numpy.full(len(first), field), block[first]))
        counts.append(len(first))
    keys = [numpy.concatenate(columns) for columns in zip(*order)]
    numbers = numpy.empty(len(keys[0]), numpy.int32)
    numbers[numpy.lexsort(keys)] = numpy.arange(len(numbers))
    ends = numpy.cumsum(counts)
    places = numpy.stack([numbers[end - count:end][inverse]
                          for end, count, inverse in zip(ends, counts, inverses)], 1)
    return numpy.split(places, [len(parts[0])]), int((keys[2] < 1 << 40).sum()), len(numbers)


def scores_of(labels, logits):
    probabilities = 1 / (1 + numpy.exp(-logits.astype(numpy.float64)))
    return {"auc": roc_auc_score(labels, probabilities), "log_loss": log_loss(labels, probabilities)}


def hashed_matrix(numbers, places, bits):
    """One row for each flight: its numbers, then a 1 in the column of each id."""
    columns = (places.astype(numpy.uint64) + numpy.uint64(1)) * numpy.uint64(0x9E3779B97F4A7C15)
    columns = (columns >> numpy.uint64(64 - bits)).astype(numpy.int32)
    rows, fields = columns.shape
    ids = scipy.sparse.csr_matrix((numpy.ones(rows * fields, numpy.float32), columns.ravel(),
                                   numpy.arange(0, rows * fields + 1, fields)), (rows, 1 << bits))
    ids.sum_duplicates()
    return scipy.sparse.hstack([scipy.sparse.csr_matrix(numbers), ids], "csr")


def train_sklearn(args, train, test):
    """The best of the regressions."""
    # The passes are limited on purpose: later ones change the weights little.
    warnings.simplefilter("ignore", sklearn.exceptions.ConvergenceWarning)
    x, tested = hashed_matrix(*train[1:], args.bits), hashed_matrix(*test[1:], args.bits)
    runs = []
    for c in [float(word) for word in args.penalties.split(",")]:
        model = LogisticRegression(C=c, solver="liblinear", dual=True, max_iter=args.passes,
                                   random_state=args.seed)
        begin = time.monotonic()
        model.fit(x, train[0])
        run = {"c": c, "passes": int(model.n_iter_[0]), "seconds": time.monotonic() - begin,
               **scores_of(test[0], model.decision_function(tested))}
        log(f"scikit-learn, C {c:g}: AUC {run['auc']:.4f}, log loss {run['log_loss']:.4f}, {run['seconds']:.0f} s")
        runs.append(run)
    return {**min(runs, key=lambda run: run["log_loss"]), "best_of": runs}


class Network(torch.nn.Module):
    """The layers of examples/flights.textproto."""

    def __init__(self, rows, fields):
        super().__init__()
        self.bag = torch.nn.EmbeddingBag(rows, DIM, mode="sum", sparse=True)
        self.hidden = torch.nn.Linear(len(NUMBERS) + fields * DIM, HIDDEN)
        self.late = torch.nn.Linear(HIDDEN, 1)
        torch.nn.init.uniform_(self.bag.weight, -ROW_SPREAD, ROW_SPREAD)
        for layer in (self.hidden, self.late):
            torch.nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            torch.nn.init.zeros_(layer.bias)

    def dense_parameters(self):
        return [*self.hidden.parameters(), *self.late.parameters()]

    def forward(self, numbers, places):
        vectors = self.bag(places.reshape(-1, 1)).reshape(len(numbers), -1)
        return self.late(torch.relu(self.hidden(torch.cat([numbers, vectors], 1)))).squeeze(1)


def train_torch(args, train, test, rows):
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    labels, numbers, places = [torch.from_numpy(array) for array in train]
    model = Network(rows, places.shape[1])
    dense = torch.optim.Adagrad(model.dense_parameters(), lr=args.rate)
    sparse = torch.optim.Adagrad(model.bag.parameters(), lr=args.row_rate)
    criterion = torch.nn.BCEWithLogitsLoss()
    epochs, seconds = [], 0
    for _ in range(args.epochs):
        begin = time.monotonic()
        order = torch.randperm(len(labels))
        for first in range(0, len(labels), args.batch):
            batch = order[first:first + args.batch]
            loss = criterion(model(numbers[batch], places[batch]), labels[batch])
            dense.zero_grad()
            sparse.zero_grad()
            loss.backward()
            dense.step()
            sparse.step()
        seconds += time.monotonic() - begin
        with torch.no_grad():
            logits = torch.cat([model(torch.from_numpy(test[1][i:i + 8192]), torch.from_numpy(test[2][i:i + 8192]))
                                for i in range(0, len(test[0]), 8192)]).numpy()
        epochs.append({"seconds": seconds, **scores_of(test[0], logits)})
        log(f"PyTorch, epoch {len(epochs)}: AUC {epochs[-1]['auc']:.4f}, log loss {epochs[-1]['log_loss']:.4f}, "
            f"{seconds:.0f} s, {len(labels) * len(epochs) / seconds:.0f} samples/s")
    return {**epochs[-1], "samples_per_second": len(labels) * len(epochs) / seconds, "epochs": epochs}


def main():
    args = parse_arguments()
    paths = [os.path.join(args.directory, name) for name in ("train.csv", "test.csv")]
    for path in paths:
        if not os.path.exists(path):
            sys.exit(f"flights_peers: no file {path}; examples/flights/convert.mjs writes it")
    every = 1
    if args.rows > 0:
        with open(paths[0], "rb") as file:
            every = max(1, round(sum(1 for _ in file) / args.rows))
    begin = time.monotonic()
    fields, *train = read_flights(paths[0], every)
    _, *test = read_flights(paths[1], every)
    (train[2], test[2]), known, rows = number_ids([train[2], test[2]])
    mean, deviation = train[1].mean(0), train[1].std(0)
    for part in (train, test):
        part[1] = (part[1] - mean) / deviation
    log(f"{len(train[0])} flights to train, {len(test[0])} to test, {train[0].mean():.4f} late; {len(fields)} fields "
        f"with {known} ids; read in {time.monotonic() - begin:.0f} s")
    result = {"rows": len(train[0]), "test_rows": len(test[0]), "fields": fields, "ids": known,
              "load": os.getloadavg()[0]}
    if args.epochs:
        result["torch"] = {"version": torch.__version__, "threads": args.threads, "batch": args.batch,
                           "rate": args.rate, "row_rate": args.row_rate, **train_torch(args, train, test, rows)}
    if args.penalties:
        result["sklearn"] = {"version": sklearn.__version__, "bits": args.bits, **train_sklearn(args, train, test)}
    if args.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
