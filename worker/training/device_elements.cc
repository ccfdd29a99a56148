// SPDX-License-Identifier: Apache-2.0
#include "worker/training/device_elements.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace ballast {

DeviceElements::DeviceElements(TrainableModel* model, size_t index, std::string layer, TimelineRecorder* timeline)
    : gradient_(model->DeviceGradient(index)),
      value_(*model->DeviceParameter(index)),
      layer_(std::move(layer)),
      name_(model->parameters()[index].name),
      timeline_(timeline) {}

absl::Status DeviceElements::Named(const absl::Status& status) const {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("device ", gradient_.on.name, ": ", status.message()));
}

absl::Status DeviceElements::Fetch(size_t offset, absl::Span<float> to) {
  const TimelineScope span(timeline_, TimelineRow::kCopies, "download", layer_, to.size() * sizeof(float));
  return Named(gradient_.on.device->Download(*gradient_.elements.buffer, offset, to));
}

absl::Status DeviceElements::Store(size_t offset, absl::Span<const float> from) {
  absl::MutexLock lock(&storing_);
  if (closed_) return absl::OkStatus();
  const TimelineScope span(timeline_, TimelineRow::kCopies, "upload", name_, from.size() * sizeof(float));
  return Named(value_.on.device->Upload(from, *value_.elements.buffer, offset));
}

absl::Status DeviceElements::AwaitGradient() const {
  float first = 0;
  return Named(gradient_.on.device->Download(*gradient_.elements.buffer, 0, absl::MakeSpan(&first, 1)));
}

void DeviceElements::Close() {
  absl::MutexLock lock(&storing_);
  closed_ = true;
}

}  // namespace ballast
