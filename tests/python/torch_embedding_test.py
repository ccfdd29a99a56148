#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""ballast.torch.EmbeddingBag beside torch.nn.EmbeddingBag, on real servers.

Usage: torch_embedding_test.py SERVER LIBRARY
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
from servers import Servers
from torch import nn

torch.set_num_threads(1)


class TorchEmbeddingTest(unittest.TestCase):
    def start(self, mode="sum", **options):
        """Returns a bag over a table, its optimizer, and the same for plain PyTorch, whose ids begin at 0."""
        servers = self.enterContext(Servers(SERVER, servers=2))
        self.ps = self.enterContext(ballast.connect(servers.address, job="test"))
        self.table = self.ps.table("items", 4, ballast.SGD(0.05), initializer="constant { value: 0.25 }")
        ours = ballast.torch.EmbeddingBag(self.table, mode, **options)
        torch.manual_seed(1)
        heads = nn.Linear(4, 1), nn.Linear(4, 1)
        heads[1].load_state_dict(heads[0].state_dict())
        model = nn.ModuleList([ours, heads[0]])
        optimizer = ballast.torch.DistributedOptimizer(torch.optim.SGD(heads[0].parameters(), 0.05), model, self.ps)
        theirs = nn.EmbeddingBag(50, 4, mode=mode, **options)
        theirs.weight.data.fill_(0.25)
        rule = torch.optim.SGD(list(theirs.parameters()) + list(heads[1].parameters()), 0.05)
        return (ours, heads[0], optimizer), (theirs, heads[1], rule)

    def train_both(self, both, arguments, prefetch=False):
        """Trains both with what `arguments` makes of ids: any id has a row, here those below 0."""
        generator = torch.Generator().manual_seed(3)
        batches = [torch.randint(0, 50, (20,), generator=generator) for _ in range(10)]
        for step, ids in enumerate(batches):
            for (bag, head, rule), shift in zip(both, (25, 0)):
                head(bag(ids - shift, *arguments)).square().mean().backward()
                rule.step()
                rule.zero_grad()
            if prefetch and step < 9:
                both[0][0].prefetch(batches[step + 1] - 25)
        rows = self.table.pull(torch.arange(50) - 25)
        numpy.testing.assert_allclose(rows, both[1][0].weight.detach().numpy(), rtol=1e-5, atol=1e-6)

    def test_is_torchs_and_needs_no_number_of_embeddings(self):
        for mode in ("sum", "mean", "max"):
            for prefetch in (False, True):
                with self.subTest(mode, prefetch=prefetch):
                    self.train_both(self.start(mode), [torch.tensor([0, 5, 5, 12])], prefetch)

    def test_last_offset_and_weights(self):
        self.train_both(self.start(include_last_offset=True), [torch.tensor([0, 5, 5, 12, 20])])
        self.train_both(self.start(), [torch.tensor([0, 5, 5, 12]), torch.linspace(0.1, 2, 20)])

    def test_bags_of_two_dimensions_and_none_at_all(self):
        (ours, _, _), (theirs, _, _) = self.start()
        ids = torch.arange(12).reshape(3, 4)
        self.assertTrue(torch.allclose(ours(ids), theirs(ids)))
        empty, offsets = torch.tensor([], dtype=torch.int64), torch.tensor([0, 0])
        self.assertTrue(torch.equal(ours(empty, offsets), torch.zeros(2, 4)))

    def test_rows_that_were_prefetched_before_a_step_are_read_anew(self):
        both = self.start()
        (bag, head, optimizer), _ = both
        ids, offsets = torch.arange(5), torch.tensor([0])
        loss = head(bag(ids, offsets)).sum()
        bag.prefetch(ids)
        loss.backward()
        optimizer.step()
        want = torch.from_numpy(self.table.pull(ids)).sum(0, keepdim=True)
        self.assertTrue(torch.allclose(bag(ids, offsets), want))

    def test_two_bags_share_a_table(self):
        (first, head, optimizer), (theirs, their_head, rule) = self.start()
        second = ballast.torch.EmbeddingBag(self.table, "mean")
        ids = torch.arange(6).reshape(2, 3)
        head(first(ids) + second(ids + 3)).sum().backward()
        optimizer.step()
        mean = theirs(ids + 3) / 3
        their_head(theirs(ids) + mean).sum().backward()
        rule.step()
        numpy.testing.assert_allclose(self.table.pull(torch.arange(9)), theirs.weight.detach()[:9].numpy(), rtol=1e-5)

    def test_eval_mode_collects_nothing(self):
        (bag, head, optimizer), _ = self.start()
        bag.eval()
        out = bag(torch.arange(3), torch.tensor([0]))
        self.assertFalse(out.requires_grad)
        self.assertEqual(self.table._collected, [])

    def test_refuses_other_ids_and_modes(self):
        (bag, _, _), _ = self.start()
        with self.assertRaisesRegex(ballast.InvalidArgument, 'ids of table "items": got dtype torch.int32, want int64'):
            bag(torch.arange(3, dtype=torch.int32), torch.tensor([0]))
        with self.assertRaisesRegex(ballast.InvalidArgument, "mode: got 'min', want 'sum', 'mean' or 'max'"):
            ballast.torch.EmbeddingBag(self.table, "min")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
