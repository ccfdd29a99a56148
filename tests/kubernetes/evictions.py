# SPDX-License-Identifier: Apache-2.0
"""Trains on the stand-in cluster while pods are evicted, and counts what that costs."""

import dataclasses
import json
import random
import re
import threading
import time

from cluster import Cluster, rank_of
from kubelet import Kubelet
from objects import of_kind

STATUS = ["/usr/bin/ballast", "status", "localhost:7701", "--token-file", "/etc/ballast/keys/reader.token", "--json"]
POLL = 0.2  # Seconds between two rounds of status calls.
LOOK = 1  # Seconds between two looks at the pods' connections.
# A job this far is not disturbed any more, because it may end before it shows that it continues.
LAST_EVICTION_AT = 0.8


def secrets_from(keys):
    """The secrets that deploy/kubernetes/README.md creates from the folder of `ballast keys`, and those that
    cert-manager would create."""
    def files(*names):
        return {name: (keys / name).read_bytes() for name in names}

    secrets = {
        "ballast-server": files("ca.pem", "server.pem", "server.key", "tokens", "reader.token"),
        "ballast-worker": files("ca.pem", "client.pem", "client.key", "worker.token", "reader.token"),
    }
    for role, identity in (("server", "server"), ("worker", "client")):
        secrets[f"ballast-{role}-tls"] = {
            "ca.crt": (keys / "ca.pem").read_bytes(),
            "tls.crt": (keys / f"{identity}.pem").read_bytes(),
            "tls.key": (keys / f"{identity}.key").read_bytes(),
        }
    return secrets


def config_maps_from(objects, epochs=None):
    """Data of the ConfigMaps; `epochs` changes the job."""
    maps = {item["metadata"]["name"]: dict(item["data"]) for item in of_kind(objects, "ConfigMap")}
    for data in maps.values():
        if "job.textproto" not in data:
            continue
        if epochs is not None:
            data["job.textproto"], found = re.subn(r"\bepochs: \d+", f"epochs: {epochs}", data["job.textproto"])
            if found != 1:
                raise ValueError(f"the job file says epochs {found} times, want once")
    return maps


class Poller:
    """Asks every server for its status, again and again, on a thread of its own."""

    def __init__(self):
        self._mutex = threading.Lock()
        self._targets = []  # Containers; guarded by _mutex.
        # Address of a pod to [(seconds, status)]; guarded by _mutex. A StatefulSet's pods keep their names, but not
        # the counts of their servers.
        self._samples = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def watch(self, targets):
        with self._mutex:
            self._targets = targets

    def samples(self, pod):
        with self._mutex:
            return list(self._samples.get(pod.address, []))

    def newest(self, pod):
        samples = self.samples(pod)
        return samples[-1][1] if samples else None

    def close(self):
        self._end.set()
        self._thread.join(timeout=30)

    def _run(self):
        while not self._end.wait(POLL):
            with self._mutex:
                targets = list(self._targets)
            for container in targets:
                asked = time.monotonic()
                code, output = container.execute(STATUS, 5)
                if code != 0:
                    continue
                try:
                    status = json.loads(output)
                except ValueError:
                    continue
                with self._mutex:
                    self._samples.setdefault(container.pod.address, []).append((asked, status))


@dataclasses.dataclass
class Eviction:
    """One eviction and what followed, in seconds."""

    pod: str
    # From the eviction to the new pod's start.
    to_start: float
    # From the new pod's start until a step has finished at every shard.
    to_step: float
    # From the new pod's start until it has joined and every standby is in step.
    to_whole: float


class Training:
    """One job on a cluster of its own. Owns the cluster. Thread safety: none."""

    def __init__(self, work, objects, image, network, names, config_maps, secrets, http=True, variables=None, nodes=3,
                 delay=10, log=print):
        self._log = log
        self._began = time.monotonic()
        self.work = work
        kubelet = Kubelet(work, image, network, config_maps, secrets, self.event, http, variables)
        self.cluster = Cluster(kubelet, names, nodes=nodes, first_delay=delay, event=self.event)
        self.poller = Poller()
        self.connections = 0  # Most connections between pods that were open at once.
        self._look_at = 0
        self.cluster.apply(objects)

    def event(self, text):
        self._log(f"{time.monotonic() - self._began:8.2f} s  {text}")

    def run_until(self, condition, timeout, waited_for):
        """Lets time pass until the condition holds. Fails at once if the job does."""
        def check():
            servers = self.cluster.find("server").values()
            self.poller.watch([self.cluster.container(pod) for pod in servers
                               if pod.phase == "Running" and not pod.deleted])
            if self.cluster.result() not in (None, "complete"):
                raise JobFailed(self.cluster.result())
            self._look_at_connections()
            return condition()

        self.cluster.run_until(check, timeout, waited_for)

    def _look_at_connections(self):
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + LOOK
        forbidden, number = self.cluster.forbidden_connections()
        if forbidden:
            raise JobFailed(f"connections that the network policies do not allow: {'; '.join(sorted(set(forbidden)))}")
        self.connections = max(self.connections, number)

    def job(self):
        """What server 0 says of the job; None while it says nothing."""
        pod = self.cluster.find("server", 0)
        status = self.poller.newest(pod) if pod else None
        return status.get("job") if status else None

    def missing(self):
        """Sentences that complete "waiting for": members that have not joined, standbys that are not in step."""
        job = self.job()
        if job is None:
            return ["server 0 to answer"]
        missing = []
        roles = {"server": job["servers"], "worker": job["workers"]}
        if len(self.cluster.find("server")) > job["servers"]:
            roles["standby"] = job["servers"]
        for role, number in roles.items():
            for rank in range(number):
                here = [member for member in job["members"] if (member["role"], member["rank"]) == (role, rank)]
                if not any(member["state"] == "joined" for member in here):
                    missing.append(f"{role} {rank} to join")
                elif role == "standby" and not any(member["in_step"] for member in here):
                    missing.append(f"standby {rank} to be in step")
        return missing

    def wait_until_whole(self, timeout, since=0):
        """Waits until an answer of server 0 after `since` says that nobody is missing."""
        def whole():
            pod = self.cluster.find("server", 0)
            samples = self.poller.samples(pod) if pod else []
            return bool(samples) and samples[-1][0] > since and not self.missing()

        self.run_until(lambda: self.cluster.result() or whole(), timeout, lambda: ", ".join(self.missing()))

    def progress(self):
        """Share of the job that is done, 0 to 1."""
        job = self.job()
        return job["examples"] / job["total_examples"] if job and job["total_examples"] else 0

    def finished_steps(self, since):
        """The shards of which a server shows more updates after `since` than in its last answer before, or than in
        its first one if that is newer."""
        shards = set()
        for pod in self.cluster.find("server").values():
            before = None
            for asked, status in self.poller.samples(pod):
                shard = status["shard"]
                if asked > since and before is not None and shard["updates"] > before:
                    shards.add(shard["shard"])
                before = shard["updates"] if before is None or asked <= since else before
        return shards

    def evict(self, pod):
        """Evicts a pod and waits until its replacement is part of the job; returns an Eviction, without times if the
        job has ended meanwhile."""
        component, rank, name = pod.labels["app.kubernetes.io/component"], rank_of(pod), pod.name
        evicted = time.monotonic()
        self.run_until(lambda: self.cluster.evict(pod), 120, f"the disruption budget to allow {name} to be evicted")

        def replacement():
            found = self.cluster.find(component, rank)
            return found if found is not None and found is not pod and found.started_at else None

        self.run_until(lambda: self.cluster.result() or replacement(), 900, f"{name} to be replaced")
        if self.cluster.result():
            return Eviction(name, 0, 0, 0)
        started = replacement().started_at
        shards = self.job_servers
        self.run_until(lambda: self.cluster.result() or len(self.finished_steps(started)) >= shards, 300,
                       lambda: f"a step after {name} was replaced; shards with one: {self.finished_steps(started)}")
        stepped = time.monotonic()
        self.wait_until_whole(300, started)
        eviction = Eviction(name, started - evicted, stepped - started, time.monotonic() - started)
        self.event(f"{name} was replaced after {eviction.to_start:.1f} s; a step finished {eviction.to_step:.1f} s "
                   f"later; all together {eviction.to_whole:.1f} s later")
        return eviction

    @property
    def job_servers(self):
        return self.job()["servers"] if self.job() else 1

    def summary(self):
        """Worker 0's summary.json; None before there is one."""
        found = [*self.work.glob("claims/*/*/*/run/summary.json"),
                 *self.work.glob("pods/*/volumes/run-dir/summary.json")]
        return json.loads(max(found, key=lambda path: path.stat().st_mtime).read_text()) if found else None

    def end(self):
        """Ends the servers of a finished job, which must exit with 0 then."""
        servers = self.cluster.find("server").values()
        self.cluster.end()
        self.run_until(lambda: all(pod.terminal for pod in servers), 150, "the servers of the finished job to end")
        # Others than server 0 learn with their next heartbeat that the job is finished; before that they exit with
        # 143.
        codes = {pod.name: code for pod in servers for code in pod.exit_codes.values()
                 if code not in ((0,) if rank_of(pod) == 0 else (0, 143))}
        if codes:
            raise JobFailed(f"servers of a finished job exited with {codes}, want 0")

    def close(self):
        self.poller.close()
        self.cluster.close()


class JobFailed(Exception):
    """The job has failed; the text says why."""


def victims(training, seed):
    """Yields pods to evict: each server and each worker once, in a random order, again and again."""
    randomness = random.Random(seed)
    while True:
        turn = [(component, rank) for component in ("server", "worker") for rank in training.cluster.find(component)]
        randomness.shuffle(turn)
        for component, rank in turn:
            pod = training.cluster.find(component, rank)
            if pod is not None:
                yield pod


def train_with_evictions(make_training, number, seed, timeout):
    """Runs jobs, one after the other, until `number` pods have been evicted; returns the result."""
    evictions, summaries = [], []
    while len(evictions) < number or not summaries:
        training = make_training(len(summaries))
        try:
            training.run_until(lambda: not training.missing() and training.progress() > 0, 300,
                               lambda: ", ".join(training.missing()) or "the first step")
            for pod in victims(training, seed + len(summaries)):
                if len(evictions) >= number or training.progress() > LAST_EVICTION_AT or training.cluster.result():
                    break
                eviction = training.evict(pod)
                if eviction.to_step:
                    evictions.append(eviction)
            training.run_until(training.cluster.result, timeout, lambda: (
                f"the job to finish; it has done {100 * training.progress():.0f}%"))
            summary = training.summary()
            if summary is None:
                raise JobFailed("worker 0 left no summary.json")
            summaries.append(summary)
            training.end()
        finally:
            training.close()
    seconds = sorted(eviction.to_step for eviction in evictions)
    return {
        "evictions": len(evictions),
        "pushes_lost": sum(summary["pushes_lost"] for summary in summaries),
        "pushes_duplicated": sum(summary["pushes_duplicated"] for summary in summaries),
        "test_accuracy": min(summary["test_accuracy"] for summary in summaries),
        "jobs": len(summaries),
        "seconds_to_step_max": round(seconds[-1], 2) if seconds else 0,
        "seconds_to_step_median": round(seconds[len(seconds) // 2], 2) if seconds else 0,
        "examples_repeated": sum(summary["examples_repeated"] for summary in summaries),
        "rounds": [{"pod": one.pod, "seconds_to_start": round(one.to_start, 2),
                    "seconds_to_step": round(one.to_step, 2), "seconds_to_whole": round(one.to_whole, 2)}
                   for one in evictions],
    }
