// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/descriptor.h"

namespace ballast {

// Says what is wrong with bytes that do not parse as a message of that type, and where: INVALID_ARGUMENT of reason
// MALFORMED_MESSAGE with subjects "message", "offset" (of the first bad byte) and "field" ("job.training.epochs"; empty
// for the message itself). Takes time in proportion to the bytes.
absl::Status MalformedMessage(const google::protobuf::Descriptor& type, absl::string_view bytes);

}  // namespace ballast
