#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks how speed.py evaluates traces and results."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import hidden_share  # noqa: E402
import jobs  # noqa: E402
import wanted  # noqa: E402

ROWS = ("steps", "compute", "copies", "push", "pull", "wait")


def trace_of(*spans):
    """Builds a trace from spans (row, name, step, begin, end)."""
    events = [{"ph": "M", "name": "thread_name", "pid": 1, "tid": i, "args": {"name": row}} for i, row in enumerate(ROWS)]
    # A second row of pushes, as two concurrent pushes have it.
    events.append({"ph": "M", "name": "thread_name", "pid": 1, "tid": 90, "args": {"name": "push 2"}})
    for row, name, step, begin, end in spans:
        events.append({"ph": "X", "name": name, "pid": 1, "tid": 90 if row == "push 2" else ROWS.index(row), "ts": begin,
                       "dur": end - begin, "args": {"step": step}})
    return {"traceEvents": events}


class SpansTest(unittest.TestCase):
    def test_union_merges_what_overlaps_or_touches(self):
        self.assertEqual(hidden_share.union([(5, 7), (0, 2), (1, 3), (3, 4), (9, 9)]), [(0, 4), (5, 7)])

    def test_length_counts_time_once(self):
        self.assertEqual(hidden_share.length([(0, 10), (2, 4), (8, 12)]), 12)
        self.assertEqual(hidden_share.length([]), 0)

    def test_common_is_what_is_in_both(self):
        self.assertEqual(hidden_share.common([(0, 4), (6, 10)], [(3, 7), (9, 20)]), [(3, 4), (6, 7), (9, 10)])
        self.assertEqual(hidden_share.common([(0, 4)], [(4, 5)]), [])

    def test_without_is_what_is_in_the_first_alone(self):
        self.assertEqual(hidden_share.without([(0, 10)], [(2, 3), (5, 6), (9, 12)]), [(0, 2), (3, 5), (6, 9)])
        self.assertEqual(hidden_share.without([(0, 10)], []), [(0, 10)])
        self.assertEqual(hidden_share.without([(2, 3)], [(0, 10)]), [])


class CommunicationTest(unittest.TestCase):
    def test_on_the_cpu_transfers_beside_compute_spans_are_hidden(self):
        trace = trace_of(
            ("compute", "forward a", 1, 0, 400), ("compute", "backward a", 1, 400, 1000),
            # 200 during the computation, 100 after it; the pull overlaps the push by 50.
            ("push", "a", 1, 800, 1050), ("pull", "a", 1, 1000, 1100),
            ("compute", "forward a", 2, 1100, 1500), ("compute", "backward a", 2, 1500, 2100),
            # Two concurrent pushes count once; the second reaches into the next step's computation.
            ("push", "b", 2, 2000, 2200), ("push 2", "c", 2, 2000, 2400),
            ("compute", "forward a", 3, 2300, 2700), ("compute", "backward a", 3, 2700, 3300),
            # The last step does not count, because its end is not visible.
            ("push", "a", 3, 3300, 9000))
        got = hidden_share.communication(trace, 1, 3, beside_host=False)
        self.assertEqual(got["steps"], 2)
        self.assertAlmostEqual(got["compute_ms"], 1.0)
        # (300 + 400) / 2
        self.assertAlmostEqual(got["transfer_ms"], 0.35)
        # 200 in step 1; 100 during step 2 and 100 during step 3.
        self.assertAlmostEqual(got["hidden_ms"], 0.2)
        self.assertAlmostEqual(got["hidden_share"], 400 / 700)

    def test_copies_are_transfers(self):
        spans = [("compute", "forward a", step, 100 * step, 100 * step + 50) for step in (1, 2, 3)]
        got = hidden_share.communication(trace_of(*spans, ("copies", "upload a", 1, 140, 160)), 1, 3, beside_host=False)
        self.assertAlmostEqual(got["hidden_share"], 0.5)

    def test_on_a_gpu_a_step_computes_until_its_last_gradient_is_down(self):
        def step(number, begin):
            return (
                # Issuing takes almost no time.
                ("compute", "forward a", number, begin, begin + 1), ("compute", "forward b", number, begin + 101, begin + 102),
                ("wait", "wait for b", number, begin + 1, begin + 101),
                ("compute", "backward b", number, begin + 103, begin + 104),
                ("compute", "backward a", number, begin + 104, begin + 105),
                ("copies", "download b/weight", number, begin + 103, begin + 600),
                ("copies", "download a/weight", number, begin + 105, begin + 800),
                # Not a gradient, so its end does not count.
                ("copies", "download loss", number, begin + 104, begin + 5000),
                ("push", "b", number, begin + 600, begin + 700), ("push", "a", number, begin + 800, begin + 850),
                ("pull", "a", number, begin + 850, begin + 900))
        got = hidden_share.communication(trace_of(*step(1, 0), *step(2, 1000), *step(3, 2000)), 1, 3, beside_host=True)
        # 800, minus the 100 that the host waited between the forwards.
        self.assertAlmostEqual(got["compute_ms"], 0.7)
        self.assertAlmostEqual(got["transfer_ms"], 0.2)
        self.assertAlmostEqual(got["hidden_share"], 0.5)

    def test_a_wait_after_the_last_forward_is_not_the_gpus(self):
        spans = []
        for number, begin in ((1, 0), (2, 1000), (3, 2000)):
            spans += [("compute", "forward a", number, begin, begin + 1), ("wait", "wait for data", number, begin + 2, begin + 700),
                      ("copies", "download a", number, begin + 1, begin + 800), ("push", "a", number, begin + 800, begin + 900)]
        got = hidden_share.communication(trace_of(*spans), 1, 3, beside_host=True)
        self.assertAlmostEqual(got["compute_ms"], 0.8)
        self.assertEqual(got["hidden_share"], 0)

    def test_steps_outside_do_not_count(self):
        spans = [("compute", "forward a", step, 100 * step, 100 * step + 50) for step in range(1, 6)]
        trace = trace_of(*spans, ("push", "a", 1, 160, 170), ("push", "a", 3, 320, 330))
        self.assertEqual(hidden_share.communication(trace, 2, 5, beside_host=False)["hidden_share"], 1)

    def test_too_few_steps_are_refused(self):
        with self.assertRaisesRegex(ValueError, "got 1 of the steps 5 to 9, want at least 3"):
            hidden_share.communication(trace_of(("compute", "forward a", 5, 0, 1)), 5, 9, beside_host=False)

    def test_the_workers_steps_add_up(self):
        trace = trace_of(*[("steps", "batch", step, 1000 * step, 1000 * step + 900) for step in range(1, 5)],
                         ("steps", "evaluate", 4, 5000, 9000))
        other = trace_of(*[("steps", "batch", step, 2000 * step, 2000 * step + 900) for step in range(1, 5)])
        for event in other["traceEvents"]:
            event["pid"] = 2
        trace["traceEvents"] += other["traceEvents"]
        self.assertAlmostEqual(hidden_share.steps_per_second(trace, 2, 4), 1500)


class WantedTest(unittest.TestCase):
    def test_names_what_misses_and_what_was_not_measured(self):
        judged = wanted.judge({"cnn_bf16_over_torch": 0.85, "communication_hidden": 0.9, "two_workers_over_one": None})
        self.assertEqual(judged["missed"], ["cnn_bf16_over_torch"])
        self.assertEqual(judged["ratios"]["cnn_bf16_over_torch"], {"got": 0.85, "wanted": 0.9})
        self.assertIn("two_workers_over_one", judged["not_measured"])
        self.assertNotIn("communication_hidden", judged["not_measured"])
        self.assertRegex(wanted.table(judged), r"cnn_bf16_over_torch +0\.8500 +wanted 0\.9 +MISSED")

    def test_a_figure_of_another_name_is_refused(self):
        with self.assertRaises(KeyError):
            wanted.judge({"cnn_over_torch": 1.0})

    def test_accuracy_is_wanted_in_each_precision(self):
        self.assertEqual(wanted.WANTED["fashion_mnist_cnn_fp16_accuracy"], 0.91)
        self.assertEqual(sum(name.endswith("_accuracy") for name in wanted.WANTED), 8)


class JobsTest(unittest.TestCase):
    TEXT = ('data { train { idx { images: "/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz" } }\n'
            '  test { idx { images: "/usr/share/datasets/fashion-mnist/t10k-images-idx3-ubyte.gz" } }\n}\n'
            'training {\n  epochs: 8\n  batch_size: 64\n}\n')

    def test_sets_batch_epochs_and_the_datas_folder(self):
        text = jobs.changed(self.TEXT, data="/data", batch=1024, epochs=2)
        self.assertIn('"/data/train-images-idx3-ubyte.gz"', text)
        self.assertIn('"/data/t10k-images-idx3-ubyte.gz"', text)
        self.assertIn("epochs: 2\n  batch_size: 1024\n", text)

    def test_the_small_set_is_trained_on_where_that_is_asked(self):
        self.assertNotIn("train-images", jobs.changed(self.TEXT, data="/data", small=True))

    def test_a_text_without_a_batch_is_refused(self):
        with self.assertRaisesRegex(ValueError, "batch_size: got 0 in the job's text, want 1"):
            jobs.changed("epochs: 3", data="/data", batch=64)

    def test_convolutions_are_as_many_as_asked(self):
        text = jobs.convolutions(data="/data", layers=3, channels=16, batch=128, epochs=2)
        self.assertEqual(text.count("conv2d { filters: 16"), 3)
        self.assertIn("batch_size: 128", text)


unittest.main()
