// SPDX-License-Identifier: Apache-2.0
#include "common/shared_memory/message_pieces.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/wire/limits.h"
#include "common/wire/payload_message.h"

namespace ballast {
namespace {

// Smaller payloads are copied to the slot: less work than another piece.
constexpr size_t kLeastLentBytes = 8192;
// Payloads, and what is before and between them.
constexpr size_t kMaxPieces = 2 * (kMaxMessageBytes / kLeastLentBytes) + 1;
// Floats are checked while they are still in the caches.
constexpr size_t kReadBytes = 64 << 10;

enum Place : uint32_t { kInSlot = 0, kInHeap = 1 };

struct Piece {
  uint64_t offset;
  uint32_t bytes;
  uint32_t place;
};
static_assert(sizeof(Piece) == 16);

std::optional<uint64_t> LentAt(absl::string_view piece, const SharedHeap& heap) {
  return piece.size() < kLeastLentBytes ? std::nullopt : heap.Find(piece);
}

absl::Status Invalid(absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("message in shared memory: got ", why));
}

// Copies the list, because its writer may change it, and checks all but the pieces of the heap.
absl::StatusOr<std::vector<Piece>> ListAt(MessageSpot spot, absl::Span<const char> slot) {
  const uint64_t end = uint64_t{spot.offset} + spot.bytes;
  if (end > slot.size() || spot.bytes % sizeof(Piece) != 0 || spot.bytes / sizeof(Piece) > kMaxPieces) {
    return Invalid(absl::StrCat("a list of pieces at bytes ", spot.offset, " to ", end, " of a slot of ", slot.size(),
                                ", want at most ", kMaxPieces, " of ", sizeof(Piece), " bytes"));
  }
  std::vector<Piece> list(spot.bytes / sizeof(Piece));
  if (!list.empty()) std::memcpy(list.data(), slot.data() + spot.offset, spot.bytes);
  uint64_t total = 0;
  for (const Piece& piece : list) {
    total += piece.bytes;
    const bool fits = piece.offset <= slot.size() && piece.bytes <= slot.size() - piece.offset;
    if ((piece.place == kInHeap && piece.bytes > 0) || (piece.place == kInSlot && fits)) continue;
    return Invalid(absl::StrCat("a piece of ", piece.bytes, " bytes at ", piece.offset, " of place ", piece.place,
                                ", want one in a slot of ", slot.size(), " or in the heap"));
  }
  if (total <= kMaxMessageBytes) return list;
  return Invalid(absl::StrCat(total, " bytes, want at most ", kMaxMessageBytes));
}

absl::Status NotInHeap(const Piece& piece) {
  return Invalid(absl::StrCat("a piece of ", piece.bytes, " bytes at ", piece.offset, ", which is not in the heap"));
}

}  // namespace

v1::SharedHeap ToProto(const HeapDescription& heap) {
  v1::SharedHeap encoded;
  encoded.set_id(heap.id);
  encoded.set_process(heap.process);
  encoded.set_file(heap.file);
  encoded.set_bytes(heap.bytes);
  return encoded;
}

HeapDescription FromProto(const v1::SharedHeap& heap) { return {heap.id(), heap.process(), heap.file(), heap.bytes()}; }

std::optional<MessageSpot> WritePieces(const grpc::ByteBuffer& message, const SharedHeap& heap, absl::Span<char> slot) {
  if (message.Length() < kLeastLentBytes) return std::nullopt;
  const ReceivedBytes from = BytesOf(message);
  std::vector<Piece> list;
  size_t copied = 0;
  for (absl::string_view piece : from.pieces) {
    const auto bytes = static_cast<uint32_t>(piece.size());
    if (const std::optional<uint64_t> offset = LentAt(piece, heap); offset.has_value()) {
      list.push_back({*offset, bytes, kInHeap});
      continue;
    }
    if (list.empty() || list.back().place == kInHeap) list.push_back({copied, 0, kInSlot});
    list.back().bytes += bytes;
    copied += bytes;
  }
  const bool lends = std::any_of(list.begin(), list.end(), [](const Piece& piece) { return piece.place == kInHeap; });
  const size_t list_bytes = list.size() * sizeof(Piece);
  if (!lends || list.size() > kMaxPieces || list_bytes + copied > slot.size()) return std::nullopt;
  for (Piece& piece : list) {
    if (piece.place == kInSlot) piece.offset += list_bytes;
  }
  std::memcpy(slot.data(), list.data(), list_bytes);
  char* to = slot.data() + list_bytes;
  for (absl::string_view piece : from.pieces) {
    if (LentAt(piece, heap).has_value()) continue;
    std::memcpy(to, piece.data(), piece.size());
    to += piece.size();
  }
  return MessageSpot{0, static_cast<uint32_t>(list_bytes)};
}

absl::StatusOr<std::vector<BufferPool::Buffer>> ReadPieces(MessageSpot spot, absl::Span<const char> slot,
                                                           const SharedHeapReader& heap, BufferPool& pool,
                                                           BufferPool::Stay stay) {
  const absl::StatusOr<std::vector<Piece>> list = ListAt(spot, slot);
  if (!list.ok()) return list.status();
  std::vector<BufferPool::Buffer> message;
  message.reserve(list->size());
  for (const Piece& piece : *list) {
    if (piece.place == kInSlot) {
      BufferPool::Buffer& buffer = message.emplace_back(pool.Get(piece.bytes));
      std::memcpy(buffer.data(), slot.data() + piece.offset, piece.bytes);
      continue;
    }
    if (const std::optional<absl::string_view> lent = heap.At(piece.offset, piece.bytes); lent.has_value()) {
      message.push_back(pool.Copy(*lent, stay));
      continue;
    }
    BufferPool::Buffer& buffer = message.emplace_back(pool.Get(piece.bytes, 0, stay));
    for (size_t read = 0; read < piece.bytes;) {
      const size_t part = std::min<size_t>(kReadBytes, piece.bytes - read);
      if (!heap.Read(piece.offset + read, {buffer.data() + read, part})) return NotInHeap(piece);
      read += part;
      buffer.CheckFloats(read);
    }
  }
  return message;
}

absl::StatusOr<std::vector<absl::string_view>> ViewPieces(MessageSpot spot, absl::Span<const char> slot,
                                                          const SharedHeapView& heap) {
  const absl::StatusOr<std::vector<Piece>> list = ListAt(spot, slot);
  if (!list.ok()) return list.status();
  std::vector<absl::string_view> pieces;
  pieces.reserve(list->size());
  for (const Piece& piece : *list) {
    if (piece.place == kInSlot) {
      pieces.emplace_back(slot.data() + piece.offset, piece.bytes);
      continue;
    }
    const std::optional<absl::string_view> lent = heap.At(piece.offset, piece.bytes);
    if (!lent.has_value()) return NotInHeap(piece);
    pieces.push_back(*lent);
  }
  return pieces;
}

}  // namespace ballast
