// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "server/memory/value_buffer.h"
#include "server/shard/push.h"

namespace ballast {

// A slice's first values and the checksum that identifies them.
struct DecodedValues {
  ValueBuffer values;
  uint64_t checksum = 0;
};

// INVALID_ARGUMENT unless the values decode to `elements` floats that are finite or `accept_non_finite` is true.
absl::StatusOr<DecodedValues> DecodeValues(const ValueView& view, size_t elements, bool accept_non_finite);

}  // namespace ballast
