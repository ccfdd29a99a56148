// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "ballast/v1/parameter_service.pb.h"
#include "common/shared_memory/shared_heap.h"
#include "common/shared_memory/shared_message.h"
#include "common/wire/buffer_pool.h"
#include "grpcpp/support/byte_buffer.h"

namespace ballast {

v1::SharedHeap ToProto(const HeapDescription& heap);
HeapDescription FromProto(const v1::SharedHeap& heap);

// Messages in pieces: a list of pieces in a slot, some of which are in the slot, and the others in the sender's heap.
// v1.SharedRegion defines the list, and SharedRegion's loans until when the sender keeps the pieces in its heap.

// Writes the message to the slot, except for payloads that are in the heap, and returns the place of the list. Returns
// nullopt if no large payload is there, or the rest does not fit.
std::optional<MessageSpot> WritePieces(const grpc::ByteBuffer& message, const SharedHeap& heap, absl::Span<char> slot);

// Copies a message that an untrusted sender wrote, which may change it at any time: each piece to a buffer of its own,
// whose floats are checked if it is of the heap. Reads each byte once. INVALID_ARGUMENT if a piece is neither in the
// slot nor in the heap, or the message is larger than messages may be.
absl::StatusOr<std::vector<BufferPool::Buffer>> ReadPieces(MessageSpot list, absl::Span<const char> slot,
                                                           const SharedHeapReader& heap, BufferPool& pool,
                                                           BufferPool::Stay stay = BufferPool::Stay::kShort);

// Returns the pieces of a message where they are. INVALID_ARGUMENT as for ReadPieces.
absl::StatusOr<std::vector<absl::string_view>> ViewPieces(MessageSpot list, absl::Span<const char> slot,
                                                          const SharedHeapView& heap);

}  // namespace ballast
