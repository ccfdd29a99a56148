#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Copies the results of bench/run_all.sh from a directory into docs/benchmarks.md, between its marks.

Usage: fill_docs.py DIR DOCUMENT
"""

import pathlib
import re
import sys

NAMES = ["machine", "transfer", "apply", "step", "scaling", "straggler"]


def main():
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    folder, document = map(pathlib.Path, sys.argv[1:])
    text = document.read_text()
    for name in NAMES:
        said = (folder / f"{name}.txt").read_text().rstrip()
        block = f"```text\n{said}\n```\n"
        objects = folder / f"{name}.json"
        if objects.exists():
            json = objects.read_text().strip()
            block += f"\n<details><summary>JSON</summary>\n\n```json\n{json}\n```\n\n</details>\n"
        marks = re.compile(f"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
        text, found = marks.subn(lambda match: match.group(1) + block + match.group(2), text)
        if found != 1:
            print(f"error: {document}: got {found} places for {name}, want 1", file=sys.stderr)
            return 1
    document.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
