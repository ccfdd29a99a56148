// SPDX-License-Identifier: Apache-2.0
#include "server/tables/watch/range_publisher.h"

#include <algorithm>
#include <utility>

namespace ballast {

RangePublisher::~RangePublisher() {
  absl::MutexLock lock(&mutex_);
  if (!chains_.empty()) range_->Unfollow(&changes_);
}

uint64_t RangePublisher::Publish(absl::Time now, absl::Time unused_since) {
  absl::MutexLock lock(&mutex_);
  if (chains_.empty()) return 0;
  const auto unused = [&](const Chain& chain) { return chain.uses == 0 && chain.left <= unused_since; };
  chains_.erase(std::remove_if(chains_.begin(), chains_.end(), unused), chains_.end());
  if (chains_.empty()) {
    range_->Unfollow(&changes_);
    changes_ = RangeChanges();
    return 0;
  }
  return PublishLocked(range_->TakeWeights(&changes_), now);
}

uint64_t RangePublisher::PublishLocked(const RowWeights& changes, absl::Time now) {
  if (changes.empty()) return 0;
  auto delta = std::make_shared<PublishedDelta>();
  delta->range = number_;
  delta->from_position = position_++;
  delta->to_position = position_;
  for (const Chain& chain : chains_) delta->chains.push_back({chain.id, chain.value, {}});
  delta->bodies = encoder_->EncodeBodies(changes, delta->chains);
  for (size_t i = 0; i < chains_.size(); ++i) chains_[i].value = delta->chains[i].after.back();
  const uint64_t bytes = delta->bytes();
  log_->Append(std::move(delta), now);
  return bytes;
}

RangePublisher::Whole RangePublisher::WholeLocked(const RowWeights& rows) {
  auto delta = std::make_shared<PublishedDelta>();
  delta->range = number_;
  delta->to_position = position_;
  delta->chains.emplace_back();
  delta->bodies = encoder_->EncodeBodies(rows, delta->chains);
  return {std::move(delta), 0};
}

RangePublisher::Whole RangePublisher::SendWhole(absl::Time now) {
  absl::MutexLock lock(&mutex_);
  if (chains_.empty()) range_->Follow(&changes_);
  RowWeights rows;
  const RowWeights changes = range_->TakeWeights(&changes_, &rows);
  // Without a chain, nobody has the range, so nobody needs the delta.
  if (!chains_.empty()) PublishLocked(changes, now);
  Whole whole = WholeLocked(rows);
  whole.chain = next_chain_++;
  chains_.push_back({whole.chain, whole.delta->chains[0].after.back(), 1, absl::InfinitePast()});
  return whole;
}

RangePublisher::Whole RangePublisher::SendLast() {
  RowWeights rows;
  range_->TakeWeights(nullptr, &rows);
  absl::MutexLock lock(&mutex_);
  return WholeLocked(rows);
}

uint32_t RangePublisher::Join(const WatchedPosition& after, uint32_t found) {
  absl::MutexLock lock(&mutex_);
  for (Chain& chain : chains_) {
    const bool is_newest = after.position == position_ && after.chain == chain.value;
    if (!is_newest && (found == 0 || chain.id != found)) continue;
    ++chain.uses;
    return chain.id;
  }
  return 0;
}

void RangePublisher::Leave(uint32_t chain, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  for (Chain& used : chains_) {
    if (used.id != chain) continue;
    --used.uses;
    used.left = now;
  }
}

}  // namespace ballast
