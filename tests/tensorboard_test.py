#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The events for TensorBoard in a run's directory, read here without TensorBoard: by the format of its records and of
protobuf. They hold the figures of metrics.jsonl.

usage: tensorboard_test.py BALLAST SERVER WORKER
"""

import collections
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import unittest

BALLAST = os.path.abspath(sys.argv[1])
FOLDER = pathlib.Path(os.environ.get("TEST_TMPDIR", "/tmp"), "tensorboard")
LIMIT_SECONDS = 120

JOB = """name: "events"
data { train { csv { path: "data.csv" label_column: -1 } } test { csv { path: "data.csv" label_column: -1 } } }
model { layers { dense { units: 2 } } loss { softmax_cross_entropy {} } }
training { epochs: %d batch_size: 10 report_every_steps: 5 }
optimizer { sgd { learning_rate: 0.1 } }
durability { checkpoint_seconds: 1 }
"""

# Figures of the lines of metrics.jsonl by their tags.
TRAIN = {"train/loss": "loss", "train/learning_rate": "learning_rate", "perf/examples_per_second": "samples_per_second",
         "wait/share": "wait_share", "staleness/max": "max_staleness"}
TEST = {"test/loss": "loss", "test/accuracy": "accuracy"}

Event = collections.namedtuple("Event", "wall_time step version scalars histograms")
Histogram = collections.namedtuple("Histogram", "least most number sum squares limits counts")


def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff


def masked(crc):
    return ((crc >> 15 | crc << 17) + 0xa282ead8) & 0xffffffff


def records(data):
    """The contents of the records of a file."""
    at = 0
    while at < len(data):
        length, crc = struct.unpack_from("<QI", data, at)
        if crc != masked(crc32c(data[at:at + 8])):
            raise ValueError(f"at {at}: the checksum of the length is wrong")
        content = data[at + 12:at + 12 + length]
        (crc,) = struct.unpack_from("<I", data, at + 12 + length)
        if crc != masked(crc32c(content)):
            raise ValueError(f"at {at}: the checksum of the record is wrong")
        yield content
        at += 16 + length


def fields(message):
    """Yields number and value of each field: an int, or bytes."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7f) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = varint()
        number, kind = key >> 3, key & 7
        if kind == 0:
            yield number, varint()
        else:
            size = {1: 8, 5: 4}[kind] if kind != 2 else varint()
            if at + size > len(message):
                raise ValueError(f"field {number} ends after its message")
            yield number, message[at:at + size]
            at += size


def doubles(data):
    return list(struct.unpack(f"<{len(data) // 8}d", data))


def histogram(message):
    of = dict(fields(message))
    return Histogram(*(doubles(of[number])[0] for number in range(1, 6)), doubles(of[6]), doubles(of[7]))


def event(message):
    of = dict(fields(message))
    scalars, histograms = {}, {}
    for number, value in fields(of.get(5, b"")):
        if number != 1:
            raise ValueError(f"a summary has the field {number}")
        inner = dict(fields(value))
        tag = inner[1].decode()
        if 2 in inner:
            (scalars[tag],) = struct.unpack("<f", inner[2])
        else:
            histograms[tag] = histogram(inner[5])
    return Event(doubles(of[1])[0], of.get(2, 0), of.get(3, b"").decode(), scalars, histograms)


def as_float(number):
    """A number of metrics.jsonl as the 32 bits of an event."""
    return struct.unpack("<f", struct.pack("<f", number))[0]


class TensorboardTest(unittest.TestCase):
    def setUp(self):
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir(parents=True)
        (FOLDER / "data.csv").write_text("".join(f"{i % 2 * 2 - 1}.{i % 7},{i % 2}\n" for i in range(200)))

    def launch(self, epochs, *words):
        (FOLDER / "job.textproto").write_text(JOB % epochs)
        with open(FOLDER / "log", "a") as log:
            process = subprocess.Popen([BALLAST, "launch", "job.textproto", "--servers", "2", "--workers", "2", "--run_dir",
                                        "run", *words], cwd=FOLDER, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self.addCleanup(process.wait)
        self.addCleanup(process.terminate)
        return process

    def wait(self, process):
        self.assertEqual(process.wait(timeout=LIMIT_SECONDS), 0, (FOLDER / "log").read_text())

    @staticmethod
    def lines(run=FOLDER / "run"):
        return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]

    @staticmethod
    def files(run=FOLDER / "run"):
        return sorted(run.glob("events.out.tfevents.*"))

    def events(self, path):
        """The events of a file after its first, which is the version."""
        read = [event(record) for record in records(path.read_bytes())]
        self.assertEqual(read[0].version, "brain.Event:2")
        self.assertEqual([one for one in read[1:] if one.version], [])
        times = [one.wall_time for one in read]
        self.assertEqual(times, sorted(times))
        self.assertLess(abs(time.time() - times[0]), 600)
        return read[1:]

    def assert_figures(self, events, lines):
        """Each training and test line is an event, in the same order."""
        wanted = []
        for line in lines:
            tags = {"train": TRAIN, "test": TEST}.get(line["kind"], {})
            if tags:
                wanted.append((line["step"], {tag: as_float(line[key]) for tag, key in tags.items() if key in line}))
        self.assertGreater(len(wanted), 10)
        self.assertEqual([(one.step, one.scalars) for one in events if one.scalars], wanted)

    def test_a_run_has_the_figures_of_its_metrics(self):
        began = int(time.time())
        self.wait(self.launch(20, "--mode", "async"))
        [path] = self.files()
        seconds, host = re.fullmatch(r"events\.out\.tfevents\.(\d+)\.(.+)", path.name).groups()
        self.assertEqual(host, socket.gethostname())
        self.assertTrue(began <= int(seconds) <= time.time())
        lines, events = self.lines(), self.events(path)
        self.assert_figures(events, lines)
        # The last event: what the shards counted of all gradients.
        self.assertEqual(events[-1].scalars, {})
        staleness = events[-1].histograms["staleness/distribution"]
        self.assertGreater(staleness.number, 0)
        self.assertEqual(sum(staleness.counts), staleness.number)
        self.assertEqual(staleness.limits, [2.0 ** i - 1 for i in range(len(staleness.counts))])
        summary = json.loads((FOLDER / "run" / "summary.json").read_text())
        self.assertEqual(staleness.most, summary["max_staleness"])

    def test_damage_is_noticed(self):
        """This reader itself: a byte that changed, and the known checksum of RFC 3720."""
        self.assertEqual(crc32c(b"\xff" * 32), 0x62a8ab43)
        self.wait(self.launch(2))
        data = bytearray(self.files()[0].read_bytes())
        for at in (3, 20, len(data) - 1):
            damaged = bytearray(data)
            damaged[at] ^= 1
            with self.assertRaises((ValueError, struct.error)):
                list(records(bytes(damaged)))

    def test_a_worker_that_returns_begins_another_file(self):
        process = self.launch(100000, "--max_restarts", "3")
        deadline = time.monotonic() + LIMIT_SECONDS
        killed = False
        while time.monotonic() < deadline and process.poll() is None:
            files = self.files()
            if files and not killed and len(self.lines()) > 20:
                os.kill(self.worker(), signal.SIGKILL)
                killed = True
            if len(files) == 2 and files[1].stat().st_size > 2000:
                break
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        process.wait(timeout=LIMIT_SECONDS)
        self.assertEqual(len(self.files()), 2, (FOLDER / "log").read_text())
        first, second = (self.events(path) for path in self.files())
        # kill -9 may fall between the event and the line.
        lines = self.lines()
        wanted = sum(line["kind"] in ("train", "test") for line in lines)
        written = [one for one in first + second if one.scalars]
        if len(written) > wanted:
            del first[-1]
        self.assert_figures(first + second, lines)

    @staticmethod
    def worker():
        """The process of worker 0."""
        for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes().split(b"\0")
                if words[0].endswith(b"ballast_worker") and os.readlink(path.parent / "cwd").startswith(str(FOLDER)):
                    if b"--rank" in words and words[words.index(b"--rank") + 1] == b"0" or b"--rank=0" in words:
                        return int(path.parent.name)
            except OSError:
                pass
        raise AssertionError("worker 0 has no process")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
