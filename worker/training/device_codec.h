// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ballast/v1/tensor.pb.h"
#include "client/encoded_elements.h"
#include "common/trace/timeline_recorder.h"
#include "worker/model/trainable_model.h"

namespace ballast {

// Encodes gradients and decodes values on the devices that have them, so that half the bytes leave a GPU and come to
// it, and the host computes nothing: in bf16 and fp16, with the bits of common/codecs. It takes the tensors that the
// host cannot address, and values of those that are in one place; the others' are the client's to encode. Owns the room
// for encoded elements on the devices, one for both ways, since a gradient has left before values come; and on the
// host. Thread safety: Encode and Decode are for the thread that trains, Download and Upload for any; of one tensor, a
// call at a time.
class DeviceCodec {
 public:
  // `codec` is the job's, less what the host must have as floats. RESOURCE_EXHAUSTED where a device has too little
  // memory. The model and the timeline, which may be null, outlive this.
  static absl::StatusOr<std::unique_ptr<DeviceCodec>> Create(TrainableModel* model, const v1::Codec& codec,
                                                             TimelineRecorder* timeline);

  // The host's memory of them, to be handed to the client; empty for a tensor that this does not take.
  EncodedElements<const char> gradient(size_t index) const;
  EncodedElements<char> values(size_t index);

  // Issues: the gradient into the device's room. Before the host's Download.
  void Encode(size_t index);
  absl::Status Download(size_t index);
  // From `values`; before Decode, which issues: the device's room into the parameter.
  absl::Status Upload(size_t index);
  void Decode(size_t index);

  int64_t DeviceBytes() const;
  int64_t HostBytes() const;

 private:
  // A tensor's elements, two in the place of a float, the last one perhaps alone.
  struct Room {
    std::unique_ptr<Buffer> device;
    std::vector<float> gradient;
    std::vector<float> values;
  };

  DeviceCodec(TrainableModel* model, TimelineRecorder* timeline) : model_(*model), timeline_(timeline) {}

  absl::Status MakeRoom(size_t index);
  size_t EncodedBytes(size_t index) const;

  TrainableModel& model_;
  TimelineRecorder* const timeline_;
  // Not set: that way floats travel.
  std::optional<HalfType> gradients_;
  std::optional<HalfType> values_;
  // By parameter.
  std::vector<Room> rooms_;
};

}  // namespace ballast
