#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The classes of optimizers have the names, fields and defaults of tensor.proto.

Usage: optimizers_test.py SERVER LIBRARY PROTO...
"""

import inspect
import re
import sys
import unittest

sys.path[:0] = ["python"]

import ballast


def messages_of(proto):
    """Returns, for each optimizer's name in a job file, its fields and their defaults, or 0."""
    with open(proto, encoding="utf-8") as file:
        body = re.search(r"^message Optimizer \{\n(.*?)^\}", file.read(), re.S | re.M).group(1)
    fields = {}
    for name, text in re.findall(r"^  message (\w+) \{\n(.*?)^  \}", body, re.S | re.M):
        fields[name] = {}
        for field, limits in re.findall(r"float (\w+) = \d+ \[\(limits\) = \{(.*?)\}\];", text):
            default = re.search(r"unset: ([\d.e-]+)", limits)
            fields[name][field] = float(default[1]) if default else 0.0
    kinds = re.search(r"^  oneof kind \{\n(.*?)^  \}", body, re.S | re.M).group(1)
    return {kind: fields[message] for message, kind in re.findall(r"^    (\w+) (\w+) = ", kinds, re.M)}


class OptimizersTest(unittest.TestCase):
    def test_classes_are_those_of_the_proto(self):
        want = messages_of(next(path for path in sys.argv[3:] if path.endswith("/tensor.proto")))
        self.assertGreater(len(want), 10)
        got = {}
        for name, kind in vars(ballast).items():
            if not inspect.isclass(kind) or not issubclass(kind, ballast.Optimizer) or kind is ballast.Optimizer:
                continue
            optimizer = kind(0.25)
            self.assertEqual(optimizer.kind.replace("_", ""), name.lower())
            got[optimizer.kind] = {**optimizer.fields, "learning_rate": 0.0}
            # The proto leaves the momentum open; PyTorch's users write 0.9.
            if "momentum" in got[optimizer.kind]:
                got[optimizer.kind]["momentum"] = 0.0
        self.assertEqual(got, want)

    def test_text_is_that_of_a_job_file(self):
        adam = ballast.Adam(1e-3, weight_decay=0.1, clip_norm=2,
                            schedule=ballast.Schedule("cosine", total=10, warmup=2))
        self.assertEqual(adam.text(), "adam { learning_rate: 0.001 beta1: 0.9 beta2: 0.999 epsilon: 1e-08 } "
                         "weight_decay: 0.1 clip_norm: 2 schedule { cosine { total: 10 } warmup: 2 }")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
