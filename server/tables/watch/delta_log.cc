// SPDX-License-Identifier: Apache-2.0
#include "server/tables/watch/delta_log.h"

#include <algorithm>
#include <utility>

namespace ballast {

void DeltaLog::Append(std::shared_ptr<const PublishedDelta> delta, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  bytes_ += delta->bytes();
  entries_.push_back({std::move(delta), now});
  while (bytes_ > max_bytes_ && !entries_.empty()) PopLocked();
}

void DeltaLog::PopLocked() {
  const PublishedDelta& delta = *entries_.front().delta;
  reach_[delta.range - first_] = delta.to_position;
  bytes_ -= delta.bytes();
  entries_.pop_front();
  ++begin_;
}

void DeltaLog::Trim(uint64_t max_bytes, absl::Time since) {
  absl::MutexLock lock(&mutex_);
  max_bytes_ = max_bytes;
  while (!entries_.empty() && (bytes_ > max_bytes_ || entries_.front().published < since)) PopLocked();
}

DeltaLog::Deltas DeltaLog::Read(uint64_t from, size_t max_bytes) const {
  absl::MutexLock lock(&mutex_);
  Deltas read;
  read.lost = from < begin_;
  read.next = std::max(from, begin_);
  size_t bytes = 0;
  while (read.next < begin_ + entries_.size()) {
    const std::shared_ptr<const PublishedDelta>& delta = entries_[read.next - begin_].delta;
    bytes += delta->bytes();
    if (bytes > max_bytes && !read.deltas.empty()) break;
    read.deltas.push_back(delta);
    ++read.next;
  }
  return read;
}

uint64_t DeltaLog::begin() const {
  absl::MutexLock lock(&mutex_);
  return begin_;
}

uint64_t DeltaLog::end() const {
  absl::MutexLock lock(&mutex_);
  return begin_ + entries_.size();
}

std::vector<uint64_t> DeltaLog::reach() const {
  absl::MutexLock lock(&mutex_);
  return reach_;
}

absl::flat_hash_map<uint32_t, uint32_t> DeltaLog::FindChains(
    const absl::flat_hash_map<uint32_t, WatchedPosition>& positions) const {
  absl::flat_hash_map<uint32_t, uint32_t> found;
  absl::MutexLock lock(&mutex_);
  for (const Entry& entry : entries_) {
    const auto wanted = positions.find(entry.delta->range);
    if (wanted == positions.end() || wanted->second.position != entry.delta->from_position) continue;
    for (const PublishedDelta::Chain& chain : entry.delta->chains) {
      if (chain.before == wanted->second.chain) found.emplace(entry.delta->range, chain.id);
    }
  }
  return found;
}

uint64_t DeltaLog::bytes() const {
  absl::MutexLock lock(&mutex_);
  return bytes_;
}

}  // namespace ballast
