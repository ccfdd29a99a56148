#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Packs the wheel of the Python package: its sources, libballast.so, the programs, and the shared libraries of this
machine that they need, under names that no other package has.

Usage: pack_wheel.py BUILT OUT

BUILT has client/c/libballast.so, cli/ballast, server/ballast_server and worker/ballast_worker. Prints the path and the
size of the wheel, which is put into OUT.
"""

import base64
import hashlib
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import zipfile

# Platform tag, libc and libraries of every Linux with a libc as new as Debian 12's, by PEP 600.
TAG = "manylinux_2_36_x86_64"
LIBC = (2, 36)
SYSTEM = re.compile(r"(libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s|ld-linux-x86-64|linux-vdso)\.so\.\d+")
# By the path in the wheel, where each is built.
BINARIES = {
    "ballast/libballast.so": "client/c/libballast.so",
    "ballast/bin/ballast": "cli/ballast",
    "ballast/bin/ballast_server": "server/ballast_server",
    "ballast/bin/ballast_worker": "worker/ballast_worker",
}
LIBRARIES = "ballast.libs"
# The packages of archives that programs built with --config=static contain.
ARCHIVES = ["libabsl-dev", "libc-ares-dev", "libdnnl-dev", "libgrpc-dev", "libopenblas-pthread-dev", "libprotobuf-dev",
            "libre2-dev", "libssl-dev", "libxxhash-dev", "zlib1g-dev"]


def fail(message):
    sys.exit(f"error: {message}")


def run(*command):
    """Returns what a command prints."""
    result = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if result.returncode != 0:
        fail(f"{' '.join(map(str, command))}: {result.stderr.decode().strip()}")
    return result.stdout.decode()


def needed(file):
    """Returns the names of the shared libraries that a file asks for, without those of every Linux."""
    names = re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "--dynamic", "--wide", file))
    return [name for name in names if not SYSTEM.fullmatch(name)]


def resolved(file):
    """Returns the paths of all shared libraries that a file loads, by name."""
    if not needed(file):
        return {}
    paths = {}
    for line in run("ldd", file).splitlines():
        name, _, path = line.strip().partition(" => ")
        if SYSTEM.fullmatch(name.split(" ")[0]) or not path:
            continue
        if path.startswith("not found"):
            fail(f"{file} needs {name}, which this machine lacks")
        paths[name] = os.path.realpath(path.split(" (")[0])
    return paths


def own_name(name, path):
    """Returns the name of a library's copy, by its contents, so that no other copy in a process is taken for it."""
    digest = hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()[:8]
    stem, dot, rest = name.partition(".so")
    return f"{stem}-{digest}{dot}{rest}"


def make_local(file):
    """Makes the symbols of a shared library global that are unique. The loader shares a unique symbol among all libraries
    of a process that define it, whatever their version: for instance the state of two copies of protobuf."""
    data = bytearray(file.read_bytes())
    sections, = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    for index in range(count):
        kind, = struct.unpack_from("<I", data, sections + index * size + 4)
        if kind != 11:  # SHT_DYNSYM
            continue
        begin, length = struct.unpack_from("<QQ", data, sections + index * size + 24)
        for symbol in range(begin, begin + length, 24):
            if data[symbol + 4] >> 4 == 10:  # STB_GNU_UNIQUE
                data[symbol + 4] = 1 << 4 | data[symbol + 4] & 15  # STB_GLOBAL
    file.write_bytes(data)


def copy_binary(source, target, names, libraries):
    """Copies a program or library without what only debuggers read; it then loads the copies of `names`, which are in
    `libraries`, relative to it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    run("strip", "--strip-unneeded" if ".so" in target.name else "--strip-all", "-o", target, source)
    asked = [name for name in needed(source) if name in names]
    if asked:
        for name in asked:
            run("patchelf", "--replace-needed", name, names[name], target)
        run("patchelf", "--set-rpath", f"$ORIGIN{libraries}", target)
    version = max((tuple(map(int, found.split("."))) for found in
                   re.findall(r"\bGLIBC_(2\.\d+)", run("readelf", "--version-info", "--wide", target))), default=LIBC)
    if version > LIBC:
        fail(f"{source} needs GLIBC_{version[0]}.{version[1]}, want at most {LIBC[0]}.{LIBC[1]}")
    target.chmod(0o755)


def copyrights(paths):
    """Returns the copyright files of the Debian packages of libraries, by package."""
    packages = set(ARCHIVES)
    for path in paths:
        # The file may be known by the path before /lib became a link.
        for known in (path, path[len("/usr"):] if path.startswith("/usr/") else path):
            found = subprocess.run(["dpkg", "--search", known], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            if found.returncode == 0:
                packages.add(found.stdout.decode().split(":")[0])
                break
    files = {package: pathlib.Path("/usr/share/doc", package, "copyright") for package in sorted(packages)}
    return {package: file.read_bytes() for package, file in files.items() if file.exists()}


def collect(built, folder):
    """Puts the binaries and libraries into a folder, with their paths in the wheel; returns the libraries' sources."""
    sources = {inside: pathlib.Path(built, outside) for inside, outside in BINARIES.items()}
    for source in sources.values():
        if not source.is_file():
            fail(f"{source} does not exist: it was not built")
    found = {}
    for source in sources.values():
        found.update(resolved(source))
    names = {name: own_name(name, path) for name, path in found.items()}
    for inside, source in sources.items():
        copy_binary(source, folder / inside, names, "/.." * inside.count("/") + "/" + LIBRARIES)
    for name, path in found.items():
        target = folder / LIBRARIES / names[name]
        copy_binary(path, target, names, "")
        run("patchelf", "--set-soname", names[name], target)
        make_local(target)
    return found.values()


def write(wheel, files):
    """Writes the files, by path, as a wheel. The same files give the same bytes."""
    info = f"{'-'.join(wheel.name.split('-')[:2])}.dist-info"
    record = ""
    for name, (data, _) in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(data)}\n"
    files[f"{info}/RECORD"] = ((record + f"{info}/RECORD,,\n").encode(), 0o644)
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, (data, mode) in files.items():
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__.strip())
    built, out = map(pathlib.Path, sys.argv[1:])
    version = run(built / "cli/ballast", "--version").split()[1]
    info = f"ballast-{version}.dist-info"
    files = {}
    for path in sorted(pathlib.Path("python/ballast").rglob("*")):
        if path.suffix == ".py" or path.name == "py.typed":
            files[str(path.relative_to("python"))] = (path.read_bytes(), 0o644)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        libraries = collect(built, folder)
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                files[str(path.relative_to(folder))] = (path.read_bytes(), 0o755)
    files[f"{info}/licenses/LICENSE"] = (pathlib.Path("LICENSE").read_bytes(), 0o644)
    for package, text in copyrights(libraries).items():
        files[f"{info}/licenses/{package}"] = (text, 0o644)
    files[f"{info}/METADATA"] = (f"""Metadata-Version: 2.1
Name: ballast
Version: {version}
Summary: Parameter servers for NumPy and PyTorch
License: Apache-2.0
Requires-Python: >=3.7
Provides-Extra: numpy
Requires-Dist: numpy; extra == "numpy"
""".encode(), 0o644)
    files[f"{info}/WHEEL"] = (f"""Wheel-Version: 1.0
Generator: deploy/wheel.sh
Root-Is-Purelib: false
Tag: py3-none-{TAG}
""".encode(), 0o644)
    files[f"{info}/entry_points.txt"] = (b"[console_scripts]\nballast = ballast.__main__:main\n", 0o644)
    out.mkdir(parents=True, exist_ok=True)
    wheel = out / f"ballast-{version}-py3-none-{TAG}.whl"
    write(wheel, files)
    print(f"wheel: {wheel} ({wheel.stat().st_size / 2**20:.1f} MiB)")


if __name__ == "__main__":
    main()
