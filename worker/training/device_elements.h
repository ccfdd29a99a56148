// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "client/elements/element_copier.h"
#include "common/trace/timeline_recorder.h"
#include "worker/model/trainable_model.h"

namespace ballast {

// Copies a parameter's gradient from its device for the client, and its values to it. Owns neither. Does not know where
// the client has the other copy: in a message in shared memory, or in memory for one to be sent.
// Thread safety: all methods may be called from any thread while the model permits it (see TrainableModel).
class DeviceElements : public ElementCopier {
 public:
  // `layer` names the gradient's copies in the timeline, which may be null. The model and the timeline outlive this.
  // The model has one copy of the parameter.
  DeviceElements(TrainableModel* model, size_t index, std::string layer, TimelineRecorder* timeline);

  absl::Status Fetch(size_t offset, absl::Span<float> to) override;
  absl::Status Store(size_t offset, absl::Span<const float> from) override ABSL_LOCKS_EXCLUDED(storing_);

  // Waits until the device has computed the gradient.
  absl::Status AwaitGradient() const;

  // Waits for a Store that is running; later ones do nothing.
  void Close() ABSL_LOCKS_EXCLUDED(storing_);

 private:
  absl::Status Named(const absl::Status& status) const;

  const DeviceTensor gradient_;
  const DeviceTensor value_;
  const std::string layer_;
  const std::string name_;
  TimelineRecorder* const timeline_;
  // Held during an upload, because a device permits one at a time to a buffer.
  absl::Mutex storing_;
  bool closed_ ABSL_GUARDED_BY(storing_) = false;
};

}  // namespace ballast
