#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The PyTorch peer of bench/clicks.py: trains one epoch of a DLRM on clicks in Criteo's format, in one process.

DIR has train.tsv and, unless --no-test is given, test.tsv. The model is that of bench/clicks.py: one
EmbeddingBag(sparse=True) for all fields and dense layers, all under Adagrad, with equal learning rates, batch size and
initial distributions. The data is in memory, and a batch is selected by index: no DataLoader. Only the epoch is timed.
The last line of the output is one JSON object.
"""

import argparse
import json
import os
import sys
import time

try:
    import numpy
    import text_columns
    import torch
except ImportError as error:
    print(f"clicks_peer: {error}: install it with: apt-get install python3-torch", file=sys.stderr)
    sys.exit(3)

# Equal to the job of bench/clicks.py.
DIM = 16
NUMBERS = 13
FIELDS = 26
HIDDEN = 64
ROW_SPREAD = 0.05


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", metavar="DIR")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--rate", type=float, default=0.02, help="learning rate of the layers")
    parser.add_argument("--row-rate", type=float, default=0.05, help="learning rate of the rows")
    parser.add_argument("--no-test", action="store_true", help="only measure the speed")
    return parser.parse_args()


def read_clicks(path):
    """Labels, numbers (transformed as by the reader of Criteo's format) and categories, -1 if missing."""
    labels, numbers, categories = [], [], []
    with open(path, "rb") as file:
        for cells in text_columns.read_cells(file, "\t", 1 + NUMBERS + FIELDS):
            labels.append(cells.decimals(0).astype(numpy.float32))
            values = numpy.stack([cells.decimals(column) for column in range(1, 1 + NUMBERS)], 1)
            numbers.append((numpy.sign(values) * numpy.log1p(numpy.abs(values))).astype(numpy.float32))
            categories.append(numpy.stack([cells.hexadecimals(1 + NUMBERS + field) for field in range(FIELDS)], 1))
    return numpy.concatenate(labels), numpy.concatenate(numbers), numpy.concatenate(categories)


def number_ids(parts):
    """The ids of all parts, numbered from 1 over all fields, 0 for missing ones; and the number of rows with row 0."""
    rows = 1
    places = [numpy.zeros(part.shape, numpy.int64) for part in parts]
    for field in range(FIELDS):
        known = numpy.unique(numpy.concatenate([part[:, field] for part in parts]))
        known = known[known >= 0]
        for part, to in zip(parts, places):
            to[:, field] = numpy.where(part[:, field] < 0, 0, numpy.searchsorted(known, part[:, field]) + rows)
        rows += len(known)
    return places, rows


def area_under_curve(labels, scores):
    """Area under the ROC curve, where equal scores count half (Mann-Whitney)."""
    _, place, count = numpy.unique(scores, return_inverse=True, return_counts=True)
    ranks = (numpy.cumsum(count) - (count - 1) / 2)[place]
    positive = float(numpy.sum(labels == 1))
    return float((ranks[labels == 1].sum() - positive * (positive + 1) / 2) / (positive * (len(labels) - positive)))


class Network(torch.nn.Module):
    def __init__(self, rows):
        super().__init__()
        # Row 0 stays 0: missing values. Ids that only the test data have keep their initial values.
        self.bag = torch.nn.EmbeddingBag(rows, DIM, mode="sum", sparse=True, padding_idx=0)
        torch.nn.init.uniform_(self.bag.weight, -ROW_SPREAD, ROW_SPREAD)
        with torch.no_grad():
            self.bag.weight[0] = 0
        self.bottom = self._layers(NUMBERS, HIDDEN, DIM)
        self.top = self._layers(DIM + (FIELDS + 1) * FIELDS // 2, HIDDEN, 1)[:-1]
        self.lower = torch.tril_indices(FIELDS + 1, FIELDS + 1, -1)

    @staticmethod
    def _layers(*sizes):
        made = []
        for inputs, outputs in zip(sizes, sizes[1:]):
            made += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
            torch.nn.init.kaiming_normal_(made[-2].weight, nonlinearity="relu")
            torch.nn.init.zeros_(made[-2].bias)
        return torch.nn.Sequential(*made)

    def forward(self, numbers, places):
        first = self.bottom(numbers)
        vectors = self.bag(places.reshape(-1, 1)).reshape(len(numbers), FIELDS, DIM)
        vectors = torch.cat([first.unsqueeze(1), vectors], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.lower[0], self.lower[1]]
        return self.top(torch.cat([first, products], 1)).squeeze(1)


def train(args, model, labels, numbers, places):
    """Trains one epoch and returns its seconds."""
    dense = torch.optim.Adagrad([*model.bottom.parameters(), *model.top.parameters()], lr=args.rate)
    sparse = torch.optim.Adagrad(model.bag.parameters(), lr=args.row_rate)
    criterion = torch.nn.BCEWithLogitsLoss()
    order = torch.randperm(len(labels))
    begin = time.monotonic()
    for first in range(0, len(labels), args.batch):
        batch = order[first:first + args.batch]
        loss = criterion(model(numbers[batch], places[batch]), labels[batch])
        dense.zero_grad()
        sparse.zero_grad()
        loss.backward()
        dense.step()
        sparse.step()
    return time.monotonic() - begin


def main():
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    labels, numbers, ids = read_clicks(os.path.join(args.directory, "train.tsv"))
    parts = [ids]
    if not args.no_test:
        test_labels, test_numbers, test_ids = read_clicks(os.path.join(args.directory, "test.tsv"))
        parts.append(test_ids)
    places, rows = number_ids(parts)
    model = Network(rows)
    seconds = train(args, model, *map(torch.from_numpy, (labels, numbers, places[0])))
    result = {"samples_per_second": len(labels) / seconds, "rows": rows - 1, "threads": args.threads,
              "version": torch.__version__}
    if not args.no_test:
        with torch.no_grad():
            x, bags = torch.from_numpy(test_numbers), torch.from_numpy(places[1])
            scores = torch.cat([model(x[i:i + 4096], bags[i:i + 4096]) for i in range(0, len(x), 4096)])
        scores = scores.double().numpy()
        result["auc"] = area_under_curve(test_labels, scores)
        result["log_loss"] = float(numpy.mean(numpy.logaddexp(0, scores) - test_labels * scores))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
