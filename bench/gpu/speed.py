# SPDX-License-Identifier: Apache-2.0
"""Times what a GPU worker must reach, beside PyTorch where that is there. run.sh calls it; prints JSON, an object a line,
the last of which has every ratio with what is wanted of it (null: it was not measured).

  speed.py --programs FOLDER [--device cuda|cpu] [--only PART] [--tiny]

--tiny with --device cpu is for testing this script: a sixth of the data, one epoch, ratios without meaning.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).absolute().parent
WANTED = {
    "mlp_tf32_over_torch": 1.0, "mlp_bf16_over_torch": 1.0, "mlp_bf16_over_gemm_rate": 0.7,
    "mlp_torch_memory_over_ours": 1.0, "cnn_bf16_over_torch": 0.9, "communication_hidden": 0.9,
    "two_workers_over_one": 1.0,
}


class Failed(Exception):
    pass


def objects(command):
    """The JSON objects that a command prints, one a line, which are printed on."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise Failed(f"{pathlib.Path(command[0]).name}: exit status {done.returncode}")
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for each in found:
        print(json.dumps(each), flush=True)
    return found


def has_torch(device):
    code = "import torch, sys; sys.exit(not torch.cuda.is_available())" if device == "cuda" else "import sys; sys.exit(1)"
    return subprocess.run([sys.executable, "-c", code], stderr=subprocess.DEVNULL).returncode == 0


def launch(options, servers, workers):
    """A run of the CNN example: its summary."""
    job = (HERE / "../../examples/fashion_mnist_cnn.textproto").read_text()
    job = job.replace("batch_size: 64", "batch_size: 1024")
    if options.tiny:
        job = job.replace("epochs: 8", "epochs: 1").replace("/train-", "/t10k-")
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "job.textproto"
        path.write_text(job)
        command = [options.programs / "ballast", "launch", path, "--device", options.device, "--servers", str(servers),
                   "--workers", str(workers), "--run-dir", pathlib.Path(folder) / "run", "--json"]
        if options.device == "cuda":
            command += ["--precision", "bf16"]
        done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise Failed(f"ballast launch with {servers} servers and {workers} workers: exit status {done.returncode}")
        # Epochs may be few: the first one opens devices and measures algorithms.
        summary = json.loads(done.stdout)
    print(json.dumps({"what": "cnn", "with": "ballast", "servers": servers, "workers": workers, **{
        key: summary[key] for key in ("samples_per_second", "wait_share") }}), flush=True)
    return summary


def mlp(options, ratios):
    if options.device != "cuda":
        return
    ours = {each["precision"]: each for each in objects([str(options.programs / "mlp_benchmark"), "tf32", "bf16"])}
    bf16 = ours["bf16"]
    ratios["mlp_bf16_over_gemm_rate"] = bf16["step_tflops"] / bf16["product_tflops"]
    if not has_torch(options.device):
        return
    torch = {each["precision"]: each for each in objects([sys.executable, str(HERE / "torch_mlp.py"), "tf32", "bf16"])}
    for precision in ("tf32", "bf16"):
        ratios[f"mlp_{precision}_over_torch"] = torch[precision]["step_ms"] / ours[precision]["step_ms"]
    # Of the precision in which this is the worse.
    ratios["mlp_torch_memory_over_ours"] = min(
        torch[precision]["memory_bytes"] / ours[precision]["memory_bytes"] for precision in ("tf32", "bf16"))


def cnn(options, ratios):
    ours = launch(options, 1, 1)
    if not has_torch(options.device):
        return
    torch = objects([sys.executable, str(HERE / "torch_cnn.py")])[0]
    ratios["cnn_bf16_over_torch"] = ours["samples_per_second"] / torch["samples_per_second"]


def hidden(options, ratios):
    # Of all time, so no less than what is hidden of the transfers' time where these take less than all of it.
    ratios["communication_hidden"] = 1.0 - launch(options, 2, 1)["wait_share"]


def sharing(options, ratios):
    one = launch(options, 1, 1)["samples_per_second"]
    ratios["two_workers_over_one"] = launch(options, 1, 2)["samples_per_second"] / one


PARTS = {"mlp": mlp, "cnn": cnn, "hidden": hidden, "sharing": sharing}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=pathlib.Path, required=True)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--only", choices=list(PARTS))
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    if options.device == "cuda":
        facts = json.loads(subprocess.run([str(options.programs / "ballast"), "doctor", "--json"], stdout=subprocess.PIPE,
                                          text=True).stdout)["cuda"]
        if not facts["usable"]:
            print(f"error: no GPU: {facts['reason']}", file=sys.stderr)
            return 1
    ratios = dict.fromkeys(WANTED)
    status = 0
    for name, part in PARTS.items():
        if options.only not in (None, name):
            continue
        try:
            part(options, ratios)
        except Failed as failure:
            print(f"error: {name}: {failure}", file=sys.stderr)
            status = 1
    print(json.dumps({"what": "ratios", "device": options.device, "tiny": options.tiny, "ratios": {
        key: {"got": None if got is None else round(got, 3), "wanted": WANTED[key]} for key, got in ratios.items()}}))
    return status


sys.exit(main())
