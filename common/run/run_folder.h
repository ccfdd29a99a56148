// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace ballast {

// Paths of one run's directory and of its files; does not know their contents. A value type. Thread safety:
// immutable.
class RunFolder {
 public:
  // The directory need not exist.
  explicit RunFolder(std::string path);

  // Creates the directory and its parents, or uses one that holds no run yet. ALREADY_EXISTS if it contains
  // metrics.jsonl: a run is never overwritten.
  static absl::StatusOr<RunFolder> Create(const std::string& path);

  // Creates <parent>/<job>-<UTC time>, with a number appended if two runs of the job start in the same second.
  static absl::StatusOr<RunFolder> CreateUnder(const std::string& parent, absl::string_view job, absl::Time now);

  const std::string& path() const { return path_; }
  std::string metrics() const { return path_ + "/metrics.jsonl"; }
  std::string summary() const { return path_ + "/summary.json"; }
  std::string model() const { return path_ + "/model.safetensors"; }
  // Describes the model from the beginning of the run: see ModelDescription.
  std::string description() const { return path_ + "/model.json"; }
  // One folder for each table of the model: see client/watch/table_files.h.
  std::string tables() const { return path_ + "/tables"; }
  std::string report() const { return path_ + "/report.html"; }
  // The resolved job, as a job file.
  std::string job() const { return path_ + "/job.textproto"; }
  // The state of the launch; see LaunchRecord.
  std::string launch() const { return path_ + "/launch.json"; }

 private:
  std::string path_;
};

}  // namespace ballast
