// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "ballast/v1/parameter_service.pb.h"
#include "grpcpp/support/byte_buffer.h"

namespace ballast {

// Messages of the data plane that lie in shared memory: what is sent instead is a message of the same type, whose field
// 16 says where. The message that is meant has the fields of the one sent, then those in shared memory, as if their
// bytes followed one another.

// Where a message lies in its slot.
struct MessageSpot {
  uint32_t offset = 0;
  uint32_t bytes = 0;
};

// Copies an encoded message into a slot, so that its first large payload is aligned to 64 bytes. Nothing where the
// slot is too small.
std::optional<MessageSpot> CopyMessage(const grpc::ByteBuffer& message, absl::Span<char> slot);

// The part of a slot that a reference means. INVALID_ARGUMENT where it is not in the slot.
absl::StatusOr<absl::string_view> MessageAt(const v1::SharedSlot& reference, absl::Span<char> slot);

// A message with nothing else.
grpc::ByteBuffer EncodeReference(const v1::SharedSlot& reference);
// Nothing if the message has none, or is malformed.
std::optional<v1::SharedSlot> FindReference(const grpc::ByteBuffer& message);

}  // namespace ballast
