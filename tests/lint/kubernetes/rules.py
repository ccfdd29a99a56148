# SPDX-License-Identifier: Apache-2.0
"""Rules that every rendered set of objects keeps. Each yields the sentences that say what is wrong."""

import re
import sys

from rendering import ROOT, container, environment, pod_templates

sys.path.insert(0, str(ROOT / "tests" / "kubernetes"))
from policies import Peer, Policies  # pylint: disable=wrong-import-position

VOLUMES = {"configMap", "emptyDir", "persistentVolumeClaim", "projected", "secret"}


def restricted(objects):
    """Pod Security's `restricted` level, and no access to the API."""
    for where, template, _ in pod_templates(objects):
        pod = template["spec"]
        context = pod.get("securityContext", {})
        if pod.get("automountServiceAccountToken") is not False:
            yield f"{where}: automountServiceAccountToken is not false"
        if context.get("runAsNonRoot") is not True or not context.get("runAsUser"):
            yield f"{where}: runs as root"
        if context.get("seccompProfile", {}).get("type") != "RuntimeDefault":
            yield f"{where}: seccompProfile is not RuntimeDefault"
        for field in ("hostNetwork", "hostPID", "hostIPC"):
            if pod.get(field):
                yield f"{where}: {field} is set"
        for volume in pod.get("volumes", []):
            kinds = set(volume) - {"name"}
            if not kinds <= VOLUMES:
                yield f"{where}: volume {volume['name']} is {kinds}, want one of {', '.join(sorted(VOLUMES))}"
        for one in pod["containers"]:
            inner = one.get("securityContext", {})
            if inner.get("allowPrivilegeEscalation") is not False:
                yield f"{where}: {one['name']} may escalate privileges"
            if inner.get("capabilities") != {"drop": ["ALL"]}:
                yield f"{where}: {one['name']} has capabilities {inner.get('capabilities')}, want all dropped"
            if inner.get("readOnlyRootFilesystem") is not True:
                yield f"{where}: {one['name']} may write to its root file system"


def variables(objects):
    """$(NAME) expands only to variables defined before; a controller appends its own at the end."""
    for where, template, _ in pod_templates(objects):
        for one in template["spec"]["containers"]:
            known = set()
            for variable in one["env"]:
                for name in re.findall(r"\$\(([A-Z_]+)\)", variable.get("value", "")):
                    if name not in known:
                        yield f"{where}: {variable['name']} uses {name}, which is not defined before it"
                known.add(variable["name"])


def mounts(objects):
    """What variables name is in a volume; volumes and mounts fit."""
    for where, template, _ in pod_templates(objects):
        one = container(template)
        paths = {mount["name"]: mount["mountPath"] for mount in one["volumeMounts"]}
        volumes = {volume["name"] for volume in template["spec"].get("volumes", [])}
        for item in objects:
            spec = item.get("spec", {})
            spec = spec["template"]["spec"] if item["kind"] == "ClusterTrainingRuntime" else spec
            volumes |= {claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", [])}
            for policy in spec.get("volumeClaimPolicies", []):
                volumes |= {claim["metadata"]["name"] for claim in policy["templates"]}
        for name in sorted(set(paths) - volumes):
            yield f"{where}: mounts {name}, which is no volume"
        for variable in one["env"]:
            value = variable.get("value", "")
            if not value.startswith("/"):
                continue
            if not any(value == path or value.startswith(path + "/") for path in paths.values()):
                yield f"{where}: {variable['name']} is {value}, in none of {', '.join(paths.values())}"


def failures(objects):
    """Codes 1 and 2 fail a Job of workers, evictions do not count, other ends are repaired. In a JobSet, 69 of a server
    fails its index, and thereby restarts the set."""
    for item in objects:
        spec = item.get("spec", {})
        spec = spec["template"]["spec"] if item["kind"] == "ClusterTrainingRuntime" else spec
        jobs = [(f"Job {item['metadata']['name']}", spec)] if item["kind"] == "Job" else []
        jobs += [(f"{item['kind']} {item['metadata']['name']}, {job['name']}", job["template"]["spec"])
                 for job in spec.get("replicatedJobs", [])]
        for where, job in jobs:
            rules = [(rule["action"], rule.get("onExitCodes", {}).get("values")) for rule in
                     job.get("podFailurePolicy", {}).get("rules", [])]
            component = job["template"]["metadata"]["labels"]["app.kubernetes.io/component"]
            want = [("Ignore", None), ("FailJob", [1, 2])]
            if component == "server":
                want.append(("FailIndex", [69]))
                if job.get("maxFailedIndexes") != 0:
                    yield f"{where}: maxFailedIndexes is {job.get('maxFailedIndexes')}, want 0: a failed index fails the Job"
            if rules != want:
                yield f"{where}: the rules of its podFailurePolicy are {rules}, want {want}"
            run_by = environment(job["template"], objects).get("BALLAST_RUN_BY")
            if item["kind"] != "Job" and run_by != "orchestrator":
                yield f"{where}: BALLAST_RUN_BY is {run_by}, want orchestrator, so that a lost job exits with 69"
            if not job.get("backoffLimit", 0) + job.get("backoffLimitPerIndex", 0):
                yield f"{where}: a pod is never replaced"
            if "backoffLimitPerIndex" in job and job.get("podReplacementPolicy") != "Failed":
                yield f"{where}: two pods may have one index"
            if job["completions"] != job["parallelism"]:
                yield f"{where}: completions is {job['completions']}, parallelism {job['parallelism']}"


def sizes(objects):
    """Numbers that are in two places."""
    pods, pods_of_servers, workers, values = {}, 0, 0, {}
    for where, template, number in pod_templates(objects):
        role = template["metadata"]["labels"]["app.kubernetes.io/component"]
        pods[role] = number
        if role == "server":
            values = environment(template, objects)
            pods_of_servers = number
        else:
            workers = number
    if not pods:
        return
    want = int(values["BALLAST_SERVERS"]) * (2 if values.get("BALLAST_WITH_STANDBY") == "true" else 1)
    if pods_of_servers != want:
        yield f"BALLAST_SERVERS is {values['BALLAST_SERVERS']}, server pods {pods_of_servers}, want {want}"
    if workers != int(values["BALLAST_WORKERS"]):
        yield f"BALLAST_WORKERS is {values['BALLAST_WORKERS']}, workers {workers}"
    for item in objects:
        spec = item.get("spec", {})
        if item["kind"] == "PodDisruptionBudget":
            in_jobset = any(other["kind"] == "JobSet" for other in objects)
            got = {key: spec[key] for key in ("minAvailable", "maxUnavailable") if key in spec}
            budget = {"minAvailable": pods_of_servers - 1} if in_jobset else {"maxUnavailable": 1}
            if got != budget:
                yield f"PodDisruptionBudget: got {got}, want {budget} for {pods_of_servers} server pods"
        if item["kind"] == "ClusterTrainingRuntime" and spec["mlPolicy"]["numNodes"] != workers:
            yield f"numNodes is {spec['mlPolicy']['numNodes']}, workers {workers}"


def probes(objects):
    """Probes ask the HTTP port; only readiness may depend on others."""
    for where, template, _ in pod_templates(objects):
        for one in template["spec"]["containers"]:
            names = {port["name"]: port["containerPort"] for port in one["ports"]}
            values = {variable["name"]: variable.get("value") for variable in one["env"]}
            # A server's port is at the host of BALLAST_LISTEN, a worker's at 127.0.0.1, where no probe reaches it.
            want = f"{'' if 'BALLAST_LISTEN' in values else '0.0.0.0:'}{names.get('http')}"
            if values.get("BALLAST_HTTP_PORT") != want:
                yield f"{where}: BALLAST_HTTP_PORT is {values.get('BALLAST_HTTP_PORT')}, want {want}"
            for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
                probe = one.get(kind, {}).get("httpGet")
                if not probe:
                    if kind != "readinessProbe" or one["name"] == "server":
                        yield f"{where}: {one['name']} has no {kind} over HTTP"
                    continue
                path = "/readyz" if kind == "readinessProbe" else "/healthz"
                if (probe["path"], probe["port"], probe["scheme"]) != (path, "http", "HTTPS"):
                    yield f"{where}: {kind} is {probe}, want {path} at port http with HTTPS"


def flows(objects):
    """Network policies let members reach the ports that they need, Prometheus the pages, and nobody anything else."""
    labels = {template["metadata"]["labels"]["app.kubernetes.io/component"]: template["metadata"]["labels"]
              for _, template, _ in pod_templates(objects)}
    policies = Policies({(item["kind"], item["metadata"]["name"]): item for item in objects})
    if not policies or len(labels) < 2:
        return
    peers = {
        "a server": Peer(labels["server"]), "a worker": Peer(labels["worker"]), "another pod": Peer({"app": "other"}),
        "Prometheus": Peer({"app": "prometheus"}, "monitoring"), "a pod of another namespace": Peer(labels["worker"], "x"),
        "DNS": Peer({"k8s-app": "kube-dns"}, "kube-system"), "the internet": Peer(),
    }
    allowed = {(source, "a server", port) for source in ("a server", "a worker") for port in (7700, 7701)}
    allowed |= {("Prometheus", to, 7702) for to in ("a server", "a worker")}
    for source in peers:
        for to in ("a server", "a worker", "the internet"):
            for port in (443, 7700, 7701, 7702):
                if to == "the internet" and source not in ("a server", "a worker"):
                    continue  # Not these policies' concern.
                got, want = policies.allow(peers[source], peers[to], port), (source, to, port) in allowed
                if got != want:
                    yield f"network policy: {source} {'reaches' if got else 'does not reach'} port {port} of {to}"
    for source in ("a server", "a worker"):
        if not policies.allow(peers[source], peers["DNS"], 53, "UDP"):
            yield f"network policy: {source} does not reach DNS"


RULES = (restricted, variables, mounts, failures, sizes, probes, flows)


def broken(objects):
    """Everything that is wrong with a set of objects."""
    return [sentence for rule in RULES for sentence in rule(objects)]
