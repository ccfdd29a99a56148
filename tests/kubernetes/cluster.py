# SPDX-License-Identifier: Apache-2.0
"""The stand-in cluster: nodes, scheduling, names, evictions, and one thread that lets everybody do what is due."""

import os
import time

from controllers import Job, JobSet, StatefulSet
from kubelet import Container
from objects import of_kind, select
from policies import Peer, Policies, flows

TICK = 0.05  # Seconds between two looks at everything.
# Factor for all waits, on a machine that is busy with other things.
PATIENCE = float(os.environ.get("BALLAST_TEST_PATIENCE", "1"))
NODE_LOST_AFTER = 5  # Seconds until the cluster notices; 5 minutes and more in a real one.


class Timeout(Exception):
    """A wait took too long; the text says for whom."""


class Cluster:
    """Plays a cluster for the objects given to apply(). Thread safety: none; step() must be called often."""

    def __init__(self, kubelet, names, nodes=3, first_delay=10, now=time.monotonic, event=print):
        self.now = now
        self.event = event
        self._kubelet = kubelet
        self._names = names
        self._first_delay = first_delay
        self._controllers = []
        self._services = {}  # Name to whether it publishes addresses before they are ready.
        self._budgets = []
        self._policies = Policies({})
        self._peers = {}  # Address to the pod that has it or had it last.
        self._pods = {}
        self._containers = {}
        self._nodes = {f"node-{i}": "ready" for i in range(nodes)}
        self._lost_at = {}
        self.unschedulable = set()  # Host names of pods for which no node has room.

    # Methods that controllers call.

    def pods(self, owner=None):
        return [pod for pod in self._pods.values() if owner is None or pod.owner is owner]

    def create(self, pod):
        if pod.name in self._pods:
            raise ValueError(f"pod {pod.name} exists")
        self._pods[pod.name] = pod

    def delete(self, pod):
        pod.deleted = True

    def remove(self, pod):
        container = self._containers.pop(pod.name, None)
        if container is not None:
            container.close()
        del self._pods[pod.name]

    # Methods that do what a user does.

    def apply(self, objects):
        for service in of_kind(objects, "Service"):
            self._services[service["metadata"]["name"]] = service["spec"].get("publishNotReadyAddresses", False)
        self._budgets = of_kind(objects, "PodDisruptionBudget")
        self._policies = Policies(objects)
        for item in of_kind(objects, "JobSet"):
            self._controllers.append(JobSet(self, item, self._first_delay))
        for item in of_kind(objects, "StatefulSet"):
            self._controllers.append(StatefulSet(self, item))
        for item in of_kind(objects, "Job"):
            self._controllers.append(Job(self, item["metadata"]["name"], item["spec"], first_delay=self._first_delay))

    def controller(self, kind):
        return next(one for one in self._controllers if isinstance(one, kind))

    def result(self):
        """None while the job runs, "complete", or why it has failed. Servers of a StatefulSet never end a job."""
        for controller in self._controllers:
            if isinstance(controller, JobSet) and controller.finished is not None:
                return "complete" if controller.finished == "Completed" else controller.finished[1]
            if isinstance(controller, Job) and controller.finished is not None:
                kind, reason, message = controller.finished
                return "complete" if kind == "Complete" else f"{controller.name}: {reason}: {message}"
        return None

    def end(self):
        """Scales StatefulSets to zero; JobSets end their pods themselves."""
        for controller in self._controllers:
            if isinstance(controller, StatefulSet):
                controller.end()

    def container(self, pod):
        return self._containers[pod.name]

    def find(self, component, rank=None):
        """The newest pods of a component (label), or the one of a rank, that have not ended; by rank."""
        found = {}
        for pod in self._pods.values():
            if pod.labels.get("app.kubernetes.io/component") != component or pod.terminal:
                continue
            found[rank_of(pod)] = pod
        return found.get(rank) if rank is not None else dict(sorted(found.items()))

    def evict(self, pod):
        """Asks for an eviction; False if a disruption budget refuses it now."""
        for budget in self._budgets:
            if not select(pod.labels, budget["spec"]["selector"]):
                continue
            covered = [other for other in self._pods.values() if select(other.labels, budget["spec"]["selector"])]
            healthy = sum(other.ready and not other.deleted for other in covered)
            if "maxUnavailable" in budget["spec"]:
                if isinstance(pod.owner, Job):
                    return False  # The controller cannot compute the scale of a Job.
                wanted = pod.owner.spec["replicas"] - budget["spec"]["maxUnavailable"]
            else:
                wanted = budget["spec"]["minAvailable"]
            if pod.ready and healthy - 1 < wanted:
                return False
        self.event(f"pod {pod.name} on {pod.node} is evicted")
        pod.conditions["DisruptionTarget"] = "EvictionByEvictionAPI"
        self.delete(pod)
        return True

    def forbidden_connections(self):
        """Sentences for the connections between pods that are open now and that the network policies do not allow. The
        stand-in does not stop them. With them comes the number of connections."""
        open_now = flows({self._pods[name].address: container.connection_table()
                          for name, container in self._containers.items()})
        known = [(self._peers[source], self._peers[to], port) for source, to, port in open_now if to in self._peers]
        return [f"{source.labels['app.kubernetes.io/component']} to {to.labels['app.kubernetes.io/component']}, port "
                f"{port}" for source, to, port in known if not self._policies.allow(source, to, port)], len(known)

    def cordon(self, node):
        self._nodes[node] = "cordoned"

    def uncordon(self, node):
        self._nodes[node] = "ready"

    def drain(self, node, timeout=120):
        """Cordons a node and evicts its pods, one after the other where a budget says so."""
        self.cordon(node)
        self.event(f"{node} is drained")

        def empty():
            pods = [pod for pod in self._pods.values() if pod.node == node and not pod.terminal]
            for pod in pods:
                if not pod.deleted:
                    self.evict(pod)
            return not pods

        self.run_until(empty, timeout, lambda: f"the pods on {node} to end: " + ", ".join(
            pod.name for pod in self._pods.values() if pod.node == node and not pod.terminal))

    def lose(self, node):
        """A node vanishes: its processes die and its pods answer no more, but the cluster learns of it later."""
        self._nodes[node] = "lost"
        self._lost_at[node] = self.now()
        self.event(f"{node} is lost")
        for pod in self._pods.values():
            if pod.node == node and pod.name in self._containers:
                self._kubelet.network.cut(self._containers[pod.name].netns)
                self._containers[pod.name].kill()

    def step(self):
        for controller in self._controllers:
            controller.reconcile()
        self._schedule()
        for name, container in self._containers.items():
            pod = self._pods[name]
            if self._nodes.get(pod.node) != "lost":
                container.step()
            elif not pod.terminal and self.now() >= self._lost_at[pod.node] + NODE_LOST_AFTER:
                pod.conditions["DisruptionTarget"] = "DeletionByTaintManager"
                pod.phase, pod.ready, pod.deleted, pod.finished_at = "Failed", False, True, self.now()
                pod.exit_codes.setdefault(container.spec["name"], 137)
        self._publish()

    def run_until(self, condition, timeout, waited_for):
        """Steps until `condition()`. `waited_for`, a text or a function that gives one, completes the error."""
        timeout *= PATIENCE
        end = self.now() + timeout
        while True:
            self.step()
            if condition():
                return
            if self.now() >= end:
                text = waited_for() if callable(waited_for) else waited_for
                raise Timeout(f"waited {timeout:.0f} s for {text}")
            time.sleep(TICK)

    def close(self):
        for container in self._containers.values():
            container.close()
        self._containers = {}
        self._pods = {}

    def _schedule(self):
        for pod in self._pods.values():
            if pod.node or pod.phase != "Pending":
                continue
            if pod.deleted:
                pod.phase, pod.finished_at = "Failed", self.now()
                continue
            pod.node = self._choose(pod)
            if pod.node:
                self._containers[pod.name] = Container(self._kubelet, pod)
                self._peers[pod.address] = Peer(pod.labels, pod.namespace)
                self._publish()
                self.event(f"pod {pod.name} is on {pod.node} at {pod.address}")

    def _choose(self, pod):
        """The fitting node with the fewest pods; empty if none fits."""
        if pod.hostname in self.unschedulable:
            return ""
        spread = pod.spec.get("affinity", {}).get("podAntiAffinity", {})
        required = spread.get("requiredDuringSchedulingIgnoredDuringExecution", [])
        preferred = [term["podAffinityTerm"] for term in
                     spread.get("preferredDuringSchedulingIgnoredDuringExecution", [])]
        best = None
        for node, state in self._nodes.items():
            if state != "ready":
                continue
            others = [other for other in self._pods.values() if other.node == node and not other.terminal]
            if any(select(other.labels, term["labelSelector"]) for term in required for other in others):
                continue
            alike = sum(select(other.labels, term["labelSelector"]) for term in preferred for other in others)
            if best is None or (alike, len(others)) < best[0]:
                best = ((alike, len(others)), node)
        return best[1] if best else ""

    def _publish(self):
        self._names.publish({
            pod.full_name(): pod.address for pod in self._pods.values()
            if pod.address and pod.subdomain and not pod.terminal and (pod.ready or self._early(pod))})

    def _early(self, pod):
        # The service is a JobSet's, or one among the objects.
        for controller in self._controllers:
            if isinstance(controller, JobSet) and pod.owner in controller.jobs.values():
                return controller.published_before_ready
        return self._services.get(pod.subdomain, False)


def rank_of(pod):
    """The index of a Job's pod, the ordinal of a StatefulSet's."""
    return int(pod.hostname.rsplit("-", 1)[1])
