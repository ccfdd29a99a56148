# SPDX-License-Identifier: Apache-2.0
"""Finds out what the machine has: the GPU, PyTorch, and what `ballast doctor` says."""

import ctypes
import json
import os
import sys

import processes

CUDA_MAJOR = 13


def driver():
    """Returns the driver's library, or the reason why there is no GPU. `ballast doctor` says more, once it is built."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None, "no NVIDIA driver: libcuda.so.1 is not there"
    count, version = ctypes.c_int(0), ctypes.c_int(0)
    if library.cuInit(0) != 0 or library.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        return None, "the NVIDIA driver finds no GPU"
    library.cuDriverGetVersion(ctypes.byref(version))
    if version.value < CUDA_MAJOR * 1000:
        return None, (f"the NVIDIA driver is too old: it supports CUDA {version.value // 1000}."
                      f"{version.value % 1000 // 10}, want at least {CUDA_MAJOR}.0; update the driver to 580 or newer")
    return library, ""


def gpu():
    """Returns the first GPU's name and the driver's CUDA version; None if there is none."""
    library, _ = driver()
    if library is None:
        return None
    name, device, version = ctypes.create_string_buffer(256), ctypes.c_int(0), ctypes.c_int(0)
    library.cuDeviceGet(ctypes.byref(device), 0)
    library.cuDeviceGetName(name, 256, device)
    library.cuDriverGetVersion(ctypes.byref(version))
    return {"name": name.value.decode(), "driver_cuda": f"{version.value // 1000}.{version.value % 1000 // 10}"}


def torch(device, deadline):
    """Returns PyTorch's Python, versions and packages' folder, from the first Python that has one for the device; or
    None."""
    code = ("import json, pathlib, sys, torch\n"
            "if sys.argv[1] == 'cuda' and not torch.cuda.is_available(): sys.exit('PyTorch finds no GPU')\n"
            "print(json.dumps({'version': torch.__version__, 'cuda': torch.version.cuda, 'python': sys.executable, "
            "'packages': str(pathlib.Path(torch.__file__).parent.parent)}))")
    for python in dict.fromkeys([os.environ.get("BALLAST_PYTHON") or sys.executable, "/usr/bin/python3"]):
        try:
            return json.loads(processes.run([python, "-c", code, device], deadline))
        except (processes.Failed, OSError, ValueError):
            continue
    return None


def with_packages(packages, environment):
    """Returns the environment with a folder of Python packages, in whose nvidia/ a worker also looks for libraries."""
    folders = [folder for folder in environment.get("PYTHONPATH", "").split(":") if folder]
    return {**environment, "PYTHONPATH": ":".join([*folders, packages])}


def doctor(programs, environment, deadline):
    """Returns what `ballast doctor` says about CUDA, or {"error": the reason why it says nothing}."""
    try:
        with processes.Process([programs / "ballast", "doctor", "--json"], environment) as process:
            return json.loads(process.output(deadline)[1])["cuda"]
    except (processes.Failed, OSError, ValueError, KeyError) as failure:
        return {"error": f"ballast doctor: {failure}"}
