#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Runs every benchmark in small and checks that it ends with a complete JSON object. Does not judge the results.

Usage: bench_smoke_test.py BALLAST BALLAST_BENCH SERVER WORKER
"""

import json
import math
import os
import subprocess
import sys

COMMON = ["benchmark", "version", "machine", "settings", "rows", "ratios", "wanted", "notes"]
# Keys of the rows of `ballast bench rows`, by part; the limit's rows have other keys than the stores'.
ROW_KEYS = {
    "limit": ["part", "store", "rows", "dim", "bytes", "in_flight", "lines_per_second"],
    "table": ["part", "store", "rows", "dim", "distribution", "pull_rows_per_second", "push_rows_per_second",
              "create_rows_per_second", "pull_of_limit", "push_of_limit", "bytes_per_row"],
    "server": ["part", "operation", "rows", "ids", "rows_per_second", "p50_milliseconds", "p99_milliseconds",
               "client_cpu_nanoseconds_per_row", "server_cpu_nanoseconds_per_row"],
    "memory": ["part", "rows", "dim", "resident_bytes_per_row", "counted_bytes_per_row", "of_weights"],
    "checkpoint": ["part", "saves", "rows", "seconds", "bytes", "pushes", "p50_milliseconds", "p99_milliseconds",
                   "slowest_milliseconds"],
    "growth": ["part", "table", "rows", "dim", "ids", "p50_milliseconds", "p99_milliseconds", "slowest_milliseconds"],
}
MODES = ["sync", "async", "bounded", "quorum", "local_sgd"]


def rows_ratios(rows):
    """All ratios of `ballast bench rows` with 2000 rows; Redis's only if the machine has it."""
    names = ["pull_of_limit", "push_of_limit", "pull_to_libcuckoo", "push_to_libcuckoo", "bytes_of_weights"]
    for operation in ["pull", "push"]:
        names += [operation + "_fp32_tcp_to_tcp_stream", operation + "_limit_to_tcp_stream",
                  operation + "_fp32_tcp_to_limit", f"{operation}_bf16_tcp_to_{operation}_fp32_tcp",
                  f"{operation}_fp32_shared_memory_to_{operation}_fp32_tcp"]
    if any(row.get("operation") == "redis_mget" and row["rows_per_second"] is not None for row in rows):
        names.append("pull_fp32_tcp_to_redis_mget")
    return [name + "_2000_rows" for name in names] + [
        "growth_p99_more_milliseconds", "checkpoint_slowest_milliseconds", "increment_of_whole"]


# Arguments, expected ratios, keys of each row.
CASES = [
    (["transfer", "--sizes", "4KiB,1MiB,16MiB", "--seconds", "0.02"],
     ["push_to_tcp_16mib_up", "pull_to_tcp_16mib_up", "push_to_tcp_1_to_4mib", "pull_to_tcp_1_to_4mib",
      "push_tcp_to_tcp_16mib_up", "pull_tcp_to_tcp_16mib_up", "push_tcp_to_tcp_1_to_4mib",
      "pull_tcp_to_tcp_1_to_4mib", "push_tcp_to_stub_16mib", "pull_tcp_to_stub_16mib", "push_to_stub_16mib", "pull_to_stub_16mib",
      "push_tcp_to_sgd_16mib_up", "push_tcp_to_sgd_1_to_4mib", "pull_tcp_to_asked_16mib_up",
      "pull_tcp_to_asked_1_to_4mib",
      "push_pull_p50_to_empty_call_4kib", "push_pull_tcp_p50_to_empty_call_4kib", "server_memory_of_allowed"],
     ["bytes", "operation", "gb_per_second", "p50_microseconds", "p99_microseconds", "cpu_seconds_per_gb",
      "tcp_gb_per_second", "stub_gb_per_second", "memcpy_gb_per_second", "to_memcpy",
      "sgd_copy_gb_per_second", "to_sgd_copy"]),
    (["transfer", "--sizes", "1MiB", "--seconds", "0.02", "--tls"],
     ["push_to_tcp_1_to_4mib", "pull_to_tcp_1_to_4mib", "push_tcp_to_tcp_1_to_4mib", "pull_tcp_to_tcp_1_to_4mib",
      "push_tcp_to_sgd_1_to_4mib", "pull_tcp_to_asked_1_to_4mib", "push_tls_to_openssl_1mib_up",
      "pull_tls_to_openssl_1mib_up", "push_tls_to_sgd_1mib_up", "pull_tls_to_asked_1mib_up",
      "server_memory_of_allowed"],
     ["gb_per_second"]),
    (["transfer", "--sizes", "4096", "--seconds", "0.02", "--servers", "2", "--workers", "2"],
     ["push_pull_p50_to_empty_call_4kib", "push_pull_tcp_p50_to_empty_call_4kib", "server_memory_of_allowed"],
     ["gb_per_second"]),
    (["apply", "--mi-elements", "1", "--seconds", "0.02"],
     # One for each optimizer that has a row.
     lambda rows: [row["optimizer"] + "_of_limit" for row in rows] + ["least_of_limit"],
     ["optimizer", "gb_per_second", "limit_gb_per_second"]),
    (["rows", "--rows", "2000", "--ids", "500", "--dims", "8,16", "--seconds", "0.02"], rows_ratios,
     lambda row: ROW_KEYS["limit" if row.get("store") == "limit" else row["part"]]),
    (["rows", "--only", "growth", "--rows", "2000"], ["growth_p99_more_milliseconds"], ROW_KEYS["growth"]),
    (["serve", "--rows", "2000", "--background", "2000", "--pushes", "10"], ["row_p99_seconds", "bias_p99_seconds"],
     ["pushed", "p50_seconds", "p99_seconds", "max_seconds"]),
    (["scaling", "--workers", "1,2", "--compute-ms", "2", "--seconds", "0.3"],
     [mode + "_efficiency_2_workers" for mode in MODES], ["mode", "workers", "steps_per_second", "efficiency"]),
    (["straggler", "--compute-ms", "5", "--seconds", "0.6"],
     ["async_kept", "bounded_kept", "quorum_kept"], ["mode", "kept", "max_staleness", "mean_staleness"]),
    (["step", "--model", "small", "--modes", "sync", "--rounds", "1", "--seconds", "0.3", "--peer", "torch",
      "--observed", "--threads", "--instruction_set", "avx2"],
     ["sync_to_ddp_small", "sync_to_rpc_tcp_small", "sync_to_rpc_small", "sync_tcp_to_ddp_small",
      "sync_tcp_to_rpc_tcp_small", "sync_wait_small", "limit_wait_small", "observed_small",
      "sync_to_alone_small", "sync_to_limit_small", "sync_tcp_to_limit_small", "limit_to_ddp_small",
      "limit_to_rpc_small", "limit_to_rpc_tcp_small", "limit_tcp_to_ddp_small", "limit_tcp_to_rpc_tcp_small"],
     lambda row: ["model", "who", "codec", "samples_per_second"] + (["threads"] if row["codec"] else [])),
]

# Arguments and expected last line.
REFUSED = [
    ([], "error: no benchmark given"),
    (["transfre"], 'error: unknown benchmark "transfre"; did you mean "transfer"?'),
    (["transfer", "--sizse", "4KiB"], 'error: unknown flag --sizse; did you mean "--sizes"?'),
    (["transfer", "--sizes", "3"],
     'error: flag --sizes: got "3", want comma-separated sizes from 4 bytes to 1GiB, multiples of 4: 4KiB,1MiB'),
    (["transfer", "--sizes", "18446744073709551615GiB"],
     'error: flag --sizes: got "18446744073709551615GiB", want comma-separated sizes from 4 bytes to 1GiB, '
     "multiples of 4: 4KiB,1MiB"),
    (["transfer", "--seconds", "nan"], 'error: flag --seconds: got "nan", want a number from 0.01 to 600'),
    (["transfer", "now"], 'error: unexpected word "now"'),
    (["scaling", "--workers", "1,0"],
     'error: flag --workers: got "0", want comma-separated numbers from 1 to 64: 1,2,4'),
    (["straggler", "--modes", "bsp"], 'error: flag --modes: got "bsp", want any of sync,async,bounded,quorum,local_sgd'),
    (["rows", "--only", "tables"], 'error: flag --only: got "tables", want any of table,server,memory,growth,checkpoint'),
    (["step", "--peer", "tensorflow"], 'error: flag --peer: got "tensorflow", want torch'),
    (["step", "--instruction_set", "neon"], 'error: flag --instruction_set: got "neon", want avx2 or avx512'),
]

failures = 0


def expect(holds, what):
    global failures
    if not holds:
        failures += 1
        print("FAILED:", what, file=sys.stderr)


def run(words, env):
    return subprocess.run(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=200)


def check_case(ballast, env, words, ratios, keys):
    done = run([ballast, "bench", *words, "--json"], env)
    expect(done.returncode == 0, f"{words}: status {done.returncode}: {done.stderr}")
    if done.returncode != 0:
        return
    found = json.loads(done.stdout.splitlines()[-1])
    expect(list(found) == COMMON, f"{words}: keys {list(found)}")
    expect(found["benchmark"] == words[0], f"{words}: benchmark {found['benchmark']}")
    expect(found["machine"]["cores"] >= 1 and found["machine"]["cpu"] and found["machine"]["kernel"],
           f"{words}: machine {found['machine']}")
    expect(found["rows"] != [], f"{words}: no rows")
    # The threads that carry the messages within a machine have these names.
    names = {(one["process"], one["thread"]) for row in found["rows"] for one in row.get("threads", [])}
    if "--threads" in words:
        expect({("server", "slot calls"), ("worker", "slot answers"), ("worker", "main")} <= names, f"threads {names}")
    for row in found["rows"]:
        row_keys = keys(row) if callable(keys) else keys
        expect(all(key in row for key in row_keys), f"{words}: row {row}")
    if any("was skipped" in note for note in found["notes"]):
        print("skipped:", found["notes"])
        return
    wanted = ratios(found["rows"]) if callable(ratios) else ratios
    expect(sorted(found["ratios"]) == sorted(wanted), f"{words}: ratios {sorted(found['ratios'])}")
    for name, value in found["ratios"].items():
        expect(isinstance(value, (int, float)) and math.isfinite(value), f"{words}: {name} is {value}")
        # A difference may be below zero.
        expect(value > 0 or name.endswith("_milliseconds"), f"{words}: {name} is {value}")
        expect("reached" in found["wanted"].get(name, {}), f"{words}: nothing wanted of {name}")


def main():
    ballast, bench, server, worker = (os.path.abspath(path) for path in sys.argv[1:5])
    env = dict(os.environ, BALLAST_BENCH_BINARY=bench, BALLAST_SERVER_BINARY=server, BALLAST_WORKER_BINARY=worker)
    for words, said in REFUSED:
        done = run([ballast, "bench", *words], env)
        expect(done.returncode == 2, f"{words}: status {done.returncode}")
        expect(done.stderr.splitlines()[-1:] == [said], f"{words}: said {done.stderr}")
    refused = run([ballast, "bench", "transfre", "--json"], env)
    expect("error" in json.loads(refused.stdout), f"transfre --json: {refused.stdout}")
    for name in ["transfer", "apply", "rows", "serve", "step", "scaling", "straggler"]:
        done = run([ballast, "bench", name, "--help"], env)
        expect(done.returncode == 0 and f"usage: ballast bench {name}" in done.stdout, f"{name} --help: {done.stdout}")
    missing = run([ballast, "bench", "transfer"], dict(env, BALLAST_SERVER_BINARY="/nonexistent/ballast_server"))
    expect(missing.returncode == 1 and "ballast_server is not an executable file" in missing.stderr, f"no server: {missing.stderr}")
    for words, ratios, keys in CASES:
        check_case(ballast, env, words, ratios, keys)
    print("failures:", failures)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
