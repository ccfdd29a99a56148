// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tests/fault/control/control_probe.h"

namespace ballast {

// Activity of server 0 while its control calls are timed.
enum class ControlPhase {
  kIdle,
  // Two clients declare the same tensor (he_normal) at once.
  kDeclaration,
  // Four workers push and pull at full speed, over sockets.
  kPushLoad,
  // The server takes one checkpoint after another, on a slow disk.
  kCheckpoint,
  // The server restores the tensor from the newest checkpoint of the previous phase.
  kResume,
  // The server is stopped for longer than a member's timeout, and then continues.
  kStopped,
};
// "declaration", "push_load", ...
std::string PhaseName(ControlPhase phase);

struct ControlOptions {
  // Paths of ballast_server and of slow_disk_server, which only kCheckpoint and kResume need.
  std::string server;
  std::string slow_disk_server;
  // Directory for checkpoints; the caller owns it.
  std::string folder;
  // Measured in this order.
  std::vector<ControlPhase> phases;
  // Size of the tensor that is declared, and of the one that is saved and restored.
  uint64_t declared_mib = 1024;
  uint64_t saved_mib = 64;
  uint32_t disk_mib_per_second = 20;
  // Duration of kPushLoad and of kCheckpoint.
  absl::Duration time = absl::Seconds(10);
};

struct ControlReport {
  struct Phase {
    ControlPhase phase = ControlPhase::kIdle;
    // Duration of the work.
    absl::Duration took;
    Latencies latencies;
  };
  std::vector<Phase> phases;
  uint64_t pushes = 0;
  uint64_t checkpoints = 0;
  // Workers that the coordinator lost though they were alive.
  uint64_t workers_lost = 0;

  // True if all calls succeeded, no worker was lost, and in each phase 99% of the calls took at most `most`. A
  // machine with an idle core responds within 50 ms.
  bool good(absl::Duration most) const;
  nlohmann::ordered_json ToJson() const;
};

// An error is a failure of the test itself or of the work.
absl::StatusOr<ControlReport> MeasureControl(const ControlOptions& options);

}  // namespace ballast
