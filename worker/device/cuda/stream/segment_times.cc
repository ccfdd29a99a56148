// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/stream/segment_times.h"

#include <utility>

namespace ballast {

void SegmentTimes::Record(TimelineRecorder* timeline) {
  if (timeline_ != nullptr) Check(AddEnded(/*wait=*/true));
  timeline_ = timeline;
}

void SegmentTimes::Open(absl::string_view name) {
  if (timeline_ == nullptr || !timeline_->on()) return;
  if (anchor_ == nullptr) Check(SetAnchor());
  if (timeline_ != nullptr) open_ = Timed{.name = std::string(name), .step = timeline_->step()};
}

void SegmentTimes::Begin() {
  if (open_.has_value() && open_->begin == nullptr) Check(Mark(open_->begin));
}

void SegmentTimes::Close() {
  if (!open_.has_value()) return;
  Timed timed = *std::exchange(open_, std::nullopt);
  // A segment without operations takes no time.
  if (timed.begin == nullptr) return;
  absl::Status status = Mark(timed.end);
  if (status.ok()) {
    issued_.push_back(std::move(timed));
    status = AddEnded(/*wait=*/false);
  }
  Check(status);
}

absl::Status SegmentTimes::SetAnchor() {
  // In a stream without work, the event is reached at once.
  absl::StatusOr<Stream> stream = MakeStream();
  if (!stream.ok()) return stream.status();
  absl::StatusOr<Event> event = MakeEvent(cudaEventDefault);
  if (!event.ok()) return event.status();
  absl::Status status = CudaStatus(cudaEventRecord(event->get(), stream->get()), "cudaEventRecord");
  status.Update(CudaStatus(cudaEventSynchronize(event->get()), "cudaEventSynchronize"));
  if (!status.ok()) return status;
  anchor_time_ = timeline_->Now();
  anchor_ = *std::move(event);
  return absl::OkStatus();
}

absl::Status SegmentTimes::Mark(Event& event) {
  if (spare_.empty()) {
    absl::StatusOr<Event> made = MakeEvent(cudaEventDefault);
    if (!made.ok()) return made.status();
    spare_.push_back(*std::move(made));
  }
  event = std::move(spare_.back());
  spare_.pop_back();
  return CudaStatus(cudaEventRecord(event.get(), stream_), "cudaEventRecord");
}

absl::Status SegmentTimes::AddEnded(bool wait) {
  while (!issued_.empty()) {
    Timed& first = issued_.front();
    if (wait) {
      absl::Status status = CudaStatus(cudaEventSynchronize(first.end.get()), "cudaEventSynchronize");
      if (!status.ok()) return status;
    } else if (cudaEventQuery(first.end.get()) != cudaSuccess) {
      return absl::OkStatus();
    }
    const absl::StatusOr<absl::Time> begin = TimeOf(first.begin), end = TimeOf(first.end);
    if (!begin.ok()) return begin.status();
    if (!end.ok()) return end.status();
    timeline_->Add({.row = TimelineRow::kGpu, .begin = *begin, .end = *end, .step = first.step}, first.name);
    spare_.push_back(std::move(first.begin));
    spare_.push_back(std::move(first.end));
    issued_.pop_front();
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::Time> SegmentTimes::TimeOf(const Event& event) const {
  float milliseconds = 0;
  const absl::Status status =
      CudaStatus(cudaEventElapsedTime(&milliseconds, anchor_.get(), event.get()), "cudaEventElapsedTime");
  if (!status.ok()) return status;
  return anchor_time_ + absl::Milliseconds(milliseconds);
}

void SegmentTimes::Check(const absl::Status& status) {
  if (status.ok()) return;
  timeline_ = nullptr;
  open_.reset();
  issued_.clear();
}

}  // namespace ballast
