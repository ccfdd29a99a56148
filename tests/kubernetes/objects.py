# SPDX-License-Identifier: Apache-2.0
"""Rendered objects, and what the API server and the kubelet make of their fields: variables, names, quantities."""

import copy
import dataclasses
import math
import re

import yaml

INDEX = "batch.kubernetes.io/job-completion-index"
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_]*)\)")


@dataclasses.dataclass(eq=False)
class Pod:
    """A pod and its status. Controllers create it and the kubelet runs it, on the cluster's one thread."""

    name: str
    owner: object
    labels: dict
    annotations: dict
    spec: dict
    hostname: str
    subdomain: str
    volume_claims: dict = dataclasses.field(default_factory=dict)  # Volume to the name of its claim.
    namespace: str = "default"
    node: str = ""
    address: str = ""
    phase: str = "Pending"
    ready: bool = False
    conditions: dict = dataclasses.field(default_factory=dict)  # Type to reason; those whose status is True.
    deleted: bool = False  # Has a deletion timestamp.
    exit_codes: dict = dataclasses.field(default_factory=dict)
    restarts: int = 0
    started_at: float = 0  # When its process first started.
    finished_at: float = 0
    counted: bool = False  # By its Job, whose finalizer keeps the pod until then.

    @property
    def terminal(self):
        return self.phase in ("Succeeded", "Failed")

    @property
    def index(self):
        return int(self.annotations[INDEX])

    def full_name(self):
        """Its name in DNS; empty without a service."""
        return f"{self.hostname}.{self.subdomain}.{self.namespace}.svc.cluster.local" if self.subdomain else ""


def load(text):
    """The objects of rendered YAML, by kind and name."""
    objects = {}
    for document in yaml.safe_load_all(text):
        if document:
            objects[document["kind"], document["metadata"]["name"]] = document
    return objects


def of_kind(objects, kind):
    return [item for (its_kind, _), item in objects.items() if its_kind == kind]


def expand(text, variables):
    """$(NAME) of a known variable; others stay as they are, and $$ is one $."""
    return _REFERENCE.sub(
        lambda match: "$" if match[0] == "$$" else variables.get(match[1], match[0]), text)


def field(pod, path):
    """Value of a fieldRef."""
    match = re.fullmatch(r"metadata\.(labels|annotations)\['([^']+)'\]", path)
    if match:
        return getattr(pod, match[1]).get(match[2], "")
    values = {
        "metadata.name": pod.name,
        "metadata.namespace": pod.namespace,
        "spec.nodeName": pod.node,
        "status.podIP": pod.address,
    }
    if path not in values:
        raise ValueError(f"pod {pod.name}: fieldPath {path} is not played")
    return values[path]


def resource(container, path):
    """Value of a resourceFieldRef in whole cores or bytes, rounded up."""
    kind, name = path.split(".")
    quantity = str(container.get("resources", {}).get(kind, {}).get(name, "0"))
    number, unit = re.fullmatch(r"([0-9.]+)(m|[KMGT]i?|)", quantity).groups()
    factor = {"m": 0.001, "": 1}.get(unit) or (1024 if unit.endswith("i") else 1000) ** ("KMGT".index(unit[0]) + 1)
    return str(math.ceil(float(number) * factor))


def environment(pod, container, config_maps):
    """Variables of a container, in the kubelet's order: envFrom, then env, each of which sees those before it."""
    variables = {}
    for source in container.get("envFrom", []):
        name = source["configMapRef"]["name"]
        if name not in config_maps:
            raise ValueError(f"pod {pod.name}: ConfigMap {name} does not exist")
        variables.update(config_maps[name])
    for variable in container.get("env", []):
        source = variable.get("valueFrom", {})
        if "fieldRef" in source:
            variables[variable["name"]] = field(pod, source["fieldRef"]["fieldPath"])
        elif "resourceFieldRef" in source:
            variables[variable["name"]] = resource(container, source["resourceFieldRef"]["resource"])
        elif source:
            raise ValueError(f"pod {pod.name}: {variable['name']}: {source} is not played")
        else:
            variables[variable["name"]] = expand(variable.get("value", ""), variables)
    return variables


def select(labels, selector):
    """True if a LabelSelector chooses these labels."""
    if any(labels.get(name) != value for name, value in selector.get("matchLabels", {}).items()):
        return False
    if selector.get("matchExpressions"):
        raise ValueError("matchExpressions are not played")
    return True


def run_trainjob(objects):
    """Replaces TrainJobs by the JobSets that Trainer makes of them and of their runtimes."""
    result = {key: item for key, item in objects.items() if key[0] not in ("TrainJob", "ClusterTrainingRuntime")}
    for job in of_kind(objects, "TrainJob"):
        reference = job["spec"]["runtimeRef"]
        runtime = objects[reference.get("kind", "ClusterTrainingRuntime"), reference["name"]]
        spec = copy.deepcopy(runtime["spec"]["template"]["spec"])
        trainer = job["spec"].get("trainer", {})
        for replicated in spec["replicatedJobs"]:
            template = replicated["template"]
            step = template.get("metadata", {}).get("labels", {}).get("trainer.kubeflow.org/trainjob-ancestor-step")
            if step != "trainer":
                continue
            nodes = trainer.get("numNodes", runtime["spec"].get("mlPolicy", {}).get("numNodes", 1))
            template["spec"].update(completions=nodes, parallelism=nodes)
            for container in template["spec"]["template"]["spec"]["containers"]:
                if container["name"] != "node":
                    continue
                for name in ("image", "command", "args"):
                    if name in trainer:
                        container[name] = trainer[name]
                if "resourcesPerNode" in trainer:
                    container["resources"] = trainer["resourcesPerNode"]
                given = {variable["name"] for variable in trainer.get("env", [])}
                container["env"] = [variable for variable in container.get("env", [])
                                    if variable["name"] not in given] + trainer.get("env", [])
        name = job["metadata"]["name"]
        result["JobSet", name] = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
                                  "metadata": {"name": name}, "spec": spec}
    return result


def pod_specs(objects):
    """Every pod template's spec."""
    workloads = [item["spec"] for kind in ("Job", "StatefulSet") for item in of_kind(objects, kind)]
    workloads += [job["template"]["spec"] for item in of_kind(objects, "JobSet")
                  for job in item["spec"]["replicatedJobs"]]
    return [workload["template"]["spec"] for workload in workloads]
