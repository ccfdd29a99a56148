#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The HTTP pages of servers and workers, scraped while a job trains, and over TLS with a token. promtool checks them.

usage: metrics_test.py BALLAST SERVER WORKER
"""

import os
import pathlib
import re
import shutil
import socket
import ssl
import subprocess
import sys
import time
import unittest
import urllib.error
import urllib.request

BALLAST, SERVER, WORKER = (os.path.abspath(path) for path in sys.argv[1:4])
FOLDER = pathlib.Path(os.environ.get("TEST_TMPDIR", "/tmp"), "metrics")
LIMIT_SECONDS = 60

JOB = """name: "metrics"
data { train { csv { path: "data.csv" label_column: -1 } } test { csv { path: "data.csv" label_column: -1 } } }
model { layers { dense { units: 2 } } loss { softmax_cross_entropy {} } }
training { epochs: 100000 batch_size: 10 }
optimizer { sgd { learning_rate: 0.01 } }
durability { mode: WAL_SYNC }
"""


def wait_for(what, condition):
    """Returns the condition's first true value."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"timed out after {LIMIT_SECONDS} s waiting for {what}")


def address_in(file):
    return wait_for(file, lambda: file.exists() and file.read_text().strip())


def get(address, path, token=None, context=None):
    """Returns the status and the text of a page."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"{'https' if context else 'http'}://{address}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10, context=context) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def value_of(text, name):
    return float(re.search(rf"^{re.escape(name)} (.*)$", text, re.M).group(1))


class MetricsTest(unittest.TestCase):
    def setUp(self):
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir()

    def start(self, *words):
        with open(FOLDER / "log", "a") as log:
            process = subprocess.Popen([str(word) for word in words], cwd=FOLDER, stdout=log, stderr=log,
                                       stdin=subprocess.DEVNULL)
        self.addCleanup(process.wait)
        self.addCleanup(process.terminate)
        return process

    def check_with_promtool(self, text):
        if shutil.which("promtool") is None:
            print("SKIPPED: promtool is not installed")
            return
        checked = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True, timeout=60)
        self.assertEqual((checked.returncode, checked.stdout + checked.stderr), (0, ""), text)

    def test_scrapes_of_a_run(self):
        (FOLDER / "job.textproto").write_text(JOB)
        (FOLDER / "data.csv").write_text("".join(f"{i % 2 * 2 - 1}.{i % 7},{i % 2}\n" for i in range(100)))
        self.start(BALLAST, "launch", "job.textproto", "--servers", 2, "--workers", 2, "--run_dir", "run")
        addresses = {name: address_in(FOLDER / "run" / "logs" / f"{name}.http")
                     for name in ("server-0", "server-1", "worker-0", "worker-1")}
        # The run has certificates and tokens of its own. A worker's certificate names no host.
        security = FOLDER / "run" / "security"
        context = ssl.create_default_context(cafile=str(security / "ca.pem"))
        context.check_hostname = False

        def metrics_of(name):
            # One token reads the pages of servers and workers.
            token = (security / "reader.token").read_text().split()[-1]
            status, text = get(addresses[name], "/metrics", token, context)
            self.assertEqual(status, 200, text)
            return text

        for name, address in addresses.items():
            wait_for(f"{name} to be ready", lambda: get(address, "/readyz", context=context) == (200, "ok\n"))
            self.assertEqual(get(address, "/healthz", context=context), (200, "ok\n"))
            self.assertEqual(get(address, "/metrics", context=context)[0], 401)
        wait_for("steps", lambda: value_of(metrics_of("worker-1"), "ballast_worker_steps_total") > 20)
        texts = {name: metrics_of(name) for name in addresses}
        for name, text in texts.items():
            with self.subTest(name):
                self.check_with_promtool(text)
        server, worker = texts["server-0"], texts["worker-1"]
        self.assertIn('ballast_shard_info{shard="0",job="metrics",policy="sync",durability="wal_sync"} 1', server)
        self.assertEqual(value_of(server, 'ballast_members{role="worker",state="joined"}'), 2)
        self.assertEqual(value_of(server, 'ballast_job_state{state="running"}'), 1)
        self.assertGreater(value_of(server, "ballast_job_step"), 0)
        self.assertNotIn("ballast_job_step", texts["server-1"])
        self.assertGreater(value_of(server, "ballast_pushes_total"), 0)
        self.check_figures_of_a_shard(texts["server-1"])
        self.assertEqual(value_of(server, "ballast_checkpoint_interval_seconds"), 60)
        steps = value_of(worker, "ballast_worker_step_seconds_count")
        self.assertGreater(steps, 10)
        self.assertLessEqual(steps, value_of(worker, "ballast_worker_steps_total") + 100)
        self.assertGreater(value_of(worker, "ballast_worker_step_seconds_sum"), 0)
        phases = [value_of(worker, f'ballast_worker_seconds_total{{phase="{phase}"}}')
                  for phase in ("wait", "data", "compute")]
        self.assertGreater(sum(phases), 0)
        self.assertGreaterEqual(min(phases), 0)
        began = value_of(worker, "process_start_time_seconds")
        self.assertLess(abs(time.time() - began), LIMIT_SECONDS + 60)
        again = metrics_of("server-0")
        self.assertGreaterEqual(value_of(again, "ballast_pushes_total"), value_of(server, "ballast_pushes_total"))

    def check_figures_of_a_shard(self, text):
        calls = {tuple(call) for call in re.findall(r'^ballast_call_seconds_count{method="(\w+)",phase="(\w+)"} [1-9]',
                                                    text, re.M)}
        methods = {method for method, _ in calls}
        self.assertTrue(methods & {"push", "push_pull"}, calls)
        self.assertEqual(calls, {(method, phase) for method in methods for phase in ("queue", "apply", "wait", "send")})
        for direction in ("push", "pull"):
            labels = f'{{direction="{direction}",codec="fp32"}}'
            encoded = value_of(text, f"ballast_payload_bytes_total{labels}")
            self.assertGreater(encoded, 0)
            self.assertEqual(encoded, value_of(text, f"ballast_plain_bytes_total{labels}"))
        for name in ("ballast_apply_seconds_total", "ballast_applied_bytes_total", 'ballast_memory_bytes{use="weights"}',
                     'ballast_memory_limit_bytes{use="state"}', "ballast_log_bytes", "ballast_log_sync_seconds_count",
                     "ballast_log_sync_seconds_sum"):
            self.assertGreater(value_of(text, name), 0, name)
        for name in ("ballast_longest_wait_seconds", "ballast_lock_wait_seconds_total", "ballast_log_unsynced_bytes",
                     "ballast_old_incarnation_pushes_total"):
            self.assertGreaterEqual(value_of(text, name), 0, name)

    def test_over_tls_with_a_token(self):
        subprocess.run([BALLAST, "keys", "keys", "--job", "metrics", "--hosts", "127.0.0.1,localhost"], cwd=FOLDER,
                       check=True, capture_output=True, timeout=60)
        keys = FOLDER / "keys"
        self.start(SERVER, "--listen", "127.0.0.1:0", "--tls_cert", keys / "server.pem", "--tls_key", keys / "server.key",
                   "--tls_ca", keys / "ca.pem", "--token_file", keys / "tokens", "--http_port", "0",
                   "--http_address_file", FOLDER / "http")
        address = address_in(FOLDER / "http")
        context = ssl.create_default_context(cafile=str(keys / "ca.pem"))
        token = (keys / "reader.token").read_text().split()[-1]
        self.assertEqual(get(address, "/healthz", context=context), (200, "ok\n"))
        self.assertEqual(get(address, "/metrics", context=context)[0], 401)
        self.assertEqual(get(address, "/metrics", "x" * 64, context)[0], 401)
        status, text = get(address, "/metrics", token, context)
        self.assertEqual(status, 200)
        self.check_with_promtool(text)
        with self.assertRaises((urllib.error.URLError, ConnectionError, OSError)):
            get(address, "/healthz")

    def test_refuses_what_it_cannot_serve(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            for flags, message in [
                    (["--http_port", str(port)], f"--http_port: HTTP address: got 127.0.0.1:{port}, want one that is free"),
                    (["--http_port", "70000"], '--http_port: HTTP address: got "127.0.0.1:70000", want HOST:PORT'),
                    (["--http_port", "0.0.0.0:0"], "--http_port: .*0.0.0.0:0")]:
                for program in ([SERVER, "--listen", "127.0.0.1:0"], [WORKER, "--job", FOLDER / "job.textproto"]):
                    (FOLDER / "job.textproto").write_text(JOB)
                    done = subprocess.run([str(word) for word in program + flags], text=True, capture_output=True,
                                          timeout=60, cwd=FOLDER)
                    self.assertIn(done.returncode, (1, 2), done.stderr)
                    self.assertRegex(done.stderr, message)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
