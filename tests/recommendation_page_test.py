#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Follows the guide's page on recommendation models, "From a raw table to a served model": runs its commands in an
empty directory, and compares what they print with the page.

Usage: recommendation_page_test.py BALLAST SERVER WORKER PAGE
"""

import json
import os
import pathlib
import re
import select
import shlex
import shutil
import subprocess
import sys
import urllib.request

SECTION = "## From a raw table to a served model"
# Tolerance for an AUC, a loss or a probability: other processors may round otherwise.
TOLERANCE = 0.01
TIMEOUT = 120


class Failure(Exception):
    pass


def blocks_of(page):
    """Returns the section's indented paragraphs."""
    section = page.split(SECTION, 1)[1].split("\n## ", 1)[0]
    return [re.sub(r"^    ", "", paragraph, flags=re.MULTILINE) for paragraph in section.split("\n\n")
            if paragraph.startswith("    ")]


def figures(text):
    return [float(number) for number in re.findall(r"\d+\.\d+", text)]


def compare(what, got, want):
    """Both have the same words, and nearly the same fractions."""
    words = [re.sub(r"\d+\.\d+", "#", text) for text in (got, want)]
    near = all(abs(a - b) <= TOLERANCE for a, b in zip(figures(got), figures(want)))
    if words[0] != words[1] or not near:
        raise Failure(f"{what} printed:\n{got}\nThe page has:\n{want}")
    print(f"ok: {what}")


class Reader:
    """Runs the page's commands."""

    def __init__(self, binaries, folder):
        self.folder = folder
        programs = folder / "bin"
        programs.mkdir()
        for name, path in binaries.items():
            (programs / name).symlink_to(path)
        self.environment = {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(folder)}

    def run(self, command):
        done = subprocess.run(["bash", "-euc", command], cwd=self.folder, env=self.environment, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=TIMEOUT)
        if done.returncode != 0:
            raise Failure(f"{command}\nended with {done.returncode}: {done.stderr}")
        return done.stdout, done.stderr

    def serve(self, command):
        """Starts the server at free ports and returns it, and the address for HTTP."""
        words = shlex.split(command) + ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--device", "cpu"]
        server = subprocess.Popen(words, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, text=True,
                                  executable=str(self.folder / "bin" / words[0]))
        if not select.select([server.stdout], [], [], TIMEOUT)[0]:
            server.kill()
            raise Failure("the server printed nothing in time")
        return server, server.stdout.readline().strip()


def ask(curl, address):
    """Sends the request of a command line of curl."""
    words = shlex.split(curl)
    body, url = words[words.index("-d") + 1], words[-1]
    request = urllib.request.Request(url.replace("127.0.0.1:7800", address), data=body.encode())
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
        return json.load(response)


def follow(reader, page):
    (make, head, split, job, launch, launched, predict, predicted, serve, serving, curl, answer) = blocks_of(page)
    command, show = make.split("\n")
    reader.run(command)
    compare("head", reader.run(show)[0].strip(), head)
    reader.run(split)
    (reader.folder / "visits.textproto").write_text(job)
    printed = "".join(reader.run(launch))
    for line in launched.split("\n"):
        if line.startswith("test AUC"):
            compare("launch", next(one for one in printed.split("\n") if one.startswith("test AUC")), line)
        elif line.startswith(("rows", "report")) and line not in printed:
            raise Failure(f"launch printed:\n{printed}\nThe page has the line:\n{line}")
    compare("predict", reader.run(predict)[0].strip(), predicted)
    server, line = reader.serve(serve)
    try:
        address = re.search(r"http://([\d.:]+)/", line).group(1)
        compare("serve", re.sub(r":\d+", ":PORT", line), re.sub(r":\d+", ":PORT", serving))
        got, want = ask(curl, address), json.loads(answer)
        del got["age"], want["age"]
        compare("the answer", json.dumps(got), json.dumps(want))
    finally:
        server.terminate()
        if server.wait(TIMEOUT) != 0:
            raise Failure(f"the server ended with {server.returncode}")


def main():
    binaries = dict(zip(("ballast", "ballast_server", "ballast_worker"), map(os.path.abspath, sys.argv[1:4])))
    folder = pathlib.Path(os.environ["TEST_TMPDIR"]) / "reader"
    (folder / "examples").mkdir(parents=True)
    shutil.copy("examples/visits.awk", folder / "examples")
    follow(Reader(binaries, folder), pathlib.Path(sys.argv[4]).read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
