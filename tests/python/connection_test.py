#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""ballast.connect, tensors, futures and errors, on real servers.

Usage: connection_test.py SERVER LIBRARY
"""

import asyncio
import gc
import os
import sys
import threading
import unittest

sys.path[:0] = ["python", "tests/python"]

try:
    import numpy as np
except ImportError as error:
    print(f"SKIPPED: {error}")
    sys.exit(0)

SERVER, os.environ["BALLAST_LIBRARY"] = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])

import ballast
from servers import Servers, output_of, run_python


class ConnectionTest(unittest.TestCase):
    def setUp(self):
        self.servers = self.enterContext(Servers(SERVER, servers=2))

    def connect(self, **options):
        connection = ballast.connect(self.servers.address, job="test", **options)
        self.addCleanup(connection.close)
        return connection

    def test_trains_with_the_same_bits_as_numpy(self):
        ps = self.connect()
        rng = np.random.default_rng(1)
        # Several slices, on both servers, and a scalar.
        first = {"big": rng.standard_normal((1500, 1000)).astype(np.float32), "small": np.ones(3, np.float32),
                 "scalar": np.array(2.0, np.float32)}
        ps.declare(first, optimizer=ballast.SGD(0.1))
        values = {name: np.zeros_like(array) for name, array in first.items()}
        ps.pull(values)
        want = {name: array.copy() for name, array in first.items()}
        for name in first:
            np.testing.assert_array_equal(values[name], first[name])
        for step in range(3):
            gradients = {name: np.asarray(rng.standard_normal(array.shape), np.float32)
                         for name, array in first.items()}
            result = ps.push_pull(gradients, into=values, examples=5).result(60)
            self.assertEqual(result.dropped, 0)
            self.assertAlmostEqual(result.learning_rate, 0.1)
            for name in first:
                want[name] = want[name] - np.float32(0.1) * gradients[name]
                np.testing.assert_array_equal(values[name], want[name], err_msg=f"{name} after step {step}")
        self.assertEqual(ps.step, 3)

    def test_push_and_pull_apart_are_push_pull(self):
        ps = self.connect(policy="async {}")
        w = np.zeros(4, np.float32)
        ps.declare({"w": w}, optimizer="sgd { learning_rate: 1 }")
        self.assertEqual(ps.push({"w": np.ones(4, np.float32)}).result(60).applied, 1)
        ps.pull({"w": w})
        np.testing.assert_array_equal(w, -np.ones(4))

    def test_initializer_needs_only_shapes(self):
        ps = self.connect()
        ps.declare({"w": (2, 3)}, ballast.Momentum(0.1, 0.9), initializer="constant { value: 7 }")
        w = np.zeros((2, 3), np.float32)
        ps.pull({"w": w})
        np.testing.assert_array_equal(w, np.full((2, 3), 7))

    def test_first_values_are_kept(self):
        ps = self.connect()
        w = np.full(3, 2, np.float32)
        ps.declare({"w": w}, ballast.SGD(1))
        ps.push({"w": np.ones(3, np.float32)}).result(60)
        ps.declare({"w": np.full(3, 9, np.float32)}, ballast.SGD(1))
        ps.pull({"w": w})
        np.testing.assert_array_equal(w, np.ones(3))

    def test_future_can_be_awaited_and_has_callbacks(self):
        ps = self.connect()
        w = np.zeros(3, np.float32)
        ps.declare({"w": w}, ballast.SGD(1))
        called = threading.Event()

        async def step():
            future = ps.push_pull({"w": np.ones(3, np.float32)}, into={"w": w})
            future.add_done_callback(lambda _: called.set())
            return await future

        self.assertEqual(asyncio.run(step()).applied, 1)
        self.assertTrue(called.wait(60))
        np.testing.assert_array_equal(w, -np.ones(3))

    def test_dropped_future_leaks_nothing(self):
        ps = self.connect(policy="async {}")
        w = np.zeros(3, np.float32)
        ps.declare({"w": w}, ballast.SGD(1))
        for _ in range(200):
            ps.push({"w": np.ones(3, np.float32)})
        ps.wait(60)
        gc.collect()
        self.assertEqual(ps._completer.pending(), 0)
        self.assertEqual([o for o in gc.get_objects() if isinstance(o, ballast.Future)], [])
        ps.pull({"w": w})
        np.testing.assert_array_equal(w, np.full(3, -200))

    def test_dlpack_array_is_pushed_without_a_copy(self):
        class Other:
            """An array that has nothing but DLPack."""

            def __init__(self, array):
                self.array = array

            def __dlpack__(self, **options):
                return self.array.__dlpack__()

            def __dlpack_device__(self):
                return self.array.__dlpack_device__()

        ps = self.connect()
        ps.declare({"w": np.zeros(3, np.float32)}, ballast.SGD(1))
        ps.push({"w": Other(np.ones(3, np.float32))}).result(60)
        w = np.zeros(3, np.float32)
        ps.pull({"w": w})
        np.testing.assert_array_equal(w, -np.ones(3))

    def test_refuses_arrays_that_do_not_fit_and_says_why(self):
        ps = self.connect()
        ps.declare({"w": np.zeros((2, 3), np.float32)}, ballast.SGD(1))
        read_only = np.zeros((2, 3), np.float32)
        read_only.flags.writeable = False
        cases = [
            (lambda: ps.push({"w": np.zeros((2, 3))}), 'gradient of "w": got dtype float64, want float32'),
            (lambda: ps.push({"w": np.zeros((3, 2), np.float32)}),
             r'gradient of "w": got shape \(3, 2\), want \(2, 3\)'),
            (lambda: ps.push({"w": np.zeros((3, 2), np.float32).T}),
             'gradient of "w": got strides .* want a contiguous'),
            (lambda: ps.push({"w": [1, 2, 3]}), 'gradient of "w": got list, want an array of float32'),
            (lambda: ps.push({"v": np.zeros((2, 3), np.float32)}),
             r'tensor "v" was not declared, want one of \[\'w\'\]'),
            (lambda: ps.pull({"w": read_only}), 'memory for "w": got a read-only array, want a writable one'),
            (lambda: ps.push({"w": np.zeros((2, 3), np.float32)}, examples=-1), "examples: got -1, want an integer from 0 to 4294967295"),
            (lambda: ps.declare({"u": np.zeros(2, np.float32)}, "sgdd { }"), 'has no field "sgdd"; did you mean "sgd"'),
            (lambda: ps.declare({"u": np.zeros(2, np.float32)}, ballast.SGD(-1)), "learning_rate"),
            (lambda: ps.leases(), "got a connection without examples"),
        ]
        for call, message in cases:
            with self.subTest(message), self.assertRaisesRegex(ballast.InvalidArgument, message):
                call()
        # The connection is as good as before.
        ps.push({"w": np.ones((2, 3), np.float32)}).result(60)

    def test_non_finite_gradient_is_refused_by_the_servers(self):
        ps = self.connect()
        ps.declare({"w": np.zeros(3, np.float32)}, ballast.SGD(1))
        with self.assertRaisesRegex(ballast.InvalidArgument, '"w"') as caught:
            ps.push({"w": np.full(3, np.nan, np.float32)}).result(60)
        self.assertEqual(caught.exception.reason, "INVALID_REQUEST")

    def test_failure_of_a_dropped_future_is_raised_by_the_next_call(self):
        ps = self.connect()
        ps.declare({"w": np.zeros(3, np.float32)}, ballast.SGD(1))
        ps.push({"w": np.full(3, np.inf, np.float32)})
        with self.assertRaisesRegex(ballast.InvalidArgument, "infinity"):
            # It waits for what the push did not bring.
            ps.pull({"w": np.zeros(3, np.float32)}, timeout=30)

    def test_another_declaration_is_refused(self):
        ps = self.connect()
        ps.declare({"w": np.zeros(3, np.float32)}, ballast.SGD(1))
        with self.assertRaises(ballast.TensorDiffers) as caught:
            ps.declare({"w": np.zeros(4, np.float32)}, ballast.SGD(1))
        self.assertEqual((caught.exception.code, caught.exception.reason), (9, "TENSOR_DIFFERS"))

    def test_wait_that_takes_too_long_names_the_operation(self):
        with Servers(SERVER, workers=1) as servers:
            ps = ballast.connect(servers.address, job="test")
            ps.declare({"w": (3,)}, ballast.SGD(1), initializer="provided {}")
            future = ps.pull_async({"w": np.zeros(3, np.float32)})
            with self.assertRaisesRegex(ballast.Timeout,
                                        'timed out after 0.01 s waiting for the pull of "w" at step 0'):
                future.result(0.01)
            ps.close()
            # The arrays belong to the caller again.
            self.assertIsInstance(future.exception(0), ballast.Cancelled)

    def test_closed_connection_refuses_calls(self):
        ps = self.connect()
        ps.close()
        ps.close()
        with self.assertRaisesRegex(ballast.Cancelled, "the connection is closed"):
            ps.pull({})

    def test_lost_server_ends_calls_with_an_error_that_names_it(self):
        ps = self.connect()
        w = np.zeros(3, np.float32)
        ps.declare({"w": w, "v": w}, ballast.SGD(1))
        self.servers.kill(1)
        with self.assertRaises((ballast.JobFailed, ballast.Unavailable, ballast.Timeout)) as caught:
            for _ in range(1000):
                ps.push_pull({"w": w, "v": w}, into={"w": w.copy(), "v": w.copy()}).result(60)
        self.assertRegex(str(caught.exception), "server 1|shard 1")

    def test_missing_worker_is_named(self):
        with Servers(SERVER, workers=2) as servers, self.assertRaisesRegex(
                ballast.Timeout, 'job "test" has not gathered within 1s: got 1 servers and 1 workers, want 1 and 2'):
            ballast.connect(servers.address, job="test", gather_timeout=1)

    def test_no_server_is_unavailable(self):
        self.servers.kill(0)
        with self.assertRaisesRegex((ballast.Unavailable, ballast.Timeout), self.servers.address):
            ballast.connect(self.servers.address, job="test", gather_timeout=1)

    def test_exception_in_the_block_fails_the_job(self):
        with self.assertRaises(ZeroDivisionError), ballast.connect(self.servers.address, job="test") as ps:
            ps.declare({"w": np.zeros(3, np.float32)}, ballast.SGD(1))
            1 / 0
        with self.assertRaisesRegex(ballast.Error, "ZeroDivisionError: division by zero"):
            ballast.connect(self.servers.address, job="test")

    def test_forked_process_is_refused_and_ends(self):
        ps = self.connect()
        w = np.zeros(3, np.float32)
        ps.declare({"w": w}, ballast.SGD(1))
        child = os.fork()
        if child == 0:
            try:
                ps.pull({"w": w})
            except ballast.Forked as error:
                os._exit(0 if f"opened by process {os.getppid()}" in str(error) else 2)
            os._exit(3)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        ps.pull({"w": w})

    def test_interpreter_ends_with_operations_in_flight(self):
        script = """
import os, sys
import numpy as np, ballast
ps = ballast.connect(sys.argv[1], job="test")
ps.declare({"w": (3,)}, ballast.SGD(1), initializer="provided {}")
ps.pull_async({"w": np.zeros(3, np.float32)})
print("end")
"""
        status, output = output_of(run_python(script, self.servers.address))
        self.assertEqual((status, output), (0, "end\n"))

    def test_unhandled_exception_fails_the_job(self):
        script = """
import sys, ballast
ps = ballast.connect(sys.argv[1], job="test")
raise RuntimeError("no data here")
"""
        status, output = output_of(run_python(script, self.servers.address))
        self.assertEqual(status, 1)
        self.assertIn("no data here", output)
        with self.assertRaisesRegex(ballast.Error, "RuntimeError: no data here"):
            ballast.connect(self.servers.address, job="test")

    def test_interpreter_lock_is_free_during_calls(self):
        ps = self.connect()
        w = np.zeros(1 << 26, np.float32)
        ps.declare({"w": (w.size,)}, ballast.SGD(1), initializer="zeros {}")
        pulled = threading.Event()

        def pull():
            ps.pull({"w": w})
            pulled.set()

        thread = threading.Thread(target=pull)
        thread.start()
        spins = 0
        while not pulled.is_set():
            spins += 1
        thread.join()
        # Without the lock, this thread would run once or twice.
        self.assertGreater(spins, 10000)

    def test_sets_of_workers_train_the_joint_batch(self):
        script = """
import sys
import numpy as np, ballast
with ballast.connect(sys.argv[1], job="test", rank=int(sys.argv[2])) as ps:
    w = np.full(2, ps.rank, np.float32)
    ps.declare({"w": w}, ballast.SGD(0.5))
    ps.pull({"w": w})
    for step in range(4):
        ps.push_pull({"w": np.full(2, 1 + ps.rank, np.float32)}, into={"w": w}, examples=1 + ps.rank).result(60)
    print(ps.workers, *w.round(4))
"""
        with Servers(SERVER, servers=2, workers=2) as servers:
            workers = [run_python(script, servers.address, str(rank)) for rank in range(2)]
            for worker in workers:
                # Means over 1 example of 1 and 2 examples of 2, from worker 0's zeros.
                self.assertEqual(output_of(worker), (0, "2 -3.3333 -3.3333\n"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
