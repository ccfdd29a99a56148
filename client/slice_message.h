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

// A gradient as it travels: the same bytes in every attempt.
struct GradientPayload {
  v1::Encoding encoding = v1::ENCODING_FP32;
  grpc::Slice bytes;
};

// The gradients where they lie, lent by `hold`.
std::vector<GradientPayload> LendGradients(absl::Span<const SliceTransfer> slices, MemoryHold& hold);

// The gradients as `feedback`'s codec encodes them, in memory of their own; those that the caller has encoded where
// they lie, lent by `hold`. `seed` is of this message alone.
std::vector<GradientPayload> EncodePayloads(absl::Span<const SliceTransfer> slices, uint64_t seed,
                                            ErrorFeedback& feedback, MemoryHold& hold);

// A message with a payload for each slice: field `field` of `envelope` holds an Item, a SliceGradient or SliceValue,
// for each.
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

// The message of a push or, where `envelope` is a PushPullRequest, a push-pull.
template <typename Envelope>
grpc::ByteBuffer EncodeGradients(const Envelope& envelope, absl::Span<const SliceTransfer> slices,
                                 absl::Span<const GradientPayload> payloads) {
  return EncodeSlices<v1::SliceGradient>(envelope, Envelope::kGradientsFieldNumber, slices, payloads);
}

// Names the slices of a pull.
void AddRefs(absl::Span<const SliceTransfer> slices, v1::PullRequest* request);

// Decodes an answer into the slices' `values`, or copies it to their `encoded_values`, and returns their versions, in
// order. INTERNAL where the answer is not exactly what was asked for; no value is written then, unless it is a later
// payload that is not what its encoding says.
absl::StatusOr<std::vector<uint64_t>> DecodeValues(absl::Span<const ItemWithPayload<v1::SliceValue>> answer,
                                                   absl::Span<const SliceTransfer> slices);

}  // namespace ballast
