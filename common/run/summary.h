// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ballast {

// How one run ended: the content of summary.json and of the last line of `ballast launch --json`.
// A field is a key of that object, of the same name; hence their number.
struct Summary {
  std::string job;
  // "sync" or "async".
  std::string mode;
  int64_t servers = 0;
  int64_t workers = 0;
  // Finished ones.
  int64_t epochs = 0;
  int64_t steps = 0;
  // Seen in training, by all workers together.
  int64_t examples = 0;
  // Of training, evaluation included, start of the processes not.
  double seconds = 0;
  double samples_per_second = 0;
  // Mean over the last epoch.
  double train_loss = 0;
  // Absent without a test set; accuracy also for a regression. Written as null.
  std::optional<double> test_loss;
  std::optional<double> test_accuracy;
  std::string run_dir;
  // Ended by a signal before its last epoch.
  bool interrupted = false;
  // What the workers computed on: "cpu" or "cuda".
  std::string device;
  // Of Ballast.
  std::string version;
};

// One line without its newline. Every key is always there.
std::string SummaryToJson(const Summary& summary);

// INVALID_ARGUMENT names the key that is missing or wrong. Unknown keys are ignored.
absl::StatusOr<Summary> SummaryFromJson(absl::string_view json);

// Atomic: a reader sees the old file or the new one.
absl::Status WriteSummary(const std::string& path, const Summary& summary);

// NOT_FOUND where there is no such file.
absl::StatusOr<Summary> ReadSummary(const std::string& path);

}  // namespace ballast
