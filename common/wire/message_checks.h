// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/descriptor.h"

namespace ballast {

// Returns the reason why bytes do not parse as a message of that type: INVALID_ARGUMENT with reason MALFORMED_MESSAGE
// and subjects "message", "offset" (of the first bad byte) and "field" ("job.training.epochs"; empty for the message
// itself). Takes time proportional to the bytes.
absl::Status MalformedMessage(const google::protobuf::Descriptor& type, absl::string_view bytes);

// Counts the objects that parsing `bytes` as a message of that type would create: messages at every depth, elements
// of repeated strings and bytes, and unknown fields. Two bytes encode an empty message, which takes more than thirty
// times as much memory once parsed, so bytes from untrusted peers are counted before they are parsed. Numbers in
// known fields are not counted, because they grow at most by a factor of 8. Creates no objects and stops at `limit` +
// 1. Bytes that do not parse are counted up to the first fault.
size_t CountElements(const google::protobuf::Descriptor& type, absl::string_view bytes, size_t limit);

// INVALID_ARGUMENT with reason INVALID_REQUEST if there are more than `limit`. Skips bytes too short for that.
absl::Status CheckElements(const google::protobuf::Descriptor& type, absl::string_view bytes, size_t limit);

}  // namespace ballast
