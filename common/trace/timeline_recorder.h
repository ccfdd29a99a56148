// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/concurrency/clock.h"

namespace ballast {

// Kinds of worker activity, each shown as one row, in this order. kCompute is timed by the host, which for a GPU only
// issues operations; kGpu is timed by the GPU.
enum class TimelineRow { kSteps, kCompute, kCopies, kPush, kPull, kWait, kGpu };
inline constexpr int kTimelineRows = 7;

// Name as a viewer shows it: "compute".
absl::string_view TimelineRowName(TimelineRow row);

// Range of recorded steps, from 1, both ends included.
struct StepRange {
  uint64_t first = 1;
  uint64_t last = 200;
};

// Parses "1-200". INVALID_ARGUMENT states got and want.
absl::StatusOr<StepRange> ParseStepRange(absl::string_view text);

// One activity, from `begin` to `end`.
struct TimelineSpan {
  TimelineRow row = TimelineRow::kSteps;
  // Index into Recording::names.
  uint32_t name = 0;
  absl::Time begin;
  absl::Time end;
  // 0 before the first step.
  uint64_t step = 0;
  // Bytes transferred; 0 if none.
  uint64_t bytes = 0;
};

// Owns the spans of selected steps of a process, timed by the machine's clock so that those of several processes line
// up. Invariant: memory is bounded; spans beyond `most_spans` are counted and dropped. Does not write files. Thread
// safety: all methods may be called from any thread.
class TimelineRecorder {
 public:
  // 12 MiB of spans.
  static constexpr size_t kMostSpans = size_t{1} << 18;

  struct Recording {
    // Approximately in the order in which the spans ended.
    std::vector<TimelineSpan> spans;
    std::vector<std::string> names;
    StepRange steps;
    uint64_t left_out = 0;
  };

  explicit TimelineRecorder(const StepRange& steps, Clock* clock = Clock::Real(), size_t most_spans = kMostSpans)
      : steps_(steps), clock_(*clock), most_spans_(most_spans), on_(steps.first <= 1) {}

  // Assigns later spans to this step, from 1.
  void BeginStep(uint64_t step);
  // Returns true if the current step is recorded; otherwise callers need not read the clock.
  bool on() const { return on_.load(std::memory_order_relaxed); }
  uint64_t step() const { return step_.load(std::memory_order_relaxed); }
  absl::Time Now() const { return clock_.Now(); }

  // Also records while off, because a span that began in a recorded step may end after it. `name` replaces span.name.
  void Add(TimelineSpan span, absl::string_view name);

  Recording Copy() const;

 private:
  const StepRange steps_;
  Clock& clock_;
  const size_t most_spans_;
  std::atomic<bool> on_;
  std::atomic<uint64_t> step_{0};

  mutable absl::Mutex mutex_;
  std::vector<TimelineSpan> spans_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> names_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, uint32_t> name_index_ ABSL_GUARDED_BY(mutex_);
  uint64_t left_out_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Adds a span that lasts for this object's lifetime, if the timeline exists and is on; otherwise costs one branch.
class TimelineScope {
 public:
  // Names the span "`verb` `object`", or only `verb`. Both must outlive this object.
  TimelineScope(TimelineRecorder* timeline, TimelineRow row, absl::string_view verb, absl::string_view object = "",
                uint64_t bytes = 0)
      : timeline_(timeline != nullptr && timeline->on() ? timeline : nullptr),
        row_(row),
        bytes_(bytes),
        verb_(verb),
        object_(object) {
    if (timeline_ == nullptr) return;
    step_ = timeline_->step();
    begin_ = timeline_->Now();
  }
  ~TimelineScope() {
    if (timeline_ != nullptr) End();
  }
  TimelineScope(const TimelineScope&) = delete;
  TimelineScope& operator=(const TimelineScope&) = delete;

 private:
  void End();

  TimelineRecorder* const timeline_;
  const TimelineRow row_;
  const uint64_t bytes_;
  const absl::string_view verb_;
  const absl::string_view object_;
  uint64_t step_ = 0;
  absl::Time begin_;
};

}  // namespace ballast
