#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the dashboard for Grafana of the panels of the live page, cli/page/panels.json: one row for each panel, with a
chart for each group of series that share axes.

usage: dashboard.py            writes kubernetes/chart/files/monitoring/dashboard.json
       dashboard.py --check    fails if that file is not what it would write
       dashboard.py --expressions    prints the expressions, one a line
"""

import json
import pathlib
import re
import sys

DEPLOY = pathlib.Path(__file__).absolute().parents[1]
PANELS = DEPLOY.parent / "cli/page/panels.json"
DASHBOARD = DEPLOY / "kubernetes/chart/files/monitoring/dashboard.json"

COLUMNS = 24
HEIGHT = 8
CHARTS_IN_A_LINE = 3

# Units of the panels, and those of Grafana; others appear at the axis.
UNITS = {"": "short", "s": "s", "bytes": "bytes", "bytes/s": "binBps", "ratio": "percentunit", "state": "short"}

INFO = {"shard": 'ballast_shard_info{job="$job", shard=~"$shard"}',
        "worker": 'ballast_worker_info{job="$job", worker=~"$worker"}'}


class PanelError(Exception):
    pass


def by(labels):
    return f" by ({', '.join(labels)})" if labels else ""


def selector(series, suffix=""):
    """The series of the job in Prometheus; those of a shard or a worker as the dashboard's variables choose them."""
    matchers = ['job="$job"']
    for label, value in series.get("where", {}).items():
        operator, value = ("=~", value[1:]) if value.startswith("~") else ("=", value)
        matchers.append(f"{label}{operator}{json.dumps(value)}")
    if "of" not in series:
        matchers += [f'{label}=~"${label}"' for label in ("shard", "worker") if label in series.get("by", [])]
    return f"{series['metric']}{suffix}{{{', '.join(matchers)}}}"


def labeled(series, expression):
    """Adds the label of the process's shard or worker, which only its info metric has."""
    if "of" not in series:
        return expression
    return f"{expression} * on (job, instance) group_left ({series['of']}) {INFO[series['of']]}"


def windowed(series, function, suffix=""):
    # Grafana's variable has at least four samples in it, also if a dashboard shows days.
    return labeled(series, f"{function}({selector(series, suffix)}[{series.get('over', '$__rate_interval')}])")


def taken(series):
    """The expression of a series without what it is divided by."""
    take, labels = series["take"], series.get("by", [])
    group = by(labels)
    combine = series.get("agg", "sum") + group
    if take == "value":
        return f"{combine} ({labeled(series, selector(series))})"
    if take == "max":
        return f"max{group} ({labeled(series, selector(series))})"
    if take == "age":
        return f"time() - max{group} ({labeled(series, selector(series))})"
    if take in ("rate", "increase"):
        return f"{combine} ({windowed(series, take)})"
    if take == "mean":
        return (f"sum{group} ({windowed(series, 'rate', '_sum')})"
                f" / sum{group} ({windowed(series, 'rate', '_count')})")
    if take == "buckets":
        return f"sum{by(['le'])} ({windowed(series, 'increase', '_bucket')})"
    if re.fullmatch(r"quantile:0\.\d+", take):
        inner = f"sum{by(['le'] + labels)} ({windowed(series, 'rate', '_bucket')})"
        return f"histogram_quantile({take.split(':')[1]}, {inner})"
    raise PanelError(f'series {series["metric"]}: take is "{take}", want value, max, age, rate, increase, mean, buckets '
                     "or quantile:0.Q")


def expression(series):
    text = taken(series)
    for key, operator in (("minus", "-"), ("divide_by", "/")):
        if key in series:
            other = series[key]
            text = f"({text}) {operator} on ({', '.join(other.get('by', []))}) group_left () ({taken(other)})"
    if series.get("then") == "max_over_mean":
        return f"max ({text}) / avg ({text})"
    if "then" in series:
        raise PanelError(f'series {series["metric"]}: then is "{series["then"]}", want max_over_mean')
    # Each state is 0 or 1. The comparison keeps the one that the job is in.
    return f"{text} == 1" if series.get("unit") == "state" else text


def target(series, number):
    made = {
        "refId": chr(ord("A") + number),
        "expr": expression(series),
        "legendFormat": re.sub(r"\{(\w+)\}", r"{{\1}}", series["legend"]),
    }
    if series["take"] == "buckets":
        made.update(format="heatmap", legendFormat="{{le}}")
    if series.get("unit") == "state" or series.get("kind") in ("stat", "bar"):
        made["instant"] = True
    return made


def appearance(kind, unit):
    """Type and options of a chart in Grafana."""
    if kind == "stat":
        return "stat", {"textMode": "name" if unit == "state" else "value_and_name", "colorMode": "none",
                        "reduceOptions": {"calcs": ["lastNotNull"]}}
    if kind in ("bar", "histogram"):
        return "bargauge", {"orientation": "horizontal", "displayMode": "basic",
                            "reduceOptions": {"calcs": ["lastNotNull"]}}
    if kind in ("line", "stacked"):
        return "timeseries", {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
    raise PanelError(f'kind is "{kind}", want line, stacked, bar, stat or histogram')


def chart(panel, name, series, position):
    first = series[0]
    unit = first.get("unit", panel["unit"])
    kind = first.get("kind", panel["kind"])
    shown, options = appearance(kind, unit)
    custom = {"stacking": {"mode": "normal"}, "fillOpacity": 30} if kind == "stacked" else {}
    title = name[:1].upper() + name[1:]
    if unit not in UNITS and shown == "timeseries":
        custom["axisLabel"] = unit
    elif unit not in UNITS:
        title += f" ({unit})"
    return {
        "type": shown,
        "title": title,
        "description": panel["help"],
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": position,
        "fieldConfig": {"defaults": {"unit": UNITS.get(unit, "short"), "noValue": panel["empty"], "custom": custom},
                        "overrides": []},
        "options": options,
        # A series of kind "bar" or "stat" shows its newest value; the others their course.
        "targets": [target({**one, "kind": one.get("kind", panel["kind"])}, i) for i, one in enumerate(series)],
    }


def charts(panel):
    """Series that share axes: the same chart, unit and kind."""
    groups = {}
    for series in panel["series"]:
        unit, kind = series.get("unit", panel["unit"]), series.get("kind", panel["kind"])
        groups.setdefault((series.get("chart", ""), unit, kind), []).append(series)
    titles = {}
    for (name, unit, kind), series in groups.items():
        if not name:
            name = series[0]["legend"] if len(series) == 1 and "{" not in series[0]["legend"] else panel["title"]
            name = "state" if unit == "state" else name
        # One chart whose series differ in kind is two in Grafana, and is named for both.
        titles[name] = titles.get(name, 0) + 1
        yield (name if titles[name] == 1 else f"{name}, {series[0]['legend']}"), series


def variable(name, query, **others):
    return {"name": name, "type": "query", "datasource": {"type": "prometheus", "uid": "${datasource}"},
            "query": {"query": query, "refId": name}, "definition": query, "refresh": 2, "sort": 3, **others}


def dashboard(panels):
    made, top = [], 0
    for panel in panels:
        made.append({"type": "row", "title": panel["title"], "collapsed": False, "panels": [],
                     "gridPos": {"x": 0, "y": top, "w": COLUMNS, "h": 1}})
        top += 1
        groups = list(charts(panel))
        for i in range(0, len(groups), CHARTS_IN_A_LINE):
            line = groups[i:i + CHARTS_IN_A_LINE]
            width = COLUMNS // len(line)
            for j, (name, series) in enumerate(line):
                made.append(chart(panel, name, series, {"x": j * width, "y": top, "w": width, "h": HEIGHT}))
            top += HEIGHT
    for number, one in enumerate(made, 1):
        one["id"] = number
    every = {"includeAll": True, "multi": True, "allValue": ".*", "current": {"text": ["All"], "value": ["$__all"]}}
    return {
        "uid": "ballast",
        "title": "Ballast",
        "description": "Made by deploy/monitoring/dashboard.py of cli/page/panels.json; change those.",
        "tags": ["ballast"],
        "schemaVersion": 38,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [
            {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "data source"},
            variable("job", "label_values(ballast_build_info, job)"),
            variable("shard", 'label_values(ballast_shard_info{job="$job"}, shard)', **every),
            variable("worker", 'label_values(ballast_worker_info{job="$job"}, worker)', **every),
        ]},
        "panels": made,
    }


def text_of(made):
    """JSON with one panel and one variable on a line, so that a change shows where it is."""
    inner = {key: made[key] for key in made if key not in ("panels", "templating")}
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in inner.items()]
    variables = ",\n  ".join(map(json.dumps, made["templating"]["list"]))
    lines.append(f' "templating": {{"list": [\n  {variables}]}}')
    panels = ",\n  ".join(map(json.dumps, made["panels"]))
    lines.append(f' "panels": [\n  {panels}]')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main():
    if sys.argv[1:] not in ([], ["--check"], ["--expressions"]):
        print(__doc__.strip(), file=sys.stderr)
        return 0 if sys.argv[1:] in (["--help"], ["-h"]) else 2
    try:
        made = dashboard(json.loads(PANELS.read_text()))
    except (OSError, ValueError, KeyError, PanelError) as error:
        print(f"error: {PANELS}: {error!r}", file=sys.stderr)
        return 1
    if sys.argv[1:] == ["--expressions"]:
        for panel in made["panels"]:
            for one in panel.get("targets", []):
                print(one["expr"])
    elif sys.argv[1:] == ["--check"]:
        if not DASHBOARD.exists() or DASHBOARD.read_text() != text_of(made):
            print(f"error: {DASHBOARD} is not what deploy/monitoring/dashboard.py makes: run it", file=sys.stderr)
            return 1
    else:
        DASHBOARD.write_text(text_of(made))
    return 0


if __name__ == "__main__":
    sys.exit(main())
