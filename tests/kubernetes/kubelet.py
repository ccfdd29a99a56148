# SPDX-License-Identifier: Apache-2.0
"""Runs pods: their processes in namespaces, their volumes, probes and ends. One container per pod."""

import dataclasses
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time

from objects import environment, resource

HERE = pathlib.Path(__file__).resolve().parent
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
FIRST_RESTART_DELAY, MAX_RESTART_DELAY = 10, 300  # CrashLoopBackOff.
# Files of a container that come from its pod's folder. The memory limit shows there, but nothing enforces it.
FILES = {
    "/etc/hosts": "hosts", "/etc/hostname": "hostname", "/etc/resolv.conf": "resolv.conf",
    "/sys/fs/cgroup/memory.max": "memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes": "memory.max",
}


@dataclasses.dataclass(eq=False)
class Probe:
    """One probe of a container. `results` comes from threads; the owner reads it on its own."""

    kind: str
    spec: dict
    successes: int = 0
    failures: int = 0
    next_at: float = 0
    running: bool = False
    result: object = None


class Container:
    """A pod's process. Everything but the probes happens on the caller's thread."""

    def __init__(self, kubelet, pod):
        self.pod = pod
        self.spec = pod.spec["containers"][0]
        self._kubelet = kubelet
        self.netns, pod.address = kubelet.network.add()
        self.folder = kubelet.work / "pods" / pod.name
        (self.folder / "root").mkdir(parents=True)
        (self.folder / "hosts").write_text(
            f"127.0.0.1 localhost\n::1 localhost\n{pod.address} {pod.full_name()} {pod.hostname}\n")
        (self.folder / "hostname").write_text(pod.hostname + "\n")
        (self.folder / "resolv.conf").write_text(
            f"nameserver {kubelet.network.name_server}\n"
            f"search {pod.namespace}.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n")
        limited = "memory" in self.spec.get("resources", {}).get("limits", {})
        (self.folder / "memory.max").write_text(resource(self.spec, "limits.memory") if limited else "max")
        self._mounts = self._volumes()
        self._process = None
        self._probes = []
        self._started = False  # Its startup probe has succeeded.
        self._stopping = None  # Time when SIGKILL follows.
        self._terminated = False  # SIGTERM has reached a process.
        self._restart_at = 0
        self._ends = 0  # Of its process, so far.
        self.started_at = 0

    @property
    def group(self):
        return self.pod.spec.get("securityContext", {}).get("fsGroup", 0)

    def _volumes(self):
        sources = {}
        for volume in self.pod.spec.get("volumes", []):
            sources[volume["name"]] = self._source(volume)
        for name, claim in self.pod.volume_claims.items():
            path = self._kubelet.work / "claims" / claim
            path.mkdir(parents=True, exist_ok=True)
            self._share(path)
            sources[name] = path
        mounts = []
        for mount in self.spec.get("volumeMounts", []):
            if mount["name"] not in sources:
                raise ValueError(f"pod {self.pod.name}: volume {mount['name']} does not exist")
            mounts.append({"source": str(sources[mount["name"]]), "target": mount["mountPath"],
                           "read_only": mount.get("readOnly", False)})
        return mounts

    def _share(self, path):
        # fsGroup: the group owns the volume, and files in it.
        os.chown(path, 0, self.group)
        path.chmod(0o2777)

    def _source(self, volume):
        path = self.folder / "volumes" / volume["name"]
        path.mkdir(parents=True)
        if "emptyDir" in volume:
            self._share(path)
        elif "configMap" in volume:
            self._publish(path, [(self._config_map(volume["configMap"]["name"]), None)],
                          volume["configMap"].get("defaultMode", 0o644))
        elif "secret" in volume:
            secret = volume["secret"]
            self._publish(path, [(self._secret(secret["secretName"]), secret.get("items"))],
                          secret.get("defaultMode", 0o644))
        elif "projected" in volume:
            sources = [(self._secret(source["secret"]["name"]), source["secret"].get("items"))
                       for source in volume["projected"]["sources"]]
            self._publish(path, sources, volume["projected"].get("defaultMode", 0o644))
        else:
            raise ValueError(f"pod {self.pod.name}: volume {volume} is not played")
        return path

    def _secret(self, name):
        if name not in self._kubelet.secrets:
            raise ValueError(f"pod {self.pod.name}: secret {name} does not exist")
        return self._kubelet.secrets[name]

    def _config_map(self, name):
        if name not in self._kubelet.config_maps:
            raise ValueError(f"pod {self.pod.name}: ConfigMap {name} does not exist")
        return {key: text.encode() for key, text in self._kubelet.config_maps[name].items()}

    def _publish(self, path, sources, mode):
        # Same layout as the kubelet's: links through ..data, so that all files change at once.
        data = path / "..2026_01_01"
        data.mkdir()
        (path / "..data").symlink_to(data.name)
        for content, items in sources:
            for item in items or [{"key": key, "path": key} for key in content]:
                if item["key"] not in content:
                    raise ValueError(f"pod {self.pod.name}: key {item['key']} does not exist")
                file = data / item["path"]
                file.write_bytes(content[item["key"]])
                os.chown(file, 0, self.group)
                file.chmod(mode | (0o440 if self.group else 0))
                (path / item["path"]).symlink_to(f"..data/{item['path']}")

    def variables(self):
        values = environment(self.pod, self.spec, self._kubelet.config_maps)
        for name in self._kubelet.dropped_variables:
            values.pop(name, None)
        return {"PATH": PATH, "HOSTNAME": self.pod.hostname, **self._kubelet.variables, **values}

    def start(self):
        context = {**self.pod.spec.get("securityContext", {}), **self.spec.get("securityContext", {})}
        spec = {
            "netns": self.netns,
            "root": str(self.folder / "root"),
            "image": str(self._kubelet.image),
            "read_only": context.get("readOnlyRootFilesystem", False),
            "files": {target: str(self.folder / name) for target, name in FILES.items()},
            "mounts": self._mounts,
            "hostname": self.pod.hostname,
            "user": context.get("runAsUser", 0),
            "group": context.get("runAsGroup", 0),
            "groups": [self.group] if self.group else [],
            "drop_capabilities": "ALL" in context.get("capabilities", {}).get("drop", []),
            "no_new_privileges": context.get("allowPrivilegeEscalation") is False,
            "command": self.spec["command"] + self.spec.get("args", []),
            "environment": self.variables(),
        }
        (self.folder / "spec.json").write_text(json.dumps(spec))
        log = self._kubelet.work / "logs" / f"{self.pod.name}.log"
        with open(log, "ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "pod_init.py"), str(self.folder / "spec.json")],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
        now = self._kubelet.now()
        self.started_at = now
        self.pod.started_at = self.pod.started_at or now
        self.pod.phase = "Running"
        self._started = False
        self._stopping = None
        self._probes = [Probe(kind, self.spec[kind], next_at=now + self.spec[kind].get("initialDelaySeconds", 0))
                        for kind in ("startupProbe", "livenessProbe", "readinessProbe") if kind in self.spec]
        if "startupProbe" not in self.spec:
            self._started = True

    def main_pid(self):
        """Process 1 of the container, as seen from here; None before it exists or after its end."""
        if self._process is None or self._process.poll() is not None:
            return None
        pid = self._process.pid
        try:
            children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            return None
        return int(children[0]) if children else None

    def connection_table(self):
        """The text of /proc/PID/net/tcp and tcp6 in the pod; empty if its process does not run."""
        pid = self.main_pid()
        try:
            return "".join(pathlib.Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6"))
        except OSError:
            return ""

    def signal(self, number):
        """True if there was a process to signal."""
        pid = self.main_pid()
        if pid is None:
            return False
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass
        return True

    def stop(self):
        """SIGTERM now, SIGKILL after the grace period."""
        if self._stopping is None:
            self._stopping = self._kubelet.now() + self.pod.spec.get("terminationGracePeriodSeconds", 30)
            self.pod.ready = False
            self._terminated = self.signal(signal.SIGTERM)

    def kill(self):
        self.signal(signal.SIGKILL)

    def execute(self, command, timeout):
        """Runs a command in the container, as its user; returns (exit code, output), with 124 after the timeout. The
        output has what the command wrote to standard error only if it failed."""
        pid = self.main_pid()
        if pid is None:
            return 1, "the container does not run"
        context = self.pod.spec.get("securityContext", {})
        user, group = context.get("runAsUser", 0), context.get("runAsGroup", 0)
        try:
            # Not in the pod's PID namespace: nsenter would fork, a command whose nsenter was killed after the timeout
            # would be left as a zombie, and the pod could not end before that is gone.
            result = subprocess.run(
                ["nsenter", "--target", str(pid), "--mount", "--net", "--ipc", "--uts", "--root", "--wd=/",
                 f"--setuid={user}", f"--setgid={group}", "--", *command],
                env=self.variables(), capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            return 124, ""
        return result.returncode, result.stdout + (result.stderr if result.returncode != 0 else "")

    def step(self):
        """Does what is due; sets the pod's phase and readiness."""
        if self._process is None:
            if not self.pod.terminal and self._kubelet.now() >= self._restart_at:
                if self.pod.deleted:
                    self._finish(0)
                else:
                    self.start()
            return
        code = self._process.poll()
        if code is not None:
            self._ended(128 - code if code < 0 else code)
            return
        if self.pod.deleted:
            self.stop()
        if self._stopping is not None:
            self._terminated = self._terminated or self.signal(signal.SIGTERM)
            if self._kubelet.now() >= self._stopping:
                self.kill()
            return
        for probe in self._probes:
            self._step_probe(probe)
        if not any(probe.kind == "readinessProbe" for probe in self._probes):
            self.pod.ready = self._started

    def _ended(self, code):
        self._process = None
        self.pod.ready = False
        self.pod.exit_codes[self.spec["name"]] = code
        if self.pod.spec.get("restartPolicy", "Always") == "Always" and not self.pod.deleted:
            # Ten minutes without a crash would reset the delay; no test is that long.
            delay = min(FIRST_RESTART_DELAY * 2 ** self._ends // 2, MAX_RESTART_DELAY) if self._ends else 0
            self._ends += 1
            self.pod.restarts += 1
            self._restart_at = self._kubelet.now() + delay
            self._kubelet.event(f"container of {self.pod.name} ended with {code}, restarts in {delay} s")
            return
        self._finish(code)

    def _finish(self, code):
        self.pod.exit_codes.setdefault(self.spec["name"], code)
        self.pod.phase = "Succeeded" if code == 0 else "Failed"
        self.pod.finished_at = self._kubelet.now()
        self._kubelet.event(f"pod {self.pod.name} ended with {code}")

    def _step_probe(self, probe):
        if (probe.kind == "startupProbe") == self._started:
            return  # Others wait for the startup probe, which then rests.
        now = self._kubelet.now()
        if not probe.running and probe.result is None and now >= probe.next_at:
            probe.running = True
            probe.next_at = now + probe.spec.get("periodSeconds", 10)
            threading.Thread(target=self._ask, args=(probe, self._process), daemon=True).start()
        if probe.running or probe.result is None:
            return
        success, probe.result = probe.result, None
        probe.successes = probe.successes + 1 if success else 0
        probe.failures = 0 if success else probe.failures + 1
        if success and probe.successes >= probe.spec.get("successThreshold", 1):
            if probe.kind == "startupProbe":
                self._started = True
            elif probe.kind == "readinessProbe":
                self.pod.ready = True
        elif probe.failures >= probe.spec.get("failureThreshold", 3):
            if probe.kind == "readinessProbe":
                self.pod.ready = False
            else:
                self._kubelet.event(f"{probe.kind} of {self.pod.name} has failed {probe.failures} times: killed")
                self.stop()

    def _ask(self, probe, process):
        try:
            success = self._kubelet.probe(self, probe.spec)
        except (OSError, ValueError, http.client.HTTPException):
            success = False
        if process is self._process:
            probe.result = success
        probe.running = False

    def close(self):
        """Frees everything but the logs and the claims."""
        if self._process is not None:
            # Its process may not have started yet; with the parent it dies whenever it does.
            self.kill()
            self._process.kill()
            self._process.wait(timeout=30)
            self._process = None
        self._kubelet.network.remove(self.netns)
        shutil.rmtree(self.folder)


class Kubelet:
    """What containers need to know, and how probes ask. With `http` False, the programs have no HTTP port: their
    variable for it is dropped, and a probe of it connects to the control port instead, if there is one."""

    def __init__(self, work, image, network, config_maps, secrets, event, http=True, variables=None,
                 now=time.monotonic):
        self.work = work
        self.image = image
        self.network = network
        self.config_maps = config_maps
        self.secrets = secrets
        self.event = event
        self.now = now
        self._http = http
        self.variables = dict(variables or {})
        self.dropped_variables = () if http else ("BALLAST_HTTP_PORT",)
        for folder in ("pods", "claims", "logs"):
            (work / folder).mkdir()

    def probe(self, container, spec):
        """True if the probe succeeds now."""
        timeout = spec.get("timeoutSeconds", 1)
        ports = {port["name"]: port["containerPort"] for port in container.spec.get("ports", [])}
        address = container.pod.address
        if "exec" in spec:
            return container.execute(spec["exec"]["command"], timeout)[0] == 0
        if "tcpSocket" in spec:
            port = spec["tcpSocket"]["port"]
            socket.create_connection((address, ports.get(port, port)), timeout).close()
            return True
        get = spec["httpGet"]
        if not self._http:
            if "control" in ports:
                socket.create_connection((address, ports["control"]), timeout).close()
            return True
        port = ports.get(get["port"], get["port"])
        if get.get("scheme", "HTTP") == "HTTPS":
            context = ssl.create_default_context()
            context.check_hostname = False  # The kubelet does not verify.
            context.verify_mode = ssl.CERT_NONE
            connection = http.client.HTTPSConnection(address, port, timeout=timeout, context=context)
        else:
            connection = http.client.HTTPConnection(address, port, timeout=timeout)
        try:
            connection.request("GET", get.get("path", "/"), headers={"User-Agent": "kube-probe/1.35"})
            return 200 <= connection.getresponse().status < 400
        finally:
            connection.close()
