#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The alerts and the dashboard of deploy/monitoring: promtool checks and runs them, and the metrics that they name are
those of running servers and workers.

usage: monitoring_test.py BALLAST SERVER, in the root of the tree
"""

import json
import os
import pathlib
import re
import shutil
import ssl
import subprocess
import sys
import time
import unittest
import urllib.request

import yaml

BALLAST = os.path.abspath(sys.argv[1])
ROOT = pathlib.Path.cwd()
FOLDER = pathlib.Path(os.environ.get("TEST_TMPDIR", "/tmp"), "monitoring")
LIMIT_SECONDS = 60

MONITORING = ROOT / "deploy/monitoring"
ALERTS = ROOT / "deploy/kubernetes/chart/files/monitoring/alerts.yaml"
DASHBOARD = ROOT / "deploy/kubernetes/chart/files/monitoring/dashboard.json"
GUIDE = ROOT / "docs/guide/alerts.md"

NEVER, ALWAYS = "vector(1) > 2", 'label_replace(vector(1), "planted", "1", "", "")'

# Metrics that the jobs of this test do not have, and when there are some.
CONDITIONAL = {
    "ballast_worker_link_bytes_per_second": "a network interface whose rate the system knows",
    "ballast_worker_loss_scale_ratio": "precision fp16",
    "ballast_max_staleness_bound_updates": "policy bounded",
    "ballast_snapshot_seconds": "a log that was long enough for a snapshot",
    "ballast_snapshot_timestamp_seconds": "the same",
}
# Metric that a job with that durability has once it has all its metrics.
LAST = {"standby": "ballast_standby_in_step", "checkpoint": "ballast_checkpoint_timestamp_seconds",
        "wal": "ballast_log_sync_seconds"}

JOB = """name: "monitoring"
data { train { csv { path: "data.csv" label_column: -1 } } test { csv { path: "data.csv" label_column: -1 } } }
model { layers { dense { units: 2 } } loss { softmax_cross_entropy {} } }
training { epochs: 100000 batch_size: 10 }
optimizer { sgd { learning_rate: 0.01 } }
durability { checkpoint_seconds: 1 }
"""


def promtool(*words):
    return subprocess.run(["promtool", *map(str, words)], text=True, capture_output=True, timeout=300)


def rules_of(alerts):
    """Writes the rules as Prometheus reads them; returns the file."""
    path = FOLDER / "alerts.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "ballast", "rules": alerts}]}))
    return path


def alerts():
    """The alerts as deploy/monitoring/alerts.py prints them."""
    printed = subprocess.run([MONITORING / "alerts.py"], check=True, text=True, capture_output=True, timeout=60)
    return [rule for group in yaml.safe_load(printed.stdout)["groups"] for rule in group["rules"]]


def expressions():
    """Those of the dashboard, with values for its variables."""
    values = {"$__rate_interval": "1m", "$job": "b", "$shard": ".*", "$worker": ".*"}
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", []):
            expression = target["expr"]
            for name, value in values.items():
                expression = expression.replace(name, value)
            yield f"{panel['title']}: {target['legendFormat']}", expression


def names_in(expression):
    """Names of metrics, those of histograms without the ends of their series."""
    return {re.sub("_(bucket|sum|count)$", "", name)
            for name in re.findall(r"\b(?:ballast|process)_[a-z0-9_]+", re.sub(r'"[^"]*"', "", expression))}


@unittest.skipIf(shutil.which("promtool") is None, "promtool is not installed")
class RulesTest(unittest.TestCase):
    def setUp(self):
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir(parents=True)

    def assert_accepted(self, done):
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_promtool_accepts_the_alerts(self):
        rules_of(alerts())
        self.assert_accepted(promtool("check", "rules", FOLDER / "alerts.yaml"))

    def test_each_alert_says_what_it_means(self):
        anchors = re.findall(r"^#+ (\w+)$", GUIDE.read_text(), re.M)
        names = [alert["alert"] for alert in alerts()]
        self.assertEqual(names, sorted(set(names), key=names.index))
        for alert in alerts():
            with self.subTest(alert["alert"]):
                self.assertIn(alert["labels"]["severity"], ("critical", "warning"))
                annotations = alert["annotations"]
                self.assertEqual(set(annotations), {"summary", "description", "runbook_url"})
                self.assertIn("$value", annotations["description"])
                self.assertEqual(annotations["runbook_url"], f"docs/guide/alerts.md#{alert['alert'].lower()}")
                self.assertIn(alert["alert"], anchors)
        self.assertEqual([name for name in anchors if name not in names and name != "Alerts"], [])

    def test_each_alert_fires_and_does_not(self):
        """The cases of each alert pass, and fail with an alert that never fires and with one that always does."""
        cases = yaml.safe_load((MONITORING / "alerts_test.yaml").read_text())
        for alert in alerts():
            name = alert["alert"]
            with self.subTest(name):
                own = [case for case in cases["tests"] if case["name"].startswith(name + " ")]
                wanted = [test["exp_alerts"] for case in own for test in case["alert_rule_test"]
                          if test["alertname"] == name]
                self.assertTrue([1 for alerts_of_it in wanted if alerts_of_it], "no case in which it fires")
                silent = [case for case in own if not any(test["exp_alerts"] for test in case["alert_rule_test"])]
                self.assertTrue(silent, "no case in which it does not fire")
                (FOLDER / "cases.yaml").write_text(yaml.safe_dump({**cases, "tests": own}))
                rules_of([alert])
                self.assert_accepted(promtool("test", "rules", FOLDER / "cases.yaml"))
                for planted in (NEVER, ALWAYS):
                    rules_of([{**alert, "expr": planted, "for": "0s"}])
                    self.assertNotEqual(promtool("test", "rules", FOLDER / "cases.yaml").returncode, 0,
                                        f"the cases do not notice the expression {planted}")
        known = {alert["alert"] for alert in alerts()}
        self.assertEqual([case["name"] for case in cases["tests"] if case["name"].split()[0] not in known], [])

    def test_promtool_accepts_the_dashboard(self):
        made = [{"record": f"panel:{i}", "expr": text} for i, (_, text) in enumerate(expressions())]
        self.assertGreater(len(made), 50)
        rules_of(made)
        self.assert_accepted(promtool("check", "rules", FOLDER / "alerts.yaml"))

    def test_values_in_the_dashboard(self):
        """Two servers and two workers of the job b, and another job, of which nothing shows."""
        series = {
            'ballast_shard_info{job="b", instance="s0", shard="0"}': "1x40",
            'ballast_shard_info{job="b", instance="s1", shard="1"}': "1x40",
            'ballast_shard_info{job="other", instance="s0", shard="7"}': "1x40",
            'ballast_worker_info{job="b", instance="w0", worker="0"}': "1x40",
            'ballast_worker_info{job="b", instance="w1", worker="1"}': "1x40",
            'ballast_job_state{job="b", instance="s0", state="running"}': "1x40",
            'ballast_job_state{job="b", instance="s0", state="failed"}': "0x40",
            'ballast_job_examples{job="b", instance="s0"}': "6000x40",
            'ballast_examples_total{job="b", instance="s0"}': "0+150x40",
            'ballast_members_wanted{job="b", instance="s0", role="worker"}': "3x40",
            'ballast_members{job="b", instance="s0", role="worker", state="joined"}': "2x40",
            'ballast_members{job="b", instance="s0", role="worker", state="lost"}': "1x40",
            'ballast_waiting_pulls{job="b", instance="s0"}': "4x40",
            'ballast_waiting_pulls{job="b", instance="s1"}': "5x40",
            'ballast_waiting_pulls{job="other", instance="s0"}': "9x40",
            'ballast_payload_bytes_total{job="b", instance="s0", direction="push", codec="int8"}': "0+450x40",
            'ballast_payload_bytes_total{job="b", instance="s1", direction="push", codec="int8"}': "0+150x40",
            'ballast_plain_bytes_total{job="b", instance="s0", direction="push", codec="int8"}': "0+1800x40",
            'ballast_plain_bytes_total{job="b", instance="s1", direction="push", codec="int8"}': "0+600x40",
            'ballast_worker_seconds_total{job="b", instance="w0", phase="wait"}': "0+3x40",
            'ballast_worker_seconds_total{job="b", instance="w0", phase="compute"}': "0+12x40",
            'ballast_worker_step_seconds_bucket{job="b", instance="w1", le="0.5"}': "0+50x40",
            'ballast_worker_step_seconds_bucket{job="b", instance="w1", le="1"}': "0+100x40",
            'ballast_worker_step_seconds_bucket{job="b", instance="w1", le="+Inf"}': "0+100x40",
            'ballast_staleness_updates_bucket{job="b", instance="s0", le="1"}': "0+3x40",
            'ballast_staleness_updates_bucket{job="b", instance="s1", le="1"}': "0+7x40",
            'ballast_call_seconds_sum{job="b", instance="s0", method="push", phase="apply"}': "0+3x40",
            'ballast_call_seconds_count{job="b", instance="s0", method="push", phase="apply"}': "0+12x40",
            'ballast_checkpoint_timestamp_seconds{job="b", instance="s0"}': "60x40",
        }
        wanted = {
            "State: {{state}}": {'{state="running"}': 1},
            "Time left: time left": {"{}": 150},                      # 1,500 examples left, 10 per second
            "Job: missing: {{role}}": {'{role="worker"}': 1},
            "Waiting: shard {{shard}}": {'{shard="0"}': 4, '{shard="1"}': 5},
            "Compression: {{direction}}": {'{direction="push"}': 4},
            "Imbalance: maximum / mean": {"{}": 1.5},
            "Time of the workers: {{phase}}": {'{phase="wait"}': 0.2, '{phase="compute"}': 0.8},
            "Median: worker {{worker}}": {'{worker="1"}': 0.5},
            "Distribution (gradients): {{le}}": {'{le="1"}': 200},    # of 5 minutes
            "Mean by phase: {{method}} {{phase}}": {'{method="push", phase="apply"}': 0.25},
            "Age: age": {"{}": 390},
        }
        made = dict(expressions())
        tests = [{"expr": made[name], "eval_time": "450s",
                  "exp_samples": [{"labels": labels, "value": value} for labels, value in samples.items()]}
                 for name, samples in wanted.items()]
        (FOLDER / "values.yaml").write_text(yaml.safe_dump({
            "rule_files": [], "evaluation_interval": "15s",
            "tests": [{"interval": "15s", "promql_expr_test": tests,
                       "input_series": [{"series": name, "values": values} for name, values in series.items()]}]}))
        self.assert_accepted(promtool("test", "rules", FOLDER / "values.yaml"))


class DashboardTest(unittest.TestCase):
    def test_it_is_what_the_panels_make(self):
        done = subprocess.run([MONITORING / "dashboard.py", "--check"], text=True, capture_output=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_it_has_all_panels_in_their_order(self):
        panels = json.loads((ROOT / "cli/page/panels.json").read_text())
        made = json.loads(DASHBOARD.read_text())
        self.assertEqual([panel["title"] for panel in made["panels"] if panel["type"] == "row"],
                         [panel["title"] for panel in panels])
        self.assertEqual([variable["name"] for variable in made["templating"]["list"]],
                         ["datasource", "job", "shard", "worker"])
        identities = [panel["id"] for panel in made["panels"]]
        self.assertEqual(len(identities), len(set(identities)))
        titles = [title for title, _ in expressions()]
        self.assertEqual(sum(len(panel["series"]) for panel in panels), len(titles))


class MetricsExistTest(unittest.TestCase):
    """What alerts and dashboard name is in the pages of jobs with standbys, with checkpoints or with a log."""

    def scrape(self, durability):
        folder = FOLDER / durability
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "job.textproto").write_text(JOB)
        (folder / "data.csv").write_text("".join(f"{i % 2 * 2 - 1}.{i % 7},{i % 2}\n" for i in range(100)))
        with open(folder / "log", "w") as log:
            process = subprocess.Popen([BALLAST, "launch", "job.textproto", "--servers", "2", "--workers", "2", "--run_dir",
                                        "run", "--durability", durability], cwd=folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            return self.wait_for_names(folder, process)
        finally:
            process.terminate()
            process.wait()

    def wait_for_names(self, folder, process):
        deadline = time.monotonic() + LIMIT_SECONDS
        while time.monotonic() < deadline:
            names = self.names(folder / "run")
            if {"ballast_worker_steps_total", "ballast_test_loss", LAST[folder.name]} <= names:
                return names
            self.assertIsNone(process.poll(), (folder / "log").read_text())
            time.sleep(0.2)
        raise AssertionError(f"timed out after {LIMIT_SECONDS} s waiting for metrics: {(folder / 'log').read_text()}")

    @staticmethod
    def names(run):
        """Names of the families in the pages of server 0 and worker 0; empty until both answer."""
        names = set()
        try:
            context = ssl.create_default_context(cafile=str(run / "security" / "ca.pem"))
            context.check_hostname = False
            secret = (run / "security" / "reader.token").read_text().split()[-1]
            for process in ("server-0", "worker-0"):
                request = urllib.request.Request(f"https://{(run / 'logs' / f'{process}.http').read_text().strip()}/metrics",
                                                 headers={"Authorization": f"Bearer {secret}"})
                with urllib.request.urlopen(request, timeout=10, context=context) as response:
                    names |= set(re.findall("^# TYPE (\\S+) ", response.read().decode(), re.M))
        except (OSError, IndexError):
            return set()
        return names

    def test_every_metric_that_is_named_exists(self):
        named = {}
        for alert in alerts():
            named.update({name: alert["alert"] for name in names_in(alert["expr"])})
        for title, expression in expressions():
            named.update({name: title for name in names_in(expression)})
        self.assertGreater(len(named), 50)
        there = set().union(*(self.scrape(durability) for durability in LAST))
        missing = {name: by for name, by in named.items() if name not in there | set(CONDITIONAL)}
        self.assertEqual(missing, {}, "metrics that neither servers nor workers have, and who names them")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
