// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ballast/v1/coordinator_service.pb.h"

namespace ballast {

// Where a job's progress is learnt from: a coordinator, or a test.
class ProgressSource {
 public:
  virtual ~ProgressSource() = default;
  // Blocks for `timeout` at most.
  virtual absl::StatusOr<v1::GetProgressResponse> GetProgress(absl::Duration timeout) = 0;
  // Says that a member's process has ended, so that the others need not find out by themselves.
  virtual absl::Status ReportEnd(const v1::Member& member, const std::string& how, absl::Duration timeout) = 0;
};

}  // namespace ballast
