# SPDX-License-Identifier: Apache-2.0
"""File tree of the image that deploy/Containerfile describes: programs, the libraries that they load, and data."""

import os
import pathlib
import re
import shutil
import subprocess

DATASETS = pathlib.Path("/usr/share/datasets/fashion-mnist")
PROGRAMS = ("ballast", "ballast_server", "ballast_worker")
PASSWD = "root:x:0:0::/:/sbin/nologin\nballast:x:65532:65532::/run-dir:/sbin/nologin\n"


def libraries(programs):
    """Paths of the shared libraries that ldd lists for the programs, and of the loader."""
    output = subprocess.run(["ldd", *map(str, programs)], check=True, capture_output=True, text=True,
                            timeout=60).stdout
    missing = re.findall(r"(\S+) => not found", output)
    if missing:
        raise RuntimeError(f"libraries are missing: {', '.join(missing)}")
    return sorted(set(re.findall(r"(/\S*lib\S*\.so\S*)", output)))


def assemble(tree, programs, specs):
    """Fills the new folder `tree`; `specs` are the pods' specs, whose mount points it gets."""
    for folder in ("dev", "proc", "tmp", "run-dir", "etc", "usr/bin", "usr/share/datasets"):
        (tree / folder).mkdir(parents=True, exist_ok=True)
    for name, source in programs.items():
        shutil.copy2(source, tree / "usr/bin" / name)
    for library in libraries(programs.values()):
        target = tree / library[1:]
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(os.path.realpath(library), target)
    if DATASETS.is_dir():
        shutil.copytree(DATASETS, tree / str(DATASETS)[1:], dirs_exist_ok=True)
    (tree / "etc/passwd").write_text(PASSWD)
    for name in ("hosts", "hostname", "resolv.conf"):
        (tree / "etc" / name).write_text("")
    # Files in which a container with a control group namespace sees its own limit.
    (tree / "sys/fs/cgroup/memory").mkdir(parents=True)
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        (tree / "sys/fs/cgroup" / name).write_text("")
    for device in ("null", "zero", "full", "random", "urandom"):
        (tree / "dev" / device).write_text("")
    (tree / "dev/shm").mkdir()
    for spec in specs:
        for container in spec["containers"]:
            for mount in container.get("volumeMounts", []):
                (tree / mount["mountPath"].strip("/")).mkdir(parents=True, exist_ok=True)
