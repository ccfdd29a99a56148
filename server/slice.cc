// SPDX-License-Identifier: Apache-2.0
#include "server/slice.h"

#include <algorithm>

namespace ballast {

absl::Status Slice::CheckStep(uint64_t step) const {
  absl::ReaderMutexLock lock(&mutex_);
  return policy_->CheckStep(step, *weights_);
}

Slice::Applied Slice::Offer(const Contribution& contribution) {
  absl::MutexLock lock(&mutex_);
  Applied applied;
  const uint64_t before = weights_->version();
  applied.learning_rate = weights_->learning_rate();
  applied.verdict = policy_->Offer(contribution, *weights_);
  if (applied.verdict == Verdict::kApplied && before > contribution.from_version) {
    applied.staleness = before - contribution.from_version;
  }
  applied.released = TakeReleasedLocked();
  return applied;
}

std::vector<WaitRoom::Ticket> Slice::Pause(uint32_t worker) {
  absl::MutexLock lock(&mutex_);
  policy_->Pause(worker, *weights_);
  return TakeReleasedLocked();
}

std::vector<WaitRoom::Ticket> Slice::TakeReleasedLocked() {
  std::vector<WaitRoom::Ticket> tickets;
  if (waiting_.empty()) return tickets;
  const auto released = std::stable_partition(waiting_.begin(), waiting_.end(), [&](const Waiting& waiting) {
    mutex_.AssertHeld();
    return !policy_->MayPull(waiting.pull, *weights_);
  });
  for (auto waiting = released; waiting != waiting_.end(); ++waiting) tickets.push_back(waiting->ticket);
  waiting_.erase(released, waiting_.end());
  return tickets;
}

bool Slice::MayPull(const PullTerms& pull) const {
  absl::ReaderMutexLock lock(&mutex_);
  return policy_->MayPull(pull, *weights_);
}

bool Slice::MayPullOrRelease(const PullTerms& pull, WaitRoom::Ticket ticket) {
  absl::MutexLock lock(&mutex_);
  if (policy_->MayPull(pull, *weights_)) return true;
  waiting_.push_back({pull, ticket});
  return false;
}

std::vector<uint32_t> Slice::Missing(const PullTerms& pull) const {
  absl::ReaderMutexLock lock(&mutex_);
  if (policy_->MayPull(pull, *weights_)) return {};
  return policy_->Missing(pull);
}

Slice::Snapshot Slice::Pull(std::optional<uint32_t> worker) {
  absl::MutexLock lock(&mutex_);
  if (worker.has_value()) policy_->OnPull(*worker, *weights_);
  return {weights_->version(), weights_->Share()};
}

}  // namespace ballast
