#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the alerts as a rule file for a Prometheus without the operator.

usage: alerts.py [FILE of a PrometheusRule]
"""

import pathlib
import sys

import yaml

ALERTS = pathlib.Path(__file__).resolve().parents[1] / "kubernetes/chart/files/monitoring/alerts.yaml"


def main():
    if len(sys.argv) > 2 or sys.argv[1:2] in (["--help"], ["-h"]):
        print(__doc__.strip(), file=sys.stdout if len(sys.argv) == 2 else sys.stderr)
        return 0 if len(sys.argv) == 2 else 2
    path = pathlib.Path(sys.argv[1]) if len(sys.argv) == 2 else ALERTS
    try:
        groups = yaml.safe_load(path.read_text())["spec"]["groups"]
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        print(f"error: {path}: got {error!r}, want a PrometheusRule with spec.groups", file=sys.stderr)
        return 1
    yaml.safe_dump({"groups": groups}, sys.stdout, sort_keys=False, width=118)
    return 0


if __name__ == "__main__":
    sys.exit(main())
