// SPDX-License-Identifier: Apache-2.0
#include "common/trace/timeline_recorder.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace ballast {

absl::string_view TimelineRowName(TimelineRow row) {
  constexpr absl::string_view kNames[kTimelineRows] = {"steps", "compute", "copies", "push", "pull", "wait", "gpu"};
  return kNames[static_cast<int>(row)];
}

absl::StatusOr<StepRange> ParseStepRange(absl::string_view text) {
  const std::vector<absl::string_view> ends = absl::StrSplit(text, '-');
  StepRange range;
  if (ends.size() == 2 && absl::SimpleAtoi(ends[0], &range.first) && absl::SimpleAtoi(ends[1], &range.last) &&
      range.first >= 1 && range.first <= range.last) {
    return range;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("got \"", text, "\", want the first and the last step, from 1, as in 1-200"));
}

void TimelineRecorder::BeginStep(uint64_t step) {
  step_.store(step, std::memory_order_relaxed);
  on_.store(step >= steps_.first && step <= steps_.last, std::memory_order_relaxed);
}

void TimelineRecorder::Add(TimelineSpan span, absl::string_view name) {
  absl::MutexLock lock(&mutex_);
  if (spans_.size() >= most_spans_) {
    ++left_out_;
    return;
  }
  const auto [known, is_new] = name_index_.try_emplace(std::string(name), static_cast<uint32_t>(names_.size()));
  if (is_new) names_.emplace_back(name);
  span.name = known->second;
  spans_.push_back(span);
}

TimelineRecorder::Recording TimelineRecorder::Copy() const {
  absl::MutexLock lock(&mutex_);
  return {spans_, names_, steps_, left_out_};
}

void TimelineScope::End() {
  const absl::Time end = timeline_->Now();
  const std::string name = object_.empty() ? std::string(verb_) : absl::StrCat(verb_, " ", object_);
  timeline_->Add({.row = row_, .begin = begin_, .end = end, .step = step_, .bytes = bytes_}, name);
}

}  // namespace ballast
