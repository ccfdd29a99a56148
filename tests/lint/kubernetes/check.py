# SPDX-License-Identifier: Apache-2.0
"""Checks deploy/kubernetes; check_kubernetes.sh runs it with the programs that it needs.

Usage: check.py --kubectl PROGRAM --helm PROGRAM --node_modules FOLDER
"""

import argparse
import copy
import itertools
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import yaml

from comparison import compare
from rendering import FOLDER, ROOT, Renderer, RenderError, container, environment, pod_templates
from rules import broken

HERE = pathlib.Path(__file__).resolve().parent

STATEFUL = ("spot", "monitoring", "pdb-statefulset", "spread", "cert-manager")
JOBSET = ("kueue", "spot", "monitoring", "pdb", "spread", "cert-manager")

# Folders with components, each of which renders, fits the types and keeps the rules.
FOLDERS = {
    "base": [(), STATEFUL],
    "jobset": [(), ("gpu",), JOBSET, *((name,) for name in JOBSET)],
    "trainjob": [()],
    "overlays/gpu": [()],
    "overlays/durable": [(), STATEFUL],
    "overlays/standby": [(), STATEFUL],
}

# A folder with components, and the values with which the chart gives the same objects.
SAME = [
    ("jobset", (), []),
    ("jobset", ("gpu",), ["gpu=1", "image.worker=ballast-fashion-mnist:cuda"]),
    *(("jobset", (name,), [f"components.{re.sub('-m', 'M', name)}=true"]) for name in JOBSET),
    ("jobset", JOBSET, [f"components.{re.sub('-m', 'M', name)}=true" for name in JOBSET]),
    ("overlays/durable", (), ["durability=wal", "volume.size=4Gi"]),
    ("overlays/durable", STATEFUL, ["durability=wal", "volume.size=4Gi", "components.pdb=true",
                                    "components.spot=true", "components.monitoring=true", "components.spread=true",
                                    "components.certManager=true"]),
]

# Values that the chart refuses, and what its error says.
REFUSED = [
    ("sevrers=3", "additional properties 'sevrers' not allowed"),
    ("components.pbd=true", "additional properties 'pbd' not allowed"),
    ("memory.server.requst=1Gi", "additional properties 'requst' not allowed"),
    ("durability=replica", "durability"),
    ("servers=0", "servers"),
    ("workers=two", "workers"),
    ("docs=https://example.org", "docs"),
    ("memory.server.request=1Gb", "memory/server/request"),
    ("parameters=500000000",
     "memory.server.request: got 512Mi, want at least 3182Mi for a model of 500000000 parameters on 2 servers"),
    ("memory.worker.request=64Mi", "memory.worker.request: got 64Mi, want at least 137Mi"),
    ("memory.worker.limit=512Mi", "memory.worker.limit: got 512Mi, want at least the request, 1Gi"),
]

# Fields to misspell, one at a time: tsc must name each.
MISSPELT = [
    ("StatefulSet", "spec.replicas"),
    ("StatefulSet", "spec.template.spec.containers.0.readinessProbe.httpGet.scheme"),
    ("Job", "spec.template.spec.containers.0.securityContext.readOnlyRootFilesystem"),
    ("Job", "spec.podFailurePolicy.rules.0.onPodConditions"),
    ("NetworkPolicy", "spec.ingress.0.from.0.podSelector"),
    ("PodDisruptionBudget", "spec.minAvailable"),
    ("JobSet", "spec.successPolicy.targetReplicatedJobs"),
    ("JobSet", "spec.failurePolicy.restartStrategy"),
    ("JobSet", "spec.failurePolicy.rules.0.onJobFailureReasons"),
    ("JobSet", "spec.replicatedJobs.1.dependsOn.0.status"),
    ("JobSet", "spec.replicatedJobs.0.template.spec.backoffLimitPerIndex"),
    ("JobSet", "spec.replicatedJobs.0.template.spec.template.spec.containers.0.env.0.valueFrom.fieldRef"),
    ("JobSet", "spec.volumeClaimPolicies.0.retentionPolicy.whenDeleted"),
    ("ClusterTrainingRuntime", "spec.mlPolicy.numNodes"),
    ("ClusterTrainingRuntime", "spec.template.spec.coordinator.podIndex"),
    ("TrainJob", "spec.runtimeRef.kind"),
    ("TrainJob", "spec.trainer.resourcesPerNode"),
    ("PodMonitor", "spec.podMetricsEndpoints.0.tlsConfig.serverName"),
    ("PodMonitor", "spec.selector.matchLabels"),
    ("PrometheusRule", "spec.groups.0.rules.0.annotations"),
    ("Certificate", "spec.issuerRef.kind"),
]


class Schema:
    """Checks objects against types with tsc."""

    def __init__(self, node_modules, work):
        self._work = work
        (work / "node_modules").symlink_to(node_modules)
        shutil.copy(HERE / "schema.js", work)
        shutil.copytree(HERE / "types", work / "types")
        (work / "tsconfig.json").write_text(
            '{"compilerOptions": {"noEmit": true, "strict": true, "types": [], "moduleResolution": "node"}, '
            '"files": ["rendered.ts"]}')

    def refuses(self, objects):
        """Returns what tsc says about objects that do not fit; empty if all do."""
        node = subprocess.run(["node", str(self._work / "schema.js")], input=yaml.safe_dump_all(objects), text=True,
                              capture_output=True, timeout=60)
        if node.returncode != 0:
            return node.stderr
        (self._work / "rendered.ts").write_text(node.stdout)
        tsc = subprocess.run([str(self._work / "node_modules/.bin/tsc"), "--project", str(self._work)], text=True,
                             capture_output=True, timeout=300)
        return tsc.stdout + tsc.stderr if tsc.returncode != 0 else ""


def misspell(item, path):
    """A copy of `item` whose field at `path` has an s too many."""
    item = copy.deepcopy(item)
    *parents, last = path.split(".")
    at = item
    for step in parents:
        at = at[int(step)] if step.isdigit() else at[step]
    at[last + "s"] = at.pop(last)
    return item


def check_types(schema, rendered):
    problem = schema.refuses(list(itertools.chain.from_iterable(rendered.values())))
    if problem:
        yield f"objects do not fit their types: {problem}"
    everything = list(itertools.chain.from_iterable(rendered.values()))
    by_kind = {item["kind"]: item for item in reversed(everything)}
    by_kind["PodDisruptionBudget"] = next(item for item in everything if "minAvailable" in item.get("spec", {}))
    refused = schema.refuses([misspell(by_kind[kind], path) for kind, path in MISSPELT])
    for kind, path in MISSPELT:
        name = path.rsplit(".", 1)[1] + "s"
        if not re.search(rf"'\"?{name}\"?' does not exist", refused):
            yield f"{kind}: the types miss the misspelt {name}: {refused}"


def check_overlays(rendered):
    for where, template, _ in pod_templates(rendered["overlays/gpu", ()] + rendered["jobset", ("gpu",)]):
        if template["metadata"]["labels"]["app.kubernetes.io/component"] != "worker":
            continue
        if container(template)["resources"]["limits"].get("nvidia.com/gpu") != "1":
            yield f"{where}: asks for no GPU"
        one = container(template)
        if environment(template, [])["BALLAST_DEVICE"] != "cuda" or not one["image"].endswith(":cuda"):
            yield f"{where}: does not run on the GPU"
    for folder, want in (("overlays/durable", "wal"), ("overlays/standby", "standby"), ("jobset", "standby"),
                         ("trainjob", "standby")):
        objects = rendered[folder, ()]
        got = [environment(template, objects).get("BALLAST_DURABILITY") for _, template, _ in pod_templates(objects)]
        if want not in got:
            yield f"{folder}: BALLAST_DURABILITY is {got}, want {want}"


def check_metrics(rendered):
    """The PodMonitor has one token, a reader's."""
    for (folder, _), objects in rendered.items():
        for where, template, _ in pod_templates(objects):
            values = environment(template, [])
            if values["BALLAST_TOKEN_FILE"].endswith("worker.token") and not values.get(
                    "BALLAST_HTTP_TOKEN_FILE", "").endswith("/reader.token"):
                yield f"{folder}, {where}: its metrics do not accept a reader's token"


def check_chart(renderer, rendered):
    for folder, components, values in SAME:
        try:
            chart = renderer.chart(values)
        except RenderError as error:
            yield str(error)
            continue
        what = (f"{folder} with {', '.join(components) or 'nothing'}, and the chart with "
                f"{', '.join(values) or 'nothing'},")
        yield from (f"{what} differ: {sentence}" for sentence in compare(rendered[folder, components], chart))
        yield from (f"chart with {', '.join(values)}: {sentence}" for sentence in broken(chart))
    # The comparison itself: a field of one side only, another value, a missing object.
    chart = renderer.chart()
    for change in (lambda items: items[-1]["metadata"].update(name="other"),
                   lambda items: items[-1]["metadata"]["labels"].update(extra="1"), lambda items: items.pop()):
        changed = copy.deepcopy(chart)
        change(changed)
        if not compare(chart, changed):
            yield "the comparison of chart and kustomize misses a planted difference"
    for value, want in REFUSED:
        try:
            renderer.chart([value])
        except RenderError as error:
            if want not in str(error):
                yield f"chart with {value}: got {error}, want it to say {want!r}"
        else:
            yield f"chart with {value}: rendered, want an error that says {want!r}"
    yield from check_alerts(renderer)
    # Another size and name.
    big = renderer.chart(["servers=3", "workers=5"])
    yield from (f"chart with 3 servers: {sentence}" for sentence in broken(big))


def check_alerts(renderer):
    """What the values of the chart change of alerts and dashboard; that both are those of kustomize is compared."""
    on = "components.monitoring=true"
    kinds = {(item["kind"], item["metadata"]["name"]) for item in renderer.chart([on, "alerts=false", "dashboard=false"])}
    for left in sorted({("PrometheusRule", "ballast"), ("ConfigMap", "ballast-dashboard")} & kinds):
        yield f"chart without alerts and dashboard: has {left}"
    [rule] = [item for item in renderer.chart([on, "docs=https://example.org/"]) if item["kind"] == "PrometheusRule"]
    links = {one["annotations"]["runbook_url"] for group in rule["spec"]["groups"] for one in group["rules"]}
    if not all(link.startswith("https://example.org/docs/guide/alerts.md#") for link in links):
        yield f"chart with docs: the runbook links are {sorted(links)}"


def check_flow_rule(rendered):
    """The rule on network policies itself: a hole, and a door that is closed."""
    for change, want in ((lambda spec: spec["egress"].append({}), "reaches port 443 of the internet"),
                         (lambda spec: spec["ingress"].clear(), "Prometheus does not reach port 7702")):
        changed = copy.deepcopy(rendered["jobset", ()])
        for item in changed:
            if item["kind"] == "NetworkPolicy":
                change(item["spec"])
        if not any(want in sentence for sentence in broken(changed)):
            yield f"the rule on network policies misses a planted fault, {want!r}"


def check_jobs():
    """The example, with what Kubernetes adds to it; kustomize and helm read no file of another folder."""
    example = (ROOT / "examples/fashion_mnist.textproto").read_text()
    copies = [FOLDER / name for name in ("base/job.textproto", "jobset/job.textproto", "trainjob/job.textproto",
                                         "chart/files/job.textproto")]
    added = copies[0].read_text()[len(example):]
    if not re.fullmatch(r"\n(# [^\n]*\n)+durability \{ return_seconds: 600 \}\n", added):
        yield f"{copies[0].relative_to(ROOT)}: adds {added!r} to the example, want return_seconds: 600"
    for path in copies:
        if path.read_text() != example + added:
            yield f"{path.relative_to(ROOT)}: is not examples/fashion_mnist.textproto and the last lines of base/"


def main():
    parser = argparse.ArgumentParser()
    for name in ("kubectl", "helm", "node_modules"):
        parser.add_argument(f"--{name}", required=True)
    flags = parser.parse_args()
    renderer = Renderer(flags.kubectl, flags.helm)
    problems, rendered = [], {}
    for folder, sets in FOLDERS.items():
        for components in sets:
            try:
                rendered[folder, components] = renderer.kustomize(folder, components)
            except RenderError as error:
                problems.append(str(error))
    if not problems:
        for (folder, components), objects in rendered.items():
            where = f"{folder}{' with ' if components else ''}{', '.join(components)}"
            problems += [f"{where}: {sentence}" for sentence in broken(objects)]
        problems += check_overlays(rendered)
        problems += check_metrics(rendered)
        problems += check_flow_rule(rendered)
        problems += check_chart(renderer, rendered)
        with tempfile.TemporaryDirectory() as work:
            problems += check_types(Schema(flags.node_modules, pathlib.Path(work)), rendered)
    problems += check_jobs()
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
