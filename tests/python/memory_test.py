#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Steps of a Python worker leave no memory behind: of tensors, of rows, with dropped futures and under asyncio.

Usage: memory_test.py SERVER LIBRARY [STEPS]; prints a line of JSON for each kind of step.
"""

import asyncio
import gc
import json
import os
import sys
import time
import unittest
import weakref

sys.path[:0] = ["python", "tests/python"]

try:
    import numpy as np
except ImportError as error:
    print(f"SKIPPED: {error}")
    sys.exit(0)

SERVER, os.environ["BALLAST_LIBRARY"] = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
STEPS = int(sys.argv[3]) if len(sys.argv) > 3 else 4000
WARM_UP = 1000

import ballast
from servers import Servers


def resident_kib():
    with open("/proc/self/statm", encoding="utf-8") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


class MemoryTest(unittest.TestCase):
    def setUp(self):
        servers = self.enterContext(Servers(SERVER))
        self.ps = self.enterContext(ballast.connect(servers.address, job="test", policy="async {}"))
        self.ps.declare({"w": np.zeros(100, np.float32)}, ballast.SGD(1e-6))
        self.gradient, self.w = np.ones(100, np.float32), np.zeros(100, np.float32)

    def check(self, kind, step):
        """Makes steps, and compares resident memory after the first ones with that at the end."""
        for i in range(WARM_UP):
            step(i)
        self.ps.wait(60)
        gc.collect()
        before, began = resident_kib(), time.monotonic()
        for i in range(STEPS):
            step(i)
        self.ps.wait(60)
        gc.collect()
        grown = resident_kib() - before
        print(json.dumps({"kind": kind, "steps": STEPS, "kib_before": before, "kib_grown": grown,
                          "steps_per_second": round(STEPS / (time.monotonic() - began))}), flush=True)
        self.assertLess(grown, 2048)
        self.assertEqual(self.ps._completer.pending(), 0)
        self.assertEqual([o for o in gc.get_objects() if isinstance(o, ballast.Future)], [])

    def test_tensors(self):
        self.check("push_pull", lambda _: self.ps.push_pull({"w": self.gradient}, into={"w": self.w}).result(60))

    def test_dropped_futures(self):
        def step(i):
            self.ps.push({"w": self.gradient})
            if i % 50 == 0:
                self.ps.wait(60)

        self.check("push, dropped", step)

    def test_rows(self):
        table = self.ps.table("users", 8, ballast.Adagrad(0.01))
        ids, gradients = np.arange(20), np.ones((20, 8), np.float32)
        into = np.zeros((20, 8), np.float32)

        def step(_):
            table.pull(ids, into)
            table.push(ids, gradients).result(60)

        self.check("rows", step)

    def test_failures(self):
        bad = np.full(100, np.nan, np.float32)

        def step(_):
            with self.assertRaises(ballast.InvalidArgument):
                self.ps.push({"w": bad}).result(60)
            with self.assertRaises(ballast.InvalidArgument):
                self.ps.push({"v": bad})

        self.check("failures", step)

    def test_asyncio(self):
        loop = asyncio.new_event_loop()
        self.addCleanup(loop.close)

        async def one():
            return await self.ps.push_pull({"w": self.gradient}, into={"w": self.w})

        self.check("asyncio", lambda _: loop.run_until_complete(one()))

    def test_memory_owners_are_released(self):
        array = np.ones(100, np.float32)
        owner = weakref.ref(array)
        future = self.ps.push({"w": array})
        del array
        self.assertEqual(future.result(60).dropped, 0)
        self.assertIsNone(owner())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
