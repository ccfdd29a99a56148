// SPDX-License-Identifier: Apache-2.0
#include "worker/training/device_codec.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

std::optional<HalfType> HalfTypeOf(v1::Encoding encoding) {
  if (encoding == v1::ENCODING_BF16) return HalfType::kBf16;
  if (encoding == v1::ENCODING_FP16) return HalfType::kFp16;
  return std::nullopt;
}

v1::Encoding EncodingOf(HalfType type) { return type == HalfType::kBf16 ? v1::ENCODING_BF16 : v1::ENCODING_FP16; }

// Number of floats that hold `elements` 16-bit elements.
int64_t Places(int64_t elements) { return (elements + 1) / 2; }

absl::Status Named(const NamedDevice& device, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("device ", device.name, ": ", status.message()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceCodec>> DeviceCodec::Create(TrainableModel* model, const v1::Codec& codec,
                                                                 TimelineRecorder* timeline) {
  std::unique_ptr<DeviceCodec> made(new DeviceCodec(model, timeline));
  made->gradients_ = HalfTypeOf(codec.gradients());
  made->values_ = HalfTypeOf(codec.values());
  made->rooms_.resize(model->parameters().size());
  for (size_t i = 0; i < made->rooms_.size(); ++i) {
    if (absl::Status status = made->MakeRoom(i); !status.ok()) return status;
  }
  return made;
}

absl::Status DeviceCodec::MakeRoom(size_t index) {
  const bool encodes = gradients_.has_value() && model_.HostGradient(index).empty();
  const bool decodes =
      values_.has_value() && model_.HostParameter(index).empty() && model_.DeviceParameter(index).has_value();
  if (!encodes && !decodes) return absl::OkStatus();
  // A parameter and its gradient are on the same device.
  const NamedDevice on = model_.DeviceGradient(index).on;
  const int64_t places = Places(model_.parameters()[index].elements);
  absl::StatusOr<std::unique_ptr<Buffer>> memory = on.device->Allocate(places);
  if (!memory.ok()) {
    return absl::Status(
        memory.status().code(),
        absl::StrCat("device ", on.name, ": no memory for the 16-bit copy of \"", model_.parameters()[index].name,
                     "\", want codec fp32 or a smaller batch: ", memory.status().message()));
  }
  rooms_[index].device = *std::move(memory);
  if (encodes) rooms_[index].gradient = on.device->AllocateHost(places);
  if (decodes) rooms_[index].values = on.device->AllocateHost(places);
  return absl::OkStatus();
}

size_t DeviceCodec::EncodedBytes(size_t index) const {
  return model_.parameters()[index].elements * EncodedElements<char>::kBytesEach;
}

EncodedElements<const char> DeviceCodec::gradient(size_t index) const {
  HostMemory* const places = rooms_[index].gradient.get();
  if (places == nullptr) return {};
  return {EncodingOf(*gradients_), {reinterpret_cast<const char*>(places->values().data()), EncodedBytes(index)}};
}

EncodedElements<char> DeviceCodec::values(size_t index) {
  HostMemory* const places = rooms_[index].values.get();
  if (places == nullptr) return {};
  return {EncodingOf(*values_), {reinterpret_cast<char*>(places->values().data()), EncodedBytes(index)}};
}

void DeviceCodec::Encode(size_t index) {
  const DeviceTensor gradient = model_.DeviceGradient(index);
  gradient.on.device->Narrow(*gradients_, gradient.elements, *rooms_[index].device);
}

HostCopy DeviceCodec::Encoded(size_t index) const {
  const Room& room = rooms_[index];
  return {room.device.get(), room.gradient->values()};
}

absl::Status DeviceCodec::Upload(size_t index) {
  const TimelineScope span(timeline_, TimelineRow::kCopies, "upload", model_.parameters()[index].name,
                           EncodedBytes(index));
  const Room& room = rooms_[index];
  const NamedDevice on = model_.DeviceGradient(index).on;
  return Named(on, on.device->Upload(room.values->values(), *room.device, 0));
}

void DeviceCodec::Decode(size_t index) {
  const DeviceTensor parameter = *model_.DeviceParameter(index);
  parameter.on.device->Widen(*values_, *rooms_[index].device, parameter.elements);
}

int64_t DeviceCodec::DeviceBytes() const {
  int64_t floats = 0;
  for (const Room& room : rooms_) floats += room.device == nullptr ? 0 : room.device->size();
  return floats * static_cast<int64_t>(sizeof(float));
}

int64_t DeviceCodec::HostBytes() const {
  return SumBytes([](const HostMemory&) { return true; });
}

int64_t DeviceCodec::PinnedBytes() const {
  return SumBytes([](const HostMemory& memory) { return memory.pinned(); });
}

int64_t DeviceCodec::SumBytes(absl::FunctionRef<bool(const HostMemory&)> counts) const {
  int64_t bytes = 0;
  for (const Room& room : rooms_) {
    for (HostMemory* const memory : {room.gradient.get(), room.values.get()}) {
      if (memory != nullptr && counts(*memory)) bytes += memory->values().size() * static_cast<int64_t>(sizeof(float));
    }
  }
  return bytes;
}

}  // namespace ballast
