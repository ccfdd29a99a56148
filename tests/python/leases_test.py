#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Leases: each example of each epoch goes to one worker, also if workers die; and the example in NumPy.

Usage: leases_test.py SERVER LIBRARY NUMPY_EXAMPLE BALLAST
"""

import collections
import os
import re
import signal
import subprocess
import sys
import unittest

sys.path[:0] = ["python", "tests/python"]

try:
    import numpy as np
except ImportError as error:
    print(f"SKIPPED: {error}")
    sys.exit(0)

SERVER, os.environ["BALLAST_LIBRARY"] = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
EXAMPLE, BALLAST = sys.argv[3:5]

import ballast
from servers import Servers, output_of, run_python

# A worker that prints the examples of each batch, once its lease is done. "stops" stops it after 20 batches; "waits" lets
# it begin when it is told to.
WORKER = """
import sys
import numpy as np, ballast
policy, rank, mode = sys.argv[2], int(sys.argv[3]), sys.argv[4]
with ballast.connect(sys.argv[1], job="test", policy=policy, rank=rank, examples=1000, batch_size=10, epochs=2) as ps:
    w = np.zeros(3, np.float32)
    ps.declare({"w": w}, ballast.SGD(0.001))
    ps.pull({"w": w})
    batches = 0
    if mode == "waits":
        sys.stdin.readline()
    for batch in ps.leases():
        ps.push_pull({"w": np.ones(3, np.float32)}, into={"w": w}, examples=len(batch)).result()
        ps.log(loss=1.0)
        print(ps._batches.epoch, *batch, flush=True)
        batches += 1
        if mode == "stops" and batches == 20:
            print("stops", flush=True)
            sys.stdin.read()
print("end", w[0])
"""


def examples_of(output):
    """Returns how often each (epoch, example) was printed."""
    counts = collections.Counter()
    for line in output.splitlines():
        if line[:1].isdigit():
            epoch, *numbers = map(int, line.split())
            counts.update((epoch, number) for number in numbers)
    return counts


class LeasesTest(unittest.TestCase):
    def test_each_example_of_each_epoch_once(self):
        for policy in ("sync {}", "async {}"):
            with self.subTest(policy), Servers(SERVER, servers=2, workers=2) as servers:
                workers = [run_python(WORKER, servers.address, policy, str(rank), "") for rank in range(2)]
                outputs = [output_of(worker) for worker in workers]
                for status, output in outputs:
                    self.assertEqual(status, 0, output)
                counts = examples_of(outputs[0][1] + outputs[1][1])
                self.assertEqual(len(counts), 2000)
                self.assertEqual(set(counts.values()), {1})
                # Each worker pulled the weights after the last update of its own.
                if policy.startswith("sync"):
                    self.assertEqual(outputs[0][1].splitlines()[-1], outputs[1][1].splitlines()[-1])

    def test_epochs_have_different_orders_that_depend_on_the_seed(self):
        orders = []
        for seed in (1, 2, 1):
            with Servers(SERVER) as servers, ballast.connect(servers.address, job="test", examples=64, batch_size=64,
                                                             epochs=2, seed=seed) as ps:
                w = np.zeros(3, np.float32)
                ps.declare({"w": w}, ballast.SGD(0.001))
                ps.pull({"w": w})
                for batch in ps.leases():
                    self.assertEqual(sorted(batch), list(range(64)))
                    orders.append(batch.tolist())
                    ps.push_pull({"w": w}, into={"w": w}, examples=len(batch)).result(60)
        self.assertEqual(len(orders), 6)
        self.assertEqual(orders[:2], orders[4:])
        self.assertEqual(len({tuple(order) for order in orders}), 4)

    def test_examples_of_a_killed_worker_go_to_the_others(self):
        for policy in ("sync {}", "async {}"):
            with self.subTest(policy), Servers(SERVER, servers=2, workers=2) as servers:
                def start(rank, mode):
                    return subprocess.Popen([sys.executable, "-c", "import sys; sys.path[:0] = ['python']" + WORKER,
                                             servers.address, policy, rank, mode], stdin=subprocess.PIPE,
                                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

                # Alone, it could finish the job before the one that is to be killed has begun.
                other = start("0", "waits" if policy.startswith("async") else "")
                killed = start("1", "stops")
                self.assertIn("stops\n", iter(killed.stdout.readline, ""))
                os.kill(killed.pid, signal.SIGKILL)
                killed.communicate()
                other.stdin.write("\n")
                other.stdin.flush()
                # It returns in its place.
                again = run_python(WORKER, servers.address, policy, "1", "")
                (status, output), (status_again, output_again) = output_of(other), output_of(again)
                self.assertEqual((status, status_again), (0, 0), output + output_again)
                progress = subprocess.run([BALLAST, "status", servers.address], capture_output=True, text=True).stdout
                self.assertRegex(progress, "2,000 of 2,000|100")
                counts = examples_of(output + output_again)
                # Those of the leases that the killed worker completed are missing here, and no example was seen twice.
                self.assertEqual(set(counts.values()), {1})
                self.assertGreaterEqual(len(counts), 2000 - 200)

    def test_leases_end_with_a_break(self):
        with Servers(SERVER) as servers:
            with ballast.connect(servers.address, job="test", examples=100, batch_size=10, epochs=1) as ps:
                w = np.zeros(3, np.float32)
                ps.declare({"w": w}, ballast.SGD(0.001))
                for batch in ps.leases():
                    break

    def test_numpy_example_learns(self):
        with Servers(SERVER, servers=2, workers=2) as servers:
            environment = {"BALLAST_COORDINATOR": servers.address, "PYTHONPATH": "python", "OPENBLAS_NUM_THREADS": "1"}
            workers = [subprocess.Popen([sys.executable, EXAMPLE], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        text=True, env={**os.environ, **environment}) for _ in range(2)]
            for worker in workers:
                status, output = output_of(worker, 250)
                self.assertEqual(status, 0, output)
                found = re.fullmatch(r"worker [01] of 2: test accuracy (0\.\d+)\n", output)
                self.assertIsNotNone(found, output)
                self.assertGreater(float(found.group(1)), 0.82)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
