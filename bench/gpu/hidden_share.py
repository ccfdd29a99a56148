# SPDX-License-Identifier: Apache-2.0
"""Measures how much of a worker's communication is hidden behind its computation, from the timeline of --trace.

Times are in microseconds; a span is a pair (begin, end).

A worker computes during the spans of one row: "gpu", timed by events on the GPU, or "compute", timed by the host, for a
CPU. Communication is what the rows "push", "pull" and "copies" show. A download waits for the computation of what it
copies, so for a GPU it counts from the end of that.
"""

# Two clocks agree within this time.
CLOCKS = 50


def union(spans):
    """Returns sorted, disjoint spans that cover the same time."""
    merged = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        elif begin < end:
            merged.append((begin, end))
    return merged


def length(spans):
    return sum(end - begin for begin, end in union(spans))


def common(some, others):
    """Returns the time that is in both."""
    some, others, both, i, j = union(some), union(others), [], 0, 0
    while i < len(some) and j < len(others):
        begin, end = max(some[i][0], others[j][0]), min(some[i][1], others[j][1])
        if begin < end:
            both.append((begin, end))
        if some[i][1] < others[j][1]:
            i += 1
        else:
            j += 1
    return both


def threads_of(trace):
    """Maps (process, thread) to the name of its row: "compute" for both "compute" and "compute 2"."""
    return {(event["pid"], event["tid"]): event["args"]["name"].split()[0]
            for event in trace["traceEvents"] if event["name"] == "thread_name" and event["ph"] == "M"}


def workers_of(trace):
    """Returns the processes that train; a timeline also shows servers."""
    return sorted({process for (process, _), row in threads_of(trace).items() if row == "steps"})


def rows_of(trace, process=None):
    """Maps row to dicts with name, begin, end and step, of one worker or all workers."""
    threads = threads_of(trace)
    workers = workers_of(trace) if process is None else [process]
    rows = {}
    for event in trace["traceEvents"]:
        if event["ph"] != "X" or event["pid"] not in workers:
            continue
        rows.setdefault(threads[event["pid"], event["tid"]], []).append({
            "name": event["name"], "begin": event["ts"], "end": event["ts"] + event["dur"],
            "step": event["args"]["step"]})
    return rows


def spans_of(rows, row, first, last, wanted=lambda name: True):
    return [(span["begin"], span["end"]) for span in rows.get(row, [])
            if first <= span["step"] <= last and wanted(span["name"])]


def downloads(rows, first, last):
    """Returns the downloads of gradients, without their waits for the GPU's computation."""
    ends = {}
    for span in rows.get("gpu", []):
        if span["name"].startswith("backward "):
            ends.setdefault(span["name"][len("backward "):], []).append(span["end"])
    spans = []
    for span in rows.get("copies", []):
        if first <= span["step"] <= last and span["name"].startswith("download ") and span["name"] != "download loss":
            # Backward computes the first of several layers ("a to c") last.
            layer = span["name"][len("download "):].split(" to ")[0].rsplit("/", 1)[0]
            computed = max((end for end in ends.get(layer, []) if end <= span["end"] + CLOCKS), default=span["begin"])
            spans.append((min(max(span["begin"], computed), span["end"]), span["end"]))
    return spans


def transfers(rows, first, last, row):
    spans = spans_of(rows, "push", first, last) + spans_of(rows, "pull", first, last)
    if row != "gpu":
        return spans + spans_of(rows, "copies", first, last)
    uploads = spans_of(rows, "copies", first, last, lambda name: not name.startswith("download "))
    return spans + uploads + downloads(rows, first, last)


def communication(trace, first, last, row):
    """Returns milliseconds per step over the steps first to last of a run with one worker that computes during the spans
    of `row`: computation, transfers (their union), transfers hidden behind computation; and the hidden share of the
    transfers."""
    rows = rows_of(trace)
    steps = sorted({span["step"] for span in rows.get(row, []) if first <= span["step"] <= last})
    if len(steps) < 3:
        raise ValueError(f"trace: got {len(steps)} of the steps {first} to {last} in row {row}, want at least 3")
    computed = union(spans_of(rows, row, steps[0], steps[-1]))
    # From the first computation of the first step to that of the last one: transfers outside belong to computations
    # that the trace may not have.
    begin, end = (min(span[0] for span in spans_of(rows, row, step, step)) for step in (steps[0], steps[-1]))
    moved = common(transfers(rows, steps[0], steps[-1], row), [(begin, end)])
    if not moved:
        raise ValueError(f"trace: got no transfers in the steps {first} to {last}")
    per_step = 1e-3 / (len(steps) - 1)
    computed_within = length(spans_of(rows, row, steps[0], steps[-2]))
    hidden = length(common(moved, computed))
    return {"steps": len(steps) - 1, "compute_ms": computed_within * per_step, "transfer_ms": length(moved) * per_step,
            "hidden_ms": hidden * per_step, "hidden_share": hidden / length(moved)}


def milliseconds_per_step(trace, process, first, last):
    """Returns the mean time from the beginning of a step to the beginning of the next one."""
    begins = sorted(span["begin"] for span in rows_of(trace, process).get("steps", [])
                    if span["name"] == "batch" and first <= span["step"] <= last)
    if len(begins) < 2:
        raise ValueError(f"trace: got {len(begins)} of the steps {first} to {last}, want at least 2")
    return (begins[-1] - begins[0]) / (len(begins) - 1) * 1e-3


def steps_per_second(trace, first, last):
    """Returns the sum over all workers."""
    return sum(1e3 / milliseconds_per_step(trace, process, first, last) for process in workers_of(trace))
