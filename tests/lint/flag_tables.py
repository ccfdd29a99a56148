#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The flag tables of the guide, generated from each program's --help.

  flag_tables.py --write                       writes the tables, from the programs in bazel-bin
  flag_tables.py --check PAGE SERVER WORKER BALLAST   fails if a table of PAGE differs from what the programs print

A table stands between two lines such as
  <!-- flags of ballast_server: begin -->
  <!-- flags of ballast_server: end -->
"""

import os
import re
import subprocess
import sys

PAGE = "docs/guide/running.md"


def flags_of(command):
    """Returns (flag, default, meaning) for each flag that the command's --help prints."""
    text = subprocess.run(command + ["--help"], check=True, text=True, capture_output=True, timeout=60).stdout
    flags = []
    for line in text.splitlines():
        # "  --listen (127.0.0.1:7700)", its meaning on the next lines; or "  --servers N    Parameter servers."
        alone = re.fullmatch(r"  --(\w+)(?: \((.*)\))?", line)
        beside = re.fullmatch(r"  --([\w-]+(?: [^ ]+)?)  +(.+)", line)
        if alone:
            flags.append([alone.group(1), alone.group(2) or "", ""])
        elif beside:
            flags.append([beside.group(1), "", beside.group(2)])
        elif flags and line.startswith("      ") and line.strip():
            flags[-1][2] = (flags[-1][2] + " " + line.strip()).strip()
    return [flag for flag in flags if flag[0] != "help"]


def escaped(cell):
    return cell.replace("|", "\\|")


def table(command):
    rows = ["| flag | meaning |", "| --- | --- |"]
    for flag, default, meaning in flags_of(command):
        shown = f"`--{flag}`" + (f" ({default})" if default else "")
        rows.append(f"| {escaped(shown)} | {escaped(meaning)} |")
    return "\n".join(rows)


def fill(text, programs):
    for name, command in programs.items():
        begin, end = f"<!-- flags of {name}: begin -->", f"<!-- flags of {name}: end -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            sys.exit(f"error: want one table of the flags of {name}, between {begin} and {end}")
        head, rest = text.split(begin)
        text = head + begin + "\n" + table(command) + "\n" + end + rest.split(end)[1]
    return text


def programs(server, worker, ballast):
    # `ballast predict`, `ballast eval` and `ballast serve` run the worker.
    return {"ballast_server": [server], "ballast_worker": [worker], "ballast launch": [ballast, "launch"],
            "ballast predict": [worker, "predict"], "ballast eval": [worker, "eval"],
            "ballast serve": [worker, "serve"]}


def main():
    if sys.argv[1:] == ["--write"]:
        os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
        wanted = fill(open(PAGE, encoding="utf-8").read(),
                      programs("bazel-bin/server/ballast_server", "bazel-bin/worker/ballast_worker", "bazel-bin/cli/ballast"))
        with open(PAGE, "w", encoding="utf-8") as file:
            file.write(wanted)
        return 0
    if len(sys.argv) == 6 and sys.argv[1] == "--check":
        have = open(sys.argv[2], encoding="utf-8").read()
        wanted = fill(have, programs(*sys.argv[3:]))
        if have == wanted:
            print("1 passed, 0 failed")
            return 0
        for old, new in zip(have.splitlines(), wanted.splitlines()):
            if old != new:
                print(f"{PAGE}: the table has\n  {old}\n--help says\n  {new}")
                break
        print("to repair: bazel build //server:ballast_server //worker:ballast_worker //cli:ballast && "
              "tests/lint/flag_tables.py --write")
        return 1
    print(__doc__)
    return 0 if sys.argv[1:] in (["--help"], ["-h"]) else 2


if __name__ == "__main__":
    sys.exit(main())
