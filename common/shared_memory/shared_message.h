// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "ballast/v1/parameter_service.pb.h"
#include "grpcpp/support/byte_buffer.h"

namespace ballast {

// Data plane messages in shared memory. The message sent over the connection has the same type; its field 16 locates
// the rest. The logical message is the concatenated encoding of the message sent and the bytes in shared memory.

// Location of a message in its slot.
struct MessageSpot {
  uint32_t offset = 0;
  uint32_t bytes = 0;
};

// Copies an encoded message into a slot, so that its first large payload is aligned to 64 bytes. Returns nullopt if
// the slot is too small.
std::optional<MessageSpot> CopyMessage(const grpc::ByteBuffer& message, absl::Span<char> slot);
// Copies a piece of a message. Returns false if it cannot.
using CopyPiece = absl::FunctionRef<bool(absl::string_view piece, char* to)>;
// Copies the bytes of the piece.
bool CopyBytes(absl::string_view piece, char* to);
// Same, with `copy` for each piece; also nullopt if that fails.
std::optional<MessageSpot> CopyMessage(const grpc::ByteBuffer& message, absl::Span<char> slot, CopyPiece copy);

// Returns the part of the slot that `spot` describes. INVALID_ARGUMENT if it is not inside the slot.
absl::StatusOr<absl::string_view> MessageAt(MessageSpot spot, absl::Span<char> slot);

// Encodes a message that contains only the reference.
grpc::ByteBuffer EncodeReference(const v1::SharedSlot& reference);
// Returns nullopt if the message has no reference or is malformed.
std::optional<v1::SharedSlot> FindReference(const grpc::ByteBuffer& message);

}  // namespace ballast
