#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Publishes the results of bench/run_all.sh in docs/results.

Usage: fill_docs.py RESULTS DOCS

RESULTS is the directory that bench/run_all.sh wrote. DOCS (docs/results) gets a copy of each raw file, named after the
month of the run, and the page DOCS/README.md gets the machine and the ratios, between its marks, with links to them.
"""

import pathlib
import re
import sys

NAMES = ["transfer", "apply", "rows", "step", "scaling", "straggler"]
RATIO = re.compile(r"^ratio: (?P<what>.+?) +(?P<got>\S+), want (?P<want>[^(]+?)(?P<missed> +\(missed\))?$")


def read_ratios(text):
    """Returns a Markdown table of the lines that begin with "ratio: "."""
    rows = ["| ratio | measured | want |", "| --- | --- | --- |"]
    for line in text.splitlines():
        if not line.startswith("ratio: "):
            continue
        ratio = RATIO.match(line)
        if ratio is None:
            raise ValueError(f'got the line "{line}", want "ratio: WHAT  NUMBER, want LIMIT"')
        missed = ": missed" if ratio["missed"] else ""
        rows.append(f"| {ratio['what']} | {ratio['got']} | {ratio['want']}{missed} |")
    return "\n".join(rows) + "\n"


def describe_machine(text):
    """Returns what machine.txt says about the run and the machine, as prose."""
    lines = text.splitlines()
    facts = dict(re.findall(r"^([^:\n]+\S): +(.+)$", text, re.MULTILINE))
    memory = re.search(r"^Mem: +(\S+)", text, re.MULTILINE).group(1).replace("Gi", " GiB")
    torch = [line for line in lines if line.startswith("PyTorch ")]
    return (f"Measured on {lines[0]} at commit {lines[1]}, {lines[2]}.\n"
            f"{', '.join([facts['Model name'], facts['CPU(s)'] + ' cores', memory, lines[3]] + torch)}.\n")


def link_raw_files(docs, stem):
    files = [f"{stem}{suffix}" for suffix in (".txt", ".json") if (docs / f"{stem}{suffix}").exists()]
    return "Raw output: " + ",\n".join(f"[{name}]({name})" for name in files) + "\n"


def main():
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    results, docs = map(pathlib.Path, sys.argv[1:])
    page = docs / "README.md"
    text = page.read_text()
    month = (results / "machine.txt").read_text()[:7]
    for name in ["machine"] + NAMES:
        stem = f"{month}-bench-{name}"
        for suffix in (".txt", ".json"):
            if (results / f"{name}{suffix}").exists():
                (docs / f"{stem}{suffix}").write_bytes((results / f"{name}{suffix}").read_bytes())
        said = (results / f"{name}.txt").read_text()
        block = f"{describe_machine(said) if name == 'machine' else read_ratios(said)}\n{link_raw_files(docs, stem)}"
        marks = re.compile(f"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
        text, found = marks.subn(lambda match: match.group(1) + block + match.group(2), text)
        if found != 1:
            print(f"error: {page} has {found} places for {name}, want 1", file=sys.stderr)
            return 1
    page.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
