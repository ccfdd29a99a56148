// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/descriptor.h"

namespace ballast {

// Returns the reason why bytes do not parse as a message of that type: INVALID_ARGUMENT with reason MALFORMED_MESSAGE
// and subjects "message", "offset" (of the first bad byte) and "field" ("job.training.epochs"; empty for the message
// itself). Takes time proportional to the bytes.
absl::Status MalformedMessage(const google::protobuf::Descriptor& type, absl::string_view bytes);

}  // namespace ballast
