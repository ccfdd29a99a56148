// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message_lite.h"

namespace ballast {

// Body of a record (ballast/internal/v1/storage.proto): a message's length, the message, and payload bytes.

// Returns length and message.
std::string FrameMessage(const google::protobuf::MessageLite& message);

// Parses the message into `to` and returns the bytes after it; DATA_LOSS if the body holds no such message.
absl::StatusOr<absl::string_view> ParseFramed(absl::string_view body, google::protobuf::MessageLite& to);

}  // namespace ballast
