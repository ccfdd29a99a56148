#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Compares every optimizer and schedule with PyTorch's of the same name, and FTRL with float64 NumPy.

Each case has one tensor on a real server and one in PyTorch or NumPy, with the same initial values and the same 200
gradients. The learning rates after each update and the final values agree to a relative error of 1e-5. FTRL, which
PyTorch lacks, runs with every schedule, with and without rates scaled by staleness.

Usage: optimizer_peer_test.py SERVER PROTO...
"""

import math
import os
import pathlib
import select
import subprocess
import sys
import time

TOLERANCE = 1e-5
UPDATES = 200
ELEMENTS = 500
JOB = "optimizers"

# By name: an optimizer as in a job file, and PyTorch's counterpart.
OPTIMIZERS = {
    "sgd": ("sgd { learning_rate: 0.1 }", lambda o, p: o.SGD(p, lr=0.1)),
    "sgd, weight decay": ("sgd { learning_rate: 0.1 } weight_decay: 0.05",
                          lambda o, p: o.SGD(p, lr=0.1, weight_decay=0.05)),
    "momentum": ("momentum { learning_rate: 0.02 momentum: 0.9 }", lambda o, p: o.SGD(p, lr=0.02, momentum=0.9)),
    "momentum, weight decay": ("momentum { learning_rate: 0.02 momentum: 0.9 } weight_decay: 0.05",
                               lambda o, p: o.SGD(p, lr=0.02, momentum=0.9, weight_decay=0.05)),
    "nesterov": ("nesterov { learning_rate: 0.02 momentum: 0.9 }",
                 lambda o, p: o.SGD(p, lr=0.02, momentum=0.9, nesterov=True)),
    "nesterov, weight decay": ("nesterov { learning_rate: 0.02 momentum: 0.9 } weight_decay: 0.05",
                               lambda o, p: o.SGD(p, lr=0.02, momentum=0.9, nesterov=True, weight_decay=0.05)),
    "adagrad": ("adagrad { learning_rate: 0.1 }", lambda o, p: o.Adagrad(p, lr=0.1)),
    "adagrad, epsilon, weight decay": ("adagrad { learning_rate: 0.1 epsilon: 0.1 } weight_decay: 0.05",
                                       lambda o, p: o.Adagrad(p, lr=0.1, eps=0.1, weight_decay=0.05)),
    "rmsprop": ("rmsprop { learning_rate: 0.01 }", lambda o, p: o.RMSprop(p, lr=0.01)),
    "rmsprop, alpha, epsilon, weight decay": (
        "rmsprop { learning_rate: 0.01 alpha: 0.9 epsilon: 0.1 } weight_decay: 0.05",
        lambda o, p: o.RMSprop(p, lr=0.01, alpha=0.9, eps=0.1, weight_decay=0.05)),
    "adam": ("adam { learning_rate: 0.01 }", lambda o, p: o.Adam(p, lr=0.01)),
    "adam, betas, epsilon, weight decay": (
        "adam { learning_rate: 0.01 beta1: 0.8 beta2: 0.99 epsilon: 0.1 } weight_decay: 0.05",
        lambda o, p: o.Adam(p, lr=0.01, betas=(0.8, 0.99), eps=0.1, weight_decay=0.05)),
    "adamw": ("adamw { learning_rate: 0.01 }", lambda o, p: o.AdamW(p, lr=0.01, weight_decay=0)),
    "adamw, weight decay": ("adamw { learning_rate: 0.01 } weight_decay: 0.5",
                            lambda o, p: o.AdamW(p, lr=0.01, weight_decay=0.5)),
}

# By name: a schedule as in a job file, and PyTorch's counterpart.
SCHEDULES = {
    "constant": ("constant {}", lambda s, o: s.ConstantLR(o, factor=1)),
    "step": ("step { every: 30 factor: 0.5 }", lambda s, o: s.StepLR(o, 30, 0.5)),
    "exponential": ("exponential { factor: 0.99 }", lambda s, o: s.ExponentialLR(o, 0.99)),
    "polynomial": ("polynomial { total: 150 }", lambda s, o: s.PolynomialLR(o, 150)),
    "polynomial, power": ("polynomial { total: 150 power: 2 }", lambda s, o: s.PolynomialLR(o, 150, 2.0)),
    "cosine": ("cosine { total: 200 }", lambda s, o: s.CosineAnnealingLR(o, 200)),
    "cosine, final share": ("cosine { total: 200 min_rate_ratio: 0.25 }",
                            lambda s, o: s.CosineAnnealingLR(o, 200, 0.25 * o.defaults["lr"])),
    "one cycle": ("one_cycle { total: 200 }",
                  lambda s, o: s.OneCycleLR(o, o.defaults["lr"], 200, cycle_momentum=False)),
    "one cycle, rise share": ("one_cycle { total: 200 warmup_fraction: 0.1 }",
                              lambda s, o: s.OneCycleLR(o, o.defaults["lr"], 200, pct_start=0.1, cycle_momentum=False)),
    "warm-up": ("warmup: 40", lambda s, o: s.LinearLR(o, 1 / 41, 1.0, 40)),
    "warm-up, step": ("step { every: 30 factor: 0.5 } warmup: 40",
                      lambda s, o: s.ChainedScheduler([s.LinearLR(o, 1 / 41, 1.0, 40), s.StepLR(o, 30, 0.5)])),
    "warm-up, exponential": ("exponential { factor: 0.99 } warmup: 40",
                             lambda s, o: s.ChainedScheduler([s.LinearLR(o, 1 / 41, 1.0, 40),
                                                              s.ExponentialLR(o, 0.99)])),
}

CLIPPINGS = {
    "clipped by value": ("clip_value: 0.5", lambda utils, p: utils.clip_grad_value_(p, 0.5)),
    "clipped by norm": ("clip_norm: 15", lambda utils, p: utils.clip_grad_norm_(p, 15.0)),
}


FTRL = {"learning_rate": 0.1, "beta": 0.5, "l1": 0.01, "l2": 0.02}


def cosine(start, end, share):
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2


def one_cycle(t, total, rise):
    peak, last = rise * total - 1, total - 1
    if t < peak:
        return cosine(1 / 25, 1, t / peak)
    return cosine(1, 1 / 250000, (min(t, last) - peak) / (last - peak))


# By name of a schedule above: its factor at update t (from 0), by the formulas of tensor.proto.
FACTORS = {
    "constant": lambda t: 1,
    "step": lambda t: 0.5 ** (t // 30),
    "exponential": lambda t: 0.99 ** t,
    "polynomial": lambda t: 1 - min(t, 150) / 150,
    "polynomial, power": lambda t: (1 - min(t, 150) / 150) ** 2,
    "cosine": lambda t: cosine(1, 0, min(t, 200) / 200),
    "cosine, final share": lambda t: cosine(1, 0.25, min(t, 200) / 200),
    "one cycle": lambda t: one_cycle(t, 200, 0.3),
    "one cycle, rise share": lambda t: one_cycle(t, 200, 0.1),
    "warm-up": lambda t: min(t + 1, 41) / 41,
    "warm-up, step": lambda t: min(t + 1, 41) / 41 * 0.5 ** (t // 30),
    "warm-up, exponential": lambda t: min(t + 1, 41) / 41 * 0.99 ** t,
}


def staleness_of(update):
    return min(update, update * 7 % 5)


class Failure(Exception):
    pass


class Case:
    """A tensor on the server and the same parameter in PyTorch."""

    def __init__(self, torch, optimizer, schedule=None, clipping=None):
        self.torch = torch
        self.name = ", ".join(part for part in (optimizer, schedule, clipping) if part)
        self.config = OPTIMIZERS[optimizer][0]
        self.parameter = torch.nn.Parameter(torch.zeros(ELEMENTS))
        self.rule = OPTIMIZERS[optimizer][1](torch.optim, [self.parameter])
        self.schedule = None
        self.clip = None
        # Gradients draw the values toward this; None: toward nothing.
        self.target = None
        if schedule:
            self.config += f" schedule {{ {SCHEDULES[schedule][0]} }}"
            self.schedule = SCHEDULES[schedule][1](torch.optim.lr_scheduler, self.rule)
        if clipping:
            self.config += " " + CLIPPINGS[clipping][0]
            self.clip = CLIPPINGS[clipping][1]

    def start_from(self, values):
        with self.torch.no_grad():
            self.parameter.copy_(self.torch.from_numpy(values.copy()))

    def update(self, update, gradient):
        """Returns the learning rate of this update."""
        self.parameter.grad = self.torch.from_numpy(gradient.copy())
        if self.clip:
            self.clip(self.torch.nn.utils, [self.parameter])
        rate = self.rule.param_groups[0]["lr"]
        self.rule.step()
        # A one-cycle schedule refuses a step after its last update.
        if self.schedule and update + 1 < UPDATES:
            self.schedule.step()
        return rate

    def values(self):
        return self.parameter.detach().numpy()


class FtrlCase:
    """A tensor of the server's beside one of NumPy's, in float64: FTRL-proximal as in the paper, with each update's
    rate."""

    def __init__(self, schedule, stale):
        self.name = f"ftrl, {schedule}" + (", scaled by staleness" if stale else "")
        fields = " ".join(f"{name}: {value}" for name, value in FTRL.items())
        self.config = f"ftrl {{ {fields} }} schedule {{ {SCHEDULES[schedule][0]} }}"
        self.factor = FACTORS[schedule]
        self.stale = stale
        # (beta + sqrt(n)) / rate at the previous update; None before the first.
        self.proximal = None

    def start_from(self, values):
        import numpy
        self.target = numpy.sin(numpy.arange(ELEMENTS))
        self.w = values.astype("f8")
        self.z = numpy.zeros(ELEMENTS)
        self.n = numpy.zeros(ELEMENTS)

    def update(self, update, gradient):
        """Returns the learning rate of this update by the schedule."""
        import numpy
        scheduled = FTRL["learning_rate"] * self.factor(update)
        rate = scheduled / (1 + staleness_of(update)) if self.stale else scheduled
        if rate == 0:
            return scheduled
        g = gradient.astype("f8")
        self.n += g * g
        proximal = (FTRL["beta"] + numpy.sqrt(self.n)) / rate
        # In the paper the weights before the first update are 0.
        sigma_w = 0 if self.proximal is None else (proximal - self.proximal) * self.w
        self.z += g - sigma_w
        self.proximal = proximal
        l1, l2 = FTRL["l1"], FTRL["l2"]
        self.w = numpy.where(numpy.abs(self.z) <= l1, 0, -(self.z - numpy.sign(self.z) * l1) / (proximal + l2))
        return scheduled

    def values(self):
        return self.w


def make_cases(torch):
    cases = [(optimizer, None, None) for optimizer in OPTIMIZERS]
    cases += [("sgd", schedule, None) for schedule in SCHEDULES]
    cases += [("adam", "one cycle", None), ("adamw, weight decay", "cosine", None), ("momentum", "warm-up, step", None)]
    # No optimizer's state may assume a constant rate.
    cases += [(optimizer, schedule, None) for schedule in ("one cycle", "warm-up, step")
              for optimizer in OPTIMIZERS if optimizer != "sgd" and (optimizer, schedule, None) not in cases]
    cases += [(optimizer, None, clipping) for clipping in CLIPPINGS for optimizer in OPTIMIZERS]
    return [Case(torch, *case) for case in cases]


class Server:
    """A ballast_server with one tensor for each case."""

    def __init__(self, binary, folder):
        folder.mkdir()
        self.log = folder / "server.log"
        address_file = folder / "address"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen([binary, "--listen", "127.0.0.1:0", "--address_file", str(address_file)],
                                            stderr=log)
        ended = os.pidfd_open(self.process.pid)
        deadline = time.monotonic() + 60
        while not address_file.exists():
            if select.select([ended], [], [], 0.02)[0] or time.monotonic() > deadline:
                raise Failure("the server did not start: " + self.log.read_text())
        import grpc
        from ballast.v1 import parameter_service_pb2_grpc
        self.channel = grpc.insecure_channel(address_file.read_text().strip())
        self.stub = parameter_service_pb2_grpc.ParameterServiceStub(self.channel)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.channel.close()
        self.process.kill()
        self.process.wait()

    def declare(self, cases, stale):
        from ballast.v1 import parameter_service_pb2 as ps
        from google.protobuf import text_format
        request = ps.DeclareTensorsRequest(job=JOB, workers=1)
        getattr(request.policy, "async").scale_by_staleness = stale
        for i, case in enumerate(cases):
            spec = request.tensors.add().spec
            spec.id, spec.name, spec.seed = i, f"case{i}", 5
            spec.shape.append(ELEMENTS)
            spec.initializer.normal.stddev = 1
            text_format.Parse(case.config, spec.optimizer)
        self.stub.DeclareTensors(request, timeout=60)

    def push(self, tensor, update, sequence, gradient, staleness):
        """Returns the learning rate of this update by the schedule."""
        from ballast.v1 import parameter_service_pb2 as ps
        request = ps.PushRequest()
        header = request.header
        header.job, header.worker, header.incarnation, header.sequence = JOB, 0, 1, sequence
        header.step, header.examples = update, 1
        request.gradients.add(tensor_id=tensor, slice_index=0, version=update - staleness,
                              payload=gradient.tobytes())
        outcome = self.stub.Push(request, timeout=60).outcome
        if outcome.applied != 1 or outcome.max_staleness != staleness:
            raise Failure(f"update {update} was not applied: {outcome}")
        return outcome.learning_rate

    def pull(self, cases):
        import numpy
        from ballast.v1 import parameter_service_pb2 as ps
        request = ps.PullRequest(job=JOB)
        for i in range(len(cases)):
            request.slices.add(tensor_id=i, slice_index=0)
        return [numpy.frombuffer(value.payload, "<f4") for value in self.stub.Pull(request, timeout=60).values]


def train(server, cases, stale):
    """Puts every case through all updates, there and here; returns the initial and final values of the server's, and
    the worst relative error of a learning rate, by case."""
    import numpy
    server.declare(cases, stale)
    initial = server.pull(cases)
    for case, values in zip(cases, initial):
        case.start_from(values)
    generator = numpy.random.default_rng(7)
    # Some elements have small gradients throughout, others large ones.
    size = 10 ** generator.uniform(-2, 0.5, ELEMENTS)
    worst = [0.0] * len(cases)
    for update in range(UPDATES):
        gradient = (size * generator.standard_normal(ELEMENTS)).astype("<f4")
        for i, case in enumerate(cases):
            # Without a target, values that FTRL lost would look as good as any others.
            pulled = gradient if case.target is None else gradient + case.values() - case.target
            pulled = numpy.asarray(pulled, "<f4")
            ours = server.push(i, update, update * len(cases) + i + 1, pulled, staleness_of(update) if stale else 0)
            theirs = case.update(update, pulled)
            worst[i] = max(worst[i], abs(ours - theirs) / max(theirs, 1e-9))
    return initial, server.pull(cases), worst


def errors_of(initial, ours, theirs):
    """Returns relative errors: of the norm, and of an element relative to the largest element."""
    import numpy
    moved = numpy.abs(theirs.astype("f8") - initial).max()
    if not moved > 0.05:
        raise Failure(f"nothing was trained: values moved by {moved}, want more than 0.05")
    difference = ours.astype("f8") - theirs
    return (numpy.linalg.norm(difference) / numpy.linalg.norm(theirs.astype("f8")),
            numpy.abs(difference).max() / numpy.abs(theirs).max())


def report(cases, initial, final, rates):
    """Returns how many cases failed."""
    failed = 0
    for case, before, ours, rate in zip(cases, initial, final, rates):
        norm, element = errors_of(before, ours, case.values())
        good = max(norm, element, rate) <= TOLERANCE
        failed += not good
        print(f"{'ok' if good else 'FAILED'}: {case.name}: relative error {norm:.2e} of the norm, {element:.2e} of the "
              f"largest element, {rate:.2e} of the learning rate, want at most {TOLERANCE:.0e}")
    print(f"{len(cases)} cases, {failed} failed")
    return failed


def main():
    try:
        import numpy
        print("NumPy", numpy.__version__)
    except ImportError as error:
        print(f"SKIPPED: {error}")
        return 0
    base = pathlib.Path(os.environ["TEST_TMPDIR"])
    stubs = base / "stubs"
    stubs.mkdir()
    subprocess.run(["protoc", "-I", "proto", f"--python_out={stubs}", f"--grpc_out={stubs}",
                    "--plugin=protoc-gen-grpc=/usr/bin/grpc_python_plugin"] + sys.argv[2:], check=True, timeout=60)
    sys.path.insert(0, str(stubs))
    binary = os.path.abspath(sys.argv[1])
    failed = 0
    for stale in (False, True):
        cases = [FtrlCase(schedule, stale) for schedule in SCHEDULES]
        with Server(binary, base / f"ftrl{stale:d}") as server:
            failed += report(cases, *train(server, cases, stale))
    try:
        import torch
        print("PyTorch", torch.__version__)
    except ImportError as error:
        print(f"SKIPPED the other optimizers: {error}")
        return 1 if failed else 0
    torch.set_num_threads(1)
    cases = make_cases(torch)
    with Server(binary, base / "torch") as server:
        failed += report(cases, *train(server, cases, False))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
