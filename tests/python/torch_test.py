#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""ballast.torch beside torch.optim, on real servers.

Usage: torch_test.py SERVER LIBRARY
"""

import os
import sys
import unittest

sys.path[:0] = ["python", "tests/python"]

try:
    import numpy
    import torch
except ImportError as error:
    print(f"SKIPPED: {error}")
    sys.exit(0)

SERVER, os.environ["BALLAST_LIBRARY"] = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])

import ballast
from servers import Servers, output_of, run_python
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)

RULES = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "momentum, weight decay": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, 0.01, betas=(0.8, 0.99), eps=1e-6),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.05),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01),
}


class Tied(nn.Module):
    """Two layers with one weight, and a layer that not every pass uses."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.rare = nn.Linear(6, 6)
        self.lent = nn.Linear(6, 6, bias=False)

    def forward(self, x, rare=False):
        x = torch.tanh(self.second(torch.relu(self.first(x))))
        x = self.rare(x) if rare else x
        # The module itself is not called.
        return F.linear(x, self.lent.weight)


def mlp():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 8), nn.LayerNorm(8), nn.Linear(8, 3))


def batches(count, size=16, inputs=6):
    generator = torch.Generator().manual_seed(2)
    return [(torch.randn(size, inputs, generator=generator), torch.randint(0, 3, (size,), generator=generator))
            for _ in range(count)]


def train(model, optimizer, data, passes=1):
    for i, (x, y) in enumerate(data):
        F.cross_entropy(model(x), y).backward()
        if (i + 1) % passes == 0:
            optimizer.step()
            optimizer.zero_grad()


class TorchTest(unittest.TestCase):
    def connect(self, **options):
        servers = self.enterContext(Servers(SERVER, servers=2))
        return self.enterContext(ballast.connect(servers.address, job="test", **options))

    def assert_same(self, model, want, tolerance=1e-6):
        for (name, got), parameter in zip(model.named_parameters(), want.parameters()):
            self.assertTrue(torch.allclose(got, parameter, rtol=tolerance, atol=tolerance),
                            f"{name} differs by {(got - parameter).abs().max():.2e}")

    def test_rules_are_those_of_torch_optim(self):
        for name, rule in RULES.items():
            with self.subTest(name):
                ps = self.connect()
                model, want = mlp(), mlp()
                optimizer = ballast.torch.DistributedOptimizer(rule(model.parameters()), model, ps)
                train(model, optimizer, batches(30))
                optimizer.synchronize()
                train(want, rule(want.parameters()), batches(30))
                self.assert_same(model, want)

    def test_parameter_groups_keep_their_rates(self):
        ps = self.connect()
        model, want = mlp(), mlp()

        def rule(m):
            return torch.optim.SGD([{"params": m[0].parameters(), "lr": 0.01}, {"params": m[4].parameters()}], 0.1)

        optimizer = ballast.torch.DistributedOptimizer(rule(model), model, ps)
        train(model, optimizer, batches(10))
        optimizer.synchronize()
        train(want, rule(want), batches(10))
        self.assert_same(model, want)

    def test_gradients_of_several_passes_are_summed(self):
        ps = self.connect()
        model, want = mlp(), mlp()
        optimizer = ballast.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model, ps,
                                                       backward_passes_per_step=3)
        train(model, optimizer, batches(12), passes=3)
        optimizer.synchronize()
        train(want, torch.optim.SGD(want.parameters(), 0.1), batches(12), passes=3)
        self.assert_same(model, want)

    def test_tied_unused_and_lent_parameters(self):
        ps = self.connect()
        torch.manual_seed(1)
        model = Tied()
        torch.manual_seed(1)
        want = Tied()
        optimizer = ballast.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model, ps)
        reference = torch.optim.SGD(want.parameters(), 0.1)
        for i, (x, _) in enumerate(batches(12)):
            for each, rule in ((model, optimizer), (want, reference)):
                each(x, rare=i % 3 == 0).square().mean().backward()
                rule.step()
                rule.zero_grad()
        optimizer.synchronize()
        self.assert_same(model, want)

    def test_gradients_may_be_removed_instead_of_zeroed(self):
        ps = self.connect()
        model, want = mlp(), mlp()
        optimizer = ballast.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model, ps)
        reference = torch.optim.SGD(want.parameters(), 0.1)
        for x, y in batches(10):
            for each, rule in ((model, optimizer), (want, reference)):
                F.cross_entropy(each(x), y).backward()
                rule.step()
                rule.zero_grad(set_to_none=True)
        optimizer.synchronize()
        self.assert_same(model, want)

    def test_two_workers_train_the_joint_batch(self):
        script = """
import sys
import numpy, torch, ballast
from torch import nn
from torch.nn import functional as F
torch.set_num_threads(1)
torch.manual_seed(int(sys.argv[2]))
model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))
with ballast.connect(sys.argv[1], job="test", rank=int(sys.argv[2])) as ps:
    opt = ballast.torch.DistributedOptimizer(torch.optim.Adam(model.parameters(), 0.01), model, ps)
    generator = torch.Generator().manual_seed(2)
    for step in range(20):
        x, y = torch.randn(20, 6, generator=generator), torch.randint(0, 3, (20,), generator=generator)
        mine = slice(0, 15) if ps.rank == 0 else slice(15, 20)
        opt.examples = len(x[mine])
        F.cross_entropy(model(x[mine]), y[mine]).backward()
        opt.step()
        opt.zero_grad()
    opt.synchronize()
numpy.savez(sys.argv[3], *[p.detach().numpy() for p in model.parameters()])
"""
        folder = os.environ.get("TEST_TMPDIR", "/tmp")
        with Servers(SERVER, servers=2, workers=2) as servers:
            files = [f"{folder}/worker{rank}.npz" for rank in range(2)]
            for status, output in [output_of(worker) for worker in
                                   [run_python(script, servers.address, str(rank), files[rank]) for rank in range(2)]]:
                self.assertEqual(status, 0, output)
        torch.manual_seed(0)
        want = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))
        rule = torch.optim.Adam(want.parameters(), 0.01)
        generator = torch.Generator().manual_seed(2)
        for _ in range(20):
            x, y = torch.randn(20, 6, generator=generator), torch.randint(0, 3, (20,), generator=generator)
            rule.zero_grad()
            F.cross_entropy(want(x), y).backward()
            rule.step()
        for file in files:
            arrays = numpy.load(file)
            for array, parameter in zip(arrays.values(), want.parameters()):
                numpy.testing.assert_allclose(array, parameter.detach().numpy(), rtol=1e-5, atol=1e-5)

    def test_loader_gives_each_example_once(self):
        for processes in (0, 2):
            with self.subTest(processes):
                ps = self.connect(examples=100, batch_size=8, epochs=2)
                model = nn.Linear(1, 1)
                optimizer = ballast.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), 1e-6), model, ps)
                data = torch.utils.data.TensorDataset(torch.arange(100.0).reshape(-1, 1))
                seen = []
                for (x,) in ps.leases(torch.utils.data.DataLoader(data, batch_size=8, num_workers=processes)):
                    seen += x.flatten().tolist()
                    model(x).mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                self.assertEqual(sorted(seen[:100]), list(range(100)))
                self.assertEqual(sorted(seen[100:]), list(range(100)))

    def test_refuses_what_the_servers_lack_by_name(self):
        ps = self.connect()
        model = mlp()
        cases = [
            (torch.optim.LBFGS(model.parameters()), "got torch.optim.lbfgs.LBFGS, want exactly one of"),
            (torch.optim.Adam(model.parameters(), amsgrad=True), "of Adam has amsgrad=True, want False"),
            (torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, dampening=0.1), "SGD has dampening=0.1, want 0"),
            (torch.optim.SGD([torch.nn.Parameter(torch.zeros(5))], 0.1),
             "parameter 0 of group 0, of shape .5,., is none"),
        ]
        for rule, message in cases:
            with self.subTest(message), self.assertRaisesRegex(ballast.InvalidArgument, message):
                ballast.torch.DistributedOptimizer(rule, model, ps)

    def test_refuses_a_second_pass_and_a_changed_rate(self):
        ps = self.connect()
        model = mlp()
        rule = torch.optim.SGD(model.parameters(), 0.1)
        optimizer = ballast.torch.DistributedOptimizer(rule, model, ps)
        x, y = batches(1)[0]
        F.cross_entropy(model(x), y).backward()
        with self.assertRaisesRegex(ballast.InvalidArgument, "another one in the same step, want 1 backward passes"):
            F.cross_entropy(model(x), y).backward()
        rule.param_groups[0]["lr"] = 0.01
        with self.assertRaisesRegex(ballast.InvalidArgument, "learning rate: got 0.01 instead of 0.1"):
            optimizer.step()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
