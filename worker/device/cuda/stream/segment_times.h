// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/trace/timeline_recorder.h"
#include "worker/device/cuda/stream/cuda_status.h"

namespace ballast {

// Adds to a timeline when the segments of a stream ran, by the GPU's clock: events in the stream enclose each segment.
// A segment's time begins when the stream has waited for the uploads to its first operation, or to all of them if the
// segment is a graph; it includes pauses in which the host had not issued the next operation. An error of CUDA ends
// the recording. Thread safety: none; one thread issues the stream's operations.
class SegmentTimes {
 public:
  explicit SegmentTimes(cudaStream_t stream) : stream_(stream) {}

  // Null waits for the segments so far, adds them and ends the recording. The timeline must stay until then.
  void Record(TimelineRecorder* timeline);

  // Call these before and after issuing a segment.
  void Open(absl::string_view name);
  void Close();
  // Call it before each operation; the first one in a segment begins the segment's time.
  void Begin();

 private:
  struct Timed {
    std::string name;
    uint64_t step = 0;
    // Null until recorded.
    Event begin;
    Event end;
  };

  absl::Status SetAnchor();
  absl::Status Mark(Event& event);
  // Adds segments that have ended; if `wait`, all.
  absl::Status AddEnded(bool wait);
  absl::StatusOr<absl::Time> TimeOf(const Event& event) const;
  // After an error, records nothing more.
  void Check(const absl::Status& status);

  const cudaStream_t stream_;
  TimelineRecorder* timeline_ = nullptr;
  // An event and its time by the timeline's clock, from which the times of all others are counted.
  Event anchor_;
  absl::Time anchor_time_;
  std::optional<Timed> open_;
  // In stream order.
  std::deque<Timed> issued_;
  std::vector<Event> spare_;
};

}  // namespace ballast
