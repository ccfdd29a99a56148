#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""How much of its rate a spinning Python thread keeps while another thread of its process pulls 1 GiB.

The pull takes processor time from the thread whether it holds the interpreter's lock or not. So the rate is compared
with that of the same thread while another process makes the same pull on the same machine: the ratio is what the lock
costs. Prints a line of JSON.

Usage: python_gil.py SERVER LIBRARY [GIB] [ROUNDS]
"""

import json
import os
import statistics
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "python"), os.path.join(ROOT, "tests", "python")]
SERVER, os.environ["BALLAST_LIBRARY"] = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
GIB = float(sys.argv[3]) if len(sys.argv) > 3 else 1.0
ROUNDS = int(sys.argv[4]) if len(sys.argv) > 4 else 5

import numpy as np

import ballast
from servers import Servers


class Puller:
    """A connection, and an array that receives a tensor of so many GiB."""

    def __init__(self, address):
        self.ps = ballast.connect(address, job="gil")
        self.w = np.zeros(int(GIB * 2**28), np.float32)
        self.ps.declare({"w": self.w.shape}, ballast.SGD(1), initializer="zeros {}")
        self.pull()

    def pull(self):
        self.ps.pull({"w": self.w})


def spin_while(begin, has_ended):
    """Returns the spins per second from begin() until has_ended()."""
    spins, began = 0, time.perf_counter()
    begin()
    while not has_ended():
        spins += 1
    return spins / (time.perf_counter() - began)


def in_other_process(address):
    """Starts a process that pulls when it is told to; returns its id, and our ends of two pipes."""
    commands, told = os.pipe()
    answers, said = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(told)
        os.close(answers)
        puller = Puller(address)
        os.write(said, b"r")
        while os.read(commands, 1):
            puller.pull()
            os.write(said, b"d")
        puller.ps.close()
        os._exit(0)  # Without what the parent runs at its exit.
    os.close(commands)
    os.close(said)
    os.read(answers, 1)
    return child, told, answers


def main():
    with Servers(SERVER) as here, Servers(SERVER) as there:
        # Forked first: this process has no threads yet.
        child, told, answers = in_other_process(there.address)
        puller = Puller(here.address)
        os.set_blocking(answers, False)

        def other_has_ended():
            try:
                return bool(os.read(answers, 1))
            except BlockingIOError:
                return False

        beside, within, alone = [], [], []
        for _ in range(ROUNDS):
            for rates, work in ((alone, lambda: time.sleep(1)), (beside, None), (within, puller.pull)):
                ended = threading.Event()
                thread = threading.Thread(target=ended.wait if work is None else work)
                # The same work for each spin, whatever it waits for.
                rates.append(spin_while(
                    lambda: (thread.start(), os.write(told, b"p") if work is None else None),
                    lambda: other_has_ended() or not thread.is_alive()))
                ended.set()
                thread.join()
        os.close(told)
        os.waitpid(child, 0)
        puller.ps.close()
    print(json.dumps({"gib": GIB, "rounds": ROUNDS, "spins_per_second_alone": round(statistics.median(alone)),
                      "beside_a_pull_of_another_process": round(statistics.median(beside)),
                      "beside_a_pull_of_a_thread": round(statistics.median(within)),
                      "kept": round(statistics.median(within) / statistics.median(beside), 3)}))


if __name__ == "__main__":
    main()
