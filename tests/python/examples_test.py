#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the examples for PyTorch with two workers on real servers.

Usage: examples_test.py SERVER LIBRARY
"""

import os
import re
import subprocess
import sys
import tempfile
import unittest

sys.path[:0] = ["tests/python"]

try:
    import torch
except ImportError as error:
    print(f"SKIPPED: {error}")
    sys.exit(0)

SERVER, os.environ["BALLAST_LIBRARY"] = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])

from servers import Servers, output_of

EXAMPLES = "examples/python"
DATA = "/usr/share/datasets/fashion-mnist"


class ExamplesTest(unittest.TestCase):
    def run_example(self, script, figure, *flags, folder=None):
        """Returns the figure that each of two workers has printed at the end."""
        figures = []
        with Servers(SERVER, servers=2, workers=2) as servers:
            environment = {**os.environ, "BALLAST_COORDINATOR": servers.address, "PYTHONPATH": "python"}
            if folder is not None:
                environment["BALLAST_RUN_DIR"] = folder
            workers = [subprocess.Popen([sys.executable, f"{EXAMPLES}/{script}", *flags], text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)
                       for _ in range(2)]
            for status, output in [output_of(worker) for worker in workers]:
                self.assertEqual(status, 0, output)
                figures.append(float(re.search(rf"test {figure} ([0-9.]+)", output)[1]))
        return figures

    @unittest.skipUnless(os.path.exists(DATA), "needs the package dataset-fashion-mnist")
    def test_fashion_mnist(self):
        with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as folder:
            figures = self.run_example("fashion_mnist_torch.py", "accuracy", "--epochs", "1", "--examples", "20000",
                                       folder=folder)
            self.assertGreater(min(figures), 0.75)
            self.assertEqual(set(torch.load(f"{folder}/model.pt")), {"0.weight", "0.bias", "2.weight", "2.bias"})

    def test_dlrm(self):
        figures = self.run_example("dlrm_torch.py", "AUC", "--epochs", "2", "--examples", "40000")
        self.assertGreater(min(figures), 0.75)

    def test_trainer(self):
        self.assertGreater(min(self.run_example("trainer.py", "accuracy", "--examples", "5000")), 0.9)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
