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
  // Of the test's own; it is there.
  std::string folder;
  // Of `launch`; kills come sooner where there is less time.
  std::string durability = "wal";
  absl::Duration kill_server = absl::Seconds(60);
  absl::Duration kill_worker = absl::Seconds(45);
  // About as long as the run with kills takes; the same job without them runs beside it.
  absl::Duration time = absl::Minutes(5);
  double accuracy_tolerance = 0.01;
};

// What processes held, the median of the first quarter of the time and that of the last.
struct UseOverTime {
  // One a second.
  uint64_t samples = 0;
  uint64_t resident_bytes_first = 0, resident_bytes_last = 0;
  uint64_t descriptors_first = 0, descriptors_last = 0;

  // Whether what came on top could be anything but a leak: a fifth, and the noise of small numbers. In the first minute
  // all grows.
  bool level() const {
    if (samples < 120) return true;
    return resident_bytes_last <= resident_bytes_first / 5 * 6 + (16 << 20) &&
           descriptors_last <= descriptors_first / 5 * 6 + 8;
  }
};

struct TrainingSoakCounts {
  uint64_t epochs = 0;
  // Processes that were killed and started again.
  uint64_t restarts = 0;
  uint64_t workers_lost = 0;
  uint64_t examples = 0;
  uint64_t examples_repeated = 0;
  uint64_t pushes_lost = 0;
  uint64_t pushes_duplicated = 0;
  // Of the run with kills, and how long the other took.
  double seconds = 0;
  double seconds_without_kills = 0;
  double accuracy = 0;
  double accuracy_without_kills = 0;
  double accuracy_tolerance = 0;
  // Servers of the run with kills, whose processes are ever new ones; the other run's, and `launch`, whose stay.
  UseOverTime servers, servers_without_kills, launch;

  static std::vector<NamedCount<TrainingSoakCounts>> Fields();
  bool good() const;
  nlohmann::ordered_json ToJson() const;
};

// Trains a network on Fashion-MNIST under `ballast launch`, which kills servers and workers meanwhile, and beside it
// the same without kills. UNAVAILABLE where the data is not installed. An error is a run that did not end well. To be
// called by the main thread.
absl::StatusOr<TrainingSoakCounts> SoakTraining(const TrainingSoakOptions& options);

}  // namespace ballast
