#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`ballast run`: scripts as the workers of a job.

Usage: run_test.py SERVER LIBRARY BALLAST
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

try:
    import numpy
except ImportError as error:
    print(f"SKIPPED: {error}")
    sys.exit(0)

SERVER, LIBRARY, BALLAST = map(os.path.abspath, sys.argv[1:4])
TIMEOUT_SECONDS = 120

TRAINS = """
import os, sys, time
import numpy as np, ballast
with ballast.connect(examples=2000, batch_size=10, epochs=3) as ps:
    w = np.zeros(3, np.float32)
    ps.declare({"w": w}, ballast.SGD(0.001))
    ps.pull({"w": w})
    for batch in ps.leases():
        ps.push_pull({"w": np.ones(3, np.float32)}, into={"w": w}, examples=len(batch)).result(60)
        ballast.log(0.5)
        time.sleep(float(os.environ.get("PAUSE", "0")))
    if ps.rank == 0:
        ballast.log(test_loss=0.25, test_accuracy=0.75)
    open(os.environ["BALLAST_RUN_DIR"] + f"/end{ps.rank}", "w").write(str(w[0]))
"""


class RunTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")))
        self.run = self.folder / "run"

    def start(self, script, *flags, **environment):
        (self.folder / "script.py").write_text(script)
        return subprocess.Popen(
            [BALLAST, "run", "--run-dir", str(self.run), *flags, "--", sys.executable, "script.py", "--own", "flag"],
            cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "BALLAST_SERVER_BINARY": SERVER, "BALLAST_LIBRARY": LIBRARY,
                 "PYTHONPATH": os.path.abspath("python"), **environment})

    def end(self, process):
        try:
            output, errors = process.communicate(timeout=TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            output, errors = process.communicate()
            self.fail(f"it has not ended in {TIMEOUT_SECONDS} s: {errors}")
        return process.returncode, output, errors

    def test_trains_and_reports_what_the_script_logs(self):
        status, output, errors = self.end(self.start(TRAINS, "--workers", "2", "--servers", "2", "--json"))
        self.assertEqual(status, 0, errors)
        summary = json.loads(output)
        self.assertEqual((summary["job"], summary["mode"], summary["workers"], summary["servers"]),
                         ("script", "sync", 2, 2))
        self.assertEqual((summary["examples"], summary["epochs"]), (6000, 3))
        self.assertAlmostEqual(summary["train_loss"], 0.5)
        self.assertEqual((summary["test_loss"], summary["test_accuracy"]), (0.25, 0.75))
        self.assertEqual((summary["pushes_lost"], summary["pushes_duplicated"]), (0, 0))
        self.assertGreater(summary["bytes_sent"], 0)
        self.assertIn("epoch 3/3 done", errors)
        for name in ("report.html", "metrics.jsonl", "end0", "end1"):
            self.assertTrue((self.run / name).exists(), name)
        self.assertIn("epochs: 3", (self.run / "job.textproto").read_text())
        listed = subprocess.run([BALLAST, "runs", str(self.run)], capture_output=True, text=True).stdout
        self.assertRegex(listed, r"script.*3/3.*0\.75")

    def test_scripts_have_the_variables_of_torchrun(self):
        script = """
import os, sys
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
print("has", *[os.environ[name] for name in names], int(os.environ["MASTER_PORT"]) > 0, *sys.argv[1:])
"""
        status, _, errors = self.end(self.start(script, "--workers", "2", "--verbose"))
        self.assertEqual(status, 0, errors)
        for rank in range(2):
            log = (self.run / f"logs/worker-{rank}.log").read_text()
            self.assertEqual(log, f"has {rank} 2 {rank} 2 127.0.0.1 True --own flag\n")

    def test_failing_script_ends_the_run_with_its_error(self):
        script = "import os, ballast\nwith ballast.connect() as ps:\n    if ps.rank == 1: raise ValueError('bad data')\n" \
                 "    ps.declare({'w': (3,)}, ballast.SGD(1), initializer='zeros {}')\n" \
                 "    import numpy as np; w = np.zeros(3, np.float32)\n" \
                 "    for _ in range(1000): ps.push_pull({'w': w}, {'w': w}).result(60)"
        status, _, errors = self.end(self.start(script, "--workers", "2"))
        self.assertEqual(status, 1, errors)
        self.assertIn("ValueError: bad data", errors)
        self.assertIn("worker 1", errors.splitlines()[-1])

    def test_a_call_that_fails_with_the_job_leaves_a_flight_dump(self):
        # Worker 1 leaves, and worker 0's push fails, before a process ends and the others are stopped.
        script = "import os, time, ballast, numpy as np\n" \
                 "try:\n" \
                 "    with ballast.connect() as ps:\n" \
                 "        w = np.zeros(3, np.float32)\n" \
                 "        ps.declare({'w': (3,)}, ballast.SGD(1), initializer='zeros {}')\n" \
                 "        for step in range(1000):\n" \
                 "            if ps.rank == 1 and step == 3: raise ValueError('bad data')\n" \
                 "            ps.push_pull({'w': w}, {'w': w}).result(60)\n" \
                 "finally:\n" \
                 "    time.sleep(3)\n"
        status, _, errors = self.end(self.start(script, "--workers", "2"))
        self.assertEqual(status, 1, errors)
        report = subprocess.run([BALLAST, "doctor", str(self.run), "--json"], capture_output=True, text=True)
        dumps = {dump["process"]: dump for dump in json.loads(report.stdout)["processes"]}
        self.assertIn("worker 0", dumps, report.stdout)
        self.assertIn("bad data", dumps["worker 0"]["reason"])
        self.assertGreater(dumps["worker 0"]["events"], 6)

    def test_killed_scripts_return_and_every_example_counts(self):
        status, output, errors = self.end(self.start(
            TRAINS, "--workers", "2", "--json", "--durability", "wal", "--chaos", "kill-worker=2s,kill-server=3s",
            "--max-restarts", "50", PAUSE="0.03"))
        self.assertEqual(status, 0, errors)
        summary = json.loads(output)
        self.assertGreater(summary["restarts"], 0, errors)
        self.assertGreaterEqual(summary["examples"], 6000)
        self.assertLessEqual(summary["examples"], 6000 + summary["examples_repeated"])
        self.assertEqual((summary["pushes_lost"], summary["pushes_duplicated"]), (0, 0))

    def test_first_interrupt_lets_scripts_save(self):
        process = self.start(TRAINS, "--workers", "2", PAUSE="0.05")
        deadline = time.monotonic() + TIMEOUT_SECONDS
        # Until it trains.
        while not (self.run / "metrics.jsonl").exists() or not (self.run / "metrics.jsonl").read_text():
            self.assertIsNone(process.poll())
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        status, output, errors = self.end(process)
        self.assertEqual(status, 130, errors)
        self.assertIn("stopped after", output)
        self.assertTrue((self.run / "end0").exists() and (self.run / "end1").exists(), errors)
        self.assertTrue(json.loads((self.run / "summary.json").read_text())["interrupted"])

    def test_flags_replace_the_scripts_policy(self):
        status, output, errors = self.end(self.start(TRAINS, "--mode", "async", "--job", "other", "--json"))
        self.assertEqual(status, 0, errors)
        self.assertEqual((json.loads(output)["mode"], json.loads(output)["job"]), ("async", "other"))

    def test_missing_program_is_named(self):
        ended = subprocess.run([BALLAST, "run", "--", "no-such-program"], capture_output=True, text=True)
        self.assertEqual(ended.returncode, 2)
        self.assertEqual(ended.stderr, "error: run: there is no program no-such-program on PATH\n")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
