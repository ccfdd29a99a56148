// SPDX-License-Identifier: Apache-2.0
#include "client/message_packer.h"

namespace ballast {

std::vector<std::vector<SliceTransfer>> PackSlices(absl::Span<const SliceTransfer> slices, uint64_t max_bytes) {
  std::vector<std::vector<SliceTransfer>> messages;
  uint64_t bytes = 0;
  for (const SliceTransfer& slice : slices) {
    const uint64_t added = kSliceOverheadBytes + sizeof(float) * slice.elements;
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
