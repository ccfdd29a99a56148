#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
import unittest

from objects import Pod, environment, expand, load, run_trainjob


def pod(**fields):
    return Pod(**{"name": "p-0-abcde", "owner": None, "labels": {"batch.kubernetes.io/job-completion-index": "3"},
                  "annotations": {}, "spec": {}, "hostname": "p-0", "subdomain": "p", **fields})


class ExpandTest(unittest.TestCase):
    def test_replaces_known_names_only(self):
        self.assertEqual(expand("$(A)-$(B).$$(A)", {"A": "1"}), "1-$(B).$(A)")

    def test_does_not_expand_values_again(self):
        self.assertEqual(expand("$(A)", {"A": "$(B)", "B": "2"}), "$(B)")


class EnvironmentTest(unittest.TestCase):
    def test_sees_only_variables_defined_before(self):
        container = {"env": [{"name": "EARLY", "value": "$(RANK)"},
                             {"name": "RANK", "valueFrom": {"fieldRef": {
                                 "fieldPath": "metadata.labels['batch.kubernetes.io/job-completion-index']"}}},
                             {"name": "LATE", "value": "server-$(RANK)"}]}
        self.assertEqual(environment(pod(), container, {}), {"EARLY": "$(RANK)", "RANK": "3", "LATE": "server-3"})

    def test_takes_config_maps_first(self):
        container = {"envFrom": [{"configMapRef": {"name": "size"}}], "env": [{"name": "N", "value": "$(SERVERS)!"}]}
        self.assertEqual(environment(pod(), container, {"size": {"SERVERS": "2"}}), {"SERVERS": "2", "N": "2!"})

    def test_rounds_requests_up(self):
        container = {"resources": {"requests": {"cpu": "1500m", "memory": "1Gi"}},
                     "env": [{"name": "THREADS", "valueFrom": {"resourceFieldRef": {"resource": "requests.cpu"}}},
                             {"name": "BYTES", "valueFrom": {"resourceFieldRef": {"resource": "requests.memory"}}}]}
        self.assertEqual(environment(pod(), container, {}), {"THREADS": "2", "BYTES": "1073741824"})

    def test_refuses_a_config_map_that_does_not_exist(self):
        with self.assertRaisesRegex(ValueError, "ConfigMap size does not exist"):
            environment(pod(), {"envFrom": [{"configMapRef": {"name": "size"}}]}, {})


class TrainJobTest(unittest.TestCase):
    def test_puts_the_trainers_fields_into_the_runtimes_node(self):
        objects = load("""
kind: ClusterTrainingRuntime
metadata: {name: r}
spec:
  template:
    spec:
      replicatedJobs:
      - name: server
        template: {spec: {completions: 4, parallelism: 4, template: {spec: {containers: [{name: server, image: s}]}}}}
      - name: node
        template:
          metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
          spec: {completions: 2, parallelism: 2, template: {spec: {containers: [{name: node, image: old, env: []}]}}}
---
kind: TrainJob
metadata: {name: t}
spec:
  runtimeRef: {name: r}
  trainer: {image: new, numNodes: 5, env: [{name: A, value: "1"}]}
""")
        jobset = run_trainjob(objects)["JobSet", "t"]
        server, node = (job["template"]["spec"] for job in jobset["spec"]["replicatedJobs"])
        self.assertEqual(server["completions"], 4)
        self.assertEqual((node["completions"], node["parallelism"]), (5, 5))
        self.assertEqual(node["template"]["spec"]["containers"][0],
                         {"name": "node", "image": "new", "env": [{"name": "A", "value": "1"}]})


if __name__ == "__main__":
    unittest.main()
