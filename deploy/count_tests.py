# SPDX-License-Identifier: Apache-2.0
"""Counts test cases for deploy/test.sh: prints failed and skipped cases, then the totals.

Usage: count_tests.py FOLDER BAZEL_STATUS, where FOLDER holds each NAME.json that a `bazel test` wrote and a
NAME.status (exit status and path) and NAME.log for each check that is a script. Exits with 1 if any case failed.

A case is a <testcase> of a target's test.xml. A target that failed without a failed case in its test.xml (it crashed,
ran out of time or was not built) is one failed case. A script is skipped as a whole when it passes and prints a line
"SKIPPED: reason".
"""

import json
import pathlib
import re
import sys
import urllib.parse
import xml.etree.ElementTree

LOG_LINES = 60


class Results:
    def __init__(self):
        self.passed = 0
        self.failed = []  # (name, text)
        self.skipped = []  # (name, reason)


def tail(path):
    """Returns the last lines of a log, without those of the sandbox."""
    try:
        lines = pathlib.Path(path).read_text(errors="replace").splitlines()
    except (OSError, TypeError) as error:
        return f"(no log: {error})"
    lines = [line for line in lines if "src/main/tools/linux-sandbox" not in line]
    cut = [f"... {len(lines) - LOG_LINES} lines before"] if len(lines) > LOG_LINES else []
    return "\n".join(cut + lines[-LOG_LINES:])


def skip_reason(log):
    """Returns why a script that passed was skipped, as a line of its log says; None if it was not."""
    found = re.search(r"^SKIPPED: (.*)$", pathlib.Path(log).read_text(errors="replace"), re.M)
    return found and found.group(1)


def count_checks(folder, results):
    for path in sorted(folder.glob("*.status")):
        status, name = path.read_text().split()
        log = path.with_suffix(".log")
        if status != "0":
            results.failed.append((name, f"exit status {status}\n" + tail(log)))
        elif reason := skip_reason(log):
            results.skipped.append((name, reason))
        else:
            results.passed += 1


def read_events(folder):
    """Returns the targets that did not build, and the last attempt's results by (label, run, shard)."""
    broken, attempts = [], {}
    events = [line for path in sorted(folder.glob("*.json")) for line in path.read_text(errors="replace").splitlines()]
    for line in events:
        try:
            event = json.loads(line)
        except ValueError:  # Cut short: Bazel was killed.
            continue
        ident = event.get("id", {})
        if "testResult" in ident and "testResult" in event:
            key = ident["testResult"]
            run = (key["label"], key.get("run", 0), key.get("shard", 0))
            attempt = key.get("attempt", 0)
            if run not in attempts or attempts[run][0] <= attempt:
                attempts[run] = (attempt, event["testResult"])
        elif "targetCompleted" in ident and not event.get("completed", {}).get("success", False):
            broken.append(ident["targetCompleted"]["label"])
        elif "configuredLabel" in ident and "aborted" in event:
            broken.append(ident["configuredLabel"]["label"])
    tested = {label for label, _, _ in attempts}
    return sorted(set(broken) - tested), {run: result for run, (_, result) in attempts.items()}


def output(result, name):
    for file in result.get("testActionOutput", []):
        if file["name"] == name and file.get("uri", "").startswith("file://"):
            return urllib.parse.unquote(file["uri"][len("file://"):])
    return None


def count_cases(path, label, results):
    """Adds a test.xml's cases; returns how many of them failed."""
    try:
        root = xml.etree.ElementTree.parse(path).getroot()
    except (OSError, TypeError, xml.etree.ElementTree.ParseError):
        return 0
    failed = 0
    for case in root.iter("testcase"):
        name = ".".join(filter(None, (case.get("classname"), case.get("name"))))
        # Bazel writes the test.xml of a script, with the target's path as the only case.
        name = label if "/" + name == label.replace("//", "/").replace(":", "/") else f"{label} {name}"
        bad = case.findall("failure") + case.findall("error")
        skip = case.find("skipped")
        if bad:
            failed += 1
            text = "\n".join(f"{part.get('message') or ''}\n{part.text or ''}".strip() for part in bad)
            results.failed.append((name, text))
        elif skip is not None or case.get("status") == "notrun":
            message = (skip.get("message") or skip.text or "") if skip is not None else "disabled"
            results.skipped.append((name, " ".join(message.split()) or "no reason given"))
        else:
            results.passed += 1
    return failed


def count_target(label, result, results):
    log = output(result, "test.log")
    status = result.get("status", "NO_STATUS")
    if status == "PASSED":
        reason = log and skip_reason(log)
        if reason:
            results.skipped.append((label, reason))
        else:
            count_cases(output(result, "test.xml"), label, results)
        return
    if count_cases(output(result, "test.xml"), label, results) == 0:
        results.failed.append((label, f"{status}\n" + tail(log)))
    else:
        name, text = results.failed[-1]
        results.failed[-1] = (name, f"{text}\n{status}, log of {label}:\n{tail(log)}")


def sum_up(skipped):
    """Yields one line per target and reason; ignores the source position in a reason."""
    groups = {}
    for name, reason in skipped:
        label, _, case = name.partition(" ")
        groups.setdefault((label, re.sub(r"^\S+:\d+ ", "", reason)), []).append(case)
    for (label, reason), cases in groups.items():
        what = f"{label} {cases[0]}".rstrip() if len(cases) == 1 else f"{label}, {len(cases)} cases"
        yield f"SKIPPED {what}: {reason}"


def main():
    folder, bazel_status = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    results = Results()
    count_checks(folder, results)
    broken, runs = read_events(folder)
    for label in broken:
        results.failed.append((label, "not built: Bazel's messages are above"))
    for (label, _, _), result in sorted(runs.items()):
        count_target(label, result, results)
    if bazel_status not in (0, 3) and not broken:
        # 3: some tests failed; they are counted above. Others: Bazel could not run, was stopped, or found no test.
        results.failed.append(("bazel test", f"exit status {bazel_status}: Bazel's messages are above"))
    elif bazel_status == 3 and not results.failed:
        results.failed.append(("bazel test", "exit status 3, but no failed test was reported"))

    for line in sum_up(results.skipped):
        print(line)
    for name, text in results.failed:
        print(f"\nFAILED {name}")
        print("\n".join("    " + line for line in text.strip().splitlines()))
    counts = f"{results.passed} passed, {len(results.failed)} failed"
    if results.skipped:
        counts += f", {len(results.skipped)} skipped"
    print(counts, flush=True)
    return 1 if results.failed or results.passed == 0 else 0


sys.exit(main())
