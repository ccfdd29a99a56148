// SPDX-License-Identifier: Apache-2.0
#include "bench/transfer_benchmark.h"

#include <algorithm>
#include <iostream>
#include <limits>

#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "bench/bench_flags.h"
#include "bench/transfer_ring.h"
#include "cli/command/command.h"
#include "common/program/arguments.h"

namespace ballast {
namespace {

constexpr char kUsage[] =
    "usage: ballast bench transfer [flags]\n\n"
    "Pushes and pulls tensors of several sizes through the client to real servers, which apply SGD (async), with one\n"
    "operation in flight per worker. GB/s counts payload, both ways for a push-pull; CPU seconds are the client's and\n"
    "the servers' together. On one machine, client and servers exchange messages through shared memory; the -tcp\n"
    "lines use loopback TCP instead. In turn with them, in the same run:\n"
    "  bare TCP stream  one loopback connection, blocks of 1 MiB, two processes, the bytes are not processed\n"
    "  plain stub       the generated stub and messages, one message per tensor, a server that only copies\n"
    "  empty call       a Pull of no slices from our server with a generated stub, one at a time\n"
    "Each figure is the median over the rounds, each ratio the median of the ratios of the rounds.\n\n";

constexpr char kSizes[] = "4KiB,64KiB,1MiB,4MiB,16MiB,64MiB,256MiB";

const std::vector<FlagSpec>& Flags() {
  static const auto* flags = new std::vector<FlagSpec>{
      {"sizes", "LIST", "Sizes of tensors (4KiB,64KiB,1MiB,4MiB,16MiB,64MiB,256MiB)."},
      {"servers", "N", "Servers, 1 to 16 (1)."},
      {"workers", "N", "Workers, one thread and client each, 1 to 16 (1)."},
      {"seconds", "S", "Seconds for each measurement, 0.01 to 600 (1.5)."},
      {"json", "", "Print one JSON object as the last line."},
  };
  return *flags;
}

const Contestant& Find(const std::vector<Contestant>& all, absl::string_view name) {
  return *std::find_if(all.begin(), all.end(), [&](const Contestant& one) { return one.name == name; });
}

// Result of one operation at one size, relative to its limits.
struct Row {
  uint64_t bytes = 0;
  std::string operation;
  double to_tcp = 0;
  double to_stub = 0;
  double p50_to_empty = 0;
};

Row AddRow(const std::vector<Contestant>& all, uint64_t bytes, const char* name, const char* stub_name, Json& rows,
           std::ostream& out) {
  const Contestant& ours = Find(all, name);
  const Contestant& tcp = Find(all, kTcpStream);
  const Contestant& stub = Find(all, stub_name);
  const Contestant& empty = Find(all, kEmptyCall);
  const Row row = {bytes, name, RatioOfRates(ours, tcp), RatioOfRates(ours, stub),
                   ours.LatencySeconds(0.5) / empty.LatencySeconds(0.5)};
  rows.push_back({{"bytes", bytes},
                  {"operation", name},
                  {"gb_per_second", ours.GbPerSecond()},
                  {"p50_microseconds", ours.LatencySeconds(0.5) * 1e6},
                  {"p99_microseconds", ours.LatencySeconds(0.99) * 1e6},
                  {"cpu_seconds_per_gb", ours.CpuSecondsPerGb()},
                  {"tcp_gb_per_second", tcp.GbPerSecond()},
                  {"tcp_cpu_seconds_per_gb", tcp.CpuSecondsPerGb()},
                  {"to_tcp", row.to_tcp},
                  {"stub_gb_per_second", stub.GbPerSecond()},
                  {"stub_p50_microseconds", stub.LatencySeconds(0.5) * 1e6},
                  {"stub_cpu_seconds_per_gb", stub.CpuSecondsPerGb()},
                  {"to_stub", row.to_stub},
                  {"empty_call_p50_microseconds", empty.LatencySeconds(0.5) * 1e6},
                  {"p50_to_empty_call", row.p50_to_empty}});
  out << absl::StrFormat("%-9s %-13s %7.3f %11.1f %11.1f %8.2f | %7.3f %6.2f | %7.3f %6.2f | %9.1f %6.2f\n",
                         FormatSize(bytes), name, ours.GbPerSecond(), ours.LatencySeconds(0.5) * 1e6,
                         ours.LatencySeconds(0.99) * 1e6, ours.CpuSecondsPerGb(), tcp.GbPerSecond(), row.to_tcp,
                         stub.GbPerSecond(), row.to_stub, empty.LatencySeconds(0.5) * 1e6, row.p50_to_empty)
      << std::flush;
  return row;
}

// Adds the ratios that the sizes allow, the worst value for each target.
void AddRatios(const std::vector<Row>& rows, BenchReport& report) {
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  const auto worst = [&](absl::string_view operation, uint64_t least, uint64_t most, double Row::*figure) {
    double found = std::numeric_limits<double>::infinity();
    for (const Row& row : rows) {
      if (row.operation == operation && row.bytes >= least && row.bytes <= most) found = std::min(found, row.*figure);
    }
    return found;
  };
  const auto add = [&](std::string name, double value, double wanted, bool at_most, std::string what) {
    if (value < std::numeric_limits<double>::infinity()) {
      report.ratios.push_back({std::move(name), value, wanted, at_most, std::move(what)});
    }
  };
  for (const std::string operation : {kPush, kPull, kTcpPush, kTcpPull}) {
    const std::string name = absl::StrReplaceAll(operation, {{"-", "_"}});
    add(name + "_to_tcp_16mib_up", worst(operation, 16 * kMiB, 1024 * kMiB, &Row::to_tcp), 0.65, false,
        operation + " at 16 MiB and above, relative to a bare TCP stream (goal: 0.75)");
    add(name + "_to_tcp_1_to_4mib", worst(operation, kMiB, 4 * kMiB, &Row::to_tcp), 0.45, false,
        operation + " at 1 to 4 MiB, relative to a bare TCP stream");
    add(name + "_to_stub_16mib", worst(operation, 16 * kMiB, 16 * kMiB, &Row::to_stub), 2, false,
        operation + " at 16 MiB, relative to the plain stub");
    add(name + "_to_stub_64mib", worst(operation, 64 * kMiB, 64 * kMiB, &Row::to_stub), 5, false,
        operation + " at 64 MiB, relative to the plain stub");
  }
  add("push_pull_p50_to_empty_call_4kib", worst(kPushPull, 4096, 4096, &Row::p50_to_empty), 1.2, true,
      "p50 of a 4 KiB push-pull, relative to an empty call");
}

}  // namespace

absl::StatusOr<BenchReport> RunTransferBenchmark(const TransferOptions& options, std::ostream& out) {
  absl::StatusOr<std::unique_ptr<TransferRing>> ring =
      TransferRing::Open(options.sizes, options.servers, options.workers);
  if (!ring.ok()) return ring.status();
  BenchReport report;
  report.benchmark = "transfer";
  report.settings = {{"servers", options.servers}, {"workers", options.workers}, {"seconds", options.seconds}};
  out << absl::StrFormat("%-9s %-13s %7s %11s %11s %8s | %7s %6s | %7s %6s | %9s %6s\n", "size", "operation", "GB/s",
                         "p50 us", "p99 us", "CPU s/GB", "TCP", "of it", "stub", "times", "empty us", "times");
  std::vector<Row> rows;
  for (size_t index = 0; index < options.sizes.size(); ++index) {
    std::vector<Contestant> all = (*ring)->Contestants(index);
    if (absl::Status status = RunInTurn(absl::MakeSpan(all), options.seconds); !status.ok()) return status;
    const uint64_t bytes = options.sizes[index];
    rows.push_back(AddRow(all, bytes, kPush, kStubPush, report.rows, out));
    rows.push_back(AddRow(all, bytes, kPull, kStubPull, report.rows, out));
    rows.push_back(AddRow(all, bytes, kPushPull, kStubPushPull, report.rows, out));
    rows.push_back(AddRow(all, bytes, kTcpPush, kStubPush, report.rows, out));
    rows.push_back(AddRow(all, bytes, kTcpPull, kStubPull, report.rows, out));
    rows.push_back(AddRow(all, bytes, kTcpPushPull, kStubPushPull, report.rows, out));
  }
  AddRatios(rows, report);
  const absl::StatusOr<TransferRing::Memory> memory = (*ring)->ServerMemory();
  if (!memory.ok()) return memory.status();
  report.settings["server_peak_memory_bytes"] = memory->peak;
  report.settings["server_allowed_memory_bytes"] = memory->allowed;
  report.ratios.push_back({"server_memory_of_allowed",
                           static_cast<double>(memory->peak) / static_cast<double>(memory->allowed), 1, true,
                           "peak memory of the servers, relative to state + bytes in flight + 64 MiB"});
  return report;
}

int TransferCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err) {
  const absl::StatusOr<Arguments> arguments = Arguments::Parse(Flags(), args);
  if (!arguments.ok()) return Fail(err, arguments.status(), kExitBadInput);
  if (arguments->help()) {
    out << kUsage << DescribeFlags(Flags());
    return kExitSuccess;
  }
  const absl::Status words = CheckNoWords(*arguments);
  const auto sizes = GetSizes(*arguments, "sizes", kSizes);
  const auto servers = arguments->GetInt("servers", 1, 1, 16);
  const auto workers = arguments->GetInt("workers", 1, 1, 16);
  const auto seconds = GetNumber(*arguments, "seconds", 1.5, 0.01, 600);
  for (const absl::Status& status : {words, sizes.status(), servers.status(), workers.status(), seconds.status()}) {
    if (!status.ok()) return Fail(err, status, kExitBadInput);
  }
  const absl::StatusOr<BenchReport> report = RunTransferBenchmark({*sizes, *servers, *workers, *seconds}, out);
  return Conclude(report, arguments->Has("json"), out, err);
}

}  // namespace ballast
