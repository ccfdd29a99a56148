#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What pods, nodes and schedulers do to a job: each case runs one on the stand-in cluster.

Usage: faults_test.py --folders FOLDER --ballast FILE --server FILE --worker FILE [--no-http] [test name ...]
       FOLDER holds the rendered base.yaml, durable.yaml, jobset.yaml and trainjob.yaml

Must run as process 1 of new mount, network and PID namespaces; faults.sh does that.
"""

import argparse
import pathlib
import shutil
import sys
import tempfile
import unittest

from controllers import JobSet
from evictions import JobFailed, Training, config_maps_from
from names import NameServer
from network import Network
from objects import of_kind
from run import add_programs, isolate, prepare, programs_of

FLAGS = None
NETWORK = None
NAMES = None


class FaultTest(unittest.TestCase):
    def setUp(self):
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="ballast-faults-"))
        self.addCleanup(shutil.rmtree, self.work)
        self.lines = []

    def start(self, folder, epochs=1, change=None, nodes=4):
        """A job of a rendered file; `change` may alter the objects."""
        rendered = pathlib.Path(FLAGS.folders) / f"{folder}.yaml"
        objects, tree, secrets = prepare(self.work, rendered, programs_of(FLAGS))
        if change:
            change(objects)
        folder = self.work / "job"
        folder.mkdir()
        training = Training(folder, objects, tree, NETWORK, NAMES, config_maps_from(objects, epochs), secrets,
                            http=not FLAGS.no_http, nodes=nodes, delay=1, log=self.lines.append)
        self.addCleanup(training.close)
        return training

    @staticmethod
    def take_checkpoints(objects):
        """Makes the job take one every three seconds."""
        for item in of_kind(objects, "ConfigMap"):
            if "job.textproto" in item["data"]:
                item["data"]["job.textproto"] = item["data"]["job.textproto"].replace(
                    "durability {", "durability { checkpoint_seconds: 3")

    def finish_after_restart(self, training, kill):
        """Waits for a checkpoint, kills server pods, and expects one restart of the set, from a checkpoint."""
        self.wait_until_training(training)
        training.run_until(lambda: any(training.work.glob("claims/*/*/*/checkpoints/*.manifest")), 120, "a checkpoint")
        for rank in kill:
            training.cluster.container(training.cluster.find("server", rank)).kill()
        jobset = training.cluster.controller(JobSet)
        training.run_until(lambda: jobset.restarts == 1, 60, "the set to restart")
        summary = self.finish(training)
        self.assertEqual(jobset.restarts, 1)
        self.assertEqual((summary["epochs"], summary["examples"]), (4, 240000))
        logs = "".join(path.read_text() for path in training.work.glob("logs/ballast-server-*.log"))
        self.assertIn("server 0 resumes from /shared/ballast/", logs)

    def wait_until_training(self, training):
        training.run_until(lambda: not training.missing() and training.progress() > 0, 120,
                           lambda: ", ".join(training.missing()) or "the first step")

    def finish(self, training):
        training.run_until(training.cluster.result, 600, "the job to finish")
        summary = training.summary()
        self.assertEqual((summary["pushes_lost"], summary["pushes_duplicated"]), (0, 0))
        self.assertGreater(summary["test_accuracy"], 0.8)
        # All were held against the network policies. Each worker and each server but one has a connection.
        self.assertGreaterEqual(training.connections, 3)
        return summary

    def run(self, result=None):
        super().run(result)
        if result.failures or result.errors:
            if any(self is test for test, _ in result.failures + result.errors):
                print("\n".join(self.lines[-40:]), file=sys.stderr)

    # Fault 1: an evicted server that exits with 0 would count as done and never come back.

    def test_an_evicted_server_of_a_jobset_exits_with_143_and_is_replaced(self):
        training = self.start("jobset")
        self.wait_until_training(training)
        pod = training.cluster.find("server", 3)
        training.evict(pod)
        self.assertEqual((pod.phase, pod.exit_codes), ("Failed", {"server": 143}))
        self.assertIsNot(training.cluster.find("server", 3), pod)
        self.finish(training)
        training.end()

    # Fault 2: a name whose address has changed was looked up again only after half a minute.

    def test_a_replaced_server_is_found_at_its_new_address(self):
        training = self.start("durable", epochs=3)
        self.wait_until_training(training)
        pod = training.cluster.find("server", 1)
        eviction = training.evict(pod)
        self.assertNotEqual(training.cluster.find("server", 1).address, pod.address)
        self.assertLess(eviction.to_step, 15)
        self.finish(training)

    def test_a_replaced_coordinator_is_found_at_its_new_address(self):
        training = self.start("jobset", epochs=3)
        self.wait_until_training(training)
        pod = training.cluster.find("server", 0)
        evicted = training.cluster.now()
        training.evict(pod)
        self.assertNotEqual(training.cluster.find("server", 0).address, pod.address)
        # Others wait for it: calls under way do not keep it from ending.
        self.assertLess(pod.finished_at - evicted, 3)
        self.finish(training)

    # Fault 3: the first eviction of a worker ended the job.

    def test_an_evicted_worker_of_base_is_replaced(self):
        training = self.start("base", epochs=3)
        self.wait_until_training(training)
        pod = training.cluster.find("worker", 1)
        training.evict(pod)
        self.assertEqual(pod.exit_codes, {"worker": 130})
        self.finish(training)

    def test_a_worker_that_explains_why_it_fails_ends_the_job(self):
        def spoil(objects):
            for item in of_kind(objects, "ConfigMap"):
                if "job.textproto" in item["data"]:
                    item["data"]["job.textproto"] = item["data"]["job.textproto"].replace("batch_size:", "batch_siz:")

        training = self.start("jobset", change=spoil)
        with self.assertRaisesRegex(JobFailed, "exit code 2 matching FailJob rule"):
            training.run_until(training.cluster.result, 120, "the job to fail")

    # Too little memory: said before the first step, not by a kill in the middle.

    def fail_at_start(self, code, sentence, **variables):
        """Starts a JobSet whose servers have other values of variables and 1 GiB; expects its end with a sentence."""
        def change(objects):
            for item in of_kind(objects, "JobSet"):
                container = item["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]
                container["resources"]["limits"]["memory"] = "1Gi"
                for variable in container["env"]:
                    variable.update({"value": variables[variable["name"]]} if variable["name"] in variables else {})

        training = self.start("jobset", change=change)
        with self.assertRaisesRegex(JobFailed, f"exit code {code} matching FailJob rule"):
            training.run_until(training.cluster.result, 120, "the job to fail")
        self.assertRegex("".join(path.read_text() for path in training.work.glob("logs/*.log")), sentence)

    def test_a_server_with_less_memory_than_it_may_use_does_not_start(self):
        self.fail_at_start(2, r"error: --memory_limit_gib: got 1.5, want at most 1.0 GiB, the limit in /sys/fs/cgroup/")

    def test_a_model_that_does_not_fit_is_refused_before_it_trains(self):
        self.fail_at_start(1, r"error: .*would hold \d+ bytes, at most \d+ are allowed", BALLAST_MEMORY_LIMIT_GIB="0.001")

    # Fault 4: pods that start more than a minute apart ended the job.

    def test_members_wait_for_a_pod_that_is_scheduled_late(self):
        def be_impatient(objects):
            for job in of_kind(objects, "Job"):
                for variable in job["spec"]["template"]["spec"]["containers"][0]["env"]:
                    if variable["name"] == "BALLAST_GATHER_TIMEOUT":
                        variable["value"] = "3"

        training = self.start("base", change=be_impatient)
        cluster = training.cluster
        cluster.unschedulable.add("ballast-server-1")

        def given_up():
            return any(75 in pod.exit_codes.values() for pod in cluster.pods() if pod.terminal)

        training.run_until(given_up, 60, "a worker to give up waiting for server 1")
        self.assertIsNone(cluster.result())
        logs = "".join(path.read_text() for path in training.work.glob("logs/ballast-worker-*.log"))
        self.assertRegex(logs, "error: .*server 1")
        cluster.unschedulable.clear()
        self.finish(training)

    # Restarts of the whole set.

    def test_a_lost_index_restarts_the_set_from_its_newest_checkpoint(self):
        def allow_no_failure(objects):
            for item in of_kind(objects, "JobSet"):
                item["spec"]["replicatedJobs"][0]["template"]["spec"]["backoffLimitPerIndex"] = 0
            self.take_checkpoints(objects)

        self.finish_after_restart(self.start("jobset", epochs=4, change=allow_no_failure), kill=[1])

    def test_a_server_lost_with_its_standby_restarts_the_set_from_its_newest_checkpoint(self):
        training = self.start("jobset", epochs=4, change=self.take_checkpoints)
        self.finish_after_restart(training, kill=[1, 3])
        self.assertRegex("\n".join(self.lines), r"pod ballast-server-0-\d-\w+ failed with exit code 69: FailIndex")

    def test_the_coordinator_lost_with_its_standby_restarts_the_set_from_its_newest_checkpoint(self):
        self.finish_after_restart(self.start("jobset", epochs=4, change=self.take_checkpoints), kill=[0, 2])

    # Nodes.

    def test_a_drained_node_costs_no_push(self):
        training = self.start("jobset", epochs=4, nodes=5)
        self.wait_until_training(training)
        node = training.cluster.find("server", 1).node
        training.cluster.drain(node)
        training.wait_until_whole(120)
        self.assertTrue(all(pod.node != node for pod in training.cluster.find("server").values()))
        self.finish(training)

    def test_a_lost_node_costs_no_push(self):
        training = self.start("jobset", epochs=4, nodes=5)
        self.wait_until_training(training)
        pod = training.cluster.find("server", 1)
        training.cluster.lose(pod.node)
        training.run_until(lambda: training.cluster.find("server", 1) not in (None, pod), 120,
                           f"{pod.name} to be replaced")
        training.wait_until_whole(120, training.cluster.now())
        self.finish(training)

    def test_a_trainjob_trains(self):
        training = self.start("trainjob")
        self.finish(training)


def main():
    global FLAGS, NETWORK, NAMES
    parser = argparse.ArgumentParser()
    parser.add_argument("--folders", required=True)
    add_programs(parser)
    FLAGS, names = parser.parse_known_args()
    isolate()
    NETWORK = Network()
    NAMES = NameServer(NETWORK.name_server)
    unittest.main(argv=[sys.argv[0], "-v", *(f"FaultTest.{name}" for name in names)])


if __name__ == "__main__":
    main()
