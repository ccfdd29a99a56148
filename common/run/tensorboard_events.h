// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "ballast/v1/parameter_service.pb.h"
#include "common/run/metrics.h"

namespace ballast {

// Owns a file events.out.tfevents.<seconds>.<host> in a run's directory, from which TensorBoard draws the figures of
// metrics.jsonl. Each process that writes the run has a file of its own; TensorBoard reads them one after the other.
// The file is created for the first figure. It is an extra: after an error, which is logged once, nothing more is
// written to it, and the run goes on. Thread safety: none; one thread writes.
class TensorboardEvents {
 public:
  // `directory` is the run's.
  explicit TensorboardEvents(std::string directory) : directory_(std::move(directory)) {}
  TensorboardEvents(TensorboardEvents&& other) noexcept;
  TensorboardEvents& operator=(TensorboardEvents&& other) noexcept;
  ~TensorboardEvents();

  // train/loss, train/learning_rate, perf/examples_per_second, wait/share and staleness/max of a line.
  void Write(const TrainMetrics& metrics);
  // test/loss, and test/accuracy if there is one.
  void Write(const TestMetrics& metrics);
  // staleness/distribution: the staleness of all gradients up to that step.
  void Write(int64_t step, const v1::Histogram& staleness);

 private:
  // Writes an event of the time of the call. `value` are the bytes of Summary.Value messages, with their tags.
  void WriteSummary(int64_t step, absl::string_view values);
  absl::Status WriteRecord(absl::string_view event);
  absl::Status Open(absl::Time now);

  std::string directory_;
  std::string path_;
  // -1: not opened yet, or failed.
  int fd_ = -1;
  bool failed_ = false;
};

}  // namespace ballast
