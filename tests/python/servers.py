# SPDX-License-Identifier: Apache-2.0
"""Servers for the tests of the Python package, and other processes of a test."""

import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
import time

TIMEOUT_SECONDS = 60


class Servers:
    """Owns the ballast_servers of one job, on free ports of this machine. `address` is that of server 0."""

    def __init__(self, binary, servers=1, workers=1):
        self._folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")))
        self._processes = []
        self.address = ""
        for rank in range(servers):
            flags = ["--servers", str(servers), "--workers", str(workers), "--rank", str(rank)]
            if rank > 0:
                flags += ["--coordinator", self.address]
            address = self._start(binary, rank, flags)
            self.address = self.address or address

    def _start(self, binary, rank, flags):
        log, address_file = self._folder / f"log{rank}", self._folder / f"address{rank}"
        with open(log, "w") as file:
            process = subprocess.Popen([binary, "--listen", "127.0.0.1:0", "--address_file", str(address_file)] + flags,
                                       stderr=file)
        self._processes.append(process)
        ended = os.pidfd_open(process.pid)
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not address_file.exists():
            if select.select([ended], [], [], 0.02)[0] or time.monotonic() > deadline:
                raise RuntimeError(f"server {rank} did not start: {log.read_text()}")
        os.close(ended)
        return address_file.read_text().strip()

    def kill(self, rank):
        self._processes[rank].kill()
        self._processes[rank].wait()

    def stop(self, rank):
        """Stops a server as SIGSTOP does, and returns when none of its threads runs any more."""
        process = self._processes[rank]
        process.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not all(stat.read_text().rpartition(") ")[2].startswith("T")
                      for stat in pathlib.Path(f"/proc/{process.pid}/task").glob("*/stat")):
            if time.monotonic() > deadline:
                raise RuntimeError(f"server {rank} did not stop within {TIMEOUT_SECONDS} s")
            time.sleep(0.01)

    def go_on(self, rank):
        self._processes[rank].send_signal(signal.SIGCONT)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for process in self._processes:
            process.kill()
            process.wait()


def run_python(script, *arguments, environment=None):
    """Starts another Python process with this one's packages; returns it."""
    return subprocess.Popen([sys.executable, "-c", "import sys; sys.path[:0] = ['python', 'tests/python']\n" + script,
                             *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            env={**os.environ, **(environment or {})})


def output_of(process, timeout=TIMEOUT_SECONDS):
    """Waits for a process; returns its exit status and its output."""
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        return None, output
    return process.returncode, output
