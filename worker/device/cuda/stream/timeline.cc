// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/stream/timeline.h"

#include <algorithm>
#include <utility>

namespace ballast {

absl::Status Timeline::NoteEnd() {
  Prune();
  if (issued_ <= (marks_.empty() ? done_ : marks_.back().number)) return absl::OkStatus();
  absl::StatusOr<Event> event = TakeEvent();
  if (!event.ok()) return event.status();
  if (absl::Status status = CudaStatus(cudaEventRecord(event->get(), stream_), "cudaEventRecord"); !status.ok()) {
    return status;
  }
  marks_.push_back({issued_, *std::move(event)});
  return absl::OkStatus();
}

absl::Status Timeline::MakeWait(cudaStream_t stream, uint64_t number) {
  Prune();
  if (number <= done_) return absl::OkStatus();
  auto mark = std::lower_bound(marks_.begin(), marks_.end(), number,
                               [](const Mark& each, uint64_t wanted) { return each.number < wanted; });
  if (mark == marks_.end()) {
    if (absl::Status status = NoteEnd(); !status.ok()) return status;
    mark = marks_.end() - 1;
  }
  return CudaStatus(cudaStreamWaitEvent(stream, mark->event.get()), "cudaStreamWaitEvent");
}

void Timeline::Prune() {
  while (!marks_.empty() && cudaEventQuery(marks_.front().event.get()) == cudaSuccess) {
    done_ = marks_.front().number;
    spare_.push_back(std::move(marks_.front().event));
    marks_.pop_front();
  }
}

absl::StatusOr<Event> Timeline::TakeEvent() {
  if (spare_.empty()) return MakeEvent();
  Event event = std::move(spare_.back());
  spare_.pop_back();
  return event;
}

}  // namespace ballast
