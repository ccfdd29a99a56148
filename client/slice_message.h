// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ballast/v1/parameter_service.pb.h"
#include "client/elements/arrived_elements.h"
#include "client/elements/element_copier.h"
#include "client/elements/encoded_elements.h"
#include "client/error_feedback.h"
#include "common/wire/limits.h"
#include "common/wire/payload_message.h"
#include "grpcpp/support/slice.h"

namespace ballast {

// Upper bounds on the protobuf overhead: tags, lengths and fields of one slice, and of a header or outcome.
inline constexpr uint64_t kSliceOverheadBytes = 48;
inline constexpr uint64_t kMessageOverheadBytes = 256;

// One slice in transit to or from a shard, with its place in the caller's memory.
struct SliceTransfer {
  uint32_t tensor_id = 0;
  uint32_t slice_index = 0;
  uint64_t elements = 0;
  // Version of the values from which the gradient was computed.
  uint64_t version = 0;
  // Read by a push; has `elements` elements, or is empty if the push contributes nothing.
  absl::Span<const float> gradient;
  // Written by a pull; has `elements` elements.
  absl::Span<float> values;
  // Used instead if the caller encodes gradients or decodes values itself.
  EncodedElements<const char> encoded_gradient;
  EncodedElements<char> encoded_values;
  // First element of the slice in its tensor, for the copiers of TensorGradient and TensorValues; these may be null.
  uint64_t offset = 0;
  ElementCopier* gradient_copier = nullptr;
  ElementCopier* values_copier = nullptr;
  std::shared_ptr<ArrivedElements> arrived;
};

// Returns the size of the messages for these slices of one operation and shard that takes the least time: a few
// messages, so that one is on its way while another is applied, but not so small that their own work counts (decision
// 0066).
uint64_t MessageBytes(absl::Span<const SliceTransfer> slices);

// Packs slices into messages, in their order. An encoded message stays under `bytes_wanted` in either direction, unless
// it consists of a single slice that is larger, or ends with small ones, such as a layer's bias: these need no message
// of their own, and add an eighth at most. No message gets larger than kMaxMessageBytes by small ones.
std::vector<std::vector<SliceTransfer>> PackSlices(absl::Span<const SliceTransfer> slices,
                                                   uint64_t bytes_wanted = kMaxMessageBytes);

// Lends the caller's memory to gRPC and reports when gRPC has released it: after a call has ended, its bytes may still
// be in a connection's send queue. Thread safety: none; gRPC may release the memory on any thread.
class MemoryHold {
 public:
  MemoryHold();

  // gRPC reads the memory until it releases the slice and all copies.
  grpc::Slice Lend(const void* memory, size_t bytes);

  // Calls `then` once after gRPC has released all lent memory: at once, or later on a gRPC thread. Call it last. A
  // connection releases memory at the latest when it closes, which its keep-alive enforces if the peer is unresponsive.
  void WhenBack(absl::AnyInvocable<void()> then);

 private:
  struct Token;
  // Shared with the slices that were lent.
  std::shared_ptr<Token> token_;
};

// An encoded gradient, with the same bytes in every attempt.
struct GradientPayload {
  v1::Encoding encoding = v1::ENCODING_FP32;
  grpc::Slice bytes;
};

// Returns the gradients without copying them; `hold` lends the memory.
std::vector<GradientPayload> LendGradients(absl::Span<const SliceTransfer> slices, MemoryHold& hold);

// Returns the gradients encoded by `feedback`'s codec in new memory. Gradients that the caller has encoded are not
// copied; `hold` lends their memory. `seed` is unique to this message.
std::vector<GradientPayload> EncodePayloads(absl::Span<const SliceTransfer> slices, uint64_t seed,
                                            ErrorFeedback& feedback, MemoryHold& hold);

// Returns a message with a payload for each slice: field `field` of `envelope` contains one Item (SliceGradient or
// SliceValue) per slice.
template <typename Item>
grpc::ByteBuffer EncodeSlices(const google::protobuf::MessageLite& envelope, int field,
                              absl::Span<const SliceTransfer> slices, absl::Span<const GradientPayload> payloads) {
  PayloadMessageWriter writer(envelope, /*aligns=*/true);
  for (size_t i = 0; i < slices.size(); ++i) {
    Item item;
    item.set_tensor_id(slices[i].tensor_id);
    item.set_slice_index(slices[i].slice_index);
    item.set_version(slices[i].version);
    item.set_encoding(payloads[i].encoding);
    writer.Add(field, item, payloads[i].bytes);
  }
  return writer.Finish();
}

// Returns the message of a push or push-pull; `envelope` is a PushRequest or PushPullRequest.
template <typename Envelope>
grpc::ByteBuffer EncodeGradients(const Envelope& envelope, absl::Span<const SliceTransfer> slices,
                                 absl::Span<const GradientPayload> payloads) {
  return EncodeSlices<v1::SliceGradient>(envelope, Envelope::kGradientsFieldNumber, slices, payloads);
}

// Adds references to the slices of a pull.
void AddRefs(absl::Span<const SliceTransfer> slices, v1::PullRequest* request);

// Returns the memory of that slice's values if a payload of `bytes` belongs there as it is: the item whose other fields
// are `item`, encoded, is what the slice asks for, in fp32, and the gradient, which may be sent again, is elsewhere.
// Otherwise returns null.
char* PlaceOfValues(absl::Span<const SliceTransfer> slices, size_t index, absl::string_view item, uint64_t bytes);

// Decodes a response into the slices' `values`, unless a payload is there already, and stores these with their copiers,
// or copies it to their `encoded_values`, and returns their versions, in order. Copiers read floats in shared memory
// themselves. INTERNAL if the response does not match the request, before any value is written, or if a payload is
// invalid in its encoding or not stored, after earlier payloads were written.
absl::StatusOr<std::vector<uint64_t>> DecodeValues(absl::Span<const ItemWithPayload<v1::SliceValue>> response,
                                                   absl::Span<const SliceTransfer> slices, bool in_shared_memory);

}  // namespace ballast
