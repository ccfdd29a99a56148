# SPDX-License-Identifier: Apache-2.0
"""Child processes that end by a deadline, together with their own children."""

import contextlib
import json
import os
import pathlib
import queue
import signal
import subprocess
import tempfile
import threading
import time


class Failed(Exception):
    """A part of the benchmark cannot go on."""


class TimedOut(Failed):
    pass


class Deadline:
    """The end of a part, which is never later than that of another deadline."""

    def __init__(self, seconds, outer=None):
        self.seconds = seconds
        self._end = time.monotonic() + seconds
        if outer is not None:
            self._end = min(self._end, outer._end)

    def left(self):
        return max(0.0, self._end - time.monotonic())


class Process:
    """A program, its output and its errors; use it in a `with` statement, at whose end it is dead."""

    def __init__(self, command, environment=None, **kwargs):
        self._command = [str(word) for word in command]
        scripts = [word for word in self._command if word.endswith(".py")]
        self.name = pathlib.Path((scripts or self._command)[0]).name
        self._errors = tempfile.TemporaryFile("w+")
        # A group of its own, so that its children can be ended, too.
        self._process = subprocess.Popen(self._command, stderr=self._errors, env=environment, text=True,
                                         start_new_session=True, stdout=subprocess.PIPE, **kwargs)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._end()
        self._close()

    def _end(self):
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, number)
                self._process.wait(5)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                pass
        self._process.wait()

    def _close(self):
        for file in (self._process.stdin, self._process.stdout, self._errors):
            if file is not None:
                file.close()

    def output(self, deadline):
        """Waits until the program ends; returns its exit status and standard output."""
        try:
            out, _ = self._process.communicate(timeout=deadline.left())
        except subprocess.TimeoutExpired:
            raise TimedOut(f"{self.name}: stopped after the part's {deadline.seconds:.0f} s") from None
        return self._process.returncode, out

    def last_error(self):
        """The last line that says what went wrong, or "" if none does."""
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors if line.strip()]
        named = [line for line in lines if line.startswith("error:") or "Error:" in line]
        return (named or lines or [""])[-1]

    def failure(self, status):
        error = self.last_error()
        return Failed(f"{self.name}: exit status {status}{': ' if error else ''}{error}")


class Contestant(Process):
    """A program that measures a round for each line of its input: see gpu_timing.h and torch_timing.py."""

    def __init__(self, command, environment=None):
        super().__init__(command, environment, stdin=subprocess.PIPE)
        self._lines = queue.Queue()
        self.rounds = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __exit__(self, *_):
        # A program that has ended does not take what is left for it.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._end()
        self._reader.join()
        self._close()

    def _read(self):
        for line in self._process.stdout:
            if line.startswith("{"):
                self._lines.put(line)
        self._lines.put(None)

    def _next(self, deadline):
        try:
            line = self._lines.get(timeout=deadline.left())
        except queue.Empty:
            raise TimedOut(f"{self.name}: stopped after the part's {deadline.seconds:.0f} s") from None
        if line is None:
            raise self.failure(self._process.wait())
        return json.loads(line)

    def ready(self, deadline):
        """Waits until it has begun; returns what it says about itself."""
        return self._next(deadline)

    def measure(self, deadline):
        try:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self.failure(self._process.wait()) from None
        self.rounds.append(self._next(deadline))


def run(command, deadline, environment=None):
    """Runs a program; returns its output, or raises Failed with its error."""
    with Process(command, environment) as process:
        status, out = process.output(deadline)
        if status != 0:
            raise process.failure(status)
        return out


def take_turns(contestants, rounds, deadline):
    """Each measures `rounds` times, one after the other, so that a drift of the GPU's clock affects all alike."""
    for _ in range(rounds):
        for contestant in contestants:
            contestant.measure(deadline)
