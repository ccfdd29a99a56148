#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The rules of the controllers, with pods that end when the test says so."""

import unittest

from controllers import Job, JobSet, StatefulSet

POLICY = {"rules": [
    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    {"action": "FailJob", "onExitCodes": {"containerName": "c", "operator": "In", "values": [1, 2]}},
    {"action": "FailIndex", "onExitCodes": {"containerName": "c", "operator": "In", "values": [69]}},
]}


class FakeCluster:
    def __init__(self):
        self.time = 0
        self.all = []

    def now(self):
        return self.time

    def pods(self, owner):
        return [pod for pod in self.all if pod.owner is owner]

    def create(self, pod):
        self.all.append(pod)

    def delete(self, pod):
        pod.deleted = True

    def remove(self, pod):
        self.all.remove(pod)

    def event(self, text):
        pass

    def active(self, owner=None):
        return {pod.hostname: pod for pod in self.all if not pod.terminal and (owner is None or pod.owner is owner)}

    def end(self, hostname, code):
        pod = self.active()[hostname]
        pod.exit_codes["c"] = code
        pod.phase = "Failed" if code else "Succeeded"
        pod.finished_at = self.time

    def evict(self, hostname, code):
        pod = self.active()[hostname]
        pod.conditions["DisruptionTarget"] = "EvictionByEvictionAPI"
        pod.deleted = True
        self.end(hostname, code)


def job_spec(completions=2, **fields):
    return {"completionMode": "Indexed", "completions": completions, "parallelism": completions,
            "backoffLimitPerIndex": 3, "podFailurePolicy": POLICY,
            "template": {"metadata": {"labels": {"l": "1"}},
                         "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "env": [
                             {"name": "OWN", "value": "$(JOB_COMPLETION_INDEX)"}]}]}}, **fields}


class JobTest(unittest.TestCase):
    def setUp(self):
        self.cluster = FakeCluster()

    def job(self, **fields):
        job = Job(self.cluster, "j", job_spec(**fields))
        job.reconcile()
        return job

    def step(self, job, seconds=0):
        self.cluster.time += seconds
        job.reconcile()

    def test_gives_each_pod_its_index(self):
        self.job()
        pods = self.cluster.active()
        self.assertEqual(sorted(pods), ["j-0", "j-1"])
        pod = pods["j-1"]
        self.assertEqual(pod.labels["batch.kubernetes.io/job-completion-index"], "1")
        self.assertEqual(pod.annotations["batch.kubernetes.io/job-completion-index"], "1")
        self.assertEqual(pod.labels["l"], "1")
        self.assertRegex(pod.name, r"^j-1-[a-z0-9]{5}$")

    def test_appends_its_variable_to_the_others(self):
        self.job()
        variables = self.cluster.active()["j-0"].spec["containers"][0]["env"]
        self.assertEqual([variable["name"] for variable in variables], ["OWN", "JOB_COMPLETION_INDEX"])

    def test_replaces_an_evicted_pod_after_a_delay_that_doubles(self):
        job = self.job(backoffLimitPerIndex=0)
        for delay in (10, 20, 40):
            self.cluster.evict("j-0", 143)
            self.step(job)
            self.step(job, delay - 1)
            self.assertNotIn("j-0", self.cluster.active())
            self.step(job, 1)
            self.assertIn("j-0", self.cluster.active())
        self.assertIsNone(job.finished)

    def test_does_not_replace_a_pod_that_exits_with_0_even_if_evicted(self):
        job = self.job()
        self.cluster.evict("j-0", 0)
        self.step(job)
        self.step(job, 1000)
        self.assertEqual(sorted(self.cluster.active()), ["j-1"])

    def test_waits_for_a_terminating_pod(self):
        job = self.job()
        self.cluster.delete(self.cluster.active()["j-0"])
        self.step(job, 1000)
        self.assertEqual(len(self.cluster.all), 2)

    def test_an_index_that_a_rule_fails_is_not_replaced(self):
        job = self.job()
        self.cluster.end("j-1", 69)
        self.step(job)
        self.step(job, 1000)
        self.assertEqual(sorted(self.cluster.active()), ["j-0"])
        self.assertEqual(job.status["failed_indexes"], [1])
        self.assertIsNone(job.finished)

    def test_one_failed_index_may_be_too_many(self):
        job = self.job(maxFailedIndexes=0)
        self.cluster.end("j-1", 69)
        self.step(job)
        self.assertEqual(job.finished[:2], ("Failed", "MaxFailedIndexesExceeded"))

    def test_fails_at_once_on_exit_codes_1_and_2(self):
        job = self.job()
        self.cluster.end("j-1", 2)
        self.step(job)
        self.assertEqual(job.finished[:2], ("Failed", "PodFailurePolicy"))
        self.assertIn("exit code 2 matching FailJob rule at index 1", job.finished[2])
        self.assertTrue(self.cluster.active()["j-0"].deleted)

    def test_counts_other_exit_codes_against_the_index(self):
        job = self.job(maxFailedIndexes=0)
        for _ in range(4):
            self.assertIsNone(job.finished)
            self.cluster.end("j-0", 137)
            self.step(job)
            self.step(job, 600)
        self.assertEqual(job.finished[:2], ("Failed", "MaxFailedIndexesExceeded"))

    def test_goes_on_without_a_failed_index_unless_maxFailedIndexes_forbids_it(self):
        job = self.job(backoffLimitPerIndex=0)
        self.cluster.end("j-0", 3)
        self.step(job)
        self.assertIsNone(job.finished)
        self.cluster.end("j-1", 0)
        self.step(job)
        self.assertEqual(job.finished[:2], ("Failed", "FailedIndexes"))

    def test_without_a_limit_per_index_all_failures_count_together(self):
        spec = job_spec(backoffLimit=1)
        del spec["backoffLimitPerIndex"]
        job = Job(self.cluster, "j", spec)
        job.reconcile()
        self.cluster.end("j-0", 3)
        self.cluster.end("j-1", 75)
        self.step(job)
        self.assertEqual(job.finished[:2], ("Failed", "BackoffLimitExceeded"))

    def test_completes_with_the_indexes_of_its_success_policy(self):
        job = self.job(successPolicy={"rules": [{"succeededIndexes": "0"}]})
        self.cluster.end("j-0", 0)
        self.step(job)
        self.assertEqual(job.finished[:2], ("Complete", "SuccessPolicy"))
        self.assertTrue(self.cluster.active()["j-1"].deleted)

    def test_refuses_fields_that_it_does_not_play(self):
        with self.assertRaisesRegex(ValueError, "activeDeadlineSeconds is not played"):
            Job(self.cluster, "j", job_spec(activeDeadlineSeconds=1))


class JobSetTest(unittest.TestCase):
    def setUp(self):
        self.cluster = FakeCluster()
        self.set = JobSet(self.cluster, {"metadata": {"name": "fm"}, "spec": {
            "coordinator": {"replicatedJob": "server", "jobIndex": 0, "podIndex": 0},
            "successPolicy": {"operator": "All", "targetReplicatedJobs": ["worker"]},
            "failurePolicy": {"maxRestarts": 1, "restartStrategy": "BlockingRecreate", "rules": [
                {"name": "explained", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}]},
            "volumeClaimPolicies": [{"templates": [{"metadata": {"name": "shared"}}]}],
            "replicatedJobs": [
                {"name": "server", "template": {"spec": job_spec(2, maxFailedIndexes=0, backoffLimitPerIndex=0)}},
                {"name": "worker", "dependsOn": [{"name": "server", "status": "Ready"}],
                 "template": {"spec": job_spec(1)}}]}})
        self.step()

    def step(self, times=3):
        for _ in range(times):
            self.set.reconcile()

    def make_servers_ready(self):
        for name in ("fm-server-0-0", "fm-server-0-1"):
            self.cluster.active()[name].ready = True
        self.step()

    def test_starts_workers_when_all_servers_are_ready(self):
        self.cluster.active()["fm-server-0-0"].ready = True
        self.step()
        self.assertNotIn("fm-worker-0-0", self.cluster.active())
        self.make_servers_ready()
        self.assertIn("fm-worker-0-0", self.cluster.active())

    def test_labels_pods_with_names_and_the_coordinator(self):
        pod = self.cluster.active()["fm-server-0-1"]
        self.assertEqual(pod.labels["jobset.sigs.k8s.io/coordinator"], "fm-server-0-0.fm")
        self.assertEqual(pod.labels["jobset.sigs.k8s.io/jobset-name"], "fm")
        self.assertEqual(pod.labels["jobset.sigs.k8s.io/restart-attempt"], "0")
        self.assertEqual(pod.full_name(), "fm-server-0-1.fm.default.svc.cluster.local")
        self.assertEqual(pod.volume_claims, {"shared": "shared-fm"})

    def test_ends_the_servers_with_the_workers(self):
        self.make_servers_ready()
        self.cluster.end("fm-worker-0-0", 0)
        self.step()
        self.assertEqual(self.set.finished, "Completed")
        self.assertTrue(all(pod.deleted for pod in self.cluster.active().values()))

    def test_fails_when_a_process_has_explained_why(self):
        self.make_servers_ready()
        self.cluster.end("fm-worker-0-0", 1)
        self.step()
        self.assertEqual(self.set.finished[0], "Failed")

    def test_restarts_as_a_whole_when_an_index_is_lost_but_not_more_often_than_allowed(self):
        self.make_servers_ready()
        self.cluster.end("fm-server-0-0", 137)
        self.step()
        self.assertEqual(self.set.restarts, 1)
        self.assertTrue(all(pod.deleted for pod in self.cluster.active().values()))
        self.assertNotIn("fm-server-0-0", self.cluster.active(), "a new pod beside old ones")
        for name in list(self.cluster.active()):
            self.cluster.end(name, 143)
        self.step()
        self.assertEqual(sorted(self.cluster.active()), ["fm-server-0-0", "fm-server-0-1"])
        self.assertEqual(self.cluster.active()["fm-server-0-0"].labels["jobset.sigs.k8s.io/restart-attempt"], "1")
        self.cluster.end("fm-server-0-0", 137)
        self.step()
        self.assertEqual(self.set.finished[0], "Failed")


class StatefulSetTest(unittest.TestCase):
    def setUp(self):
        self.cluster = FakeCluster()
        self.set = StatefulSet(self.cluster, {"metadata": {"name": "s"}, "spec": {
            "serviceName": "svc", "replicas": 2, "podManagementPolicy": "Parallel", "selector": {},
            "volumeClaimTemplates": [{"metadata": {"name": "state"}}],
            "template": {"metadata": {"labels": {}}, "spec": {"containers": [{"name": "c"}]}}}})
        self.set.reconcile()

    def test_gives_pods_stable_names_and_volumes(self):
        pod = self.cluster.active()["s-1"]
        self.assertEqual((pod.name, pod.full_name()), ("s-1", "s-1.svc.default.svc.cluster.local"))
        self.assertEqual(pod.volume_claims, {"state": "state-s-1"})
        self.assertEqual(pod.spec["restartPolicy"], "Always")

    def test_replaces_a_pod_once_it_is_gone(self):
        old = self.cluster.active()["s-1"]
        old.deleted = True
        self.set.reconcile()
        self.assertEqual(len(self.cluster.all), 2)
        self.cluster.end("s-1", 143)
        self.set.reconcile()
        self.assertIsNot(self.cluster.active()["s-1"], old)


if __name__ == "__main__":
    unittest.main()
