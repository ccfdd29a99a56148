# SPDX-License-Identifier: Apache-2.0
"""Job, JobSet and StatefulSet, as far as Ballast relies on them. They see pods only through the cluster:

    now()                      seconds
    pods(owner)                the pods that a controller has created and that still exist
    create(pod)                a new pod, to be scheduled and started
    delete(pod)                a graceful end
    remove(pod)                the object of an ended pod disappears
    event(text)                a line for people

reconcile() does what is due and may be called at any time. Fields that are not played are refused, not ignored.
"""

import copy
import hashlib
import random
import re

from objects import INDEX, Pod

FIRST_DELAY = 10  # Seconds before a failed pod is replaced; doubled with each failure.
MAX_DELAY = 600


def _suffix(randomness):
    # The letters of Kubernetes' generated names.
    return "".join(randomness.choice("bcdfghjklmnpqrstvwxz2456789") for _ in range(5))


def _only(where, fields, known):
    unknown = set(fields) - set(known)
    if unknown:
        raise ValueError(f"{where}: {', '.join(sorted(unknown))} is not played")


class Job:
    """An Indexed Job. `finished` is None or (Complete or Failed, reason, message)."""

    def __init__(self, cluster, name, spec, labels=(), annotations=(), subdomain="", claims=None,
                 first_delay=FIRST_DELAY):
        _only(f"Job {name}", spec, {
            "completionMode", "completions", "parallelism", "backoffLimit", "backoffLimitPerIndex",
            "maxFailedIndexes", "podFailurePolicy", "podReplacementPolicy", "successPolicy", "template"})
        if spec.get("completionMode") != "Indexed" or spec["template"]["spec"].get("restartPolicy") != "Never":
            raise ValueError(f"Job {name}: want completionMode Indexed and restartPolicy Never")
        if spec.get("podReplacementPolicy", "Failed") != "Failed":
            raise ValueError(f"Job {name}: want podReplacementPolicy Failed, the only one with a podFailurePolicy")
        self.cluster = cluster
        self.name = name
        self.spec = spec
        self.finished = None
        self._labels = dict(labels)
        self._annotations = dict(annotations)
        self._subdomain = subdomain
        self._claims = claims or {}
        self._first_delay = first_delay
        self._random = random.Random(name)
        self._succeeded = set()
        self._failed_indexes = {}  # Index to the reason.
        self._failures = {}  # Index to failures that count.
        self._ends = {}  # Index to all failures since its last success, and the time of the newest.

    @property
    def status(self):
        pods = self.cluster.pods(self)
        return {
            "active": sum(not pod.terminal for pod in pods),
            "ready": sum(pod.ready and not pod.deleted for pod in pods),
            "succeeded": len(self._succeeded),
            "failed_indexes": sorted(self._failed_indexes),
            "failures": sum(self._failures.values()),
        }

    def reconcile(self):
        for pod in self.cluster.pods(self):
            if pod.terminal and not pod.counted:
                pod.counted = True
                self._count(pod)
            if pod.terminal and pod.deleted:
                self.cluster.remove(pod)
        if self.finished is None:
            self._conclude()
        if self.finished is None:
            self._replace()
            return
        for pod in self.cluster.pods(self):
            if not pod.terminal and not pod.deleted:
                self.cluster.delete(pod)

    def _count(self, pod):
        if pod.phase == "Succeeded":
            self._succeeded.add(pod.index)
            self._ends.pop(pod.index, None)
            return
        ends, _ = self._ends.get(pod.index, (0, 0))
        self._ends[pod.index] = (ends + 1, pod.finished_at)
        action, message = self._policy(pod)
        self.cluster.event(f"pod {pod.name} failed with exit code {self._exit_code(pod)}"
                           f"{' after ' + ', '.join(pod.conditions) if pod.conditions else ''}: {action}")
        if action == "FailJob":
            if self.finished is None:
                self.finished = ("Failed", "PodFailurePolicy", message)
        elif action == "FailIndex":
            self._failed_indexes.setdefault(pod.index, "PodFailurePolicy")
        elif action == "Count":
            self._failures[pod.index] = self._failures.get(pod.index, 0) + 1

    @staticmethod
    def _exit_code(pod):
        return next((code for code in pod.exit_codes.values() if code != 0), 0)

    def _policy(self, pod):
        for i, rule in enumerate(self.spec.get("podFailurePolicy", {}).get("rules", [])):
            for condition in rule.get("onPodConditions", []):
                if condition["type"] in pod.conditions and condition.get("status", "True") == "True":
                    return rule["action"], f"Pod {pod.name} has condition {condition['type']} matching rule {i}"
            codes = rule.get("onExitCodes")
            if not codes:
                continue
            for container, code in pod.exit_codes.items():
                if code == 0 or codes.get("containerName", container) != container:
                    continue
                if (code in codes["values"]) == (codes["operator"] == "In"):
                    return rule["action"], (f"Container {container} for pod {pod.namespace}/{pod.name} failed with "
                                            f"exit code {code} matching {rule['action']} rule at index {i}")
        return "Count", ""

    def _conclude(self):
        completions = self.spec["completions"]
        per_index = self.spec.get("backoffLimitPerIndex")
        if per_index is None:
            if sum(self._failures.values()) > self.spec.get("backoffLimit", 6):
                self.finished = ("Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit")
                return
        else:
            for index, failures in self._failures.items():
                if failures > per_index:
                    self._failed_indexes.setdefault(index, "BackoffLimitPerIndex")
        if len(self._failed_indexes) > self.spec.get("maxFailedIndexes", completions):
            self.finished = ("Failed", "MaxFailedIndexesExceeded", "Job has exceeded the specified maximal number of "
                             "failed indexes")
            return
        for rule in self.spec.get("successPolicy", {}).get("rules", []):
            wanted = set(_indexes(rule.get("succeededIndexes", f"0-{completions - 1}")))
            enough = rule.get("succeededCount", len(wanted))
            if len(wanted & self._succeeded) >= enough:
                self.finished = ("Complete", "SuccessPolicy", "Matched rules at index 0")
                return
        if len(self._succeeded | set(self._failed_indexes)) >= completions:
            if self._failed_indexes:
                self.finished = ("Failed", "FailedIndexes", "Job has failed indexes")
            else:
                self.finished = ("Complete", "CompletionsReached", "Reached expected number of succeeded pods")

    def _replace(self):
        # With podReplacementPolicy Failed, a pod that is terminating holds its index.
        held = {pod.index for pod in self.cluster.pods(self) if not pod.terminal}
        for index in range(self.spec["completions"]):
            if len(held) >= self.spec["parallelism"]:
                return
            if index in held or index in self._succeeded or index in self._failed_indexes:
                continue
            if self.cluster.now() < self._due(index):
                continue
            held.add(index)
            self.cluster.create(self._pod(index))

    def _due(self, index):
        # All failures delay the next pod, those that do not count, too.
        if self.spec.get("backoffLimitPerIndex") is None:
            ends = sum(number for number, _ in self._ends.values())
            last = max((time for _, time in self._ends.values()), default=0)
        else:
            ends, last = self._ends.get(index, (0, 0))
        if ends == 0:
            return 0
        return last + min(self._first_delay * 2 ** min(ends - 1, 20), MAX_DELAY)

    def _pod(self, index):
        template = copy.deepcopy(self.spec["template"])
        metadata = template.get("metadata", {})
        own = {"batch.kubernetes.io/job-name": self.name, "job-name": self.name, INDEX: str(index)}
        labels = {**metadata.get("labels", {}), **self._labels, **own}
        annotations = {**metadata.get("annotations", {}), **self._annotations, INDEX: str(index)}
        for container in template["spec"]["containers"]:
            # The controller appends its variable: earlier ones cannot refer to it.
            if not any(variable["name"] == "JOB_COMPLETION_INDEX" for variable in container.get("env", [])):
                container.setdefault("env", []).append({
                    "name": "JOB_COMPLETION_INDEX",
                    "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{INDEX}']"}},
                })
        return Pod(name=f"{self.name}-{index}-{_suffix(self._random)}", owner=self, labels=labels,
                   annotations=annotations, spec=template["spec"], hostname=f"{self.name}-{index}",
                   subdomain=self._subdomain, volume_claims=dict(self._claims))


def _indexes(text):
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


class JobSet:
    """A JobSet. `finished` is None, "Completed" or ("Failed", reason)."""

    def __init__(self, cluster, item, first_delay=FIRST_DELAY):
        self.cluster = cluster
        self.name = item["metadata"]["name"]
        self.spec = item["spec"]
        _only(f"JobSet {self.name}", self.spec, {
            "network", "coordinator", "successPolicy", "failurePolicy", "volumeClaimPolicies", "replicatedJobs"})
        for job in self.spec["replicatedJobs"]:
            if job.get("replicas", 1) != 1:
                raise ValueError(f"JobSet {self.name}: {job['name']}: got {job['replicas']} replicas, want 1")
        self.uid = hashlib.sha256(f"{self.name} {random.random()}".encode()).hexdigest()[:32]
        self.uid = "-".join(self.uid[a:b] for a, b in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32)))
        self.restarts = 0
        self.finished = None
        self.jobs = {}  # Replicated job to its Job.
        self._first_delay = first_delay
        self._ending = []  # Jobs of an earlier attempt, until their pods are gone.

    @property
    def published_before_ready(self):
        return self.spec.get("network", {}).get("publishNotReadyAddresses", True)

    def claims(self):
        """Names of the claims that all pods share, by volume."""
        return {template["metadata"]["name"]: f"{template['metadata']['name']}-{self.name}"
                for policy in self.spec.get("volumeClaimPolicies", []) for template in policy["templates"]}

    def reconcile(self):
        for job in list(self.jobs.values()) + self._ending:
            job.reconcile()
        self._ending = [job for job in self._ending if self.cluster.pods(job)]
        if self.finished is not None or self._ending:
            return  # BlockingRecreate: nothing new before everything old is gone.
        if self._failed() or self._succeeded():
            return
        for i, replicated in enumerate(self.spec["replicatedJobs"]):
            if replicated["name"] in self.jobs or not self._dependencies_met(replicated):
                continue
            self.jobs[replicated["name"]] = self._job(i, replicated)
            self.cluster.event(f"JobSet {self.name} starts {replicated['name']} (attempt {self.restarts})")

    def _dependencies_met(self, replicated):
        for dependency in replicated.get("dependsOn", []):
            job = self.jobs.get(dependency["name"])
            if job is None:
                return False
            wanted = min(job.spec["parallelism"], job.spec["completions"])
            if dependency["status"] == "Ready" and job.status["ready"] + job.status["succeeded"] < wanted:
                return False
            if dependency["status"] == "Complete" and (job.finished or ("",))[0] != "Complete":
                return False
        return True

    def _succeeded(self):
        policy = self.spec.get("successPolicy", {"operator": "All"})
        targets = policy.get("targetReplicatedJobs") or [job["name"] for job in self.spec["replicatedJobs"]]
        complete = [name in self.jobs and (self.jobs[name].finished or ("",))[0] == "Complete" for name in targets]
        if not (all(complete) if policy["operator"] == "All" else any(complete)):
            return False
        self.finished = "Completed"
        self.cluster.event(f"JobSet {self.name} is completed")
        self._end_jobs("Completed")
        return True

    def _failed(self):
        failed = [job for job in self.jobs.values() if (job.finished or ("",))[0] == "Failed"]
        if not failed:
            return False
        _, reason, message = failed[0].finished
        policy = self.spec.get("failurePolicy", {})
        action = "RestartJobSet"
        for rule in policy.get("rules", []):
            reasons = rule.get("onJobFailureReasons")
            patterns = rule.get("onJobFailureMessagePatterns")
            if reasons and reason not in reasons:
                continue
            if patterns and not any(re.search(pattern, message) for pattern in patterns):
                continue
            action = rule["action"]
            break
        self.cluster.event(f"Job {failed[0].name} failed ({reason}: {message}): {action}")
        if action == "RestartJobSet" and self.restarts < policy.get("maxRestarts", 0):
            self.restarts += 1
            self._end_jobs("Restarted")
            self._ending = list(self.jobs.values())
            self.jobs = {}
            return True
        self.finished = ("Failed", f"{failed[0].name}: {reason}: {message}")
        self._end_jobs("Failed")
        return True

    def _end_jobs(self, reason):
        for job in self.jobs.values():
            if job.finished is None:
                job.finished = ("Deleted", reason, "")
            for pod in self.cluster.pods(job):
                if not pod.deleted:
                    self.cluster.delete(pod)

    def _job(self, i, replicated):
        name = f"{self.name}-{replicated['name']}-0"
        prefix = "jobset.sigs.k8s.io/"
        own = {
            f"{prefix}jobset-name": self.name,
            f"{prefix}jobset-uid": self.uid,
            f"{prefix}replicatedjob-name": replicated["name"],
            f"{prefix}replicatedjob-replicas": "1",
            f"{prefix}global-replicas": str(len(self.spec["replicatedJobs"])),
            f"{prefix}job-index": "0",
            f"{prefix}job-global-index": str(i),
            f"{prefix}job-key": hashlib.sha256(f"default/{name}".encode()).hexdigest(),
            f"{prefix}restart-attempt": str(self.restarts),
        }
        network = self.spec.get("network", {})
        subdomain = network.get("subdomain", self.name)
        coordinator = self.spec.get("coordinator")
        if coordinator:
            own[f"{prefix}coordinator"] = (
                f"{self.name}-{coordinator['replicatedJob']}-{coordinator.get('jobIndex', 0)}-"
                f"{coordinator.get('podIndex', 0)}.{subdomain}")
        return Job(self.cluster, name, replicated["template"]["spec"], labels=own, annotations=own,
                   subdomain=subdomain, claims=self.claims(), first_delay=self._first_delay)


class StatefulSet:
    """A StatefulSet whose pods start at once. Its pods never end by themselves: the kubelet restarts them."""

    def __init__(self, cluster, item):
        self.cluster = cluster
        self.name = item["metadata"]["name"]
        self.spec = item["spec"]
        _only(f"StatefulSet {self.name}", self.spec, {
            "serviceName", "replicas", "podManagementPolicy", "selector", "template", "volumeClaimTemplates"})
        if self.spec.get("podManagementPolicy") != "Parallel":
            raise ValueError(f"StatefulSet {self.name}: want podManagementPolicy Parallel, which alone is played")
        self.finished = None
        self.ended = False

    def reconcile(self):
        names = set()
        for pod in self.cluster.pods(self):
            if pod.terminal:
                self.cluster.remove(pod)
            else:
                names.add(pod.name)
        for ordinal in range(0 if self.ended else self.spec["replicas"]):
            if f"{self.name}-{ordinal}" not in names:
                self.cluster.create(self._pod(ordinal))

    def end(self):
        self.ended = True
        for pod in self.cluster.pods(self):
            if not pod.deleted:
                self.cluster.delete(pod)

    def _pod(self, ordinal):
        name = f"{self.name}-{ordinal}"
        template = copy.deepcopy(self.spec["template"])
        template["spec"].setdefault("restartPolicy", "Always")
        labels = {**template["metadata"].get("labels", {}), "statefulset.kubernetes.io/pod-name": name,
                  "apps.kubernetes.io/pod-index": str(ordinal)}
        claims = {claim["metadata"]["name"]: f"{claim['metadata']['name']}-{name}"
                  for claim in self.spec.get("volumeClaimTemplates", [])}
        return Pod(name=name, owner=self, labels=labels, annotations={}, spec=template["spec"], hostname=name,
                   subdomain=self.spec["serviceName"], volume_claims=claims)
