// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tests/fault/programs/count_fields.h"

namespace ballast {

struct TrainingSoakOptions {
  // Paths of ballast, ballast_server and ballast_worker.
  std::string ballast;
  std::string server;
  std::string worker;
  // Existing directory of the test's own.
  std::string folder;
  // Flags of `launch`; kills come sooner if there is less time.
  std::string durability = "wal";
  absl::Duration kill_server = absl::Seconds(60);
  absl::Duration kill_worker = absl::Seconds(45);
  // Approximate duration of the run with kills; the same job without kills runs at the same time.
  absl::Duration time = absl::Minutes(5);
  double accuracy_tolerance = 0.01;
};

// Resource use of processes: medians over the first and the last quarter of the time.
struct UseOverTime {
  // One sample per second.
  uint64_t samples = 0;
  uint64_t resident_bytes_first = 0, resident_bytes_last = 0;
  uint64_t descriptors_first = 0, descriptors_last = 0;

  // True unless growth of more than a fifth and noise suggests a leak. In the first minute everything grows.
  bool level() const {
    if (samples < 120) return true;
    return resident_bytes_last <= resident_bytes_first / 5 * 6 + (16 << 20) &&
           descriptors_last <= descriptors_first / 5 * 6 + 8;
  }
};

struct TrainingSoakCounts {
  uint64_t epochs = 0;
  // Processes that were killed and restarted.
  uint64_t restarts = 0;
  uint64_t workers_lost = 0;
  uint64_t examples = 0;
  uint64_t examples_repeated = 0;
  uint64_t pushes_lost = 0;
  uint64_t pushes_duplicated = 0;
  // Duration of the run with kills, and of the other run.
  double seconds = 0;
  double seconds_without_kills = 0;
  double accuracy = 0;
  double accuracy_without_kills = 0;
  double accuracy_tolerance = 0;
  // Servers of the run with kills, which are restarted; those of the other run, and `launch`, which stay.
  UseOverTime servers, servers_without_kills, launch;

  static std::vector<NamedCount<TrainingSoakCounts>> Fields();
  bool good() const;
  nlohmann::ordered_json ToJson() const;
};

// Trains a network on Fashion-MNIST under `ballast launch`, which kills servers and workers, and at the same time the
// same job without kills. UNAVAILABLE if the data is not installed. An error means that a run did not end
// successfully. To be called by the main thread.
absl::StatusOr<TrainingSoakCounts> SoakTraining(const TrainingSoakOptions& options);

}  // namespace ballast
