# SPDX-License-Identifier: Apache-2.0
"""Checks and times a GPU worker against its targets and PyTorch, if it is installed. run.sh calls it; see its --help.
Prints one JSON object per line; the last one has every ratio with its target (null: not measured)."""

import argparse
import ctypes
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import hidden_share
import jobs
import wanted

HERE = pathlib.Path(__file__).absolute().parent
EXAMPLES = HERE / "../../examples"
# In units of the transfers' time; a job that computes less shows nothing about hiding.
COMPUTE_OVER_TRANSFERS = wanted.WANTED["compute_over_transfers"]


class Failed(Exception):
    pass


def emit(found):
    print(json.dumps(found), flush=True)


def why_no_gpu():
    """Returns "" if there is a driver with a GPU. `ballast doctor` says more, once it is built."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver: libcuda.so.1 is not there"
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        return "the NVIDIA driver finds no GPU"
    return ""


class Bench:
    """The settings of one run of the script, and its results so far."""

    def __init__(self, options):
        self.options = options
        self.cuda = options.device == "cuda"
        self.ratios = {}
        self._python = None

    def run(self, program, *arguments):
        """Runs one of our programs; prints and returns its JSON objects, one per line."""
        return self.objects([self.options.programs / program, *arguments])

    def objects(self, command):
        done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise Failed(f"{pathlib.Path(str(command[0])).name}: exit status {done.returncode}")
        found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        for each in found:
            emit(each)
        return found

    def torch(self, script, *arguments):
        """Like run, for a script that needs PyTorch; returns None if no PyTorch supports the device."""
        if self._python is None:
            self._python = self.find_torch() or ""
            if not self._python:
                emit({"what": "torch", "result": f"no Python here has PyTorch for {self.options.device}"})
        if not self._python:
            return None
        return self.objects([self._python, HERE / script, "--device", self.options.device, *arguments])

    def find_torch(self):
        code = "import torch, sys; sys.exit(sys.argv[1] == 'cuda' and not torch.cuda.is_available())"
        for python in dict.fromkeys([os.environ.get("BALLAST_PYTHON") or sys.executable, "/usr/bin/python3"]):
            if subprocess.run([python, "-c", code, self.options.device], stderr=subprocess.DEVNULL).returncode == 0:
                return python
        return None

    def example(self, name, **changes):
        return jobs.changed((EXAMPLES / f"{name}.textproto").read_text(), self.options.data, small=self.options.tiny,
                            **changes)

    def launch(self, text, servers, workers, precision, steps=None):
        """Runs a job; returns its summary and, with steps "A-B", its timeline."""
        with tempfile.TemporaryDirectory() as folder:
            path, trace = pathlib.Path(folder) / "job.textproto", pathlib.Path(folder) / "trace.json"
            path.write_text(text)
            command = [self.options.programs / "ballast", "launch", path, "--device", self.options.device, "--servers",
                       servers, "--workers", workers, "--run-dir", pathlib.Path(folder) / "run", "--json"]
            if self.cuda:
                command += ["--precision", precision]
            if steps:
                command += ["--trace", trace, "--trace-steps", steps]
            done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True)
            if done.returncode != 0:
                raise Failed(f"ballast launch with {servers} servers, {workers} workers and {precision}: exit status "
                             f"{done.returncode}")
            return json.loads(done.stdout), json.loads(trace.read_text()) if steps else None


def checks(bench):
    """Runs the GPU tests, and some of them under compute-sanitizer's tools."""
    test = bench.options.programs / "cuda_device_test"
    commands = {"gpu_tests": [test]}
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if sanitizer:
        for tool in ("memcheck", "racecheck"):
            commands[tool] = [sanitizer, "--tool", tool, "--error-exitcode", "1", test, "--gtest_filter=*/fp32"]
    else:
        emit({"what": "compute-sanitizer", "result": "not there"})
    failed = []
    for name, command in commands.items():
        done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        passed, skipped = done.stdout.count("[       OK"), done.stdout.count("[  SKIPPED")
        result = "failed" if done.returncode != 0 else "passed" if passed else "skipped"
        emit({"what": name, "result": result, "passed": passed, "skipped": skipped})
        # Skipping all tests is right only without a GPU.
        if result == "failed" or (result == "skipped" and bench.cuda):
            failed.append(name)
            print("\n".join(done.stdout.splitlines()[-40:]), file=sys.stderr)
    if failed:
        raise Failed(f"{', '.join(failed)} did not pass")


def mlp(bench):
    width = 64 if bench.options.tiny else 4096
    ours = {each["precision"]: each for each in
            bench.run("mlp_benchmark", f"--device={bench.options.device}", f"--width={width}", "tf32", "bf16")}
    bench.ratios["mlp_bf16_over_gemm_rate"] = ours["bf16"]["step_tflops"] / ours["bf16"]["product_tflops"]
    torch = bench.torch("torch_mlp.py", "--width", width, "tf32", "bf16")
    if torch is None:
        return
    torch = {each["precision"]: each for each in torch}
    for precision in ("tf32", "bf16"):
        bench.ratios[f"mlp_{precision}_over_torch"] = torch[precision]["step_ms"] / ours[precision]["step_ms"]
    if bench.cuda:
        # The worse of the two precisions counts.
        bench.ratios["mlp_torch_memory_over_ours"] = min(
            torch[precision]["memory_bytes"] / ours[precision]["memory_bytes"] for precision in ("tf32", "bf16"))


def cnn(bench):
    batch, batches = (32, 3) if bench.options.tiny else (1024, 200)
    ours = bench.run("model_benchmark", "--job", EXAMPLES / "fashion_mnist_cnn.textproto", "--device",
                     bench.options.device, "--precision", "bf16" if bench.cuda else "fp32", "--batch", batch, "--batches",
                     batches, "--warm_up", max(1, batches // 10))[0]
    torch = bench.torch("torch_cnn.py", "--batch", batch, "--batches", batches)
    if torch is not None:
        bench.ratios["cnn_bf16_over_torch"] = torch[0]["gradient_ms"] / ours["gradient_ms"]
    # Training with servers, to compare with PyTorch's training steps: printed, not judged.
    batch, epochs, first, last = (256, 1, 5, 20) if bench.options.tiny else (1024, 3, 20, 150)
    text = jobs.without_test_data(bench.example("fashion_mnist_cnn", batch=batch, epochs=epochs))
    _, trace = bench.launch(text, 1, 1, "bf16", f"{first}-{last}")
    step_ms = 1e3 / hidden_share.steps_per_second(trace, first, last)
    emit({"what": "cnn_training", "with": "ballast", "servers": 1, "workers": 1, "batch": batch, "step_ms": round(step_ms, 4)})


def hidden(bench):
    layers, channels, batch = (2, 8, 64) if bench.options.tiny else (16, 64, 1024)
    first, last = (5, 15) if bench.options.tiny else (12, 52)
    while True:
        size = 10000 if bench.options.tiny else jobs.TRAINING_IMAGES
        text = jobs.convolutions(bench.options.data, layers, channels, batch, epochs=-(-(last + 4) * batch // size),
                                 small=bench.options.tiny)
        _, trace = bench.launch(text, 2, 1, "bf16", f"{first}-{last}")
        found = hidden_share.communication(trace, first, last, beside_host=bench.cuda)
        ratio = found["compute_ms"] / found["transfer_ms"]
        step_ms = 1e3 / hidden_share.steps_per_second(trace, first, last)
        emit({"what": "communication", "servers": 2, "workers": 1, "layers": layers, "channels": channels, "batch": batch,
              **{name: round(value, 4) for name, value in found.items()}, "step_ms": round(step_ms, 4),
              "compute_over_transfers": round(ratio, 2)})
        if bench.options.tiny or ratio >= COMPUTE_OVER_TRANSFERS or batch >= 4096:
            break
        batch *= 2
    bench.ratios["communication_hidden"] = found["hidden_share"]
    bench.ratios["compute_over_transfers"] = ratio
    # The same from times alone: how much longer a step takes than its gradients, relative to the transfers.
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "job.textproto"
        path.write_text(text)
        alone = bench.run("model_benchmark", "--job", path, "--device", bench.options.device, "--precision",
                          "bf16" if bench.cuda else "fp32", "--batch", batch, "--warm_up", 3, "--batches",
                          5 if bench.options.tiny else 40)[0]["gradient_ms"]
    emit({"what": "communication_by_time", "step_ms": round(step_ms, 4), "gradient_ms": alone,
          "hidden_share": round(1 - max(0.0, step_ms - alone) / found["transfer_ms"], 4)})


def sharing(bench):
    batch, epochs = (128, 1) if bench.options.tiny else (1024, 8)
    first, last = (5, 30) if bench.options.tiny else (20, 200)
    text = jobs.without_test_data(bench.example("fashion_mnist_cnn", batch=batch, epochs=epochs))
    rates = {}
    for workers in (1, 2):
        _, trace = bench.launch(text, 1, workers, "bf16", f"{first}-{last}")
        rates[workers] = batch * hidden_share.steps_per_second(trace, first, last)
        emit({"what": "sharing", "servers": 1, "workers": workers, "batch": batch,
              "samples_per_second": round(rates[workers])})
    bench.ratios["two_workers_over_one"] = rates[2] / rates[1]


def accuracy(bench):
    for name in wanted.ACCURACY:
        for precision in wanted.PRECISIONS if bench.cuda else ("fp32",):
            text = bench.example(name, **({"epochs": 1} if bench.options.tiny else {}))
            summary, _ = bench.launch(text, 1, 1, precision)
            emit({"what": "accuracy", "precision": precision, **{key: summary[key] for key in (
                "job", "epochs", "test_accuracy", "seconds", "skipped_steps")}})
            bench.ratios[f"{name}_{precision}_accuracy"] = summary["test_accuracy"]


PARTS = {"checks": checks, "mlp": mlp, "cnn": cnn, "hidden": hidden, "sharing": sharing, "accuracy": accuracy}


def parts_named(text):
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in PARTS:
            raise argparse.ArgumentTypeError(f"got \"{name}\", want {', '.join(PARTS)}")
    return names


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=pathlib.Path)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--only", type=parts_named, action="append", default=[])
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path(jobs.EXAMPLES_DATA))
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check-only", "--check_only", action="store_true", help="check for a GPU and exit")
    options = parser.parse_args()
    why = why_no_gpu() if options.device == "cuda" else ""
    if not why and not options.check_only and options.device == "cuda":
        doctor = subprocess.run([str(options.programs / "ballast"), "doctor", "--json"], stdout=subprocess.PIPE, text=True)
        why = json.loads(doctor.stdout)["cuda"]["reason"] or ""
    if why:
        print(f"error: no GPU: {why}; run this on a machine with a GPU, or use --device cpu to try the script itself",
              file=sys.stderr)
        return 1
    if options.check_only:
        return 0
    options.programs = options.programs.absolute()
    options.data = options.data.absolute()
    chosen = [name for names in options.only for name in names] or list(PARTS)
    bench, failed = Bench(options), []
    for name, part in PARTS.items():
        if name not in chosen:
            continue
        try:
            part(bench)
        except (Failed, ValueError) as failure:
            print(f"error: {name}: {failure}", file=sys.stderr)
            failed.append(name)
    judged = wanted.judge(bench.ratios)
    # The targets are for GPUs only.
    if not bench.cuda:
        judged["missed"] = []
    if not options.json:
        print(wanted.table(judged), file=sys.stderr)
    emit({"what": "ratios", "device": options.device, "tiny": options.tiny, "parts": chosen, "failed": failed, **judged})
    return 1 if failed or judged["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
