// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ballast/v1/coordinator_service.pb.h"

namespace ballast {

// A source of a job's progress: a coordinator, or a fake in tests.
class ProgressSource {
 public:
  virtual ~ProgressSource() = default;
  // Blocks for at most `timeout`.
  virtual absl::StatusOr<v1::GetProgressResponse> GetProgress(absl::Duration timeout) = 0;
  // Reports that a member's process has ended, so that the job need not wait for a timeout to detect it.
  virtual absl::Status ReportEnd(const v1::Member& member, const std::string& how, absl::Duration timeout) = 0;
};

}  // namespace ballast
