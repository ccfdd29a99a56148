// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/run/metrics.h"

namespace ballast {

// Owns the open metrics.jsonl of one run and appends lines to it. Each line is passed to the kernel before the call
// returns, so it survives the process but not a crash of the host. NaN and infinities are written as null. After an
// error the file may end in part of a line, which the reader skips. Thread safety: none; one thread writes.
class MetricsWriter {
 public:
  // Creates the file, or appends to it.
  static absl::StatusOr<MetricsWriter> Open(const std::string& path);

  MetricsWriter(MetricsWriter&& other) noexcept;
  MetricsWriter& operator=(MetricsWriter&& other) noexcept;
  ~MetricsWriter();

  // Errors name the file: RESOURCE_EXHAUSTED if the disk is full.
  absl::Status Write(const TrainMetrics& metrics);
  absl::Status Write(const TestMetrics& metrics);

 private:
  MetricsWriter(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  std::string path_;
  int fd_;
};

}  // namespace ballast
