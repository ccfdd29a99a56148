// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "gmock/gmock.h"

namespace ballast {

inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

// Matches a status that is OK, and a StatusOr with a value.
MATCHER(IsOk, "") {
  *result_listener << StatusOf(arg);
  return arg.ok();
}

// Matches an error with this code whose message contains `text`.
MATCHER_P2(Fails, code, text, "") {
  *result_listener << StatusOf(arg);
  return StatusOf(arg).code() == code && absl::StrContains(StatusOf(arg).message(), text);
}

}  // namespace ballast
