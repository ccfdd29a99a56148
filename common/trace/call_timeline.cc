// SPDX-License-Identifier: Apache-2.0
#include "common/trace/call_timeline.h"

#include <utility>

namespace ballast {

void CallTimeline::Add(CallSpan call) {
  absl::MutexLock lock(&mutex_);
  if (calls_.size() >= most_calls_) {
    ++left_out_;
    return;
  }
  calls_.push_back(std::move(call));
}

CallTimeline::Recording CallTimeline::Copy() const {
  absl::MutexLock lock(&mutex_);
  return {calls_, left_out_};
}

CallSpan CallTracer::Begin(absl::string_view method) const {
  CallSpan call;
  call.method = std::string(method);
  call.context = trace_;
  call.context.span = NewSpanId();
  call.parent = trace_.span;
  if (timeline_ == nullptr) return call;
  call.context.sampled = timeline_->on();
  if (call.context.sampled) call.begin = timeline_->Now();
  return call;
}

void CallTracer::End(CallSpan call) {
  if (timeline_ == nullptr || !call.context.sampled) return;
  call.end = timeline_->Now();
  calls_.Add(std::move(call));
}

}  // namespace ballast
