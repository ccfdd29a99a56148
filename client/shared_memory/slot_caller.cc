// SPDX-License-Identifier: Apache-2.0
#include "client/shared_memory/slot_caller.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/time/clock.h"
#include "common/shared_memory/shared_message.h"
#include "common/wire/direct_call.h"

namespace ballast {
namespace {

grpc::Status ErrorOf(const SlotResponse& response, absl::Span<char> slot) {
  return DecodeDirectError(response.code, MessageAt({response.offset, response.bytes}, slot).value_or(""));
}

}  // namespace

void SlotCaller::Run() {
  DoorbellListener bell(region_->client_bell());
  while (true) {
    const uint32_t seen = region_->client_bell().rings();
    const absl::Time now = absl::Now();
    absl::Time next = now + options_.longest_wait;
    if (RunEnded(now, next)) continue;
    if (is_over()) return;
    const uint32_t unparked = parked_.unparked();
    if (StaysAway(now)) {
      parked_.Wait(unparked, std::min(next - now, options_.longest_absence));
    } else {
      bell.Wait(seen, next - now);
    }
  }
}

bool SlotCaller::StaysAway(absl::Time now) {
  absl::MutexLock lock(&mutex_);
  const bool helped = helper_ != std::thread::id();
  away_ = helped || (!awaited_ && now - helped_at_ < options_.longest_absence && !options_.processor_is_free());
  return away_;
}

bool SlotCaller::RunEnded(absl::Time now, absl::Time& next) {
  std::vector<Ended> ended;
  {
    absl::MutexLock lock(&mutex_);
    ended = TakeEndedLocked(now, next);
  }
  for (Ended& call : ended) std::move(call.done)(call.status, call.response);
  return !ended.empty();
}

std::optional<absl::Duration> SlotCaller::Help(absl::FunctionRef<bool()> ready, absl::Duration timeout) {
  {
    absl::MutexLock lock(&mutex_);
    if (over_ || helper_ != std::thread::id()) return std::nullopt;
    helper_ = std::this_thread::get_id();
  }
  Doorbell& bell = region_->client_bell();
  parked_.Park();
  absl::Duration spent;
  const absl::Time end = absl::Now() + timeout;
  uint32_t seen = 0;
  while (true) {
    // Taken before it looks for responses: for those that come later, Unpark wakes Run's thread.
    seen = bell.rings();
    const absl::Time now = absl::Now();
    absl::Time next = std::min(end, now + options_.longest_wait);
    const bool received = RunEnded(now, next);
    if (received) spent += absl::Now() - now;
    // Looked at after `helper_` and `seen` are set: who makes it true later also rings.
    if (ready()) break;
    if (received) continue;
    if (now >= end || is_over()) break;
    helpers_bell_.Wait(seen, next - now);
  }
  bool returns = true;
  {
    absl::MutexLock lock(&mutex_);
    helper_ = std::thread::id();
    helped_at_ = absl::Now();
    looked_ = seen;
    // Awake for each response, Run's thread would take the processor from one that computes.
    returns = !away_ || awaited_ || options_.processor_is_free();
  }
  if (returns) parked_.Unpark(seen);
  return spent;
}

void SlotCaller::Receive() {
  const absl::Time now = absl::Now();
  {
    absl::MutexLock lock(&mutex_);
    if (helper_ != std::thread::id() || now - helped_at_ >= options_.longest_absence) return;
    helped_at_ = now;
    looked_ = region_->client_bell().rings();
  }
  absl::Time next = now;
  RunEnded(now, next);
}

void SlotCaller::SetAwaited(bool awaited) {
  absl::MutexLock lock(&mutex_);
  if (awaited_ == awaited) return;
  awaited_ = awaited;
  // Does not wake it yet.
  if (awaited && away_ && helper_ == std::thread::id()) parked_.Unpark(looked_);
}

void SlotCaller::Notify() {
  {
    absl::MutexLock lock(&mutex_);
    if (helper_ == std::thread::id() || helper_ == std::this_thread::get_id()) return;
  }
  region_->client_bell().Ring();
}

std::vector<SlotCaller::Ended> SlotCaller::TakeEndedLocked(absl::Time now, absl::Time& next) {
  std::vector<Ended> ended;
  for (uint32_t slot = 0; slot < calls_.size(); ++slot) {
    if (calls_[slot].number == 0) continue;
    if (std::optional<Ended> end = EndOfLocked(slot, now); end.has_value()) {
      ended.push_back(*std::move(end));
      calls_[slot] = Call();
    } else {
      next = std::min(next, calls_[slot].deadline);
    }
  }
  return ended;
}

std::optional<SlotCaller::Ended> SlotCaller::EndOfLocked(uint32_t slot, absl::Time now) {
  Call& call = calls_[slot];
  if (const std::optional<SlotResponse> response = region_->TakeResponse(slot); response.has_value()) {
    if (response->code == grpc::OK) return Ended{std::move(call.done), grpc::Status::OK, *response};
    return Ended{std::move(call.done), ErrorOf(*response, region_->Slot(slot)), *response};
  }
  if (over_) {
    region_->WithdrawRequest(slot);
    return Ended{std::move(call.done), why_, {}};
  }
  const bool late = now >= call.deadline;
  if (!late && !call.cancelled) return std::nullopt;
  region_->CancelCall(slot);
  region_->WithdrawRequest(slot);
  return Ended{std::move(call.done),
               late ? grpc::Status(grpc::DEADLINE_EXCEEDED, "Deadline Exceeded") : grpc::Status::CANCELLED,
               {}};
}

uint64_t SlotCaller::Begin(uint32_t slot, const SlotRequest& request, absl::Time deadline, Done done) {
  uint64_t number = 0;
  {
    absl::MutexLock lock(&mutex_);
    if (over_) return 0;
    number = ++begun_;
    calls_[slot] = {number, deadline, false, std::move(done)};
    // Under the lock, because a call that has ended by now no longer owns the slot.
    region_->WriteCall(slot, request);
  }
  // Not under the lock: the thread that this wakes, or the response's, may need it at once.
  region_->server_bell().Ring();
  return number;
}

void SlotCaller::Cancel(uint32_t slot, uint64_t number) {
  {
    absl::MutexLock lock(&mutex_);
    if (calls_[slot].number != number) return;
    calls_[slot].cancelled = true;
  }
  region_->client_bell().Ring();
}

void SlotCaller::End(const grpc::Status& why) {
  {
    absl::MutexLock lock(&mutex_);
    if (over_) return;
    over_ = true;
    why_ = why;
  }
  region_->client_bell().Ring();
  parked_.Wake();
}

}  // namespace ballast
