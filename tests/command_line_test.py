#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Promises that the command lines of all programs keep.

Every flag may be written with - and with _ between words. With --json, a failure is one JSON object on standard output.

usage: command_line_test.py BALLAST SERVER WORKER BENCH RUN.SH, which has speed.py next to it
"""

import json
import os
import re
import subprocess
import sys

failures = []
checked = 0


def run(words):
    return subprocess.run(words, text=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=60)


def expect(condition, message):
    global checked
    checked += 1
    if not condition:
        failures.append(message)
        print(message)


def help_of(command):
    done = run(command + ["--help"])
    assert done.returncode == 0, f"{command} --help: status {done.returncode}\n{done.stderr}"
    return done.stdout


def commands_of(program):
    """The commands that a program's help lists."""
    return re.findall(r"^  ([a-z][a-z-]+) +[A-Z]", help_of([program]), re.M)


def flags_of(command):
    """Returns (name, whether it takes a value) of the flags that --help lists, one per line."""
    flags = re.findall(r"^  --([\w-]+)(?: \(.*\)|( [^ ]+))?(?:  .*)?$", help_of(command), re.M)
    return [(name, bool(value)) for name, value in flags if name != "help"]


def check_flag(command, name, value):
    """--help, which comes last, succeeds only if the words before it are known."""
    for spelling in sorted({name.replace("_", "-"), name.replace("-", "_")}):
        words = command + [f"--{spelling}{value}", "--help"]
        done = run(words)
        expect(done.returncode == 0, f"{words}: status {done.returncode}: {done.stderr.strip()}")


def check_json(command):
    words = command + ["--json", "--no-such-flag"]
    done = run(words)
    try:
        failure = json.loads(done.stdout)
    except ValueError:
        failure = {}
    expect(failure.get("exit_code") == done.returncode == 2 and failure.get("reason") == "INVALID_ARGUMENT" and
           "no-such-flag" in failure.get("error", ""), f"{words}: status {done.returncode}, printed {done.stdout!r}")


def check_full_disk(words):
    with open("/dev/full", "w") as full:
        done = subprocess.run(words, text=True, stdout=full, stderr=subprocess.PIPE, timeout=60)
    expect(done.returncode == 1 and "cannot write all of the output" in done.stderr,
           f"{words} to a full disk: status {done.returncode}: {done.stderr.strip()}")


def main():
    ballast, server, worker, bench, run_sh = (os.path.abspath(path) for path in sys.argv[1:6])
    commands = [[ballast, name] for name in commands_of(ballast) if name not in ("bench", "help")]
    commands += [[bench, name] for name in commands_of(bench)]
    for command in commands:
        flags = flags_of(command)
        for name, takes_value in flags:
            check_flag(command, name, "=1" if takes_value else "")
        if ("json", False) in flags:
            check_json(command)
    for program in (server, worker):
        for name, _ in flags_of([program]):
            check_flag([program], name, "=1")
    for words in (["--build-only", "/x"], ["--build_only", "/x"], ["--stand-in"], ["--stand_in"]):
        done = run([run_sh, *words, "--help"])
        expect(done.returncode == 0, f"{run_sh} {words}: {done.stderr}")
    for spelling in ("--check-only", "--check_only"):
        done = run([sys.executable, os.path.join(os.path.dirname(run_sh), "speed.py"), "--stand-in", spelling])
        expect(done.returncode == 0, f"speed.py {spelling}: {done.stderr}")
    for words in (["--version"], ["help"], ["runs", "--help"], ["completion", "bash"], ["runs", "/", "--json"]):
        check_full_disk([ballast] + words)
    # The programs have more flags than these; fewer mean that the test did not understand their help.
    assert checked > 150, f"got {checked} checks, want more than 150"
    print(f"{checked - len(failures)} passed, {len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
