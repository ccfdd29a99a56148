#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the Python package with its library and the programs as one wheel for every Python 3.
set -euo pipefail
export LC_ALL=C

usage() {
  cat <<'USAGE'
Usage: deploy/wheel.sh [--out DIR] [--built DIR]

Builds the wheel of the Python package `ballast`, with libballast.so and the programs, and prints its path and size.
If these need nothing of Debian's packages but libc, the wheel is for every Linux with a libc as new as Debian 12's
(manylinux_2_36_x86_64); otherwise for machines with the same packages (linux_x86_64).
  --out DIR    where to put the wheel (default: dist)
  --built DIR  packs what is built there (such as bazel-bin) and builds nothing
  --help       prints this text
USAGE
}

fail() {
  echo "error: $*" >&2
  exit "${status:-1}"
}

out=dist
built=
while (($# > 0)); do
  case $1 in
    --help | -h) usage; exit 0 ;;
    --out=* | --built=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" ;;
    --out | --built)
      [[ -n ${2-} && ${2-} != -* ]] || status=2 fail "$1: got \"${2-}\", want a directory"
      printf -v "${1#--}" %s "$(realpath -m -- "$2")"
      shift 2
      ;;
    *) usage >&2; status=2 fail "unknown argument $1" ;;
  esac
done
out=$(realpath -m -- "$out")

cd "$(dirname "${BASH_SOURCE[0]}")/.."
files=(client/c/libballast.so cli/ballast server/ballast_server worker/ballast_worker)
if [[ -z $built ]]; then
  deploy/setup.sh
  echo "wheel: building (takes several minutes the first time)"
  bazel build --config=static //client/c:libballast.so //cli:ballast //server:ballast_server //worker:ballast_worker
  built=bazel-bin
fi
for file in "${files[@]}"; do
  [[ -f $built/$file ]] || fail "$built/$file does not exist: it was not built"
done

# Prints the libraries that a file needs besides libc's own, and the versions of libc's symbols above 2.36.
foreign() {
  readelf --dynamic --wide "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
    grep -vE '^(libc|libm|libdl|librt|libpthread|ld-linux-x86-64)\.so\.[0-9]+$' || true
  readelf --version-info --wide "$1" | grep -oE 'GLIBC_2\.[0-9]+' | sort -u |
    awk -F. '$2 > 36 {print}'
}

tag=manylinux_2_36_x86_64
for file in "${files[@]}"; do
  needs=$(foreign "$built/$file" | tr '\n' ' ')
  [[ -z $needs ]] && continue
  tag=linux_x86_64
  echo "note: $file needs ${needs% }" >&2
done

read -r _ version _ < <("$built/cli/ballast" --version)
/usr/bin/python3 - "$built" "$out" "$version" "$tag" <<'PYTHON'
import base64, hashlib, os, pathlib, subprocess, sys, zipfile
built, out, version, tag = sys.argv[1:]
info = f"ballast-{version}.dist-info"
files = {}
for path in sorted(pathlib.Path("python/ballast").rglob("*")):
    if path.suffix == ".py" or path.name == "py.typed":
        files[str(path.relative_to("python"))] = (path.read_bytes(), 0o644)


def stripped(path):
    """Returns a binary without what only debuggers read."""
    result = subprocess.run(["strip", "--strip-all" if not path.endswith(".so") else "--strip-unneeded", "-o",
                             "/dev/stdout", path], stdout=subprocess.PIPE)
    return result.stdout if result.returncode == 0 and result.stdout else pathlib.Path(path).read_bytes()


files["ballast/libballast.so"] = (stripped(f"{built}/client/c/libballast.so"), 0o755)
for program in ("cli/ballast", "server/ballast_server", "worker/ballast_worker"):
    files["ballast/bin/" + os.path.basename(program)] = (stripped(f"{built}/{program}"), 0o755)
files[f"{info}/LICENSE"] = (pathlib.Path("LICENSE").read_bytes(), 0o644)
files[f"{info}/METADATA"] = (f"""Metadata-Version: 2.1
Name: ballast
Version: {version}
Summary: Parameter servers for NumPy and PyTorch
License: Apache-2.0
Requires-Python: >=3.8
Provides-Extra: numpy
Requires-Dist: numpy; extra == "numpy"
""".encode(), 0o644)
files[f"{info}/WHEEL"] = (f"""Wheel-Version: 1.0
Generator: deploy/wheel.sh
Root-Is-Purelib: false
Tag: py3-none-{tag}
""".encode(), 0o644)
files[f"{info}/entry_points.txt"] = (b"[console_scripts]\nballast = ballast.__main__:main\n", 0o644)
record = ""
for name, (data, _) in files.items():
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    record += f"{name},sha256={digest},{len(data)}\n"
files[f"{info}/RECORD"] = ((record + f"{info}/RECORD,,\n").encode(), 0o644)
pathlib.Path(out).mkdir(parents=True, exist_ok=True)
wheel = pathlib.Path(out) / f"ballast-{version}-py3-none-{tag}.whl"
with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
    for name, (data, mode) in files.items():
        # One time for all files, so that the same files give the same wheel.
        entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
        entry.external_attr = (0o100000 | mode) << 16
        entry.compress_type = zipfile.ZIP_DEFLATED
        archive.writestr(entry, data)
print(f"wheel: {wheel} ({wheel.stat().st_size / 2**20:.1f} MiB)")
PYTHON
