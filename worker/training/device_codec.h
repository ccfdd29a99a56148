// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ballast/v1/tensor.pb.h"
#include "client/elements/encoded_elements.h"
#include "common/trace/timeline_recorder.h"
#include "worker/model/trainable_model.h"

namespace ballast {

// Encodes gradients and decodes values on the devices that hold them, in bf16 and fp16, with the same bits as
// common/codecs. That halves the bytes between GPU and host, and leaves the host nothing to compute. It handles
// gradients that the host cannot address, and such values if they are on one device; the client encodes the others.
// Owns the buffers for encoded elements on the host, and one per tensor on the device, which serves both directions
// because a gradient has left before values arrive. Thread safety: the training thread calls Encode and Decode, any
// thread calls Encoded and Upload; one call at a time per tensor.
class DeviceCodec {
 public:
  // `codec` is the job's, without the directions that the host needs in fp32. RESOURCE_EXHAUSTED if a device has too
  // little memory. The model and the timeline, which may be null, must outlive this.
  static absl::StatusOr<std::unique_ptr<DeviceCodec>> Create(TrainableModel* model, const v1::Codec& codec,
                                                             TimelineRecorder* timeline);

  // Host buffers of the tensor to pass to the client; empty for a tensor that this codec does not handle.
  EncodedElements<const char> gradient(size_t index) const;
  EncodedElements<char> values(size_t index);

  // Issues the encoding of the gradient into the device's buffer, which the copy returned by Encoded then brings to the
  // host.
  void Encode(size_t index);
  HostCopy Encoded(size_t index) const;
  // Copies `values` to the device's buffer, which Decode then issues to be decoded into the parameter.
  absl::Status Upload(size_t index);
  void Decode(size_t index);

  int64_t DeviceBytes() const;
  int64_t HostBytes() const;
  // The part of HostBytes that is pinned.
  int64_t PinnedBytes() const;

 private:
  // Buffers for one tensor's encoded elements, two per float.
  struct Room {
    std::unique_ptr<Buffer> device;
    // Null for a direction that this codec does not handle.
    std::unique_ptr<HostMemory> gradient;
    std::unique_ptr<HostMemory> values;
  };

  DeviceCodec(TrainableModel* model, TimelineRecorder* timeline) : model_(*model), timeline_(timeline) {}

  absl::Status MakeRoom(size_t index);
  size_t EncodedBytes(size_t index) const;
  int64_t SumBytes(absl::FunctionRef<bool(const HostMemory&)> counts) const;

  TrainableModel& model_;
  TimelineRecorder* const timeline_;
  // nullopt: that direction stays in fp32.
  std::optional<HalfType> gradients_;
  std::optional<HalfType> values_;
  // Indexed by parameter.
  std::vector<Room> rooms_;
};

}  // namespace ballast
