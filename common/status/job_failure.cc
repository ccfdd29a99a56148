// SPDX-License-Identifier: Apache-2.0
#include "common/status/job_failure.h"

#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/status/error_reason.h"

namespace ballast {

absl::Status WithJobFailure(const absl::Status& status, const v1::JobFailure& failure) {
  const absl::Status failed = WithReason(v1::ERROR_REASON_JOB_FAILED, status);
  if (!failure.has_member()) return failed;
  const std::string role = v1::Role_Name(failure.member().role());
  return WithSubjects(failed, {{"role", absl::AsciiStrToLower(absl::StripPrefix(role, "ROLE_"))},
                               {"rank", absl::StrCat(failure.member().rank())},
                               {"process", absl::StrCat(failure.process())}});
}

absl::Status JobFailedError(absl::string_view reason, const v1::JobFailure& failure) {
  return WithJobFailure(absl::AbortedError(absl::StrCat("the job has failed: ", reason)), failure);
}

bool IsLossOfServer(const absl::Status& status) {
  return ReasonOf(status) == v1::ERROR_REASON_JOB_FAILED && SubjectOf(status, "role") == "server";
}

absl::Status CheckHeldJob(absl::string_view held, absl::string_view named) {
  if (held.empty() || named.empty() || held == named) return absl::OkStatus();
  return WithReason(
      v1::ERROR_REASON_WRONG_JOB,
      absl::FailedPreconditionError(absl::StrCat("this server holds job \"", held, "\", got \"", named, "\"")),
      {{"job", held}});
}

}  // namespace ballast
