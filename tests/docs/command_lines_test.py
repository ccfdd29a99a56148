#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the command lines of README.md, of the guide's pages and of the programs' --help.

A command line is an indented line that begins with a program of PROGRAMS. TABLE says what happens to it: most run, with
a small job in place of the one that they name; the flags of the others are looked up in the --help of their program, or
a reason says why nothing is done. A command line that no row of TABLE matches fails the test. So does a command in the
text, such as `ballast launch --codec int8`, with a flag that its program does not have.

Usage: command_lines_test.py PAGE... (from the root of the tree, with the programs beside the sources)
"""

import contextlib
import functools
import glob
import io
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = os.getcwd()
PROGRAMS = {
    "ballast": "cli/ballast",
    "ballast_server": "server/ballast_server",
    "ballast_worker": "worker/ballast_worker",
}
# Other first words of a command line, besides paths in OTHER_FOLDERS.
OTHER_PROGRAMS = {"bazel", "kubectl", "podman", "docker", "g++", "cd", "cp", "export", "sudo", "source", "python3",
                  "npm", "node", "curl"}
OTHER_FOLDERS = ("deploy/", "tests/", "bazel-bin/", "examples/", "./")

JOB = """name: "small"
data {
  train { csv { path: "%(data)s" label_column: -1 } }
  test { csv { path: "%(data)s" label_column: -1 } }
}
model {
  layers { dense { units: 8 } }
  layers { relu {} }
  layers { dense { units: 3 } }
  loss { softmax_cross_entropy {} }
}
training { epochs: %(epochs)d batch_size: 8 }
optimizer { adam { learning_rate: 0.01 } }
policy { sync {} }
durability { checkpoint_seconds: 1 }
"""

# Longest run of one command; most end within two seconds.
TIMEOUT = 60


class Wrong(Exception):
    pass


class Line:
    """A command line: its place, its block of lines, and its text without the comment."""

    def __init__(self, place, block, text):
        self.place, self.block = place, block
        self.text = re.sub(r"(^|\s+)#\s.*$", "", text).strip()
        # "…" stands for flags that the page lists elsewhere.
        words = shlex.split(self.text.replace("…", ""))
        while words and re.match(r"[A-Z_]+=", words[0]):
            words.pop(0)
        self.words = words[1:] if words[:1] == ["sudo"] else words

    def program(self):
        """The name of one of Ballast's programs; empty for another one."""
        name = os.path.basename(self.words[0])
        return name if self.words[0] in (name, "bazel-bin/" + PROGRAMS.get(name, "")) and name in PROGRAMS else ""


def is_command(text):
    words = text.split()
    while words and re.match(r"[A-Z_]+=", words[0]):
        words.pop(0)
    return bool(words) and (words[0] in PROGRAMS or words[0] in OTHER_PROGRAMS or words[0].startswith(OTHER_FOLDERS))


def command_lines(name, text, indent):
    """Returns the Lines of a page, or of a --help."""
    found, block, held = [], 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        if not held and not re.match(indent, line):
            block += 1
            continue
        line = held + line.strip()
        # A request's body may have several lines between quotes.
        quoted = line.startswith("curl ") and line.count("'") % 2 == 1
        held = line[:-1] if line.endswith("\\") else line + " " if quoted else ""
        if not held and is_command(line):
            found.append(Line(f"{name}:{number}", f"{name} {block}", line))
    return found


def environment():
    env = dict(os.environ, PATH=os.environ.get("PATH", "/usr/bin:/bin"), NO_COLOR="1")
    for role in ("server", "worker", "bench"):
        env[f"BALLAST_{role.upper()}_BINARY"] = os.path.join(ROOT, f"{role}/ballast_{role}")
    return env


def output_of(argv, cwd=None):
    done = subprocess.run(argv, cwd=cwd, env=environment(), text=True, stdin=subprocess.DEVNULL, timeout=TIMEOUT,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        raise Wrong(f"exit status {done.returncode}: {' '.join(argv)}\n{done.stdout[-2000:]}")
    return done.stdout


class Folder:
    """The directory in which a page's commands run, one after the other, like a reader's."""

    def __init__(self, path):
        self.path = path
        # Changes that a page's --set-file names.
        with open(os.path.join(path, "short.textproto"), "w", encoding="utf-8") as file:
            file.write("training { epochs: 1 }\n")
        with open(os.path.join(path, "data.csv"), "w", encoding="utf-8") as file:
            for row in range(480):
                corner = [2 if row % 3 == k else 0 for k in range(3)]
                file.write(",".join(str(x + 0.1 * ((row * 7 + k) % 5)) for k, x in enumerate(corner)) + f",{row % 3}\n")
        for name in ("new.csv", "test.csv"):
            shutil.copy(file.name, os.path.join(path, name))
        self.job = self.write_job("small.textproto", 2)
        self.endless_job = self.write_job("endless.textproto", 1000000)

    def write_job(self, name, epochs):
        with open(os.path.join(self.path, name), "w", encoding="utf-8") as file:
            file.write(JOB % {"data": os.path.join(self.path, "data.csv"), "epochs": epochs})
        return file.name

    def newest_run(self):
        """The directory of the page's last run, or of one that it has not asked for."""
        find = lambda: sorted(glob.glob(os.path.join(self.path, "runs", "*")), key=os.path.getmtime)
        if not find():
            output_of([os.path.join(ROOT, PROGRAMS["ballast"]), "launch", self.job], self.path)
        return find()[-1]

    def words(self, line):
        """The command line with this folder's job and run in place of those that it names."""
        words = [os.path.join(ROOT, PROGRAMS[line.program()])]
        for word in line.words[1:]:
            if word.endswith(".textproto") and word.startswith("examples/") and not os.path.exists(word):
                raise Wrong(f"{word} does not exist")
            if word == "JOB" or word.endswith(".textproto") and not os.path.exists(os.path.join(self.path, word)):
                word = self.job
            elif re.fullmatch(r"runs/JOB-TIME|runs/\w+-\d{8}T\d{6}Z|RUN_DIR|RUN|DIR", word):
                word = self.newest_run()
            words.append(word)
        return words


def run(line, folder):
    print(output_of(folder.words(line), folder.path)[-300:])


# --- what the table does ---


def interrupt_when(done, line, folder):
    """Runs the launch with a job that does not end, until done(its output), and then interrupts it like Ctrl-C."""
    words = [folder.endless_job if word == folder.job else word for word in folder.words(line)]
    with open(os.path.join(folder.path, "launch.log"), "w", encoding="utf-8") as log:
        process = subprocess.Popen(words, cwd=folder.path, stdout=log, stderr=log, env=environment())
    try:
        deadline = time.monotonic() + TIMEOUT
        while not done(open(log.name, encoding="utf-8").read()):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
            if process.returncode is not None or time.monotonic() > deadline:
                raise Wrong(f"did not come that far: {open(log.name, encoding='utf-8').read()[-1000:]}")
        process.send_signal(signal.SIGINT)
        if process.wait(TIMEOUT) != 130:
            raise Wrong(f"exits with {process.returncode} after Ctrl-C, want 130")
    finally:
        process.kill()
        process.wait()


def until_checkpoint(line, folder):
    ballast = os.path.join(ROOT, PROGRAMS["ballast"])

    def has_checkpoint(output):
        return "run directory" in output and subprocess.run(
            [ballast, "checkpoint", "list", folder.newest_run()], capture_output=True, check=False).returncode == 0

    interrupt_when(has_checkpoint, line, folder)


def while_running(line, folder):
    """Runs the line beside a launch."""
    def ran(output):
        return "run directory" in output and subprocess.run(
            folder.words(line), cwd=folder.path, env=environment(), capture_output=True, check=False).returncode == 0

    interrupt_when(ran, Line(line.place, line.block, "ballast launch JOB --durability checkpoint"), folder)


def until_resumed(line, folder):
    interrupt_when(lambda output: re.search(r"resumes from .*\n(.*\n)*.*\bepoch \d", output), line, folder)


def quickstart(line, folder):
    """The script, with an installation and a build that do nothing and with the small job."""
    tree = os.path.join(folder.path, "tree")
    os.makedirs(os.path.join(tree, "deploy"), exist_ok=True)
    os.makedirs(os.path.join(tree, "examples"), exist_ok=True)
    os.makedirs(os.path.join(tree, "bazel-bin"), exist_ok=True)
    shutil.copy("deploy/quickstart.sh", os.path.join(tree, "deploy"))
    for name in ("deploy/setup.sh", "bazel"):
        with open(os.path.join(tree, name), "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\n")
        os.chmod(os.path.join(tree, name), 0o755)
    shutil.copy(folder.job, os.path.join(tree, "examples/fashion_mnist.textproto"))
    if not os.path.lexists(os.path.join(tree, "bazel-bin/cli")):
        os.symlink(os.path.join(ROOT, "cli"), os.path.join(tree, "bazel-bin/cli"))
    print(output_of(["env", f"PATH={tree}:{os.environ['PATH']}"] + line.words, tree)[-300:])


@functools.lru_cache(maxsize=None)
def help_text(*command):
    return output_of([*command, "--help"])


def help_of(line):
    """The --help of the program or the subcommand that a command line calls."""
    if line.words[0].startswith("deploy/"):
        return help_text(line.words[0])
    words = [os.path.join(ROOT, PROGRAMS[line.program()])]
    if line.program() == "ballast":
        words += [word for word in line.words[1:2] if re.fullmatch(r"[a-z]+", word)]
        if words[1:] in (["bench"], ["help"]):
            words += line.words[2:3]
            words = [word for word in words if word != "help"]
    return help_text(*words)


def flags_exist(line, folder):
    del folder
    text = help_of(line)
    known = {flag.replace("_", "-") for flag in re.findall(r"--([a-z][\w-]*)", text)} | {"help"}
    for word in line.words[1:]:
        if word == "--":
            # The words that follow belong to the user's program.
            break
        flag = re.match(r"--([\w-]+)", word)
        if not flag:
            continue
        name = flag.group(1).replace("_", "-")
        if name not in known and not (name.startswith("no") and name[2:] in known):
            raise Wrong(f"--{flag.group(1)} is not in the --help of {' '.join(line.words[:2])}")


def run_on_run(line, folder):
    folder.newest_run()
    run(line, folder)


def status(line, folder):
    """Asks a server of its own, because the page's is gone."""
    with servers(folder, [[]]) as started:
        words = [started[0][1] if word == "127.0.0.1:7700" else word for word in folder.words(line)]
        print(output_of(words, folder.path)[-300:])


@contextlib.contextmanager
def servers(folder, commands):
    """Starts ballast_server with each of the flags; yields (process, address) of each, and ends them."""
    started, addresses = [], {}
    try:
        for number, flags in enumerate(commands):
            flags = list(flags)
            own = flags[flags.index("--listen") + 1] if "--listen" in flags else "127.0.0.1:7700"
            if "--listen" in flags:
                flags[flags.index("--listen") + 1] = "127.0.0.1:0"
            else:
                flags += ["--listen", "127.0.0.1:0"]
            # A member of the job is reached at the port that the system has chosen for it.
            flags = [addresses.get(flag, flag) for flag in flags]
            address_file = os.path.join(folder.path, f"address{number}")
            with contextlib.suppress(FileNotFoundError):
                os.remove(address_file)
            with open(os.path.join(folder.path, f"server{number}.log"), "w", encoding="utf-8") as log:
                process = subprocess.Popen([os.path.join(ROOT, PROGRAMS["ballast_server"]), "--address_file",
                                            address_file] + flags, cwd=folder.path, stderr=log, env=environment())
            started.append([process, None])
            deadline = time.monotonic() + TIMEOUT
            while not os.path.exists(address_file):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.02)
                    raise Wrong(f"the server ended: {open(log.name, encoding='utf-8').read()[-1000:]}")
                if time.monotonic() > deadline:
                    raise Wrong("the server did not start")
            addresses[own] = started[-1][1] = open(address_file, encoding="utf-8").read().strip()
        yield started
        for process, _ in started:
            process.send_signal(signal.SIGTERM)
        for process, address in started:
            if process.wait(TIMEOUT) != 0:
                raise Wrong(f"the server at {address} exits with {process.returncode} after SIGTERM, want 0")
    finally:
        for process, _ in started:
            process.kill()
            process.wait()


def by_hand(lines, folder):
    """Runs a block that starts servers and workers: the workers end by themselves."""
    flags = [line.words[1:] for line in lines if line.program() == "ballast_server"]
    starts = [line for line in lines if line.program() == "ballast_worker"]
    # One line may stand for all workers that the servers expect.
    first = flags[0] if flags else []
    wanted = int(first[first.index("--workers") + 1]) if "--workers" in first else 1
    starts += starts[-1:] * (wanted - len(starts))
    with servers(folder, flags or [[]]) as started:
        workers = []
        try:
            for number, line in enumerate(starts):
                with open(os.path.join(folder.path, f"worker{number}.log"), "w", encoding="utf-8") as log:
                    words = folder.words(line) + ["--coordinator", started[0][1]]
                    workers.append((subprocess.Popen(words, cwd=folder.path, stderr=log, env=environment()), log.name))
            for process, log in workers:
                if process.wait(TIMEOUT) != 0:
                    raise Wrong(f"exit status {process.returncode}: {open(log, encoding='utf-8').read()[-1000:]}")
        finally:
            for process, _ in workers:
                process.kill()
                process.wait()


def none(line, folder):
    del line, folder


# (what a command line matches, what is done, why it is not run). The first row that matches counts.
TABLE = [
    (r"ballast .*\b(plants\.textproto|runs/first)\b", flags_exist, "//tests:newcomer_test runs it"),
    (r"ballast .*\b(visits\.textproto|runs/visits)\b", flags_exist, "//tests:recommendation_page_test runs it"),
    (r"ballast page runs/a\b", flags_exist, "//tests:page_test opens several runs"),
    (r"ballast status SERVER-0\b", flags_exist, "names a server of a cluster"),
    (r"deploy/quickstart\.sh", quickstart, ""),
    (r"deploy/test\.sh", flags_exist, "runs every test"),
    (r"(sudo )?deploy/install\.sh", flags_exist, "//tests/outside:installed_test runs it"),
    (r"ballast_\w+ .*192\.0\.2\.", flags_exist, "names other hosts"),
    (r"ballast_(server|worker)\b", by_hand, ""),
    (r"[A-Z_]+=\S+ ballast launch ", flags_exist, "//tests/outside:installed_test runs a worker of one's own"),
    (r"ballast launch .*--durability checkpoint\b", until_checkpoint, ""),
    (r"ballast launch .*--resume ", until_resumed, ""),
    (r"ballast launch .*--hosts ", flags_exist, "needs other hosts"),
    (r"ballast run ", flags_exist, "//tests/python:run_test and examples_test run such programs"),
    (r"ballast (launch|job|sweep|keys|data) ", run, ""),
    (r"ballast plot runs/a ", flags_exist, "compares runs that the reader has made"),
    (r"ballast eval model\.safetensors ", flags_exist, "reads a model that the reader has moved"),
    (r"ballast checkpoint save ", while_running, ""),
    (r"ballast (eval|predict) .*clicks/test\.tsv", flags_exist, "needs a run with tables; //tests:serve_test runs it"),
    (r"ballast (runs|checkpoint|plot|predict|eval)\b", run_on_run, ""),
    (r"ballast (doctor|version|help|completion)\b", run, ""),
    (r"ballast table ", flags_exist, "needs a job with tables; //tests:table_command_test runs it"),
    (r"ballast serve ", flags_exist, "runs until it is stopped; //tests:serve_test runs it"),
    (r"curl ", none, "asks a server that the reader has started"),
    (r"ballast status \d", status, ""),
    (r"ballast status\b", run_on_run, ""),
    (r"ballast bench ", flags_exist, "takes minutes; //bench:bench_smoke_test runs the benchmarks"),
    (r"bazel ", none, "needs Bazel itself; //tests/outside:workspace_test builds from outside the tree"),
    (r"g\+\+ ", none, "//tests/outside:installed_test builds the same programs"),
    (r"(kubectl|podman|docker) ", none, "needs a cluster or a container engine"),
    (r"(npm|node) ", none, "needs a package registry, or packages from it"),
    (r"(cd|cp|export|source) ", none, "changes the reader's shell"),
]


def row_of(line):
    text = re.sub(r"^((?:[A-Z_]+=\S+ )*)bazel-bin/(?:cli|server|worker)/", r"\1", line.text)
    for pattern, action, reason in TABLE:
        if re.match(pattern, text):
            return action, reason
    raise Wrong("is not in TABLE of tests/docs/command_lines_test.py: add a row that runs it, or says why not")


def check(lines, folder):
    """Does what TABLE says; returns the errors."""
    errors, done = [], set()
    for index, line in enumerate(lines):
        begin = time.monotonic()
        try:
            action, reason = row_of(line)
            if action is by_hand:
                block = [other for other in lines if other.block == line.block and row_of(other)[0] is by_hand]
                if block[0] is not line:
                    continue
                by_hand(block, folder)
            elif line.text not in done:
                action(line, folder)
            done.add(line.text)
            print(f"{line.place}: {line.text}: {reason or 'ran'}, {time.monotonic() - begin:.1f} s", flush=True)
        except (Wrong, OSError, subprocess.TimeoutExpired) as error:
            errors.append(f"{line.place}: {line.text}: {error}")
    return errors


def spans(name, text):
    """The commands in a page's text, such as `ballast plot RUN_DIR`."""
    found = []
    for number, row in enumerate(text.splitlines(), 1):
        if not row.startswith("    "):
            for span in re.findall(r"`((?:ballast|ballast_server|ballast_worker) [^`]+)`", row):
                found.append(Line(f"{name}:{number}", "", span))
    return found


def check_spans(lines):
    errors = []
    for line in lines:
        try:
            flags_exist(line, None)
        except Wrong as error:
            errors.append(f"{line.place}: `{line.text}`: {error}")
    return errors


def help_texts():
    programs = {name: os.path.join(ROOT, path) for name, path in PROGRAMS.items()}
    of_all = help_text(programs["ballast"])
    yield "ballast --help", of_all
    for command in re.findall(r"^  (\w+) +[A-Z]", of_all, re.M):
        if command != "help":
            yield f"ballast {command} --help", help_text(programs["ballast"], command)
    for name in ("ballast_server", "ballast_worker"):
        yield f"{name} --help", help_text(programs[name])
    for script in ("deploy/quickstart.sh", "deploy/install.sh", "deploy/setup.sh", "deploy/test.sh"):
        yield f"{script} --help", help_text(script)


def examples_of_help(name, text):
    """A usage line describes; an example has no upper-case or bracketed part, and stands by itself."""
    return [line for line in command_lines(name, text, r"  +\S") if not re.search(r"[\[|]|\b[A-Z_]{3,}\b", line.text)]


def expect_errors(page, want):
    """The test itself fails as it should: for this page, with an error that contains this text."""
    with tempfile.TemporaryDirectory() as path, contextlib.redirect_stdout(io.StringIO()):
        errors = check(command_lines("page", page, r" {4}\S"), Folder(path)) + check_spans(spans("page", page))
    if len(errors) != 1 or want not in errors[0]:
        return [f"the page {page!r} gives the errors {errors}, want one with {want!r}"]
    return []


def main():
    errors = []
    errors += expect_errors("    ballast launch JOB --wrkers 2\n", "wrkers")
    errors += expect_errors("    ballast lunch JOB\n", "is not in TABLE")
    errors += expect_errors("    ballast bench step --no_such_flag 1\n", "--no_such_flag is not in the --help")
    errors += expect_errors("Use `ballast plot RUN_DIR --colour red`.\n", "--colour is not in the --help")
    errors += expect_errors("    ballast launch examples/gone.textproto\n", "examples/gone.textproto does not exist")
    errors += expect_errors("    ballast_server --workrs 2\n", "workrs")
    count = 0
    pages = []
    for name in sys.argv[1:]:
        with open(name, encoding="utf-8") as file:
            text = file.read()
        pages.append((command_lines(name, text, r" {4}\S"), spans(name, text)))
    pages += [(examples_of_help(name, text), []) for name, text in help_texts()]
    for lines, mentioned in pages:
        with tempfile.TemporaryDirectory() as path:
            errors += check(lines, Folder(path)) + check_spans(mentioned)
        count += len(lines) + len(mentioned)
    # Far fewer would mean that they are not found any more.
    if count < 60:
        errors.append(f"found {count} command lines, want at least 60")
    for error in errors:
        print(f"FAILED {error}")
    print(f"{count} command lines, {len(errors)} errors")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
