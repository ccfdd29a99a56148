// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "client/encoded_elements.h"
#include "common/wire/limits.h"

namespace ballast {

// Upper bounds on what protobuf adds around the payloads: tags, lengths and fields of a slice; of a header or outcome.
inline constexpr uint64_t kSliceOverheadBytes = 48;
inline constexpr uint64_t kMessageOverheadBytes = 256;

// One slice on its way to or from a shard: which, and where it lies in the caller's memory.
struct SliceTransfer {
  uint32_t tensor_id = 0;
  uint32_t slice_index = 0;
  uint64_t elements = 0;
  // Of the values that the gradient was computed from.
  uint64_t version = 0;
  // Read by a push; `elements` long, or empty for a gradient that adds nothing.
  absl::Span<const float> gradient;
  // Written by a pull; `elements` long.
  absl::Span<float> values;
  // Instead of either where the caller has them encoded.
  EncodedElements<const char> encoded_gradient;
  EncodedElements<char> encoded_values;
};

// Distributes slices over messages, in their order, as many into each as stay under `max_bytes` when encoded, in
// either direction. A slice that is larger on its own gets a message of its own.
std::vector<std::vector<SliceTransfer>> PackSlices(absl::Span<const SliceTransfer> slices,
                                                   uint64_t max_bytes = kMaxMessageBytes);

}  // namespace ballast
