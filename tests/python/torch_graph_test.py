#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""ballast.torch.DistributedOptimizer and the graphs, states and scaled losses of PyTorch programs, on real servers.

Usage: torch_graph_test.py SERVER LIBRARY
"""

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
from servers import Servers
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

torch.set_num_threads(1)


def mlp():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 300), nn.Tanh(), nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 3))


def batches(count, size=16):
    generator = torch.Generator().manual_seed(2)
    return [(torch.randn(size, 6, generator=generator), torch.randint(0, 3, (size,), generator=generator))
            for _ in range(count)]


class FakeScaler:
    """What GradScaler does, on the CPU, with its names: torch's own needs CUDA."""

    def __init__(self, scale):
        self.scale_now = scale
        self._per_optimizer_states = {}

    def get_scale(self):
        return self.scale_now

    def scale(self, loss):
        return loss * self.scale_now

    def unscale_(self, optimizer):
        state = self._per_optimizer_states[id(optimizer)]
        found = torch.zeros(1)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    found += 0.0 if torch.isfinite(parameter.grad).all() else 1.0
                    parameter.grad.div_(self.scale_now)
        state["found_inf_per_device"] = {"cpu": found}

    def step(self, optimizer):
        state = self._per_optimizer_states.setdefault(id(optimizer), {"found_inf_per_device": {}})
        if getattr(optimizer, "_step_supports_amp_scaling", False):
            optimizer.step(grad_scaler=self)
        else:
            self.unscale_(optimizer)
            if not state["found_inf_per_device"]["cpu"].item():
                optimizer.step()

    def update(self):
        if any(state["found_inf_per_device"]["cpu"].item() for state in self._per_optimizer_states.values()):
            self.scale_now /= 2
        self._per_optimizer_states.clear()


class TorchGraphTest(unittest.TestCase):
    def start(self, rule=lambda p: torch.optim.SGD(p, 0.1), model=mlp, **options):
        """Returns a model and its optimizer, and the same for plain PyTorch."""
        servers = self.enterContext(Servers(SERVER, servers=2))
        ps = self.enterContext(ballast.connect(servers.address, job="test"))
        mine, want = model(), model()
        optimizer = ballast.torch.DistributedOptimizer(rule(mine.parameters()), mine, ps, **options)
        self.ps = ps
        return mine, optimizer, want, rule(want.parameters())

    def assert_same(self, model, want, tolerance=1e-6):
        for (name, got), parameter in zip(model.named_parameters(), want.parameters()):
            self.assertTrue(torch.allclose(got, parameter, rtol=tolerance, atol=tolerance),
                            f"{name} differs by {(got - parameter).abs().max():.2e}")

    def train_both(self, parts, loss_of, steps=6):
        model, optimizer, want, reference = parts
        for x, y in batches(steps):
            for each, rule in ((model, optimizer), (want, reference)):
                rule.zero_grad()
                loss_of(each, x, y).backward()
                rule.step()
        optimizer.synchronize()
        self.assert_same(model, want)

    # --- values and graphs ---

    def test_two_forward_passes_and_one_backward(self):
        self.train_both(self.start(), lambda model, x, y: F.cross_entropy(model(x), y) + model(x + 1).square().mean())

    def test_gradient_penalty(self):
        def loss_of(model, x, y):
            x = x.clone().requires_grad_()
            out = model(x)
            slope, = torch.autograd.grad(out.sum(), x, create_graph=True)
            return F.cross_entropy(out, y) + slope.square().mean()

        self.train_both(self.start(), loss_of)

    def test_checkpoints(self):
        for reentrant in (True, False):
            def loss_of(model, x, y):
                out = checkpoint(model[2:4], torch.tanh(model[0](x)), use_reentrant=reentrant)
                return F.cross_entropy(model[4](out), y)

            with self.subTest(reentrant):
                self.train_both(self.start(), loss_of)

    def test_evaluation_before_step_has_the_old_values_and_after_it_the_new_ones(self):
        model, optimizer, want, reference = self.start()
        (x, y), = batches(1)
        for each, rule in ((model, optimizer), (want, reference)):
            F.cross_entropy(each(x), y).backward()
        with torch.no_grad():
            self.assertTrue(torch.equal(model(x), want(x)))
            optimizer.step()
            reference.step()
            self.assertTrue(torch.allclose(model(x), want(x), atol=1e-6))

    def test_refuses_a_backward_pass_of_old_values(self):
        model, optimizer, _, _ = self.start()
        (x, y), = batches(1)
        old = F.cross_entropy(model(x), y)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        with self.assertRaisesRegex(ballast.InvalidArgument, 'gradient of ".*": got one of values before the last step'):
            old.backward()
        model, optimizer, _, _ = self.start()
        old = F.cross_entropy(model(x), y)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        model(x)
        with self.assertRaisesRegex(ballast.InvalidArgument, "used the values before the last step"):
            old.backward()

    def test_autograd_refuses_saved_values_that_were_replaced(self):
        model, optimizer, _, _ = self.start()
        (x, y), = batches(1)
        # The modules are called one by one, so nothing knows of the pass as a whole.
        old = F.cross_entropy(model[4](model[2](model[0](x))), y)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.synchronize()
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            old.backward()

    def test_backward_twice_is_two_passes(self):
        model, optimizer, _, _ = self.start()
        (x, y), = batches(1)
        loss = F.cross_entropy(model(x), y)
        loss.backward(retain_graph=True)
        with self.assertRaisesRegex(ballast.InvalidArgument, "another one in the same step"):
            loss.backward()
        parts = self.start(backward_passes_per_step=2)
        model, optimizer, want, reference = parts
        for each, rule in ((model, optimizer), (want, reference)):
            loss = F.cross_entropy(each(x), y)
            loss.backward(retain_graph=True)
            loss.backward()
            rule.step()
        optimizer.synchronize()
        self.assert_same(model, want)

    def test_refuses_changed_gradients_and_values(self):
        (x, y), = batches(1)
        model, optimizer, _, _ = self.start()
        F.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        with self.assertRaisesRegex(ballast.InvalidArgument, 'gradient of ".*": got it changed after it was sent'):
            optimizer.step()
        changes = {
            "in place": lambda weight: weight.data.new_zeros(()) is None or weight.detach().mul_(2),
            "another tensor": lambda weight: setattr(weight, "data", torch.zeros_like(weight)),
        }
        for name, change in changes.items():
            with self.subTest(name):
                model, optimizer, _, _ = self.start()
                change(model[2].weight)
                with self.assertRaisesRegex(ballast.InvalidArgument, 'parameter "2.weight": got values that were changed'):
                    F.cross_entropy(model(x), y).backward()

    def test_gradients_may_be_clipped_if_the_step_sends_them(self):
        model, optimizer, want, reference = self.start(push_in_step=True)
        for x, y in batches(6):
            for each, rule in ((model, optimizer), (want, reference)):
                rule.zero_grad()
                F.cross_entropy(each(x), y).backward()
                nn.utils.clip_grad_norm_(each.parameters(), 0.1)
                rule.step()
        optimizer.synchronize()
        self.assert_same(model, want)

    # --- states ---

    def test_state_of_the_model_is_never_stale(self):
        model, optimizer, want, reference = self.start()
        for x, y in batches(3):
            for each, rule in ((model, optimizer), (want, reference)):
                rule.zero_grad()
                F.cross_entropy(each(x), y).backward()
                rule.step()
            for name, values in model.state_dict().items():
                self.assertTrue(torch.allclose(values, want.state_dict()[name], atol=1e-6), name)

    def test_first_values_are_those_loaded_before(self):
        other = mlp()
        torch.manual_seed(9)
        first = nn.Sequential(nn.Linear(6, 300), nn.Tanh(), nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 3))
        other.load_state_dict(first.state_dict())
        parts = self.start(model=lambda: (m := mlp(), m.load_state_dict(first.state_dict()))[0])
        self.assert_same(parts[0], other)

    def test_state_of_the_optimizer(self):
        model, optimizer, _, _ = self.start(lambda p: torch.optim.Adam(p, 0.01))
        (x, y), = batches(1)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        state = optimizer.state_dict()
        self.assertEqual(state["step"], 1)
        self.assertEqual(state["param_groups"][0]["lr"], 0.01)
        optimizer.load_state_dict(state)
        for change, message in ((lambda g: g.update(lr=0.5), "group 0 has lr=0.5, want 0.01"),
                                (lambda g: g["shapes"].__setitem__(0, (1, 2)), "has shape .1, 2. for \"0.weight\", want"),
                                (lambda g: g.update(params=["x"] + g["params"][1:]), 'no such parameter for "0.weight"')):
            state = optimizer.state_dict()
            change(state["param_groups"][0])
            with self.assertRaisesRegex(ballast.InvalidArgument, message):
                optimizer.load_state_dict(state)

    def test_refuses_schedulers(self):
        model, optimizer, _, _ = self.start()
        with self.assertRaisesRegex(ballast.InvalidArgument, "scheduler of torch.optim.lr_scheduler.*schedule="):
            torch.optim.lr_scheduler.StepLR(optimizer, 1)

    def test_the_last_step_is_kept_after_the_connection(self):
        model, optimizer, want, reference = self.start()
        (x, y), = batches(1)
        for each, rule in ((model, optimizer), (want, reference)):
            F.cross_entropy(each(x), y).backward()
            rule.step()
        self.ps.close()
        self.assertTrue(torch.allclose(model(x), want(x), atol=1e-6))

    # --- mixed precision ---

    def test_scaled_losses(self):
        model, optimizer, want, reference = self.start(push_in_step=True)
        scalers = FakeScaler(1024.0), FakeScaler(1024.0)
        for i, (x, y) in enumerate(batches(6)):
            # The third step overflows.
            factor = float("inf") if i == 2 else 1.0
            for each, rule, scaler in ((model, optimizer, scalers[0]), (want, reference, scalers[1])):
                rule.zero_grad()
                scaler.scale(F.cross_entropy(each(x), y) * factor).backward()
                scaler.step(rule)
                scaler.update()
        self.assertEqual(scalers[0].scale_now, 512.0)
        self.assertEqual(self.ps.step, 6)
        optimizer.synchronize()
        self.assert_same(model, want)

    def test_refuses_a_scaler_if_the_backward_pass_sends(self):
        model, optimizer, _, _ = self.start()
        scaler = FakeScaler(1024.0)
        (x, y), = batches(1)
        scaler.scale(F.cross_entropy(model(x), y)).backward()
        with self.assertRaisesRegex(ballast.InvalidArgument, "push_in_step=True"):
            scaler.step(optimizer)

    def test_bf16_autocast(self):
        def loss_of(model, x, y):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return F.cross_entropy(model(x).float(), y)

        self.train_both(self.start(), loss_of)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
