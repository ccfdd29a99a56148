// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ballast/v1/parameter_service.pb.h"
#include "client/error_feedback.h"
#include "client/memory_hold.h"
#include "client/message_packer.h"
#include "common/wire/payload_message.h"

namespace ballast {

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
  PayloadMessageWriter writer(envelope);
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

// Decodes a response into the slices' `values`, or copies it to their `encoded_values`, and returns their versions, in
// order. INTERNAL if the response does not match the request, before any value is written, or if a payload is invalid
// in its encoding, after earlier payloads were written.
absl::StatusOr<std::vector<uint64_t>> DecodeValues(absl::Span<const ItemWithPayload<v1::SliceValue>> response,
                                                   absl::Span<const SliceTransfer> slices);

}  // namespace ballast
