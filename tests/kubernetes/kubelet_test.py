#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What a pod of the stand-in sees, with shells in place of Ballast.

Must run as process 1 of new mount, network and PID namespaces; faults.sh does that.
"""

import pathlib
import shutil
import tempfile
import time
import unittest

from image import assemble
from kubelet import Container, Kubelet
from network import Network
from objects import Pod
from run import isolate

TOOLS = ("sh", "cat", "id", "ls", "sleep", "stat", "touch")
SPEC = {
    "restartPolicy": "Never",
    "terminationGracePeriodSeconds": 1,
    "securityContext": {"runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532},
    "volumes": [{"name": "keys", "secret": {"secretName": "keys", "defaultMode": 0o440}},
                {"name": "scratch", "emptyDir": {}}],
}


class KubeletTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        isolate()
        cls.work = pathlib.Path(tempfile.mkdtemp(prefix="ballast-kubelet-"))
        cls.addClassCleanup(shutil.rmtree, cls.work)
        cls.network = Network()
        cls.kubelet = Kubelet(cls.work, cls.work / "image", cls.network, {"size": {"A": "1"}},
                              {"keys": {"server.key": b"secret\n"}}, event=lambda text: None)
        (cls.work / "image").mkdir()
        assemble(cls.work / "image", {name: shutil.which(name) for name in TOOLS}, [cls.spec("")])
        cls.made = 0

    @staticmethod
    def spec(script, **container):
        return {**SPEC, "containers": [{
            "name": "c", "command": ["/usr/bin/sh", "-c", script], "volumeMounts": [
                {"name": "keys", "mountPath": "/keys", "readOnly": True},
                {"name": "scratch", "mountPath": "/scratch"}],
            "securityContext": {"readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False,
                                "capabilities": {"drop": ["ALL"]}}, **container}]}

    def start(self, script, **container):
        type(self).made += 1
        pod = Pod(name=f"p{self.made}", owner=None, labels={}, annotations={}, spec=self.spec(script, **container),
                  hostname=f"host{self.made}", subdomain="svc", node="node-0")
        one = Container(self.kubelet, pod)
        self.addCleanup(one.close)
        one.step()
        return pod, one

    def step_until(self, one, condition, what):
        end = time.monotonic() + 30
        while not condition():
            self.assertLess(time.monotonic(), end, f"waited 30 s for {what}")
            one.step()
            time.sleep(0.02)

    def output(self, script, **container):
        pod, one = self.start(script, **container)
        self.step_until(one, lambda: pod.terminal, "the pod to end")
        self.assertEqual(pod.phase, "Succeeded", self.log(pod))
        return self.log(pod)

    def log(self, pod):
        return (self.work / "logs" / f"{pod.name}.log").read_text()

    def test_runs_as_process_1_with_the_pods_user_and_group(self):
        self.assertEqual(self.output("echo $$; id -u; id -G; cat /etc/hostname").split(),
                         ["1", "65532", "65532", f"host{self.made}"])

    def test_mounts_secrets_with_their_mode_and_the_pods_group(self):
        self.assertEqual(self.output("cat /keys/server.key; stat -L -c '%u %g %a' /keys/server.key").splitlines(),
                         ["secret", "0 65532 440"])

    def test_shows_a_container_its_memory_limit(self):
        self.assertEqual(self.output("cat /sys/fs/cgroup/memory.max", resources={"limits": {"memory": "1Gi"}}),
                         "1073741824")
        self.assertEqual(self.output("cat /sys/fs/cgroup/memory.max"), "max")

    def test_writes_only_to_volumes(self):
        self.assertEqual(self.output("touch /scratch/x; (touch /tmp/x || touch /keys/x) 2>/dev/null || echo no"),
                         "no\n")

    def test_shares_no_memory_and_no_processes_with_other_pods(self):
        _, other = self.start("echo shared > /dev/shm/x; sleep 60")
        self.step_until(other, lambda: other.execute(["/usr/bin/ls", "/dev/shm"], 5)[1] == "x\n", "the other's file")
        self.assertEqual(self.output("ls /dev/shm; ls -d /proc/[0-9]*").split()[0], "/proc/1")

    def test_reports_exit_codes_and_signals(self):
        for script, code in (("exit 3", 3), ("kill -9 $$; sleep 1; exit 4", 4), ("sh -c 'kill -9 $$'; exit $?", 137)):
            pod, one = self.start(script)
            self.step_until(one, lambda pod=pod: pod.terminal, "the pod to end")
            self.assertEqual(pod.exit_codes, {"c": code}, "signals to process 1 without a handler do nothing")

    def test_ends_with_SIGTERM_and_after_the_grace_period_with_SIGKILL(self):
        pod, one = self.start("trap 'exit 5' TERM; while :; do sleep 0.1; done")
        self.step_until(one, lambda: one.main_pid() and one.execute(["/usr/bin/id"], 5)[0] == 0, "the pod to run")
        time.sleep(0.2)  # Until the trap is set.
        pod.deleted = True
        self.step_until(one, lambda: pod.terminal, "the pod to end")
        self.assertEqual(pod.exit_codes, {"c": 5})
        pod, one = self.start("trap '' TERM; while :; do sleep 0.1; done")
        self.step_until(one, lambda: one.main_pid(), "the pod to run")
        pod.deleted = True
        self.step_until(one, lambda: pod.terminal, "the pod to end")
        self.assertEqual(pod.exit_codes, {"c": 137})

    def test_is_ready_when_its_probes_say_so_and_killed_when_it_does_not_live(self):
        probe = {"periodSeconds": 0.1, "failureThreshold": 2, "timeoutSeconds": 5}
        ask = lambda file: {**probe, "exec": {"command": ["/usr/bin/cat", f"/scratch/{file}"]}}  # noqa: E731
        pod, one = self.start("trap 'exit 7' TERM; touch /scratch/live; while :; do sleep 0.1; done",
                              startupProbe={**ask("live"), "failureThreshold": 100}, readinessProbe=ask("ready"),
                              livenessProbe=ask("live"))
        self.step_until(one, lambda: one._started, "the startup probe to succeed")
        self.assertFalse(pod.ready)
        scratch = one.folder / "volumes/scratch"
        (scratch / "ready").write_text("")
        self.step_until(one, lambda: pod.ready, "the pod to be ready")
        (scratch / "live").unlink()
        self.step_until(one, lambda: pod.terminal, "the liveness probe to fail")
        self.assertEqual(pod.exit_codes, {"c": 7})

    def test_restarts_the_container_of_a_stateful_set_in_place(self):
        pod, one = self.start("exit 3")
        pod.spec["restartPolicy"] = "Always"
        address = pod.address
        self.step_until(one, lambda: pod.restarts == 1, "the container to end")
        self.step_until(one, lambda: one._process is not None, "the container to start again")
        self.assertEqual((pod.address, pod.phase), (address, "Running"))


if __name__ == "__main__":
    unittest.main()
