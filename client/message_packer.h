// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "client/encoded_elements.h"
#include "common/wire/limits.h"

namespace ballast {

// Upper bounds on the protobuf overhead: tags, lengths and fields of one slice, and of a header or outcome.
inline constexpr uint64_t kSliceOverheadBytes = 48;
inline constexpr uint64_t kMessageOverheadBytes = 256;

// One slice in transit to or from a shard, with its place in the caller's memory.
struct SliceTransfer {
  uint32_t tensor_id = 0;
  uint32_t slice_index = 0;
  uint64_t elements = 0;
  // Version of the values from which the gradient was computed.
  uint64_t version = 0;
  // Read by a push; has `elements` elements, or is empty if the push contributes nothing.
  absl::Span<const float> gradient;
  // Written by a pull; has `elements` elements.
  absl::Span<float> values;
  // Used instead if the caller encodes gradients or decodes values itself.
  EncodedElements<const char> encoded_gradient;
  EncodedElements<char> encoded_values;
};

// Packs slices into messages, in their order. An encoded message stays under `max_bytes` in either direction, unless it
// consists of a single slice that is larger.
std::vector<std::vector<SliceTransfer>> PackSlices(absl::Span<const SliceTransfer> slices,
                                                   uint64_t max_bytes = kMaxMessageBytes);

}  // namespace ballast
