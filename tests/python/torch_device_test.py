#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""ballast.torch with parameters on a device: on one whose copies this test does late, and on a GPU if there is one.

Usage: torch_device_test.py SERVER LIBRARY
"""

import concurrent.futures
import os
import sys
import unittest

sys.path[:0] = ["python", "tests/python"]

try:
    import torch
except ImportError as error:
    print(f"SKIPPED: {error}")
    sys.exit(0)

SERVER, os.environ["BALLAST_LIBRARY"] = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])

import ballast
import ballast.torch
from ballast.torch import _device
from servers import Servers
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)


class LateDevice:
    """Copies from "the device" to the host only when somebody waits for them, as a GPU with much to do."""

    def __init__(self, _device):
        pass

    queue = []
    done = 0
    waits = 0

    def host_memory(self, like):
        return torch.full(like.shape, float("nan"))

    def copy(self, target, source):
        if target.data_ptr() in self.on_host:
            self.queue.append((target, source))
        else:
            self.finish(self.done + len(self.queue))
            target.copy_(source)

    on_host = set()

    @classmethod
    def finish(cls, number):
        while cls.done < number:
            target, source = cls.queue.pop(0)
            target.copy_(source)
            cls.done += 1

    def mark(self):
        return Mark(self.done + len(self.queue))


class Mark:
    def __init__(self, number):
        self._number = number

    def query(self):
        return LateDevice.done >= self._number

    def synchronize(self):
        LateDevice.waits += 1
        LateDevice.finish(self._number)


class Model(nn.Module):
    """Two layers with one weight, one that not every pass uses, and a large one."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.rare = nn.Linear(6, 6)
        self.large = nn.Linear(6, 20000)
        self.last = nn.Linear(20000, 3)

    def forward(self, x, rare=False):
        x = torch.tanh(self.second(torch.relu(self.first(x))))
        x = self.rare(x) if rare else x
        return self.last(torch.relu(self.large(x)))


def batches(count, device):
    generator = torch.Generator().manual_seed(2)
    return [(torch.randn(16, 6, generator=generator).to(device),
             torch.randint(0, 3, (16,), generator=generator).to(device)) for _ in range(count)]


class Cases:
    device = "cpu"

    def optimizer(self, rule, **options):
        """Returns a model, its optimizer on the servers, an equal model, and torch.optim's for that."""
        servers = self.enterContext(Servers(SERVER, servers=2))
        ps = self.enterContext(ballast.connect(servers.address, job="test"))
        model, want = Model().to(self.device), Model().to(self.device)
        ours = ballast.torch.DistributedOptimizer(rule(model.parameters()), model, ps, **options)
        return model, ours, want, rule(want.parameters())

    def assert_same(self, model, want):
        for (name, got), parameter in zip(model.named_parameters(), want.named_parameters()):
            # A sum over 20,000 units is rounded by where its terms are in memory.
            self.assertTrue(torch.allclose(got, parameter[1], rtol=1e-4, atol=2e-5),
                            f"{name} differs by {(got - parameter[1]).abs().max():.2e}")

    def check(self, rule, steps=12, passes=1, rare=3, **options):
        model, ours, want, theirs = self.optimizer(rule, **options)
        where = [parameter.data_ptr() for parameter in model.parameters()]
        for i, (x, y) in enumerate(batches(steps, self.device)):
            for each, optimizer in ((model, ours), (want, theirs)):
                F.cross_entropy(each(x, rare=i % rare == 0), y).backward()
                if (i + 1) % passes == 0:
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=i % 2 == 0)
        ours.synchronize()
        self.assert_same(model, want)
        self.assertEqual([parameter.data_ptr() for parameter in model.parameters()], where)

    def test_sgd(self):
        self.check(lambda parameters: torch.optim.SGD(parameters, 0.02))

    def test_adam(self):
        # torch.optim leaves a parameter alone that has no gradient; here, all workers make the same steps.
        self.check(lambda parameters: torch.optim.AdamW(parameters, 0.001, eps=1e-6, weight_decay=0.1), rare=1)

    def test_several_passes(self):
        self.check(lambda parameters: torch.optim.SGD(parameters, 0.02), passes=3, backward_passes_per_step=3)

    def test_push_in_step(self):
        self.check(lambda parameters: torch.optim.SGD(parameters, 0.02), push_in_step=True)

    def test_gradients_of_old_values_are_refused(self):
        model, ours, *_ = self.optimizer(lambda parameters: torch.optim.SGD(parameters, 0.02))
        (x, y), = batches(1, self.device)
        late = F.cross_entropy(model(x), y)
        F.cross_entropy(model(x), y).backward()
        ours.step()
        model(x)
        with self.assertRaisesRegex((ballast.InvalidArgument, RuntimeError),
                                    "used the values before the last step|modified by an inplace operation"):
            late.backward()

    def test_a_gradient_that_changes_after_it_was_sent_is_refused(self):
        model, ours, *_ = self.optimizer(lambda parameters: torch.optim.SGD(parameters, 0.02))
        (x, y), = batches(1, self.device)
        F.cross_entropy(model(x), y).backward()
        model.last.weight.grad.mul_(2)
        with self.assertRaisesRegex(ballast.InvalidArgument, '"last.weight": got it changed after it was sent'):
            ours.step()

    def test_values_that_the_program_changes_are_refused(self):
        model, ours, *_ = self.optimizer(lambda parameters: torch.optim.SGD(parameters, 0.02))
        (x, y), = batches(1, self.device)
        with torch.no_grad():
            model.last.bias.add_(1)
        with self.assertRaisesRegex(ballast.InvalidArgument, '"last.bias": got values that were changed'):
            F.cross_entropy(model(x), y).backward()
            ours.step()

    def test_steps_without_a_gradient_bring_values_too(self):
        servers = self.enterContext(Servers(SERVER, workers=2))

        def push_thrice():
            with ballast.connect(servers.address, job="test", rank=1) as other:
                other.declare({"weight": (1, 2)}, ballast.SGD(1.0), initializer="provided {}")
                # Once it has the first values.
                values = {"weight": torch.zeros(1, 2)}
                other.pull(values)
                for _ in range(3):
                    other.push_pull({"weight": torch.ones(1, 2)}, values).result(60)

        with concurrent.futures.ThreadPoolExecutor() as threads:
            pushes = threads.submit(push_thrice)
            with ballast.connect(servers.address, job="test", rank=0) as ps:
                model = nn.Linear(2, 1, bias=False).to(self.device)
                model.weight.data.zero_()
                optimizer = ballast.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), 1.0), model, ps)
                x = torch.ones(1, 2, device=self.device)
                model(x).sum().backward()
                optimizer.step()
                # Installs the values of the first step.
                self.assertEqual(model(x).item(), -2)
                ps.skip_step()
                ps.skip_step()
                self.assertEqual(model(x).item(), -6)
            pushes.result()


class HostTest(Cases, unittest.TestCase):
    pass


class LateDeviceTest(Cases, unittest.TestCase):
    def setUp(self):
        kinds = dict(_device.KINDS)
        self.addCleanup(lambda: (_device.KINDS.clear(), _device.KINDS.update(kinds)))
        LateDevice.queue, LateDevice.done, LateDevice.waits, LateDevice.on_host = [], 0, 0, set()
        original = LateDevice.host_memory

        def remember(device, like):
            memory = original(device, like)
            LateDevice.on_host.add(memory.data_ptr())
            return memory

        LateDevice.host_memory = remember
        self.addCleanup(lambda: setattr(LateDevice, "host_memory", original))
        _device.KINDS["cpu"] = LateDevice

    def test_a_backward_pass_does_not_wait_for_copies(self):
        model, ours, *_ = self.optimizer(lambda parameters: torch.optim.SGD(parameters, 0.02))
        (x, y), = batches(1, self.device)
        F.cross_entropy(model(x), y).backward()
        self.assertEqual(LateDevice.waits, 0)
        self.assertGreater(len(LateDevice.queue), 0)
        ours.step()
        self.assertEqual(LateDevice.queue, [])

    def test_a_gradient_is_sent_once_it_is_copied(self):
        model, ours, *_ = self.optimizer(lambda parameters: torch.optim.SGD(parameters, 0.02))
        (x, y), = batches(1, self.device)
        # Any gradient but those of the last layer, which have been copied when it is ready.
        model.large.weight.register_hook(lambda _: LateDevice.finish(LateDevice.done + len(LateDevice.queue)))
        F.cross_entropy(model(x, rare=True), y).backward()
        self.assertTrue(ours._bundles[0].begun)
        self.assertFalse(ours._bundles[-1].begun)


@unittest.skipUnless(torch.cuda.is_available(), "SKIPPED: no GPU that PyTorch can use")
class CudaTest(Cases, unittest.TestCase):
    device = "cuda"


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
