// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/descriptor.h"

namespace ballast {

// Counts the objects that parsing `bytes` as a message of that type would create: messages within it at every depth,
// elements of repeated strings and bytes, and fields that the type does not have. Two bytes are enough for a message
// without content, which takes more than thirty times as much once it is parsed; so bytes from strangers are counted
// before they are parsed. Numbers of known fields are left out, because they grow by a factor of 8 at most.
// Creates no objects itself, and stops at `limit` + 1. Bytes that do not parse are counted up to the first fault.
size_t CountElements(const google::protobuf::Descriptor& type, absl::string_view bytes, size_t limit);

// INVALID_ARGUMENT of reason INVALID_REQUEST if there are more than `limit`. Bytes that are too few for that are not
// looked at.
absl::Status CheckElements(const google::protobuf::Descriptor& type, absl::string_view bytes, size_t limit);

}  // namespace ballast
