// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "ballast/v1/tensor.pb.h"
#include "common/wire/buffer_pool.h"
#include "server/memory/value_buffer.h"
#include "server/policies/slice_policy.h"
#include "server/tensors/tensor_catalog.h"

namespace ballast {

// Decodes a push that was sent or logged.
template <typename Message>
PushTicket DecodeTicket(const Message& push) {
  PushTicket ticket{push.worker(), push.incarnation(), push.sequence(), push.step(), push.examples()};
  if (push.has_schedule_position()) ticket.schedule_position = push.schedule_position();
  if constexpr (requires { push.unix_seconds(); }) ticket.unix_seconds = push.unix_seconds();
  return ticket;
}

// A received gradient, as a view of the caller's memory.
struct GradientView {
  SliceKey key;
  uint64_t version = 0;
  v1::Encoding encoding = v1::ENCODING_FP32;
  absl::Span<const absl::string_view> payload;
  // True if the payload, taken as floats, is known to be finite.
  bool has_finite_floats = false;
  // If not null, see Gradient::set_message.
  BufferPool::Buffer* message = nullptr;
};

// A slice's received first values, as a view of the caller's memory.
struct ValueView {
  SliceKey key;
  v1::Encoding encoding = v1::ENCODING_FP32;
  absl::Span<const absl::string_view> payload;
};

// A slice's first values and the checksum that identifies them.
struct DecodedValues {
  ValueBuffer values;
  uint64_t checksum = 0;
};

// INVALID_ARGUMENT unless the values decode to `elements` floats that are finite or `accept_non_finite` is true.
absl::StatusOr<DecodedValues> DecodeValues(const ValueView& view, size_t elements, bool accept_non_finite);

// Result of setting values; see ballast.v1.SetValuesResponse.
struct SetOutcome {
  uint32_t set = 0;
  uint32_t unchanged = 0;
};

// The newest state of a shard's tables that a worker has seen: it has seen the updates of the steps before `applied`,
// and has ended those before `ended`; see ballast.v1.ReportVersionsRequest.
struct SeenSteps {
  uint64_t applied = 0;
  uint64_t ended = 0;
};

// The newest state of a slice that a worker has seen; see ballast.v1.ReportVersionsRequest.Slice.
struct SeenSlice {
  SliceKey key;
  uint64_t version = 0;
  uint64_t finished_steps = 0;
};

}  // namespace ballast
