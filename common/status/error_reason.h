// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "ballast/v1/error.pb.h"

namespace ballast {

// What a failure is about: {"rank", "3"}.
using ErrorSubject = std::pair<absl::string_view, absl::string_view>;

// The status with a machine-readable reason. A reason that is there already stays; subjects are added. OK stays OK.
absl::Status WithReason(v1::ErrorReason reason, const absl::Status& status,
                        std::initializer_list<ErrorSubject> subjects = {});

// The status with more subjects; its reason stays what it was, be that none. OK stays OK.
absl::Status WithSubjects(const absl::Status& status, std::initializer_list<ErrorSubject> subjects);

// The reason; if the status carries none, the one that its code implies. ERROR_REASON_UNSPECIFIED for OK, for
// FAILED_PRECONDITION without a reason, and for a reason that a newer release has added.
v1::ErrorReason ReasonOf(const absl::Status& status);

// What the failure is about, by that name; empty if the status does not say.
std::string SubjectOf(const absl::Status& status, absl::string_view name);

// The same failure with `context` and ": " before its message. Code, reason and subjects stay.
absl::Status Annotate(const absl::Status& status, absl::string_view context);

// The same failure with another message. Code, reason and subjects stay.
absl::Status WithMessage(const absl::Status& status, absl::string_view message);

// A google.rpc.Status as the trailer "grpc-status-details-bin" carries it; and what such bytes say, with `status`'s
// code and message. Bytes that are none leave `status` without a reason.
std::string EncodeErrorDetails(const absl::Status& status);
absl::Status DecodeErrorDetails(const absl::Status& status, absl::string_view details);

}  // namespace ballast
