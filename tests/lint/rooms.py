#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The rooms (folders) of the code and the includes between them.

  rooms.py layers     checks who includes whom; prints each include that goes against the order
  rooms.py criteria   prints the criteria of the layout with their counts; fails if one is not met
  rooms.py picture    writes the graph of rooms into docs/design/architecture.md; with --check only compares
"""

import collections
import os
import re
import subprocess
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
PAGE = "docs/design/architecture.md"
BEGIN, END = "<!-- rooms: begin -->", "<!-- rooms: end -->"

# A folder may include itself and the folders listed for it.
TOP = {
    "common": [],
    "server": ["common"],
    "client": ["common"],
    "worker": ["common", "client"],
    "cli": ["common", "client"],
    "examples": ["common", "client", "worker"],
    "tests": ["common", "server", "client", "worker", "cli", "examples", "bench"],
    "bench": ["common", "server", "client", "worker", "cli", "examples", "tests"],
}
# The rooms of server/, from the bottom up: each may include those before it, except as EXCEPT says.
SERVER = ["memory", "weights", "policies", "tensors", "tables", "testing", "shard", "durability", "replication",
          "coordinator", "rpc"]
EXCEPT = {
    # They know nothing of each other.
    "coordinator": ["memory", "weights", "policies", "tensors", "tables", "testing", "shard", "durability", "replication"],
    "tables": ["tensors"],
    "shard": ["testing"],
    "durability": ["testing"],
    "replication": ["testing"],
    "rpc": ["testing"],
}
# In server/ gRPC is known to these alone.
GRPC = ("server/rpc/", "server/server")

MAX_SOURCES = 25
MAX_SERVER_ARROWS = 20
# One strategy a file.
STRATEGIES = ("common/codecs", "server/weights/optimizers", "worker/model/layers", "worker/device/cuda/kernels")


def sources(*patterns):
    out = subprocess.check_output(["git", "ls-files", *patterns], cwd=ROOT, text=True)
    return [name for name in out.split() if os.path.exists(os.path.join(ROOT, name))]


def read(name):
    with open(os.path.join(ROOT, name), encoding="utf-8") as file:
        return file.read()


def includes():
    """Yields (file, line number, included path) for each include in quotes."""
    for name in sources("*.cc", "*.h", "*.cu"):
        for number, line in enumerate(read(name).splitlines(), 1):
            match = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
            if match:
                yield name, number, match.group(1)


def is_test(name):
    return name.endswith("_test.cc") or "/testing/" in name


def room(name):
    """The first two segments of a file's folder: "server/shard"."""
    return "/".join(os.path.dirname(name).split("/")[:2])


def check_layers():
    errors = []
    arrows = collections.defaultdict(list)
    for name, number, target in includes():
        place = f"{name}:{number}"
        if target.startswith(".") or "/" not in target:
            errors.append(f"{place}: include \"{target}\" is not relative to the root")
            continue
        source, wanted = name.split("/")[0], target.split("/")[0]
        if wanted not in TOP:
            continue
        if source not in TOP:
            errors.append(f"{place}: folder {source} has no place in the order; add it to tests/lint/rooms.py")
        elif wanted != source and wanted not in TOP[source]:
            errors.append(f"{place}: {source} includes {wanted}, may include: proto {' '.join(TOP[source])}")
        if not is_test(name):
            arrows[(os.path.dirname(name), os.path.dirname(target))].append(place)
        if room(name) != room(target) and source == wanted == "server" and not is_test(name):
            errors.extend(check_server(place, room(name), room(target)))
    for (source, target), places in sorted(arrows.items()):
        if source < target and (target, source) in arrows:
            errors.append(f"{source} and {target} include each other: {places[0]}, {arrows[(target, source)][0]}")
    for name in sources("server/*.cc", "server/*.h"):
        if is_test(name) or name.startswith(GRPC):
            continue
        for number, line in enumerate(read(name).splitlines(), 1):
            if re.match(r'\s*#\s*include\s+["<](grpc/|grpcpp/|.*\.grpc\.pb\.h)', line):
                errors.append(f"{name}:{number}: knows gRPC; only {' and '.join(GRPC)} may")
    return errors


def check_server(place, source, target):
    if source == "server":
        return []
    source, target = source.split("/")[1], target.split("/")[-1]
    if source not in SERVER or target not in SERVER:
        return [f"{place}: server/{source} or server/{target} has no place in the order; add it to tests/lint/rooms.py"]
    allowed = [name for name in SERVER[:SERVER.index(source)] if name not in EXCEPT.get(source, [])]
    if target in allowed:
        return []
    return [f"{place}: server/{source} includes server/{target}, may include: {' '.join(allowed) or 'common alone'}"]


def room_arrows():
    """The set of (room, room) with an include from the first into the second, tests left out."""
    arrows = set()
    for name, _, target in includes():
        if not is_test(name) and target.split("/")[0] in TOP and room(name) != room(target):
            arrows.add((room(name), room(target)))
    return arrows


def median(numbers):
    return sorted(numbers)[len(numbers) // 2]


def large_classes():
    """Yields (class, file, lines, fields) of each class above 500 lines or 15 fields that no sentence excuses."""
    for name in sources("*.h"):
        if is_test(name) or name.startswith("tests/") or "/emulator/" in name:
            continue
        text = read(name)
        for match in re.finditer(r"((?://[^\n]*\n)*)^(?:class|struct) (\w+)[^;{}()]*\{\n", text, re.M):
            body = text[match.end():text.find("\n};", match.end())]
            fields = len([line for line in own_lines(body) if re.search(r"\b[a-z]\w*(?: ABSL_\w+\([^)]*\))*"
                                                                        r"(?: = [^;]*|\{[^;]*\})?;$", line)
                          and not re.match(r"\s*(using|static|return|friend|explicit|virtual|//)\b", line)
                          and "(" not in re.sub(r"ABSL_\w+\([^)]*\)|<.*>| = .*;|\{.*\};", "", line)])
            lines = body.count("\n") + 1
            for body_name in sources(os.path.dirname(name) + "/*.cc"):
                if not is_test(body_name) and os.path.dirname(body_name) == os.path.dirname(name):
                    lines += method_lines(read(body_name), match.group(2))
            if (fields > 15 or lines > 500) and not re.search(r"\bSize: ", match.group(1)):
                yield match.group(2), name, lines, fields


def own_lines(body):
    """The statements of a class body, without those of the classes and functions inside it."""
    depth, kept = 0, []
    for line in body.splitlines():
        if depth == 0:
            kept.append(line)
        depth += line.count("{") - line.count("}")
    return kept


def method_lines(text, name):
    """The number of lines of the methods that a source file defines for a class."""
    total, inside = 0, False
    for line in text.splitlines():
        if not inside and re.match(r"[A-Za-z].*\b%s::~?\w+\(" % name, line):
            inside = True
        if inside:
            total += 1
        if inside and (line.startswith("}") or line.endswith("}") and not line.startswith(" ")):
            inside = False
    return total


NOUNLESS = re.compile(r"^\s*(?://+|#)\s*(Of|What|Whether|As|How(?! often| many| much| long)|Where|That|Who|Whoever) (?!course)")


def criteria():
    met = True

    def tell(good, text):
        nonlocal met
        met = met and good
        print(("ok    " if good else "NOT   ") + text)

    files = sources("*.cc", "*.h", "*.cu", "*.proto")
    counts = collections.Counter(os.path.dirname(name) for name in files if not is_test(name))
    crowded = {name: n for name, n in counts.items() if n > MAX_SOURCES and name not in STRATEGIES}
    tell(not crowded, f"folders with more than {MAX_SOURCES} sources, tests and strategies left out: "
         f"{crowded or 0}; the fullest has {max(n for name, n in counts.items() if name not in STRATEGIES)}")
    errors = check_layers()
    tell(not errors, f"includes against the order, folders that include each other: {len(errors)}")
    arrows = [a for a in room_arrows() if a[0].startswith("server/") and a[1].startswith("server/")]
    tell(len(arrows) <= MAX_SERVER_ARROWS, f"arrows between the rooms of server/: {len(arrows)}, "
         f"at most {MAX_SERVER_ARROWS}")
    large = list(large_classes())
    tell(not large, f"classes with more than 15 fields or 500 lines and no sentence why: {len(large)}")
    for name, place, lines, fields in sorted(large, key=lambda entry: -entry[2]):
        print(f"        {name} ({place}): {lines} lines, {fields} fields")
    length = {name: read(name).count("\n") for name in files if "/emulator/" not in name}
    headers = median([n for name, n in length.items() if name.endswith(".h")])
    tests = median([n for name, n in length.items() if name.endswith("_test.cc")])
    bodies = median([n for name, n in length.items() if name.endswith(".cc") and not name.endswith("_test.cc")])
    tell(True, f"median lines: header {headers} (near 80), source {bodies} (near 150), test {tests} (near 160)")
    bad = [f"{name}:{number}" for name in sources("*.cc", "*.h", "*.cu", "*.proto", "*.bzl")
           for number, (before, line) in enumerate(pairs(read(name)), 1)
           if NOUNLESS.match(line) and opens_sentence(before)]
    tell(not bad, f"comments that open without a noun: {len(bad)}" + (f", the first {bad[0]}" if bad else ""))
    lines = sum(read(name).count("\n") for name in sources("*.cc", "*.h", "*.cu", "*.proto", "*.bazel", "*.bzl"))
    print(f"      lines of *.cc *.h *.cu *.proto *.bazel *.bzl: {lines}")
    expects = sum(len(re.findall(r"\b(?:EXPECT|ASSERT)_\w+\(", read(name))) for name in sources("*.cc", "*.h"))
    print(f"      EXPECT_ and ASSERT_ calls: {expects}")
    return met


def pairs(text):
    lines = text.splitlines()
    return zip([""] + lines, lines)


def opens_sentence(before):
    """True if a comment line after `before` opens a sentence."""
    stripped = before.strip()
    return not stripped.startswith(("//", "#")) or stripped.endswith((".", ":", "//"))


def node(name):
    """The name of a room in the picture. A top folder's own files must not share the name of its frame."""
    return name.replace("/", "_") if "/" in name else name + "_itself"


def picture():
    arrows = room_arrows()
    rooms = sorted({name for arrow in arrows for name in arrow})
    lines = ["```mermaid", "flowchart BT"]
    for top in TOP:
        inner = [name for name in rooms if name.split("/")[0] == top]
        if top in ("tests", "bench", "examples") or not inner:
            continue
        lines.append(f"  subgraph {top}")
        lines += [f"    {node(name)}[{name.split('/')[-1]}]" for name in inner]
        lines.append("  end")
    drawn = set()
    for source, target in sorted(arrows):
        a, b = source.split("/")[0], target.split("/")[0]
        if a in ("tests", "bench", "examples"):
            continue
        # Between top folders one arrow stands for all.
        edge = (node(source), node(target)) if a == b and a != "common" else (a, b)
        if edge[0] != edge[1] and edge not in drawn:
            drawn.add(edge)
            lines.append(f"  {edge[0]} --> {edge[1]}")
    return "\n".join(lines + ["```"])


def main():
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if command == "layers":
        errors = check_layers()
        print("\n".join(errors), file=sys.stderr, end="\n" if errors else "")
        return 1 if errors else 0
    if command == "criteria":
        return 0 if criteria() else 1
    if command == "picture":
        text = read(PAGE)
        begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
        wanted = text[:begin] + "\n" + picture() + "\n" + text[end:]
        if "--check" not in sys.argv:
            with open(os.path.join(ROOT, PAGE), "w", encoding="utf-8") as file:
                file.write(wanted)
        elif wanted != text:
            print(f"{PAGE}: the picture of the rooms is out of date; run: tests/lint/rooms.py picture", file=sys.stderr)
            return 1
        return 0
    print(__doc__)
    return 0 if command in ("--help", "-h") else 2


if __name__ == "__main__":
    sys.exit(main())
