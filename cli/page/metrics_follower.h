// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/run/metrics.h"

namespace ballast {

// Reads a metrics.jsonl of any length, while it may grow: first a sketch of it, then all of it, piece by piece. A last
// line that is cut off waits for its rest. Thread safety: none.
class MetricsFollower {
 public:
  explicit MetricsFollower(std::string path) : path_(std::move(path)) {}

  // Returns "train" lines from places all over a file that takes long to read; none if it is short.
  std::vector<TrainMetrics> Sketch() const;

  // Returns the next lines, at most a few megabytes; none at the end.
  Metrics Next();

  // Fraction of the file that Next has returned, from 0 to 1.
  double share() const;
  // The bytes after the last line, which its writer may not have finished.
  int64_t unfinished_bytes() const;

 private:
  const std::string path_;
  int64_t offset_ = 0;
};

}  // namespace ballast
