# SPDX-License-Identifier: Apache-2.0
"""Measures how much of a worker's communication is hidden behind its computation, from the timeline of --trace.

Times are in microseconds; a span is a pair (begin, end).

A CPU computes during the spans of row "compute". For a GPU these spans show only when the host issued work. So a
GPU's step is assumed to compute from its first forward (before that the GPU is idle, because the values have just
arrived) until its last gradient is downloaded, except during the host's waits between its forwards, when the GPU may
have run out of work: a lower estimate. A GPU's downloads wait for its computation, so they do not count as
communication.
"""


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


def without(some, others):
    """Returns the time that is only in the first."""
    left = []
    others = union(others)
    for begin, end in union(some):
        for other_begin, other_end in others:
            if other_end <= begin or other_begin >= end:
                continue
            if begin < other_begin:
                left.append((begin, other_begin))
            begin = other_end
        if begin < end:
            left.append((begin, end))
    return left


def rows_of(trace, process=None):
    """Maps row ("compute" includes "compute 2") to dicts with name, begin, end and step, of one process or all."""
    threads = {(event["pid"], event["tid"]): event["args"]["name"].split()[0]
               for event in trace["traceEvents"] if event["name"] == "thread_name" and event["ph"] == "M"}
    rows = {}
    for event in trace["traceEvents"]:
        if event["ph"] != "X" or process not in (None, event["pid"]):
            continue
        rows.setdefault(threads[event["pid"], event["tid"]], []).append({
            "name": event["name"], "begin": event["ts"], "end": event["ts"] + event["dur"],
            "step": event["args"]["step"]})
    return rows


def processes_of(trace):
    return sorted({event["pid"] for event in trace["traceEvents"] if event["ph"] == "X"})


def spans_of(rows, row, first, last, wanted=lambda name: True):
    return [(span["begin"], span["end"]) for span in rows.get(row, [])
            if first <= span["step"] <= last and wanted(span["name"])]


def computation(rows, first, last, beside_host):
    if not beside_host:
        return spans_of(rows, "compute", first, last)
    spans = []
    for step in range(first, last + 1):
        forwards = spans_of(rows, "compute", step, step, lambda name: name.startswith("forward "))
        downloads = spans_of(rows, "copies", step, step,
                             lambda name: name.startswith("download ") and name != "download loss")
        if not forwards or not downloads:
            continue
        begin, last_forward = min(forwards)[0], max(forwards)[0]
        waits = common(spans_of(rows, "wait", 0, step), [(begin, last_forward)])
        spans += without([(begin, max(end for _, end in downloads))], waits)
    return spans


def transfers(rows, first, last, beside_host):
    spans = spans_of(rows, "push", first, last) + spans_of(rows, "pull", first, last)
    return spans + spans_of(rows, "copies", first, last,
                            lambda name: not (beside_host and name.startswith("download ")))


def communication(trace, first, last, beside_host):
    """Returns milliseconds per step over the steps first to last of a run with one worker: computation, transfers
    (their union), transfers hidden behind computation; and the hidden share of the transfers."""
    rows = rows_of(trace)
    steps = sorted({span["step"] for span in rows.get("compute", []) if first <= span["step"] <= last})
    if len(steps) < 3:
        raise ValueError(f"trace: got {len(steps)} of the steps {first} to {last}, want at least 3")
    # Leaves out the last step, whose transfers end in a step that may be outside the range.
    moved = union(transfers(rows, steps[0], steps[-2], beside_host))
    computed = union(computation(rows, steps[0], steps[-1], beside_host))
    per_step = 1e-3 / (len(steps) - 1)
    computed_within = length(computation(rows, steps[0], steps[-2], beside_host))
    hidden = length(common(moved, computed))
    return {"steps": len(steps) - 1, "compute_ms": computed_within * per_step, "transfer_ms": length(moved) * per_step,
            "hidden_ms": hidden * per_step, "hidden_share": hidden / length(moved) if moved else None}


def milliseconds_per_step(trace, process, first, last):
    """Returns the mean time from the beginning of a step to the beginning of the next one."""
    begins = sorted(span["begin"] for span in rows_of(trace, process).get("steps", [])
                    if span["name"] == "batch" and first <= span["step"] <= last)
    if len(begins) < 2:
        raise ValueError(f"trace: got {len(begins)} of the steps {first} to {last}, want at least 2")
    return (begins[-1] - begins[0]) / (len(begins) - 1) * 1e-3


def steps_per_second(trace, first, last):
    """Returns the sum over all workers."""
    return sum(1e3 / milliseconds_per_step(trace, process, first, last) for process in processes_of(trace))
