#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Who is slow: the waits that a worker causes, and the flight dumps of a run that one worker holds up.

usage: stragglers_test.py BALLAST SERVER WORKER
"""

import ctypes
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest

BALLAST = os.path.abspath(sys.argv[1])
FOLDER = pathlib.Path(os.environ.get("TEST_TMPDIR", "/tmp"), "stragglers")
LIMIT_SECONDS = 60
WAIT_FOR_ANY_THREAD = 0x40000000

JOB = """name: "stragglers"
data { train { csv { path: "data.csv" label_column: -1 } } test { csv { path: "data.csv" label_column: -1 } } }
model { layers { dense { units: 2 } } loss { softmax_cross_entropy {} } }
training { epochs: 100000 batch_size: 10 wait_seconds: WAIT }
optimizer { sgd { learning_rate: 0.01 } }
"""


def wait_for(what, condition):
    """Returns the condition's first true value."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"timed out after {LIMIT_SECONDS} s waiting for {what}; {(FOLDER / 'log').read_text()[-2000:]}")


def hold_waiting_thread(thread):
    """Stops one thread of another process while it waits for an answer; returns whether tracing it is allowed.

    Anywhere else the thread could hold a lock that the heartbeats of its process need.
    """
    seize, interrupt, detach, futex = 0x4206, 0x4207, 17, "202"
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long] * 4

    def held():
        if libc.ptrace(seize, thread, 0, 0) != 0 or libc.ptrace(interrupt, thread, 0, 0) != 0:
            return "not allowed"
        os.waitpid(thread, WAIT_FOR_ANY_THREAD)
        if pathlib.Path(f"/proc/{thread}/syscall").read_text().split()[0] == futex:
            return "held"
        libc.ptrace(detach, thread, 0, 0)
        return None

    return wait_for(f"thread {thread} to wait for an answer", held) == "held"


def reap(traced):
    """Lets the parent of a traced process see that it has ended. Returns None."""
    try:
        os.waitpid(traced, os.WNOHANG | WAIT_FOR_ANY_THREAD)
    except ChildProcessError:
        pass


class StragglersTest(unittest.TestCase):
    traced = None

    def launch(self, wait_seconds):
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir()
        (FOLDER / "job.textproto").write_text(JOB.replace("WAIT", str(wait_seconds)))
        (FOLDER / "data.csv").write_text("".join(f"{i % 2 * 2 - 1}.{i % 7},{i % 2}\n" for i in range(1000)))
        log = open(FOLDER / "log", "w")
        self.addCleanup(log.close)
        process = subprocess.Popen(
            [BALLAST, "launch", "job.textproto", "--servers", "2", "--workers", "2", "--run_dir", "run"], cwd=FOLDER,
            stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self.addCleanup(self.end, process)
        return process

    def end(self, process):
        process.terminate()
        wait_for("the launch to end", lambda: self.ended(process))

    def ended(self, process):
        if self.traced:
            reap(self.traced)
        return process.poll() is not None

    def ballast(self, *words):
        done = subprocess.run([BALLAST, *words], cwd=FOLDER, capture_output=True, text=True, timeout=LIMIT_SECONDS)
        return done.returncode, done.stdout, done.stderr

    def status(self):
        code, out, _ = self.ballast("status", "run", "--json")
        return json.loads(out) if code == 0 and out else None

    def pids(self, steps=50):
        """Returns the process ids of servers and workers once these train."""

        def trained():
            status = self.status()
            return status["job"]["members"] if status and status["job"] and status["job"]["step"] >= steps else None

        found = {f"{member['role']} {member['rank']}": int(re.search(r"process (\d+)", member["description"]).group(1))
                 for member in wait_for("steps", trained)}
        self.assertIn("worker 1", found)
        return found

    def test_the_slow_worker_is_named(self):
        self.launch(wait_seconds=60)
        worker = self.pids()["worker 1"]
        stopped = 0
        for _ in range(8):
            os.kill(worker, signal.SIGSTOP)
            time.sleep(0.4)
            os.kill(worker, signal.SIGCONT)
            stopped += 0.4
            time.sleep(0.1)

        def caused():
            waits = {wait["worker"]: wait["seconds"] for wait in self.status()["job"]["caused_waits"]}
            return waits if waits.get(1, 0) > 0.8 * stopped else None

        waits = wait_for("the waits to be charged", caused)
        # The other worker may be the last one, too, but was never stopped.
        self.assertLess(waits.get(0, 0), waits[1])
        self.assertLess(waits[1], self.status()["job"]["seconds"])
        code, out, err = self.ballast("status", "run")
        self.assertEqual(code, 0, err)
        self.assertRegex(out, r"others waited \d.* for worker 1 \(\d+%\)")

    def test_sigquit_dumps_and_the_process_goes_on(self):
        self.launch(wait_seconds=60)
        pids = self.pids()
        for name, pid in pids.items():
            os.kill(pid, signal.SIGQUIT)
        for name, pid in pids.items():
            dump = FOLDER / "run" / "logs" / f"flight-{name.replace(' ', '-')}-{pid}.jsonl"
            wait_for(dump, dump.exists)
            lines = [json.loads(line) for line in dump.read_text().splitlines()]
            self.assertEqual((lines[0]["process"], lines[0]["reason"]), (name, "SIGQUIT"))
            self.assertEqual(lines[0]["events"], len(lines) - 1)
            self.assertTrue({"push", "push_pull"} & {line["what"] for line in lines[1:]}, lines[:20])
        before = self.status()["job"]["step"]
        wait_for("more steps", lambda: self.status()["job"]["step"] > before + 10)
        code, out, err = self.ballast("doctor", "run")
        self.assertEqual(code, 0, err)
        self.assertIn("no wait timed out", out)
        self.assertRegex(out, r"worker 1, process \d+, .* events: SIGQUIT")

    def test_the_doctor_names_whom_a_run_waited_for(self):
        launch = self.launch(wait_seconds=1)
        worker = self.pids()["worker 1"]
        # Holds only the thread that trains, so that the worker still sends heartbeats and the others wait for it.
        if not hold_waiting_thread(worker):
            self.skipTest("this user may not trace a process")
        self.traced = worker
        wait_for("the launch to end", lambda: self.ended(launch))
        self.assertNotEqual(launch.returncode, 0)
        code, out, err = self.ballast("doctor", "run", "--json")
        self.assertEqual(code, 0, err)
        report = json.loads(out)
        self.assertEqual(report["state"], "failed")
        self.assertEqual({wait["worker"] for wait in report["waits"]}, {1}, out)
        wait = report["waits"][0]
        # Three times the time after which a silent member is lost, at least.
        self.assertTrue(8.9 < wait["seconds"] < 30, wait)
        self.assertGreater(wait["step"], 0)
        self.assertRegex(wait["last_event"], r"step \d+")
        code, out, err = self.ballast("doctor", "run")
        self.assertRegex(out, r"step \d+: server \d waited \d.* for worker 1, until .* UTC\n    worker 1: ")

    def test_the_doctor_says_what_it_lacks(self):
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir()
        code, _, err = self.ballast("doctor", "nowhere")
        self.assertEqual(code, 2)
        self.assertIn("nowhere", err)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
