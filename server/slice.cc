// SPDX-License-Identifier: Apache-2.0
#include "server/slice.h"

#include <algorithm>

namespace ballast {

absl::Status Slice::CheckStep(uint64_t step) const {
  absl::ReaderMutexLock lock(&mutex_);
  return policy_->CheckStep(step, *weights_);
}

Slice::Applied Slice::Offer(const Contribution& contribution, uint64_t from_version) {
  absl::MutexLock lock(&mutex_);
  Applied applied;
  const uint64_t before = weights_->version();
  applied.learning_rate = weights_->learning_rate();
  applied.verdict = policy_->Offer(contribution, *weights_);
  if (applied.verdict != Verdict::kApplied) return applied;
  applied.staleness = before > from_version ? before - from_version : 0;
  const auto released = std::stable_partition(waiting_.begin(), waiting_.end(), [&](const Waiting& waiting) {
    mutex_.AssertHeld();
    return !policy_->MayPull(waiting.step, *weights_);
  });
  for (auto waiting = released; waiting != waiting_.end(); ++waiting) applied.released.push_back(waiting->ticket);
  waiting_.erase(released, waiting_.end());
  return applied;
}

bool Slice::MayPull(uint64_t step) const {
  absl::ReaderMutexLock lock(&mutex_);
  return policy_->MayPull(step, *weights_);
}

bool Slice::MayPullOrRelease(uint64_t step, WaitRoom::Ticket ticket) {
  absl::MutexLock lock(&mutex_);
  if (policy_->MayPull(step, *weights_)) return true;
  waiting_.push_back({step, ticket});
  return false;
}

std::vector<uint32_t> Slice::Missing(uint64_t step) const {
  absl::ReaderMutexLock lock(&mutex_);
  if (policy_->MayPull(step, *weights_)) return {};
  return policy_->Missing();
}

void Slice::Read(absl::FunctionRef<void(uint64_t, absl::Span<const float>)> read) const {
  absl::ReaderMutexLock lock(&mutex_);
  read(weights_->version(), weights_->values());
}

}  // namespace ballast
