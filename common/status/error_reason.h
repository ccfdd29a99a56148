// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "ballast/v1/error.pb.h"

namespace ballast {

// An object that the failure is about: {"rank", "3"}.
using ErrorSubject = std::pair<absl::string_view, absl::string_view>;

// Adds a machine-readable reason and subjects. A reason that is already set stays. OK stays OK.
absl::Status WithReason(v1::ErrorReason reason, const absl::Status& status,
                        std::initializer_list<ErrorSubject> subjects = {});

// Adds subjects; the reason, or its absence, stays. OK stays OK.
absl::Status WithSubjects(const absl::Status& status, std::initializer_list<ErrorSubject> subjects);

// Returns the reason; if the status has none, the one that its code implies. ERROR_REASON_UNSPECIFIED for OK, for
// FAILED_PRECONDITION without a reason, and for a reason added by a newer release.
v1::ErrorReason ReasonOf(const absl::Status& status);

// Returns the value of a subject; empty if the status does not have it.
std::string SubjectOf(const absl::Status& status, absl::string_view name);

// Returns the names and values of all subjects.
std::map<std::string, std::string> SubjectsOf(const absl::Status& status);

// Prepends `context` and ": " to the message. Code, reason and subjects stay.
absl::Status Annotate(const absl::Status& status, absl::string_view context);

// Replaces the message. Code, reason and subjects stay.
absl::Status WithMessage(const absl::Status& status, absl::string_view message);

// Converts to and from the google.rpc.Status in the trailer "grpc-status-details-bin"; decoding keeps the code and
// message of `status`. Malformed details leave `status` without a reason.
std::string EncodeErrorDetails(const absl::Status& status);
absl::Status DecodeErrorDetails(const absl::Status& status, absl::string_view details);

}  // namespace ballast
