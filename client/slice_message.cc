// SPDX-License-Identifier: Apache-2.0
#include "client/slice_message.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/codecs/codec.h"
#include "common/codecs/payload_reader.h"
#include "grpcpp/alarm.h"

namespace ballast {
namespace {

static_assert(std::endian::native == std::endian::little,
              "payloads are the bytes in memory, which must be little-endian");

// `bytes`: size of the payload.
absl::StatusOr<const Codec*> CheckValue(const v1::SliceValue& got, size_t bytes, const SliceTransfer& want) {
  if (got.tensor_id() != want.tensor_id || got.slice_index() != want.slice_index) {
    return absl::InternalError(absl::StrCat("response has tensor ", got.tensor_id(), " slice ", got.slice_index(),
                                            ", want tensor ", want.tensor_id, " slice ", want.slice_index));
  }
  const absl::StatusOr<const Codec*> codec = FindCodec(got.encoding());
  if (!codec.ok()) {
    return absl::InternalError(
        absl::StrCat("response: tensor ", want.tensor_id, " slice ", want.slice_index, ": ", codec.status().message()));
  }
  const size_t want_bytes = (*codec)->EncodedBytes(want.elements);
  const EncodedElements<char>& encoded = want.encoded_values;
  if (!encoded.empty() && got.encoding() != encoded.encoding) {
    return absl::InternalError(absl::StrCat("response: tensor ", want.tensor_id, " slice ", want.slice_index, " is ",
                                            (*codec)->name(), ", want ", FindCodec(encoded.encoding).value()->name()));
  }
  const bool fits = encoded.empty() ? want.values.size() == want.elements : encoded.bytes.size() == want_bytes;
  if (!(*codec)->carries_values() || bytes != want_bytes || !fits) {
    return absl::InternalError(absl::StrCat("response: tensor ", want.tensor_id, " slice ", want.slice_index, " has ",
                                            bytes, " bytes of ", (*codec)->name(), ", want ", want_bytes));
  }
  return codec;
}

absl::string_view BytesOf(absl::Span<const float> floats) {
  return {reinterpret_cast<const char*>(floats.data()), floats.size() * sizeof(float)};
}

bool Overlap(absl::string_view a, absl::string_view b) {
  const auto begin = [](absl::string_view bytes) { return reinterpret_cast<uintptr_t>(bytes.data()); };
  return begin(a) < begin(b) + b.size() && begin(b) < begin(a) + a.size();
}

// Concatenates the pieces, which together have the size of `to`.
void CopyPieces(Codec::Pieces pieces, absl::Span<char> to) {
  for (absl::string_view piece : pieces) {
    std::memcpy(to.data(), piece.data(), piece.size());
    to.remove_prefix(piece.size());
  }
}

// Decodes a payload to the slice's values, unless its copier can read them as they are.
absl::Status DecodePayload(const Codec& codec, Codec::Pieces payload, bool in_shared_memory,
                           const SliceTransfer& slice) {
  const bool in_place = in_shared_memory && slice.values_copier != nullptr && codec.encoding() == v1::ENCODING_FP32 &&
                        payload.size() == 1 && reinterpret_cast<uintptr_t>(payload[0].data()) % alignof(float) == 0;
  // By PlaceOfValues.
  const bool placed = payload.size() == 1 && payload[0].data() == BytesOf(slice.values).data();
  absl::Span<const float> values = slice.values;
  if (in_place) {
    values = {reinterpret_cast<const float*>(payload[0].data()), slice.elements};
  } else if (!placed) {
    if (absl::Status status = codec.Decode(payload, slice.values); !status.ok()) return status;
  }
  return slice.values_copier == nullptr ? absl::OkStatus() : slice.values_copier->Store(slice.offset, values);
}

}  // namespace

std::vector<GradientPayload> LendGradients(absl::Span<const SliceTransfer> slices, MemoryHold& hold) {
  std::vector<GradientPayload> payloads;
  payloads.reserve(slices.size());
  for (const SliceTransfer& slice : slices) {
    payloads.push_back({v1::ENCODING_FP32, hold.Lend(slice.gradient.data(), slice.gradient.size() * sizeof(float))});
  }
  return payloads;
}

std::vector<GradientPayload> EncodePayloads(absl::Span<const SliceTransfer> slices, uint64_t seed,
                                            ErrorFeedback& feedback, MemoryHold& hold) {
  std::vector<GradientPayload> payloads;
  payloads.reserve(slices.size());
  for (const SliceTransfer& slice : slices) {
    GradientPayload& payload = payloads.emplace_back();
    if (const EncodedElements<const char>& encoded = slice.encoded_gradient; !encoded.empty()) {
      payload = {encoded.encoding, hold.Lend(encoded.bytes.data(), encoded.bytes.size())};
      continue;
    }
    // A gradient that adds nothing has no bytes.
    if (slice.gradient.empty()) continue;
    payload.encoding = feedback.codec().encoding();
    payload.bytes = grpc::Slice(feedback.codec().EncodedBytes(slice.gradient.size()));
    // The cast is safe, because the slice is not shared yet.
    char* bytes = reinterpret_cast<char*>(const_cast<uint8_t*>(payload.bytes.begin()));
    feedback.Encode(slice.tensor_id, slice.slice_index, slice.gradient,
                    CodecSeed({seed, slice.tensor_id, slice.slice_index}), bytes);
  }
  return payloads;
}

void AddRefs(absl::Span<const SliceTransfer> slices, v1::PullRequest* request) {
  for (const SliceTransfer& slice : slices) {
    v1::SliceRef* ref = request->add_slices();
    ref->set_tensor_id(slice.tensor_id);
    ref->set_slice_index(slice.slice_index);
  }
}

char* PlaceOfValues(absl::Span<const SliceTransfer> slices, size_t index, absl::string_view item, uint64_t bytes) {
  v1::SliceValue value;
  if (index >= slices.size() || !value.ParseFromArray(item.data(), static_cast<int>(item.size()))) return nullptr;
  const SliceTransfer& slice = slices[index];
  if (!slice.encoded_values.empty() || value.encoding() != v1::ENCODING_FP32) return nullptr;
  if (!CheckValue(value, bytes, slice).ok() || Overlap(BytesOf(slice.values), BytesOf(slice.gradient))) return nullptr;
  return reinterpret_cast<char*>(slice.values.data());
}

absl::StatusOr<std::vector<uint64_t>> DecodeValues(absl::Span<const ItemWithPayload<v1::SliceValue>> response,
                                                   absl::Span<const SliceTransfer> slices, bool in_shared_memory) {
  if (response.size() != slices.size()) {
    return absl::InternalError(absl::StrCat("response has ", response.size(), " slices, want ", slices.size()));
  }
  std::vector<const Codec*> codecs;
  codecs.reserve(slices.size());
  for (size_t i = 0; i < slices.size(); ++i) {
    const absl::StatusOr<const Codec*> codec =
        CheckValue(response[i].item, PayloadBytes(response[i].payload), slices[i]);
    if (!codec.ok()) return codec.status();
    codecs.push_back(*codec);
  }
  std::vector<uint64_t> versions;
  versions.reserve(slices.size());
  for (size_t i = 0; i < slices.size(); ++i) {
    versions.push_back(response[i].item.version());
    if (!slices[i].encoded_values.empty()) {
      CopyPieces(response[i].payload, slices[i].encoded_values.bytes);
    } else if (absl::Status status = DecodePayload(*codecs[i], response[i].payload, in_shared_memory, slices[i]);
               !status.ok()) {
      return absl::InternalError(absl::StrCat("response: tensor ", slices[i].tensor_id, " slice ",
                                              slices[i].slice_index, ": ", status.message()));
    }
  }
  return versions;
}

uint64_t MessageBytes(absl::Span<const SliceTransfer> slices) {
  constexpr uint64_t kMessages = 8;
  // Two of the smallest slices of a tensor that was cut without need.
  constexpr uint64_t kLeastBytes = 576 << 10;
  uint64_t bytes = 0;
  for (const SliceTransfer& slice : slices) bytes += sizeof(float) * slice.elements;
  return std::clamp(bytes / kMessages, kLeastBytes, kMaxMessageBytes);
}

std::vector<std::vector<SliceTransfer>> PackSlices(absl::Span<const SliceTransfer> slices, uint64_t bytes_wanted) {
  std::vector<std::vector<SliceTransfer>> messages;
  const uint64_t small = bytes_wanted / 8;
  const uint64_t most_with_small = std::min(bytes_wanted + small, kMaxMessageBytes);
  uint64_t bytes = 0;
  for (const SliceTransfer& slice : slices) {
    const uint64_t added = kSliceOverheadBytes + sizeof(float) * slice.elements;
    const uint64_t most = added <= small ? most_with_small : bytes_wanted;
    if (messages.empty() || bytes + added > most || messages.back().size() == kMaxSlicesPerMessage) {
      messages.emplace_back();
      bytes = kMessageOverheadBytes;
    }
    messages.back().push_back(slice);
    bytes += added;
  }
  return messages;
}

struct MemoryHold::Token {
  absl::AnyInvocable<void()> then;

  ~Token() {
    if (then == nullptr) return;
    // gRPC releases slices while it holds its own locks, so run `then` on another thread.
    struct Later {
      grpc::Alarm alarm;
      absl::AnyInvocable<void()> then;
    };
    auto* later = new Later{{}, std::move(then)};
    later->alarm.Set(absl::ToChronoTime(absl::Now()), [later](bool) {
      later->then();
      delete later;
    });
  }
};

MemoryHold::MemoryHold() : token_(std::make_shared<Token>()) {}

grpc::Slice MemoryHold::Lend(const void* memory, size_t bytes) {
  // The cast is safe, because gRPC only reads the memory.
  return grpc::Slice(
      const_cast<void*>(memory), bytes, [](void* held) { delete static_cast<std::shared_ptr<Token>*>(held); },
      new std::shared_ptr<Token>(token_));
}

void MemoryHold::WhenBack(absl::AnyInvocable<void()> then) {
  if (token_.use_count() == 1) return then();
  token_->then = std::move(then);
  token_.reset();
}

}  // namespace ballast
