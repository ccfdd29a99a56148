// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace ballast {

// Knows the path of one run's folder and the names of the files in it; what they hold is their
// writers' business. A value type.
// Thread safety: immutable.
class RunFolder {
 public:
  // Of a folder that need not exist.
  explicit RunFolder(std::string path);

  // Makes path and the folders above it, or takes one that holds no run yet. ALREADY_EXISTS where
  // metrics.jsonl lies in it: a run is never overwritten.
  static absl::StatusOr<RunFolder> Create(const std::string& path);

  // Makes a new folder named <parent>/<job>-<UTC time>, with a number behind it where two runs of
  // the job start within one second.
  static absl::StatusOr<RunFolder> CreateUnder(const std::string& parent, absl::string_view job, absl::Time now);

  const std::string& path() const { return path_; }
  std::string metrics() const { return path_ + "/metrics.jsonl"; }
  std::string summary() const { return path_ + "/summary.json"; }
  std::string model() const { return path_ + "/model.safetensors"; }
  std::string report() const { return path_ + "/report.html"; }
  // The job file's text as it was run.
  std::string job() const { return path_ + "/job.textproto"; }

 private:
  std::string path_;
};

}  // namespace ballast
