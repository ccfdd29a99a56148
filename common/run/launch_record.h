// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace ballast {

// The state of the `ballast launch` that wrote a run directory, as its file launch.json tells it.
struct LaunchState {
  absl::Time started;
  // The launch is still running.
  bool running = false;
  // Exit status of the launch, and its error if it failed. nullopt while it runs, and if it was killed.
  std::optional<int> exit_status;
  std::string error;
};

// Owns the file launch.json of one run while its launch runs. Invariant: the file is locked as long as this object
// exists, and the kernel unlocks it when the process ends for any reason, so a reader never takes a killed launch for
// a running one. Thread safety: confined to one thread.
class LaunchRecord {
 public:
  // Creates the file in an existing run directory, or replaces that of an earlier launch. FAILED_PRECONDITION if
  // another launch is running there.
  static absl::StatusOr<LaunchRecord> Create(const std::string& run_dir, absl::Time now);

  // Returns the state of the launch; NOT_FOUND if no launch has written to the directory, INVALID_ARGUMENT if the file
  // is damaged.
  static absl::StatusOr<LaunchState> Read(const std::string& run_dir);

  LaunchRecord(LaunchRecord&& other) noexcept;
  LaunchRecord& operator=(LaunchRecord&&) = delete;
  ~LaunchRecord();

  // Records how the launch ends. May be repeated; the last call counts.
  absl::Status End(int exit_status, absl::string_view error);

 private:
  LaunchRecord(std::string path, int file, absl::Time started)
      : path_(std::move(path)), file_(file), started_(started) {}

  absl::Status Write(std::optional<int> exit_status, absl::string_view error);

  const std::string path_;
  int file_;
  const absl::Time started_;
};

}  // namespace ballast
