// SPDX-License-Identifier: Apache-2.0
#include "server/replication/sent_slices.h"

#include <utility>

namespace ballast {

void SentSlices::Begin() {
  Clear();
  transferring_ = true;
}

bool SentSlices::TryEnd() {
  transferring_ = std::exchange(declared_, false);
  return !transferring_;
}

std::vector<OwnedSlice> SentSlices::Unsent(std::vector<OwnedSlice> slices) const {
  std::erase_if(slices, [this](const OwnedSlice& slice) { return sent_.contains(slice.key); });
  return slices;
}

void SentSlices::Clear() {
  transferring_ = false;
  declared_ = false;
  sent_.clear();
}

std::vector<bool> SentSlices::Wanted(const internal::v1::ShardRecord& record) const {
  std::vector<bool> wanted;
  if (!transferring_) return wanted;
  for (const internal::v1::LoggedPush::Gradient& gradient : record.push().gradients()) {
    wanted.push_back(sent_.contains({gradient.tensor_id(), gradient.slice_index()}));
  }
  return wanted;
}

}  // namespace ballast
