#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Connections end well: at exit, by signals, in forked processes, under asyncio, in callbacks and beside other libraries.

Usage: lifetime_test.py SERVER LIBRARY
"""

import asyncio
import ctypes
import gc
import itertools
import os
import signal
import sys
import threading
import unittest
import weakref

sys.path[:0] = ["python", "tests/python"]

try:
    import numpy as np
except ImportError as error:
    print(f"SKIPPED: {error}")
    sys.exit(0)

SERVER, os.environ["BALLAST_LIBRARY"] = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])

import ballast
from ballast import _arrays, _library
from servers import Servers, output_of, run_python

# Connects to a job of one worker; `pending` begins an operation that does not end: nobody sets the tensor's values.
BEGIN = """
import gc, os, signal, sys, threading, time
import numpy as np, ballast
def connect(**options):
    ps = ballast.connect(sys.argv[1], job="test", **options)
    ps.declare({"w": np.zeros(3, np.float32)}, ballast.SGD(1))
    ps.declare({"never": (3,)}, ballast.SGD(1), initializer="provided {}")
    return ps
def pending(ps):
    return ps.pull_async({"never": np.zeros(3, np.float32)})
def works(ps):
    w = np.zeros(3, np.float32)
    ps.push_pull({"w": np.ones(3, np.float32)}, into={"w": w}).result(30)
    return w[0]
"""


class LifetimeTest(unittest.TestCase):
    def setUp(self):
        self.servers = self.enterContext(Servers(SERVER))

    def connect(self, **options):
        connection = ballast.connect(self.servers.address, job="test", **options)
        self.addCleanup(connection.close)
        connection.declare({"w": np.zeros(3, np.float32)}, ballast.SGD(1))
        return connection

    def run_script(self, script):
        return output_of(run_python(BEGIN + script, self.servers.address), 30)

    def test_process_ends_by_itself(self):
        scripts = {
            "operations in flight": ("ps = connect(); pending(ps); print('end')", 0, "end\n"),
            "in another thread": (
                "t = threading.Thread(target=lambda: pending(connect())); t.start(); t.join(); print('end')", 0, "end\n"),
            "a daemon thread waits": (
                "ps = connect(); f = pending(ps)\n"
                "threading.Thread(target=f.exception, daemon=True).start(); print('end')", 0, "end\n"),
            "a reference cycle": ("ps = connect(); ps.itself = ps; pending(ps); del ps; print('end')", 0, "end\n"),
            "a dropped connection": ("ps = connect(); del ps; gc.collect(); print('end')", 0, "end\n"),
            "sys.exit in the block": ("with connect() as ps:\n    pending(ps)\n    sys.exit(3)", 3, ""),
            "os._exit": ("ps = connect(); pending(ps); os._exit(4)", 4, ""),
            "never used": ("ballast.library(); print('end')", 0, "end\n"),
        }
        for name, (script, want_status, want_output) in scripts.items():
            with self.subTest(name), Servers(SERVER) as self.servers:
                self.assertEqual(self.run_script(script), (want_status, want_output))

    def test_exception_in_a_thread_leaves_the_connection_working(self):
        status, output = self.run_script("""
ps = connect()
def fail():
    pending(ps)
    raise RuntimeError("in a thread")
thread = threading.Thread(target=fail)
thread.start(); thread.join()
print("works", works(ps))
""")
        self.assertEqual(status, 0, output)
        self.assertTrue(output.endswith("works -1.0\n"), output)

    def test_interrupt_ends_waits_and_leaves_the_job(self):
        scripts = {
            "pull": "ps.pull({'never': np.zeros(3, np.float32)})",
            "result": "pending(ps).result()",
            "wait": "pending(ps); ps.wait()",
        }
        for name, script in scripts.items():
            with self.subTest(name), Servers(SERVER) as servers:
                process = run_python(BEGIN + f"""
with connect() as ps:
    print("begins", flush=True)
    {script}
""", servers.address)
                self.assertEqual(process.stdout.readline(), "begins\n")
                process.send_signal(signal.SIGINT)
                status, output = output_of(process, 30)
                self.assertEqual(status, -signal.SIGINT, output)
                self.assertTrue(output.endswith("KeyboardInterrupt\n"), output)
                # The worker has left, and the job has not failed.
                with self.assertRaises(ballast.JobEnded):
                    ballast.connect(servers.address, job="test")

    def test_interrupt_ends_connect(self):
        with Servers(SERVER, workers=2) as servers:
            process = run_python("""
import sys, threading, time
import ballast
def report():
    print("begins", flush=True)
threading.Timer(0.5, report).start()
ballast.connect(sys.argv[1], job="test")
""", servers.address)
            self.assertEqual(process.stdout.readline(), "begins\n")
            process.send_signal(signal.SIGINT)
            status, output = output_of(process, 30)
            self.assertEqual(status, -signal.SIGINT, output)

    def test_signals_during_pushes_lose_no_operation(self):
        ps = self.connect(policy="async {}")
        tensor = ps._tensors["w"]
        gradient = [_arrays.memory("gradient", np.ones(3, np.float32))]
        step = ctypes.byref(_library.Step(0, 1, -1.0))
        armed = False

        class Interrupt(BaseException):
            pass

        def interrupt(*_):
            if armed:
                raise Interrupt

        self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, interrupt))
        self.addCleanup(signal.setitimer, signal.ITIMER_REAL, 0)
        for i in range(500):
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, 0.0003 + 0.000001 * i)
                while True:
                    ps._begin("push", ps._lib.ballast_push, (step, ps._array([tensor], gradient), 1), gradient)
            except Interrupt:
                armed = False
        try:
            ps.wait(30)
        except ballast.Error:
            # The servers refuse a second push in a step.
            pass
        self.assertTrue(ps._completer._thread.is_alive())

    def test_callbacks_call_the_connection(self):
        ps = self.connect()
        w = np.zeros(3, np.float32)
        got = []
        done = threading.Event()

        def again(_):
            # In the thread that completes futures.
            ps.pull({"w": w}, timeout=30)
            got.append(w[0])
            got.append(ps.push_pull({"w": np.ones(3, np.float32)}, into={"w": w}).result(30).applied)
            done.set()

        ps.push({"w": np.ones(3, np.float32)}).add_done_callback(again)
        self.assertTrue(done.wait(30))
        self.assertEqual(got, [-1, 1])

    def test_callback_that_exits_does_not_end_the_completing(self):
        status, output = self.run_script("""
ps = connect()
ps.push({"w": np.ones(3, np.float32)}).add_done_callback(lambda _: sys.exit(5))
ps.wait(30)
print("works", works(ps))
""")
        self.assertEqual(status, 0, output)
        self.assertIn("works -2.0\n", output)

    def test_close_in_a_callback(self):
        ps = self.connect()
        closed = threading.Event()

        def close(_):
            ps.close()
            closed.set()

        ps.push({"w": np.ones(3, np.float32)}).add_done_callback(close)
        self.assertTrue(closed.wait(30))
        with self.assertRaises(ballast.Cancelled):
            ps.push({"w": np.ones(3, np.float32)})

    def test_close_while_other_threads_call_and_wait(self):
        for _ in range(10):
            with Servers(SERVER) as servers:
                ps = ballast.connect(servers.address, job="test", policy="async {}")
                ps.declare({"w": np.zeros(3, np.float32)}, ballast.SGD(1))
                ps.declare({"never": (3,)}, ballast.SGD(1), initializer="provided {}")
                began = threading.Barrier(5)
                outcomes = []

                def use():
                    began.wait(30)
                    try:
                        while True:
                            ps.push({"w": np.ones(3, np.float32)}).result(30)
                    except BaseException as error:
                        outcomes.append(error)

                def close():
                    began.wait(30)
                    ps.close()

                threads = [threading.Thread(target=target) for target in (use, use, use, close, close)]
                waiting = ps.pull_async({"never": np.zeros(3, np.float32)})
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join(30)
                    self.assertFalse(thread.is_alive())
                self.assertEqual({type(error) for error in outcomes}, {ballast.Cancelled}, outcomes)
                self.assertIsInstance(waiting.exception(30), ballast.Cancelled)

    def test_worker_is_freed_with_its_last_user(self):
        with ballast.connect(self.servers.address, job="test") as ps:
            ps.declare({"w": np.zeros(3, np.float32)}, ballast.SGD(1))
            worker = weakref.ref(ps._worker)
            future = ps.push({"w": np.ones(3, np.float32)})
            ps.wait(30)
        gc.collect()
        self.assertIsNone(worker())
        self.assertEqual(future.result(0).applied, 1)

    def test_connection_dropped_by_a_callback(self):
        connection = [self.connect()]
        self._cleanups.clear()
        self.addCleanup(self.servers.__exit__)
        dropped = weakref.ref(connection[0])
        ended = threading.Event()
        future = connection[0].push({"w": np.ones(3, np.float32)})
        thread = connection[0]._completer._thread
        future.add_done_callback(lambda _: (connection.clear(), gc.collect(), ended.set()))
        del future
        self.assertTrue(ended.wait(30))
        thread.join(30)
        gc.collect()
        self.assertFalse(thread.is_alive())
        self.assertIsNone(dropped())

    def test_asyncio(self):
        ps = self.connect(policy="async {}")
        ps.declare({"never": (3,)}, ballast.SGD(1), initializer="provided {}")
        gradient = np.ones(3, np.float32)

        async def main():
            results = await asyncio.gather(*(ps.push({"w": gradient}) for _ in range(200)))
            self.assertEqual(sum(result.applied for result in results), 200)
            array = np.zeros(3, np.float32)
            alive = weakref.ref(array)
            future = ps.pull_async({"never": array})
            del array
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(future, 0.05)
            ps._tensors["never"].into = None
            # The operation goes on, and has its memory.
            self.assertFalse(future.done())
            self.assertIsNotNone(alive())

            async def wait():
                await future

            task = asyncio.ensure_future(wait())
            await asyncio.sleep(0)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            self.assertFalse(future.done())
            await ps.push({"w": gradient})
            return future, alive

        future, alive = asyncio.run(main())
        ps.close()
        self.assertIsInstance(future.exception(30), ballast.Cancelled)
        gc.collect()
        self.assertIsNone(alive())

    def test_interrupt_under_asyncio_leaves_the_job(self):
        process = run_python(BEGIN + """
import asyncio
async def main():
    with connect() as ps:
        print("begins", flush=True)
        await pending(ps)
asyncio.run(main())
""", self.servers.address)
        self.assertEqual(process.stdout.readline(), "begins\n")
        process.send_signal(signal.SIGINT)
        status, output = output_of(process, 30)
        self.assertEqual(status, -signal.SIGINT, output)
        with self.assertRaises(ballast.JobEnded):
            ballast.connect(self.servers.address, job="test")

    def test_forked_processes_end(self):
        status, output = self.run_script("""
import atexit
ps = connect(policy="async {}")
future = pending(ps)
waits = threading.Thread(target=lambda: [ps.push({"w": np.ones(3, np.float32)}) for _ in range(2000)])
waits.start()
for _ in range(20):
    child = os.fork()
    if child == 0:
        for call in (ps.wait, future.result, future.exception, lambda: ps.pull({}), lambda: ballast.log(1.0)):
            try:
                call()
                assert call.__name__ == "<lambda>"
            except ballast.Forked:
                pass
        ps.close()
        del ps, future
        gc.collect()
        # With the handlers that run at exit.
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
waits.join()
ps.pull({"w": np.zeros(3, np.float32)}, timeout=30)
print("end")
""")
        self.assertEqual((status, output), (0, "end\n"))

    def test_multiprocessing_and_data_loaders(self):
        try:
            import torch  # noqa: F401
        except ImportError as error:
            self.skipTest(str(error))
        status, output = self.run_script("""
import multiprocessing, torch
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, i):
        return torch.full((3,), float(i))
def double(x):
    return 2 * x
if __name__ == "__main__":
    with connect() as ps:
        pending(ps)
        w = np.zeros(3, np.float32)
        for batch in torch.utils.data.DataLoader(Data(), batch_size=16, num_workers=2, multiprocessing_context="fork"):
            ps.push_pull({"w": batch.mean(0).numpy()}, into={"w": w}).result(30)
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(double, range(10)) == list(range(0, 20, 2))
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            assert pool.map(abs, [-1]) == [1]
    print("end", w[0])
""")
        self.assertEqual((status, output), (0, "end -126.0\n"))

    def test_two_jobs_in_one_process(self):
        with Servers(SERVER) as others:
            first = self.connect()
            with ballast.connect(others.address, job="other") as second:
                second.declare({"w": np.ones(3, np.float32)}, ballast.SGD(1))
                w, v = np.zeros(3, np.float32), np.zeros(3, np.float32)
                futures = [first.push_pull({"w": np.ones(3, np.float32)}, into={"w": w}),
                           second.push_pull({"w": np.ones(3, np.float32)}, into={"w": v})]
                for future in futures:
                    future.result(30)
                self.assertEqual((w[0], v[0]), (-1, 0))
            first.pull({"w": w})

    def test_interactive_session_does_not_fail_the_job_for_an_old_exception(self):
        status, output = self.run_script("""
sys.ps1 = "> "
ps = connect()
sys.last_value = ValueError("a typo")
""")
        self.assertEqual((status, output), (0, ""))
        with self.assertRaises(ballast.JobEnded):
            ballast.connect(self.servers.address, job="test")

    def test_works_beside_grpc_and_torch_in_every_order(self):
        for order in itertools.permutations(("ballast", "grpc", "torch")):
            with self.subTest(order), Servers(SERVER) as servers:
                status, output = output_of(run_python(f"""
import importlib, sys, threading
modules = {{}}
def load():
    for name in {order!r}:
        try:
            modules[name] = importlib.import_module(name)
        except ImportError:
            continue
        if name == "ballast":
            modules[name].library()
thread = threading.Thread(target=load)
thread.start(); thread.join()
import numpy as np
ballast, grpc, torch = map(modules.get, ("ballast", "grpc", "torch"))
with ballast.connect(sys.argv[1], job="test") as ps:
    ps.declare({{"w": np.zeros(3, np.float32)}}, ballast.SGD(1))
    w = torch.zeros(3) if torch else np.zeros(3, np.float32)
    gradient = torch.ones(3, 3) @ torch.ones(3) if torch else np.full(3, 3, np.float32)
    if grpc:
        with grpc.insecure_channel(sys.argv[1]) as channel:
            grpc.channel_ready_future(channel).result(30)
            ps.push_pull({{"w": gradient}}, into={{"w": w}}).result(30)
    else:
        ps.push_pull({{"w": gradient}}, into={{"w": w}}).result(30)
    print(float(w[0]))
""", servers.address))
                self.assertEqual((status, output), (0, "-3.0\n"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
