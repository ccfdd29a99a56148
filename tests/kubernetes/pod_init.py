# SPDX-License-Identifier: Apache-2.0
"""Runs a container's process: as process 1 of new mount, PID, IPC and UTS namespaces in the pod's network namespace.
It puts the container's file system together, gives up its rights, and executes the command. The parent stays outside,
and exits as a container runtime reports the end: with the process's exit code, or 128 and the signal that ended it.

Usage: pod_init.py SPEC.json
"""

import ctypes
import json
import os
import signal
import socket
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWPID, CLONE_NEWNET = 1 << 17, 1 << 26, 1 << 27, 1 << 29, 1 << 30
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 1 << 12, 1 << 14, 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 24, 38
NOT_STARTED = 128  # A container that cannot be created.


def call(what, result):
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


def mount(source, target, kind="", flags=0, data=""):
    call(f"mount {source} at {target}",
         LIBC.mount(source.encode(), target.encode(), kind.encode(), flags, data.encode()))


def bind(source, target, read_only):
    mount(source, target, "", MS_BIND)
    if read_only:
        mount("", target, "", MS_BIND | MS_REMOUNT | MS_RDONLY)


def pivot_root(root):
    os.chdir(root)
    # The old root is then under the new one.
    call(f"pivot_root {root}", LIBC.syscall({"x86_64": 155, "aarch64": 41}[os.uname().machine], b".", b"."))
    call("umount the old root", LIBC.umount2(b".", MNT_DETACH))
    os.chdir("/")


def enter(spec):
    """Of process 1: never returns."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    root = spec["root"]
    mount("", "/", "", MS_REC | MS_PRIVATE)
    bind(spec["image"], root, spec["read_only"])
    for target, path in spec["files"].items():
        bind(path, root + target, True)
    for device in ("null", "zero", "full", "random", "urandom"):
        bind(f"/dev/{device}", f"{root}/dev/{device}", False)
    mount("shm", f"{root}/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=1777,size=64m")
    mount("proc", f"{root}/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for volume in spec["mounts"]:
        bind(volume["source"], root + volume["target"], volume["read_only"])
    pivot_root(root)
    socket.sethostname(spec["hostname"][:63])
    if spec["drop_capabilities"]:
        for capability in range(64):
            LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    os.setgroups(spec["groups"])
    os.setresgid(spec["group"], spec["group"], spec["group"])
    os.setresuid(spec["user"], spec["user"], spec["user"])
    if spec["no_new_privileges"]:
        LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    os.umask(0o022)
    os.execve(spec["command"][0], spec["command"], spec["environment"])


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        spec = json.load(file)
    netns = os.open(f"/run/netns/{spec['netns']}", os.O_RDONLY | os.O_CLOEXEC)
    call("setns", LIBC.setns(netns, CLONE_NEWNET))
    call("unshare", LIBC.unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID))
    child = os.fork()
    if child == 0:
        try:
            enter(spec)
        except OSError as failure:
            print(f"error: cannot start the container: {failure}", file=sys.stderr, flush=True)
        os._exit(NOT_STARTED)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os._exit(128 - code if code < 0 else code)


main()
