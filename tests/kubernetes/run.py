# SPDX-License-Identifier: Apache-2.0
"""Trains on a stand-in for a Kubernetes cluster while pods are evicted; run.sh calls it with everything it needs.

Must run as process 1 of new mount, network and PID namespaces, so that nothing of it outlives it.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from cluster import Timeout
from evictions import JobFailed, Training, config_maps_from, secrets_from, train_with_evictions
from image import assemble
from names import NameServer
from network import Network
from objects import load, pod_specs, run_trainjob

# Names of the servers in every folder of deploy/kubernetes.
HOSTS = ["*.ballast.default.svc", "*.fashion-mnist.default.svc",
         *(f"ballast-server-{i}.ballast-server" for i in range(16))]


def isolate():
    """Hides the machine's named network namespaces from those that are made here."""
    pathlib.Path("/run/netns").mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "netns", "/run/netns"], check=True)


def prepare(work, rendered, programs):
    """Returns the objects, the image's tree and the secrets."""
    work.mkdir(exist_ok=True)
    objects = run_trainjob(load(pathlib.Path(rendered).read_text()))
    tree = work / "image"
    tree.mkdir()
    assemble(tree, programs, pod_specs(objects))
    keys = work / "keys"
    subprocess.run([programs["ballast"], "keys", str(keys), "--job", "fashion_mnist", "--hosts", ",".join(HOSTS)],
                   check=True, stdout=subprocess.DEVNULL, timeout=60)
    return objects, tree, secrets_from(keys)


def add_programs(parser):
    """Adds the flags that name the programs and say what they can do."""
    for name in ("ballast", "server", "worker"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--no-http", action="store_true")


def programs_of(flags):
    return {"ballast": flags.ballast, "ballast_server": flags.server, "ballast_worker": flags.worker}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--objects", required=True)
    add_programs(parser)
    parser.add_argument("--work")
    parser.add_argument("--evictions", type=int, default=5)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--delay", type=float, default=1)
    parser.add_argument("--timeout", type=int, default=1800)
    parser.add_argument("--env", action="append", default=[])
    parser.add_argument("--json", action="store_true")
    flags = parser.parse_args()
    isolate()
    work = pathlib.Path(flags.work or tempfile.mkdtemp(prefix="ballast-kubernetes-")).resolve()
    try:
        objects, tree, secrets = prepare(work, flags.objects, programs_of(flags))
        network = Network()
        names = NameServer(network.name_server)

        def make_training(number):
            folder = work / f"job-{number}"
            folder.mkdir()
            return Training(folder, objects, tree, network, names, config_maps_from(objects, flags.epochs), secrets,
                            http=not flags.no_http, variables=dict(pair.split("=", 1) for pair in flags.env),
                            nodes=flags.nodes, delay=flags.delay,
                            log=lambda line: print(line, file=sys.stderr, flush=True))

        result = train_with_evictions(make_training, flags.evictions, flags.seed, flags.timeout)
    except (JobFailed, Timeout) as failure:
        print(f"error: {failure}", file=sys.stderr)
        for log in sorted(work.glob("job-*/logs/*.log")):
            print(f"--- {log.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-8:]), file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(work / "image", ignore_errors=True)
        if flags.work is None:
            shutil.rmtree(work, ignore_errors=True)
    print(json.dumps(result) if flags.json else json.dumps(result, indent=2))
    good = result["pushes_lost"] == result["pushes_duplicated"] == 0
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
