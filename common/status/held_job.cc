// SPDX-License-Identifier: Apache-2.0
#include "common/status/held_job.h"

#include "absl/strings/str_cat.h"
#include "common/status/error_reason.h"

namespace ballast {

absl::Status CheckHeldJob(absl::string_view held, absl::string_view named) {
  if (held.empty() || named.empty() || held == named) return absl::OkStatus();
  return WithReason(
      v1::ERROR_REASON_WRONG_JOB,
      absl::FailedPreconditionError(absl::StrCat("this server holds job \"", held, "\", got \"", named, "\"")),
      {{"job", held}});
}

}  // namespace ballast
