# SPDX-License-Identifier: Apache-2.0
"""Times and checks a GPU worker against its targets and PyTorch, if it is installed. run.sh calls it; see its --help.
Rewrites the file of --out after each result, so that an interrupted run keeps what it found."""

import argparse
import datetime
import json
import os
import pathlib
import signal
import sys
import tempfile
import time

import jobs
import machine
import parts
import wanted
from processes import Deadline, TimedOut

# Setting of the emulated GPU of --stand-in: its events see the time that the host takes.
EMULATED_GPU = "timed=1"
# It is slow, and the machine may be busy, so each limit is that many times as long.
STAND_IN_LIMITS = 5


class Bench:
    """The settings of one run, and its results so far."""

    def __init__(self, options, data):
        self.options = options
        self.stand_in = options.stand_in
        self.programs = options.programs.absolute()
        self.examples = parts.HERE.parent.parent / "examples"
        self.data = data
        self.seconds = 0.01 if self.stand_in else 0.5
        self.torch_device = "cpu" if self.stand_in else "cuda"
        self._limits = STAND_IN_LIMITS if self.stand_in else 1
        self.deadline = self.total = Deadline(options.seconds * self._limits)
        self.environment = dict(os.environ)
        self.torch = machine.torch(self.torch_device, Deadline(60, self.total))
        if self.stand_in:
            self.environment["BALLAST_EMULATED_GPU"] = EMULATED_GPU
        elif self.torch is not None:
            self.environment = machine.with_packages(self.torch["packages"], self.environment)
        self.doctor = machine.doctor(self.programs, self.environment, Deadline(20, self.total))
        self._began = time.monotonic()
        self._ratios = {}
        self.object = {
            "gpu": None if self.stand_in else machine.gpu(), "stand_in": self.stand_in,
            "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "torch": self.torch and {name: self.torch[name] for name in ("version", "cuda")}, "cuda": self.doctor,
            "parts": {name: {"result": "not started", "found": []} for name in options.only}}
        self._found = None

    def add(self, found):
        self._found.append(found)
        self.write()

    def ratio(self, name, value):
        self._ratios[name] = value

    def example(self, name, **changes):
        return jobs.changed((self.examples / f"{name}.textproto").read_text(), self.data, **changes)

    def launch(self, *arguments, **more):
        return parts.launch(self, *arguments, **more)

    def run(self, name):
        """Runs one part. Whatever happens to it, the next one is run."""
        part, limit = parts.PARTS[name]
        report = self.object["parts"][name]
        self._found = report["found"]
        self.deadline = Deadline(limit * self._limits, self.total)
        began = time.monotonic()
        if self.total.left() == 0:
            report["reason"] = "no time was left"
            return
        report["result"] = "interrupted"
        self.write()
        try:
            part(self)
            report["result"] = "passed"
        except TimedOut as failure:
            report.update(result="timed out", reason=str(failure))
        except Exception as failure:  # A part must not end the others, whatever it met.
            report.update(result="failed", reason=f"{type(failure).__name__}: {failure}" if not isinstance(
                failure, parts.Failed) else str(failure))
        report["seconds"] = round(time.monotonic() - began, 1)
        self.write()

    def judged(self):
        judged = wanted.judge(self._ratios)
        # The targets are for GPUs only.
        return {**judged, "missed": []} if self.stand_in else judged

    def write(self):
        self.object.update(self.judged(), seconds=round(time.monotonic() - self._began, 1))
        path = self.options.out
        following = path.with_name(path.name + ".new")
        following.write_text(json.dumps(self.object, indent=1) + "\n")
        following.replace(path)


def parts_named(text):
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in parts.PARTS:
            raise argparse.ArgumentTypeError(f"got \"{name}\", want {', '.join(parts.PARTS)}")
    return names


def options_of(arguments):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=pathlib.Path)
    parser.add_argument("--only", type=parts_named, action="append", default=[])
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path(jobs.EXAMPLES_DATA))
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("gpu.json"))
    parser.add_argument("--seconds", type=float, default=590)
    parser.add_argument("--stand-in", "--stand_in", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check-only", "--check_only", action="store_true", help="check for a GPU and exit")
    options = parser.parse_args(arguments)
    chosen = [name for names in options.only for name in names] or parts.PARTS
    options.only = [name for name in parts.PARTS if name in chosen]
    return options


def main():
    options = options_of(sys.argv[1:])
    # Lets `with` end the children.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if not options.stand_in:
        _, why = machine.driver()
        if why:
            print(f"error: no GPU: {why}; run this on a machine with a GPU, or use --stand-in to try the script itself",
                  file=sys.stderr)
            return 1
    if options.check_only:
        return 0
    with tempfile.TemporaryDirectory() as folder:
        data = options.data.absolute()
        if options.stand_in:
            data = pathlib.Path(folder)
            jobs.write_stand_in_data(data)
        bench = Bench(options, data)
        bench.write()
        if not options.stand_in and bench.doctor.get("reason", bench.doctor.get("error")):
            print(f"warning: {bench.doctor.get('reason', bench.doctor.get('error'))}", file=sys.stderr)
        for name in options.only:
            bench.run(name)
            report = bench.object["parts"][name]
            print(f"{name}: {report['result']} after {report.get('seconds', 0)} s"
                  f"{': ' if 'reason' in report else ''}{report.get('reason', '')}", file=sys.stderr)
    bench.write()
    judged = bench.judged()
    if options.json:
        print(json.dumps(bench.object))
    else:
        print(wanted.table(judged))
        print(f"everything that was found is in {options.out}")
    passed = all(report["result"] == "passed" for report in bench.object["parts"].values())
    return 0 if passed and not judged["missed"] else 1


if __name__ == "__main__":
    sys.exit(main())
