// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ballast/v1/tensor.pb.h"
#include "client/message_packer.h"
#include "google/protobuf/repeated_field.h"

namespace ballast {

// Copies the gradients into a message's fields, as fp32.
google::protobuf::RepeatedPtrField<v1::SliceGradient> EncodeGradients(absl::Span<const SliceTransfer> slices);

// Names the slices of a pull.
google::protobuf::RepeatedPtrField<v1::SliceRef> EncodeRefs(absl::Span<const SliceTransfer> slices);

// Copies an answer into the slices' `values` and returns their versions, in order. INTERNAL where the answer is not
// exactly what was asked for; no value is written then.
absl::StatusOr<std::vector<uint64_t>> DecodeValues(const google::protobuf::RepeatedPtrField<v1::SliceValue>& answer,
                                                   absl::Span<const SliceTransfer> slices);

}  // namespace ballast
