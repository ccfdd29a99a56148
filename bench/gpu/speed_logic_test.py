#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks how speed.py evaluates traces and results, and how it treats programs that fail or take too long."""

import gzip
import os
import pathlib
import sys
import tempfile
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import hidden_share  # noqa: E402
import jobs  # noqa: E402
import machine  # noqa: E402
import parts  # noqa: E402
import processes  # noqa: E402
import wanted  # noqa: E402

ROWS = ("steps", "compute", "copies", "push", "pull", "wait", "gpu")


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


class CommunicationTest(unittest.TestCase):
    def test_on_the_cpu_transfers_beside_compute_spans_are_hidden(self):
        trace = trace_of(
            ("compute", "forward a", 1, 0, 400), ("compute", "backward a", 1, 400, 1000),
            # 200 during the computation, 100 after it; the pull overlaps the push by 50.
            ("push", "a", 1, 800, 1050), ("pull", "a", 1, 1000, 1100),
            ("compute", "forward a", 2, 1100, 1500), ("compute", "backward a", 2, 1500, 2100),
            # Two concurrent pushes count once, and only until the next step's computation, which is the last.
            ("push", "b", 2, 2000, 2200), ("push 2", "c", 2, 2000, 2400),
            ("compute", "forward a", 3, 2300, 2700), ("compute", "backward a", 3, 2700, 3300),
            # The last step does not count, because its end is not visible.
            ("push", "a", 3, 3300, 9000))
        got = hidden_share.communication(trace, 1, 3, "compute")
        self.assertEqual(got["steps"], 2)
        self.assertAlmostEqual(got["compute_ms"], 1.0)
        self.assertAlmostEqual(got["transfer_ms"], 0.3)
        # 200 in step 1, 100 in step 2.
        self.assertAlmostEqual(got["hidden_ms"], 0.15)
        self.assertAlmostEqual(got["hidden_share"], 300 / 600)

    def test_what_precedes_the_first_computation_does_not_count(self):
        spans = [("compute", "forward a", step, 100 * step, 100 * step + 50) for step in (1, 2, 3)]
        # Step 0, which hid the first upload, is not in the trace.
        uploads = [("copies", "upload batch", step, 100 * step - 90, 100 * step - 80) for step in (1, 2, 3)]
        self.assertEqual(hidden_share.communication(trace_of(*spans, *uploads), 1, 3, "compute")["hidden_share"], 1)

    def test_copies_are_transfers(self):
        spans = [("compute", "forward a", step, 100 * step, 100 * step + 50) for step in (1, 2, 3)]
        got = hidden_share.communication(trace_of(*spans, ("copies", "upload a", 1, 140, 160)), 1, 3, "compute")
        self.assertAlmostEqual(got["hidden_share"], 0.5)

    def test_on_a_gpu_what_its_events_show_hides_and_what_the_host_issues_does_not(self):
        def step(number, begin):
            return (
                # Issuing takes almost no time.
                ("compute", "forward a", number, begin, begin + 1), ("compute", "backward a", number, begin + 1, begin + 2),
                ("gpu", "forward a", number, begin + 100, begin + 300), ("gpu", "backward a", number, begin + 300, begin + 800),
                ("push", "b", number, begin + 600, begin + 700), ("push", "a", number, begin + 850, begin + 900),
                ("pull", "a", number, begin + 900, begin + 950))
        got = hidden_share.communication(trace_of(*step(1, 0), *step(2, 1000), *step(3, 2000)), 1, 3, "gpu")
        self.assertAlmostEqual(got["compute_ms"], 0.7)
        self.assertAlmostEqual(got["transfer_ms"], 0.2)
        self.assertAlmostEqual(got["hidden_share"], 0.5)

    def test_a_download_counts_from_the_end_of_the_computation_that_it_copies(self):
        spans = []
        for number, begin in ((1, 0), (2, 1000), (3, 2000)):
            spans += [("gpu", "backward a", number, begin + 100, begin + 500), ("gpu", "backward b", number, begin, begin + 100),
                      # 100 during the computation of a, then 50 after it.
                      ("copies", "download b/weight", number, begin + 5, begin + 200),
                      ("copies", "download a/weight", number, begin + 5, begin + 550),
                      # Not a gradient.
                      ("copies", "download loss", number, begin, begin + 900)]
        got = hidden_share.communication(trace_of(*spans), 1, 3, "gpu")
        self.assertAlmostEqual(got["transfer_ms"], 0.15)
        self.assertAlmostEqual(got["hidden_share"], 100 / 150)

    def test_a_download_of_several_layers_counts_from_the_end_of_the_first_ones_backward(self):
        spans = []
        for number, begin in ((1, 0), (2, 1000), (3, 2000)):
            spans += [("gpu", "backward b", number, begin, begin + 100), ("gpu", "backward a", number, begin + 100, begin + 500),
                      ("copies", "download a to b", number, begin + 5, begin + 550)]
        got = hidden_share.communication(trace_of(*spans), 1, 3, "gpu")
        self.assertAlmostEqual(got["transfer_ms"], 0.05)

    def test_uploads_are_transfers(self):
        spans = [("gpu", "forward a", step, 100 * step, 100 * step + 50) for step in (1, 2, 3)]
        got = hidden_share.communication(trace_of(*spans, ("copies", "upload a", 1, 140, 160)), 1, 3, "gpu")
        self.assertAlmostEqual(got["hidden_share"], 0.5)

    def test_a_gpu_without_times_of_its_own_is_refused(self):
        spans = [("compute", "forward a", step, 100 * step, 100 * step + 50) for step in (1, 2, 3)]
        with self.assertRaisesRegex(ValueError, "got 0 of the steps 1 to 3 in row gpu, want at least 3"):
            hidden_share.communication(trace_of(*spans), 1, 3, "gpu")

    def test_steps_outside_do_not_count(self):
        spans = [("compute", "forward a", step, 100 * step, 100 * step + 50) for step in range(1, 6)]
        trace = trace_of(*spans, ("push", "a", 1, 160, 170), ("push", "a", 3, 320, 330))
        self.assertEqual(hidden_share.communication(trace, 2, 5, "compute")["hidden_share"], 1)

    def test_too_few_steps_are_refused(self):
        with self.assertRaisesRegex(ValueError, "got 1 of the steps 5 to 9 in row compute, want at least 3"):
            hidden_share.communication(trace_of(("compute", "forward a", 5, 0, 1)), 5, 9, "compute")

    def test_the_workers_steps_add_up(self):
        trace = trace_of(*[("steps", "batch", step, 1000 * step, 1000 * step + 900) for step in range(1, 5)],
                         ("steps", "evaluate", 4, 5000, 9000))
        other = trace_of(*[("steps", "batch", step, 2000 * step, 2000 * step + 900) for step in range(1, 5)])
        for event in other["traceEvents"]:
            event["pid"] = 2
        trace["traceEvents"] += other["traceEvents"]
        self.assertAlmostEqual(hidden_share.steps_per_second(trace, 2, 4), 1500)

    def test_a_servers_calls_do_not_count(self):
        workers = trace_of(*[(row, "a", step, 100 * step, 100 * step + 50) for step in range(1, 5) for row in ("gpu", "push")],
                           *[("steps", "batch", step, 100 * step, 100 * step + 90) for step in range(1, 5)])
        both = {"traceEvents": workers["traceEvents"] + [
            {"ph": "M", "name": "thread_name", "pid": 9, "tid": 0, "args": {"name": "calls"}},
            {"ph": "X", "name": "push", "pid": 9, "tid": 0, "ts": 150, "dur": 40, "args": {"step": 1}}]}
        self.assertEqual(hidden_share.communication(both, 1, 4, "gpu"), hidden_share.communication(workers, 1, 4, "gpu"))
        self.assertEqual(hidden_share.steps_per_second(both, 1, 4), hidden_share.steps_per_second(workers, 1, 4))


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

    def test_a_text_without_a_batch_is_refused(self):
        with self.assertRaisesRegex(ValueError, "batch_size: got 0 in the job's text, want 1"):
            jobs.changed("epochs: 3", data="/data", batch=64)

    def test_convolutions_are_as_many_as_asked(self):
        text = jobs.convolutions(data="/data", layers=3, channels=16, batch=128, epochs=2)
        self.assertEqual(text.count("conv2d { filters: 16"), 3)
        self.assertIn("batch_size: 128", text)

    def test_stand_in_data_has_the_form_of_fashion_mnist(self):
        with tempfile.TemporaryDirectory() as folder:
            jobs.write_stand_in_data(pathlib.Path(folder))
            with gzip.open(pathlib.Path(folder) / "t10k-images-idx3-ubyte.gz") as file:
                self.assertEqual(len(file.read()), 16 + 64 * 784)


class ProcessesTest(unittest.TestCase):
    def test_the_last_error_is_the_reason(self):
        with self.assertRaisesRegex(processes.Failed, "^sh: exit status 3: error: no luck$"):
            processes.run(["sh", "-c", "echo error: no luck >&2; echo bye >&2; exit 3"], processes.Deadline(60))

    def test_a_program_that_takes_too_long_is_ended_with_its_children(self):
        with tempfile.TemporaryDirectory() as folder:
            pipe = pathlib.Path(folder) / "pipe"
            os.mkfifo(pipe)
            reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
            with self.assertRaisesRegex(processes.TimedOut, "sh: stopped after the part's 1 s"):
                processes.run(["sh", "-c", f"tail -f /dev/null > {pipe} & wait"], processes.Deadline(1))
            # Ends once the child no longer holds the other end.
            os.set_blocking(reader, True)
            self.assertEqual(os.read(reader, 1), b"")
            os.close(reader)

    def test_a_part_ends_with_the_whole(self):
        self.assertLessEqual(processes.Deadline(100, processes.Deadline(2)).left(), 2)

    def test_contestants_take_turns(self):
        with tempfile.TemporaryDirectory() as folder:
            log = pathlib.Path(folder) / "log"
            script = 'echo "{}"; while read line; do echo $0 >> $1; echo "{\\"ms\\": $2}"; done'
            deadline = processes.Deadline(60)
            with processes.Contestant(["sh", "-c", script, "a", log, "1"]) as a, \
                    processes.Contestant(["sh", "-c", script, "b", log, "2"]) as b:
                for contestant in (a, b):
                    self.assertEqual(contestant.ready(deadline), {})
                processes.take_turns([a, b], 2, deadline)
                self.assertEqual(log.read_text().split(), ["a", "b", "a", "b"])
                self.assertEqual(b.rounds, [{"ms": 2}, {"ms": 2}])

    def test_a_contestant_that_ends_is_a_failure(self):
        with processes.Contestant(["sh", "-c", 'echo "{}"; echo error: no memory >&2; exit 1']) as contestant:
            contestant.ready(processes.Deadline(60))
            with self.assertRaisesRegex(processes.Failed, "exit status 1: error: no memory"):
                contestant.measure(processes.Deadline(60))


class JudgeTestsTest(unittest.TestCase):
    PASSED = "[       OK ] Cuda/DeviceConformanceTest.Copies/fp32 (1 ms)\n"

    def judged(self, tool, status, out):
        return parts.judge_tests(tool, status, out)["result"]

    def test_tests_pass_fail_or_are_skipped(self):
        self.assertEqual(self.judged("gpu_tests", 0, self.PASSED), "passed")
        self.assertEqual(self.judged("gpu_tests", 1, self.PASSED), "failed")
        self.assertEqual(self.judged("gpu_tests", 0, "[  SKIPPED ] a\n"), "skipped")

    def test_a_clean_tool_says_so(self):
        self.assertEqual(self.judged("memcheck", 0, self.PASSED + "========= ERROR SUMMARY: 0 errors\n"), "passed")
        self.assertEqual(self.judged("racecheck", 0, self.PASSED + "========= RACECHECK SUMMARY: 0 hazards displayed"), "passed")

    def test_a_finding_of_a_tool_is_a_failure(self):
        self.assertEqual(self.judged("memcheck", 1, self.PASSED + "========= Invalid __global__ read of size 4 bytes\n"
                                     "========= ERROR SUMMARY: 1 error\n"), "failed")
        self.assertEqual(self.judged("racecheck", 1, self.PASSED + "========= Error: Race reported between Write access\n"
                                     "========= RACECHECK SUMMARY: 1 hazard displayed\n"), "failed")

    def test_a_tool_that_refuses_the_device_is_reported_as_such(self):
        got = parts.judge_tests("memcheck", 1, self.PASSED + "========= Error: Device not supported. Please refer to the "
                                "\"Supported Devices\" section of the sanitizer documentation\n")
        self.assertEqual(got["result"], "refused")
        self.assertRegex(got["reason"], "cannot check on this machine: Error: Device not supported")

    def test_a_tool_that_ends_without_running_a_test_has_checked_nothing(self):
        self.assertEqual(self.judged("memcheck", 0, "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"),
                         "refused")


class FakeBench:
    stand_in = False
    doctor = {"libraries": [{"name": "libcublas.so.13", "path": "/a"}, {"name": "libcudnn.so.9", "path": None}]}


class CudnnTest(unittest.TestCase):
    def test_without_cudnn_the_benchmark_fails(self):
        with self.assertRaisesRegex(parts.Failed, "convolutions would be products: libcudnn.so.9 was not found; install it"):
            parts.require_cudnn(FakeBench)
        with self.assertRaisesRegex(parts.Failed, "cuDNN was not used: the device is .*convolutions as products"):
            parts.require_cudnn(FakeBench, "cuda (H100, cuBLASLt 13.0, convolutions as products)")

    def test_with_cudnn_it_does_not(self):
        parts.require_cudnn(FakeBench, "cuda (H100, cuBLASLt 13.0, cuDNN 9.19.0)")


class RatiosTest(unittest.TestCase):
    def test_the_best_of_pytorch_counts(self):
        found = {"ballast": {"step_ms": 4}, "eager": {"step_ms": 6}, "graph": {"step_ms": 3}}
        self.assertEqual(parts.torch_over_ours(found, "step_ms"), 0.75)
        self.assertIsNone(parts.torch_over_ours({"ballast": {"step_ms": 4}}, "step_ms"))

    def test_one_slow_round_does_not_count(self):
        self.assertEqual(parts.median([{"ms": 3}, {"ms": 90}, {"ms": 2}], "ms"), 3)


class FakeDriver:
    """The functions of libcuda.so.1, for a driver of CUDA 12.4."""

    def __init__(self, gpus):
        self.gpus = gpus

    def cuInit(self, _):
        return 0

    def cuDeviceGetCount(self, count):
        count._obj.value = self.gpus
        return 0

    def cuDriverGetVersion(self, version):
        version._obj.value = 12040
        return 0


class MachineTest(unittest.TestCase):
    def test_says_why_there_is_no_gpu(self):
        with unittest.mock.patch("ctypes.CDLL", side_effect=OSError):
            self.assertEqual(machine.driver()[1], "no NVIDIA driver: libcuda.so.1 is not there")
        with unittest.mock.patch("ctypes.CDLL", return_value=FakeDriver(0)):
            self.assertEqual(machine.driver()[1], "the NVIDIA driver finds no GPU")
        with unittest.mock.patch("ctypes.CDLL", return_value=FakeDriver(1)):
            self.assertEqual(machine.driver()[1], "the NVIDIA driver is too old: it supports CUDA 12.4, want at least 13.0; "
                             "update the driver to 580 or newer")

    def test_a_worker_looks_for_libraries_in_pytorchs_packages(self):
        self.assertEqual(machine.with_packages("/packages", {"A": "b"}), {"A": "b", "PYTHONPATH": "/packages"})
        self.assertEqual(machine.with_packages("/packages", {"PYTHONPATH": "/own"}), {"PYTHONPATH": "/own:/packages"})


unittest.main()
