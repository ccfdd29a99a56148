// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tests/fault/control/latencies.h"

namespace ballast {

// What server 0 does while the time of its control calls is taken.
enum class ControlPhase {
  // Nothing.
  kIdle,
  // Two clients declare the same tensor (he_normal) at once.
  kDeclaration,
  // Four workers push and pull with all their might, over sockets.
  kPushLoad,
  // It takes one checkpoint after another, on a slow disk.
  kCheckpoint,
  // It makes the tensor from the newest checkpoint of the phase before.
  kResume,
  // It is stopped for longer than a member may be silent, and goes on.
  kStopped,
};
// "declaration", "push_load", ...
std::string PhaseName(ControlPhase phase);

struct ControlOptions {
  // Paths of ballast_server, or of slow_disk_server; the latter is needed for checkpoints.
  std::string server;
  std::string slow_disk_server;
  // For checkpoints; the caller's.
  std::string folder;
  // Each in turn.
  std::vector<ControlPhase> phases;
  // Of the tensor that is declared, and of the one that is saved and restored.
  uint64_t declared_mib = 1024;
  uint64_t saved_mib = 64;
  uint32_t disk_mib_per_second = 20;
  // Of load and of checkpoints.
  absl::Duration time = absl::Seconds(10);
};

struct ControlReport {
  struct Phase {
    ControlPhase phase = ControlPhase::kIdle;
    // How long the work took.
    absl::Duration took;
    Latencies latencies;
  };
  std::vector<Phase> phases;
  uint64_t pushes = 0;
  uint64_t checkpoints = 0;
  // That the coordinator lost though they lived.
  uint64_t workers_lost = 0;

  // Whether all calls were answered, nobody was lost, and of 100 calls of a phase 99 took at most `most`. A machine
  // with a core to spare answers them within 50 ms.
  bool good(absl::Duration most) const;
  nlohmann::ordered_json ToJson() const;
};

// An error is the test's own, or one of the work.
absl::StatusOr<ControlReport> MeasureControl(const ControlOptions& options);

}  // namespace ballast
