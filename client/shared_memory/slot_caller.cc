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

// Limits how long a ring that the server's memory lost delays a response.
constexpr absl::Duration kLongestWait = absl::Seconds(1);

grpc::Status ErrorOf(const SlotResponse& response, absl::Span<char> slot) {
  return DecodeDirectError(response.code, MessageAt({response.offset, response.bytes}, slot).value_or(""));
}

}  // namespace

void SlotCaller::Run() {
  DoorbellListener bell(region_->client_bell());
  while (true) {
    const uint32_t seen = region_->client_bell().rings();
    const absl::Time now = absl::Now();
    absl::Time next = now + kLongestWait;
    std::vector<Ended> ended;
    {
      absl::MutexLock lock(&mutex_);
      ended = TakeEndedLocked(now, next);
      if (over_ && ended.empty()) return;
    }
    for (Ended& call : ended) std::move(call.done)(call.status, call.response);
    if (ended.empty()) bell.Wait(seen, next - now);
  }
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
  absl::MutexLock lock(&mutex_);
  if (over_) return 0;
  const uint64_t number = ++begun_;
  calls_[slot] = {number, deadline, false, std::move(done)};
  // Under the lock, because a call that has ended by now no longer owns the slot.
  region_->Call(slot, request);
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
}

}  // namespace ballast
