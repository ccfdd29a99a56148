# SPDX-License-Identifier: Apache-2.0
"""Renders the folders of deploy/kubernetes and its chart into lists of objects."""

import os
import pathlib
import subprocess
import tempfile

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[3]
FOLDER = ROOT / "deploy" / "kubernetes"


class RenderError(Exception):
    pass


def _run(command, what):
    # Without HOME, so that no configuration of the user's applies.
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
                            env={"PATH": os.defpath, "HOME": "/nonexistent"})
    if result.returncode != 0 or result.stderr.strip():
        raise RenderError(f"{what}: exit status {result.returncode}, want 0 and no warning: {result.stderr.strip()}")
    return [document for document in yaml.safe_load_all(result.stdout) if document]


class Renderer:
    def __init__(self, kubectl, helm):
        self._kubectl = kubectl
        self._helm = helm

    def kustomize(self, folder, components=()):
        """The objects of a folder, with components on top."""
        if not components:
            return _run([self._kubectl, "kustomize", str(FOLDER / folder)], folder)
        with tempfile.TemporaryDirectory() as work:
            relative = pathlib.Path(os.path.relpath(FOLDER, os.path.realpath(work)))
            pathlib.Path(work, "kustomization.yaml").write_text(yaml.safe_dump({
                "apiVersion": "kustomize.config.k8s.io/v1beta1",
                "kind": "Kustomization",
                "resources": [str(relative / folder)],
                "components": [str(relative / "components" / name) for name in components],
            }))
            return _run([self._kubectl, "kustomize", work], f"{folder} with {', '.join(components)}")

    def chart(self, values=()):
        """The objects of the chart as release `ballast`, with `--set` values."""
        command = [self._helm, "template", "ballast", str(FOLDER / "chart"), "--namespace", "default"]
        for value in values:
            command += ["--set", value]
        return _run(command, f"chart with {', '.join(values) or 'its defaults'}")


def pod_templates(objects):
    """Yields (where, pod template, replicas or completions) of every workload, in JobSets and runtimes too."""
    for item in objects:
        where = f"{item['kind']} {item['metadata']['name']}"
        spec = item.get("spec", {})
        if item["kind"] == "ClusterTrainingRuntime":
            spec = spec["template"]["spec"]
        if item["kind"] in ("Job", "StatefulSet"):
            yield where, spec["template"], spec.get("replicas", spec.get("completions"))
        for job in spec.get("replicatedJobs", []):
            inner = job["template"]["spec"]
            yield f"{where}, {job['name']}", inner["template"], inner["completions"]


def container(template):
    return template["spec"]["containers"][0]


def environment(template, objects):
    """The literal values of a container's variables, with those of ConfigMaps."""
    maps = {item["metadata"]["name"]: item["data"] for item in objects if item["kind"] == "ConfigMap"}
    values = {}
    for source in container(template).get("envFrom", []):
        values.update(maps.get(source["configMapRef"]["name"], {}))
    values.update({variable["name"]: variable.get("value") for variable in container(template)["env"]})
    return values
