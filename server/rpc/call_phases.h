// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "ballast/v1/parameter_service.pb.h"
#include "common/concurrency/clock.h"
#include "common/metrics/histogram.h"
#include "common/trace/call_timeline.h"

namespace ballast {

// Part of a call's time in the server; see ballast.v1.GetStatusResponse.CallPhases.
enum class CallPhase { kQueue, kApply, kWait, kSend };

// Name in the proto and in traces: "queue".
inline absl::string_view CallPhaseName(CallPhase phase) {
  constexpr std::array<absl::string_view, 4> kNames = {"queue", "apply", "wait", "send"};
  return kNames[static_cast<size_t>(phase)];
}

// Owns the distributions of the time that calls of one method spent in each phase, in microseconds. Thread safety: all
// methods may be called from any thread.
class CallPhases {
 public:
  // By CallPhase.
  using Spent = std::array<absl::Duration, 4>;

  // `method`: its name in GetStatusResponse.
  explicit CallPhases(absl::string_view method) : method_(method) {}

  // Adds a call that has ended.
  void Add(const Spent& spent) {
    for (size_t phase = 0; phase < spent.size(); ++phase) {
      phases_[phase].Add(static_cast<uint64_t>(absl::ToInt64Microseconds(spent[phase])));
    }
  }

  v1::GetStatusResponse::CallPhases ToProto() const {
    v1::GetStatusResponse::CallPhases proto;
    proto.set_method(method_);
    *proto.mutable_queue() = Of(CallPhase::kQueue).ToProto();
    *proto.mutable_apply() = Of(CallPhase::kApply).ToProto();
    *proto.mutable_wait() = Of(CallPhase::kWait).ToProto();
    *proto.mutable_send() = Of(CallPhase::kSend).ToProto();
    return proto;
  }

 private:
  const Histogram& Of(CallPhase phase) const { return phases_[static_cast<size_t>(phase)]; }

  const std::string method_;
  // By CallPhase.
  std::array<Histogram, 4> phases_;
};

// Owns the time that one call has spent so far, by phase, and each of its stays if the call is traced. Invariant: a
// call is in one phase at a time, and may return to an earlier one. Reads the clock once for each Enter and End. Thread
// safety: none; a call runs in one thread at a time.
class CallTimer {
 public:
  // Both must outlive the timer. Null `phases`: the call is not measured, and the clock is read only if it is traced.
  CallTimer(CallPhases* phases, const Clock* clock) : phases_(phases), clock_(clock) {}

  // Also keeps each stay in a phase.
  void KeepStays() { keeps_stays_ = true; }
  // The stays that have ended, in their order.
  std::vector<CallSpan::Part> TakeStays() { return std::move(stays_); }

  // Begins a phase, and ends the one before.
  void Enter(CallPhase phase) {
    if (phases_ == nullptr && !keeps_stays_) return;
    const absl::Time now = clock_->Now();
    if (entered_ != absl::InfiniteFuture()) Add(now);
    phase_ = phase;
    entered_ = now;
  }

  // Adds the call to the distributions, unless it has entered no phase. Call it once.
  void End() {
    if (entered_ == absl::InfiniteFuture()) return;
    Add(clock_->Now());
    if (phases_ != nullptr) phases_->Add(spent_);
  }

 private:
  void Add(absl::Time now) {
    // The machine's clock may have been set back.
    spent_[static_cast<size_t>(phase_)] += std::max(now - entered_, absl::ZeroDuration());
    if (keeps_stays_) stays_.push_back({CallPhaseName(phase_), entered_, now});
  }

  CallPhases* const phases_;
  const Clock* const clock_;
  bool keeps_stays_ = false;
  CallPhase phase_ = CallPhase::kQueue;
  // Begin of the phase; InfiniteFuture before the first one.
  absl::Time entered_ = absl::InfiniteFuture();
  CallPhases::Spent spent_ = {};
  std::vector<CallSpan::Part> stays_;
};

}  // namespace ballast
