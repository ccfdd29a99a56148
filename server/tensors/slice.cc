// SPDX-License-Identifier: Apache-2.0
#include "server/tensors/slice.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/concurrency/timed_lock.h"
#include "common/status/error_reason.h"

namespace ballast {

std::string Slice::Describe() const { return absl::StrCat("\"", tensor_, "\" slice ", range_.index()); }

bool Slice::HasValuesLocked() const { return !provided_ || weights_->set_checksum().has_value(); }

bool Slice::MayPullLocked(const PullQuery& pull) const {
  return HasValuesLocked() && policy_->MayPull(pull, *weights_);
}

bool Slice::HasValues() const {
  absl::ReaderMutexLock lock(&mutex_);
  return HasValuesLocked();
}

absl::StatusOr<bool> Slice::CheckValues(uint64_t checksum) const {
  absl::ReaderMutexLock lock(&mutex_);
  const std::optional<uint64_t> set = weights_->set_checksum();
  if (set == checksum) return false;
  if (!set.has_value() && !weights_->pushed()) return true;
  return WithReason(v1::ERROR_REASON_VALUES_SET,
                    absl::FailedPreconditionError(
                        absl::StrCat(Describe(), ": values cannot be set: ",
                                     set.has_value() ? "other values were set before" : "it has received a push")),
                    {{"tensor", tensor_}, {"slice", absl::StrCat(range_.index())}});
}

std::vector<WaitList::Ticket> Slice::SetValues(ValueBuffer values, uint64_t checksum) {
  absl::MutexLock lock(&mutex_);
  weights_->SetValues(std::move(values), checksum);
  return TakeReleasedLocked();
}

absl::Status Slice::CheckStep(uint64_t step) const {
  absl::ReaderMutexLock lock(&mutex_);
  if (!HasValuesLocked()) {
    return WithReason(v1::ERROR_REASON_VALUES_MISSING,
                      absl::FailedPreconditionError("got a gradient before SetValues has provided the values"),
                      {{"tensor", tensor_}, {"slice", absl::StrCat(range_.index())}});
  }
  return policy_->CheckStep(step, *weights_);
}

absl::Duration Slice::AwaitOrderLocked(std::optional<uint64_t> order) {
  if (!order.has_value()) return absl::ZeroDuration();
  struct Wanted {
    const uint64_t* changes;
    uint64_t order;
    bool IsDue() const { return *changes == order; }
  } wanted{&changes_, *order};
  absl::Duration waited;
  if (!wanted.IsDue()) {
    const absl::Time began = absl::Now();
    mutex_.Await(absl::Condition(&wanted, &Wanted::IsDue));
    waited = std::max(absl::Now() - began, absl::ZeroDuration());
  }
  ++changes_;
  return waited;
}

Slice::Applied Slice::Offer(const PushTicket& push, uint64_t from_version, const Gradient& gradient,
                            std::optional<uint64_t> order) {
  TimedLock lock(&mutex_);
  Applied applied;
  applied.waited = lock.waited() + AwaitOrderLocked(order);
  const uint64_t before = weights_->version();
  applied.learning_rate = weights_->LearningRate(push.schedule_position);
  applied.disposition = policy_->Offer(push, from_version, gradient, *weights_);
  if (applied.disposition == PushDisposition::kApplied && before > from_version) {
    applied.staleness = before - from_version;
  }
  CountPolicyLocked();
  applied.released = TakeReleasedLocked();
  return applied;
}

std::vector<WaitList::Ticket> Slice::Pause(uint32_t worker, std::optional<uint64_t> order) {
  absl::MutexLock lock(&mutex_);
  AwaitOrderLocked(order);
  policy_->Pause(worker, *weights_);
  CountPolicyLocked();
  return TakeReleasedLocked();
}

Slice::CaughtUp Slice::CatchUp(uint32_t worker, uint64_t version, uint64_t finished, std::optional<uint64_t> order) {
  absl::MutexLock lock(&mutex_);
  AwaitOrderLocked(order);
  const uint64_t skipped = weights_->version() - weights_->applied();
  policy_->CatchUp(worker, version, finished, *weights_);
  CountPolicyLocked();
  return {weights_->version() - weights_->applied() - skipped, TakeReleasedLocked()};
}

std::vector<WaitList::Ticket> Slice::TakeReleasedLocked() {
  std::vector<WaitList::Ticket> tickets;
  while (!waiting_.empty() && MayPullLocked({waiting_.begin()->first, std::nullopt})) {
    tickets.push_back(waiting_.begin()->second);
    waiting_.erase(waiting_.begin());
  }
  return tickets;
}

bool Slice::MayPull(const PullQuery& pull) const {
  absl::ReaderMutexLock lock(&mutex_);
  return MayPullLocked(pull);
}

bool Slice::MayPullOrRelease(const PullQuery& pull, WaitList::Ticket ticket) {
  absl::MutexLock lock(&mutex_);
  if (MayPullLocked(pull)) return true;
  waiting_.emplace(pull.step, ticket);
  return false;
}

void Slice::Forget(const PullQuery& pull, WaitList::Ticket ticket) {
  absl::MutexLock lock(&mutex_);
  waiting_.erase({pull.step, ticket});
}

size_t Slice::waiting() const {
  absl::ReaderMutexLock lock(&mutex_);
  return waiting_.size();
}

std::vector<uint32_t> Slice::Missing(const PullQuery& pull) const {
  absl::ReaderMutexLock lock(&mutex_);
  if (MayPullLocked(pull)) return {};
  return policy_->Missing(pull);
}

PulledValues Slice::Pull(std::optional<uint32_t> worker) {
  absl::MutexLock lock(&mutex_);
  if (worker.has_value()) {
    policy_->OnPull(*worker, *weights_);
    CountPolicyLocked();
  }
  return {weights_->version(), weights_->ShareValues()};
}

SliceState Slice::Share() const {
  absl::ReaderMutexLock lock(&mutex_);
  return {weights_->Share(), policy_->Save()};
}

absl::Status Slice::Restore(SliceState state) {
  absl::MutexLock lock(&mutex_);
  const size_t arrays = weights_->Share().arrays.size();
  if (state.weights.arrays.size() != arrays) {
    return absl::InvalidArgumentError(absl::StrCat(Describe(), ": got weights and ", state.weights.arrays.size() - 1,
                                                   " optimizer slots, want ", arrays - 1));
  }
  for (const ValueBuffer& array : state.weights.arrays) {
    if (array.size() == range_.elements()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(Describe(), ": got ", array.size(), " elements, want ", range_.elements()));
  }
  weights_->Restore(std::move(state.weights));
  absl::Status restored = policy_->Restore(std::move(state.policy), *weights_);
  CountPolicyLocked();
  return restored;
}

}  // namespace ballast
