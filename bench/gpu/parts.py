# SPDX-License-Identifier: Apache-2.0
"""The parts of the benchmark. Each takes a Bench (speed.py), adds what it found, and raises Failed if it cannot go on."""

import contextlib
import json
import pathlib
import re
import shutil
import statistics
import tempfile

import hidden_share
import jobs
import wanted
from processes import Contestant, Deadline, Failed, Process, TimedOut, take_turns

HERE = pathlib.Path(__file__).absolute().parent
ROUNDS = 5
JOBS_AT_ONCE = 4
# In units of the transfers' time; a job that computes less shows nothing about hiding.
COMPUTE_OVER_TRANSFERS = wanted.WANTED["compute_over_transfers"]
# Our kernels are in this C++ namespace, as it appears in their names. The libraries' kernels are not ours to check.
OUR_KERNELS = "kns=7ballast"
# Messages of compute-sanitizer when it cannot check, whatever the program did.
REFUSALS = ("Device not supported", "Failed to initialize", "No attachable process found", "Unable to")


def require_cudnn(bench, describes=""):
    """Fails if convolutions would be computed as products: the figures would be about something else."""
    if bench.stand_in or re.search(r"\bcuDNN \d", describes):
        return
    if describes:
        raise Failed(f"cuDNN was not used: the device is \"{describes}\"")
    for library in bench.doctor.get("libraries", []):
        if "cudnn" in library["name"].lower() and not library["path"]:
            reason = library.get("reason") or f"{library['name']} was not found; install it"
            raise Failed(f"convolutions would be products: {reason}")


def median(rounds, name):
    return statistics.median(each[name] for each in rounds)


def compare(bench, ours, torch, names):
    """Lets our program and PyTorch's, eager and as a CUDA graph, take turns; returns what each found, with the medians of
    its rounds, by its way: "ballast", "eager", "graph". Leaves out a way of PyTorch that fails, with a note."""
    seconds = ["--seconds", bench.seconds]
    with contextlib.ExitStack() as stack:
        contestants = {"ballast": stack.enter_context(Contestant([*ours, *seconds], bench.environment))}
        # Measures its memory before the others take theirs.
        abouts = {"ballast": contestants["ballast"].ready(bench.deadline)}
        if bench.torch is None:
            bench.add({"what": torch[0], "result": f"not measured: no Python has PyTorch for {bench.torch_device}"})
        theirs = {way: stack.enter_context(Contestant(
            [bench.torch["python"], HERE / torch[0], *torch[1:], "--way", way, *seconds]))
            for way in (("eager", "graph") if bench.torch else ())}
        for way, contestant in theirs.items():
            try:
                abouts[way] = contestant.ready(bench.deadline)
                contestants[way] = contestant
            except TimedOut:
                raise
            except Failed as failure:
                bench.add({"what": torch[0], "way": way, "result": f"not measured: {failure}"})
        take_turns(contestants.values(), ROUNDS, bench.deadline)
        found = {}
        for way, contestant in contestants.items():
            found[way] = {**abouts[way], **{name: median(contestant.rounds, name) for name in names},
                          "rounds": contestant.rounds}
            bench.add(found[way])
        return found


def torch_over_ours(found, name, best=min):
    """Returns PyTorch's best figure as a ratio to ours; None without PyTorch."""
    theirs = [each[name] for way, each in found.items() if way != "ballast" and each[name] is not None]
    return best(theirs) / found["ballast"][name] if theirs else None


def after_first_epoch(batch, examples=jobs.TRAINING_IMAGES):
    """Returns a step after the first epoch, in whose last batch a worker meets shapes whose algorithms it must choose."""
    return -(-examples // batch) + 4


def mlp(bench):
    width = 32 if bench.stand_in else 4096
    memory = []
    for precision in ("bf16", "tf32"):
        arguments = ["--device", bench.torch_device, "--precision", precision, "--width", width]
        found = compare(bench, [bench.programs / "mlp_benchmark", "--precision", precision, "--width", width],
                        ["torch_mlp.py", *arguments], ["step_ms", "product_ms"])
        ours = found["ballast"]
        bench.ratio(f"mlp_{precision}_over_torch", torch_over_ours(found, "step_ms"))
        memory.append(torch_over_ours(found, "memory_bytes"))
        if precision == "bf16":
            # The best product of all, so that a slow one of ours does not help.
            product_ms = min(each["product_ms"] for each in found.values())
            rate = ours["step_flops"] / ours["step_ms"] / (ours["product_flops"] / product_ms)
            bench.ratio("mlp_bf16_over_gemm_rate", rate)
    # The worse of the two precisions counts.
    bench.ratio("mlp_torch_memory_over_ours", None if None in memory else min(memory))


def cnn(bench):
    require_cudnn(bench)
    batch = 2 if bench.stand_in else 1024
    found = compare(
        bench, [bench.programs / "model_benchmark", "--job", bench.examples / "fashion_mnist_cnn.textproto", "--batch", batch],
        ["torch_cnn.py", "--device", bench.torch_device, "--batch", batch], ["step_ms"])
    require_cudnn(bench, found["ballast"]["device"])
    bench.ratio("cnn_bf16_over_torch", torch_over_ours(found, "step_ms"))
    # Training with servers: printed, not judged.
    batch, epochs = (8, 1) if bench.stand_in else (1024, 4)
    first, last = (2, 7) if bench.stand_in else (after_first_epoch(batch), 200)
    text = jobs.without_test_data(bench.example("fashion_mnist_cnn", batch=batch, epochs=epochs))
    _, trace = bench.launch(text, 1, 1, "bf16", f"{first}-{last}")
    bench.add({"what": "cnn_training", "with": "ballast", "servers": 1, "workers": 1, "batch": batch,
               "step_ms": round(1e3 / hidden_share.steps_per_second(trace, first, last), 4)})


def hidden(bench):
    require_cudnn(bench)
    layers, channels, batch = (2, 2, 4) if bench.stand_in else (16, 64, 1024)
    examples = jobs.STAND_IN_IMAGES if bench.stand_in else jobs.TRAINING_IMAGES
    while True:
        first = after_first_epoch(batch, examples)
        last = first + (6 if bench.stand_in else 40)
        epochs = -(-(last + 4) * batch // examples)
        text = jobs.convolutions(bench.data, layers, channels, batch, epochs)
        _, trace = bench.launch(text, 2, 1, "bf16", f"{first}-{last}")
        found = hidden_share.communication(trace, first, last, "gpu")
        ratio = found["compute_ms"] / found["transfer_ms"]
        step_ms = 1e3 / hidden_share.steps_per_second(trace, first, last)
        bench.add({"what": "communication", "servers": 2, "workers": 1, "layers": layers, "channels": channels,
                   "batch": batch, **{name: round(value, 4) for name, value in found.items()},
                   "step_ms": round(step_ms, 4), "compute_over_transfers": round(ratio, 2)})
        if bench.stand_in or ratio >= COMPUTE_OVER_TRANSFERS or batch >= 4096:
            break
        batch *= 2
    bench.ratio("communication_hidden", found["hidden_share"])
    bench.ratio("compute_over_transfers", ratio)
    # The same from times alone: how much longer a step takes than it does without servers, relative to the transfers.
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "job.textproto"
        path.write_text(text)
        command = [bench.programs / "model_benchmark", "--job", path, "--batch", batch, "--seconds", bench.seconds]
        with Contestant(command, bench.environment) as alone:
            require_cudnn(bench, alone.ready(bench.deadline)["device"])
            alone.measure(bench.deadline)
            alone_ms = alone.rounds[0]["step_ms"]
    bench.add({"what": "communication_by_time", "step_ms": round(step_ms, 4), "step_ms_without_servers": alone_ms,
               "hidden_share": round(1 - max(0.0, step_ms - alone_ms) / found["transfer_ms"], 4)})


def sharing(bench):
    require_cudnn(bench)
    batch, epochs = (8, 4) if bench.stand_in else (1024, 8)
    first, last = (3, 12) if bench.stand_in else (after_first_epoch(batch), 400)
    text = jobs.without_test_data(bench.example("fashion_mnist_cnn", batch=batch, epochs=epochs))
    rates = {}
    for workers in (1, 2):
        _, trace = bench.launch(text, 1, workers, "bf16", f"{first}-{last}")
        rates[workers] = batch * hidden_share.steps_per_second(trace, first, last)
        bench.add({"what": "sharing", "servers": 1, "workers": workers, "batch": batch,
                   "samples_per_second": round(rates[workers], 2)})
    bench.ratio("two_workers_over_one", rates[2] / rates[1])


def judge_tests(tool, status, out):
    """Returns what became of the GPU tests, alone (tool "gpu_tests") or under one of compute-sanitizer's tools."""
    passed, skipped = out.count("[       OK"), out.count("[  SKIPPED")
    found = {"what": tool, "passed": passed, "skipped": skipped}
    if tool != "gpu_tests":
        refusal = next((line.strip("= ") for line in out.splitlines() if any(each in line for each in REFUSALS)), None)
        # With some drivers the tool ends well without having run the program.
        if refusal is None and status == 0 and (passed + skipped == 0 or "ERROR SUMMARY: 0 errors" not in out
                                                and "RACECHECK SUMMARY: 0 hazards" not in out):
            refusal = "it ended without having checked anything"
        if refusal is not None:
            return {**found, "result": "refused", "reason": f"compute-sanitizer cannot check on this machine: {refusal}"}
    result = "failed" if status != 0 else "passed" if passed else "skipped"
    return {**found, "result": result, **({"output": out.splitlines()[-40:]} if result == "failed" else {})}


def checks(bench):
    """Runs the GPU tests, and those in FP32 under compute-sanitizer's tools, each for a third of the time."""
    filtered = "--gtest_filter=*/late" if bench.stand_in else "--gtest_filter=*/fp32"
    test = [bench.programs / "cuda_device_test"]
    commands = {"gpu_tests": [*test, filtered] if bench.stand_in else test}
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    for tool in ("memcheck", "racecheck"):
        if sanitizer is None or bench.stand_in:
            bench.add({"what": tool, "result": "not there", "reason": "compute-sanitizer is not installed"})
            continue
        # We handle errors of the API, for example of memory that is full; they are no errors of kernels.
        commands[tool] = [sanitizer, "--tool", tool, "--report-api-errors", "no", "--error-exitcode", "1"]
        commands[tool] += ["--kernel-regex", OUR_KERNELS] if tool == "racecheck" else []
        commands[tool] += [*test, filtered]
    bad = []
    for name, command in commands.items():
        limit = Deadline(bench.deadline.seconds / 3, bench.deadline)
        try:
            with Process(["/bin/sh", "-c", 'exec "$@" 2>&1', "sh", *command], bench.environment) as process:
                found = judge_tests(name, *process.output(limit))
        except TimedOut:
            found = {"what": name, "result": "timed out", "reason": f"not done within {limit.seconds:.0f} s"}
        bench.add(found)
        bench.ratio(name, {"passed": 1, "failed": 0}.get(found["result"]))
        # Skipping all tests is right only without a GPU.
        if found["result"] not in ("passed", "refused", "timed out"):
            bad.append(name)
        elif name == "gpu_tests" and found["result"] != "passed":
            bad.append(name)
    if bad:
        raise Failed(f"{', '.join(bad)} did not pass")


def accuracy(bench):
    changes = {"epochs": 1, "batch": 8} if bench.stand_in else {}
    # Several at once: they are small for a GPU. The usual precision first, in case the time does not suffice.
    runs = [(precision, name) for precision in ("bf16", "tf32", "fp16", "fp32") for name in wanted.ACCURACY]
    at_once = 1 if bench.stand_in else JOBS_AT_ONCE
    for first in range(0, len(runs), at_once):
        with contextlib.ExitStack() as stack:
            started = [(precision, stack.enter_context(launched(bench, bench.example(name, **changes), 1, 1, precision)))
                       for precision, name in runs[first:first + at_once]]
            for precision, finish in started:
                summary, _ = finish()
                bench.add({"what": "accuracy", "precision": precision, **{key: summary[key] for key in (
                    "job", "epochs", "test_accuracy", "seconds", "skipped_steps")}})
                bench.ratio(f"{summary['job']}_{precision}_accuracy", summary["test_accuracy"])


# In the order in which they run, with their limits in seconds: what only a GPU can show comes first.
PARTS = {"mlp": (mlp, 100), "cnn": (cnn, 80), "hidden": (hidden, 80), "sharing": (sharing, 60), "checks": (checks, 100),
         "accuracy": (accuracy, 140)}


@contextlib.contextmanager
def launched(bench, text, servers, workers, precision, steps=None):
    """Starts a job. The function that it gives waits for its end, and returns its summary and, with steps "A-B", its
    timeline."""
    with tempfile.TemporaryDirectory() as folder:
        path, trace = pathlib.Path(folder) / "job.textproto", pathlib.Path(folder) / "trace.json"
        path.write_text(text)
        command = [bench.programs / "ballast", "launch", path, "--device", "cuda", "--precision", precision, "--servers",
                   servers, "--workers", workers, "--run-dir", pathlib.Path(folder) / "run", "--json"]
        if steps:
            command += ["--trace", trace, "--trace-steps", steps]
        with Process(command, bench.environment) as process:
            def finish():
                status, out = process.output(bench.deadline)
                if status != 0:
                    failure = process.failure(status)
                    raise Failed(f"with {servers} servers, {workers} workers and {precision}: {failure}")
                return json.loads(out), json.loads(trace.read_text()) if steps else None
            yield finish


def launch(*arguments):
    """Runs a job to its end; returns what launched's function does."""
    with launched(*arguments) as finish:
        return finish()
