// SPDX-License-Identifier: Apache-2.0
#include "client/message_packer.h"

#include <algorithm>

namespace ballast {
namespace {

// The larger one of a slice's payloads, that of the request and that of the answer. What is floats in memory may be
// encoded on its way, which takes no more.
uint64_t PayloadBytes(const SliceTransfer& slice) {
  const uint64_t floats = std::max(slice.gradient.size(), slice.values.size());
  return std::max({floats * sizeof(float), slice.encoded_gradient.bytes.size(), slice.encoded_values.bytes.size()});
}

}  // namespace

std::vector<std::vector<SliceTransfer>> PackSlices(absl::Span<const SliceTransfer> slices, uint64_t max_bytes) {
  std::vector<std::vector<SliceTransfer>> messages;
  uint64_t bytes = 0;
  for (const SliceTransfer& slice : slices) {
    const uint64_t added = kSliceOverheadBytes + PayloadBytes(slice);
    if (messages.empty() || bytes + added > max_bytes || messages.back().size() == kMaxSlicesPerMessage) {
      messages.emplace_back();
      bytes = kMessageOverheadBytes;
    }
    messages.back().push_back(slice);
    bytes += added;
  }
  return messages;
}

}  // namespace ballast
