// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message_lite.h"

namespace ballast {

// A record's body as ballast/internal/v1/storage.proto has it: a message's length, the message, and bytes behind it.

// Length and message.
std::string FrameMessage(const google::protobuf::MessageLite& message);

// Parses the message into `to` and answers what is behind it; DATA_LOSS where there is no such message.
absl::StatusOr<absl::string_view> ParseFramed(absl::string_view body, google::protobuf::MessageLite& to);

}  // namespace ballast
