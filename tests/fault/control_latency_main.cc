// SPDX-License-Identifier: Apache-2.0
// Latency of control calls while server 0 is busy, as one JSON object.
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>

#include "absl/flags/flag.h"
#include "absl/strings/str_split.h"
#include "common/program/env_flags.h"
#include "common/text/json_fields.h"
#include "tests/fault/control/control_latency.h"
#include "tests/fault/scenarios.h"

ABSL_FLAG(std::string, server, "", "Path of ballast_server.");
ABSL_FLAG(std::string, slow_disk_server, "", "Path of slow_disk_server, for checkpoint and resume.");
ABSL_FLAG(std::string, phases, "idle,declaration,push_load",
          "Phases to measure, in order: idle, declaration, push_load, checkpoint, resume, stopped.");
ABSL_FLAG(uint64_t, declared_mib, 1024, "MiB of weights to declare.");
ABSL_FLAG(uint64_t, saved_mib, 64, "MiB of weights to save and restore.");
ABSL_FLAG(uint32_t, disk_mib_per_second, 20, "Speed of the slow disk in MiB/s.");
ABSL_FLAG(double, seconds, 10, "Duration of each phase that does not end by itself.");

namespace ballast {
namespace {

constexpr char kUsage[] =
    "control_latency: makes control calls on a real server while it is busy, and prints their latencies in ms.\n"
    "Exits with 1 if a call failed, a worker was lost, or more than 1% of the calls took more than 50 ms.\n\n"
    "  control_latency --server bazel-bin/server/ballast_server --declared_mib 4096";

int Measure() {
  ControlOptions options;
  options.server = absl::GetFlag(FLAGS_server);
  options.slow_disk_server = absl::GetFlag(FLAGS_slow_disk_server);
  options.declared_mib = absl::GetFlag(FLAGS_declared_mib);
  options.saved_mib = absl::GetFlag(FLAGS_saved_mib);
  options.disk_mib_per_second = absl::GetFlag(FLAGS_disk_mib_per_second);
  options.time = absl::Seconds(absl::GetFlag(FLAGS_seconds));
  for (const absl::string_view name : absl::StrSplit(absl::GetFlag(FLAGS_phases), ',', absl::SkipEmpty())) {
    bool known = false;
    for (ControlPhase phase : {ControlPhase::kIdle, ControlPhase::kDeclaration, ControlPhase::kPushLoad,
                               ControlPhase::kCheckpoint, ControlPhase::kResume, ControlPhase::kStopped}) {
      if (PhaseName(phase) != name) continue;
      options.phases.push_back(phase);
      known = true;
    }
    if (known) continue;
    std::cerr << "error: --phases: got \"" << name << "\", want the name of a phase" << std::endl;
    return 2;
  }
  const StateFolder folder({.folder = std::filesystem::temp_directory_path().string()}, "control");
  options.folder = folder.path();
  const absl::StatusOr<ControlReport> report = MeasureControl(options);
  if (!report.ok()) {
    std::cerr << "error: " << report.status().message() << std::endl;
    return 1;
  }
  std::cout << JsonLine(report->ToJson()) << std::endl;
  return report->good(absl::Milliseconds(50)) ? 0 : 1;
}

}  // namespace
}  // namespace ballast

int main(int argc, char** argv) {
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  const absl::Status parsed = ballast::ParseFlags(
      argc, argv, ballast::kUsage,
      {"server", "slow_disk_server", "phases", "declared_mib", "saved_mib", "disk_mib_per_second", "seconds"});
  if (!parsed.ok()) {
    std::cerr << "error: " << parsed.message() << std::endl;
    return 2;
  }
  return ballast::Measure();
}
