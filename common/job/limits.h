// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/text/validation_errors.h"
#include "google/protobuf/message.h"

namespace ballast {

// Checks every field of `message`, and of the messages in it, against the limits that its .proto file states
// (ballast/v1/limits.proto); values of enums must have a name. `path` is the message's own name in errors; it is empty
// for the outermost one.
void CheckLimits(const google::protobuf::Message& message, const std::string& path, ValidationErrors& errors);

// INVALID_ARGUMENT with the first of the errors.
absl::Status CheckLimits(const google::protobuf::Message& message, const std::string& path);

// Sets each number that is not set, and whose limits state a default, to that default, in `message` and in those
// messages in it that are set.
void FillNumbers(google::protobuf::Message& message);

}  // namespace ballast
