// SPDX-License-Identifier: Apache-2.0
#include "common/shared_memory/shared_message.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/simd/large_copy.h"
#include "common/wire/payload_message.h"
#include "common/wire/piece_reader.h"

namespace ballast {
namespace {

// Tag of field 16, a message.
constexpr uint32_t kTag = 16 << 3 | 2;

constexpr size_t kAlignment = 64;

}  // namespace

bool CopyBytes(absl::string_view piece, char* to) {
  CopyLarge(piece, to);
  return true;
}

std::optional<MessageSpot> CopyMessage(const grpc::ByteBuffer& message, absl::Span<char> slot) {
  return CopyMessage(message, slot, CopyBytes);
}

std::optional<MessageSpot> CopyMessage(const grpc::ByteBuffer& message, absl::Span<char> slot, CopyPiece copy) {
  const size_t bytes = message.Length();
  if (bytes + kAlignment > slot.size()) return std::nullopt;
  const ReceivedBytes from = BytesOf(message);
  size_t ahead = 0;
  for (absl::string_view piece : from.pieces) {
    if (piece.size() > PayloadMessageWriter::kCopiedBytes) break;
    ahead += piece.size();
  }
  const size_t offset = (kAlignment - ahead % kAlignment) % kAlignment;
  char* to = slot.data() + offset;
  for (absl::string_view piece : from.pieces) {
    if (!copy(piece, to)) return std::nullopt;
    to += piece.size();
  }
  return MessageSpot{static_cast<uint32_t>(offset), static_cast<uint32_t>(bytes)};
}

absl::StatusOr<absl::string_view> MessageAt(MessageSpot spot, absl::Span<char> slot) {
  const uint64_t end = uint64_t{spot.offset} + spot.bytes;
  if (end > slot.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("message in shared memory: got bytes ", spot.offset, " to ", end, " of a slot of ", slot.size()));
  }
  return absl::string_view(slot.data() + spot.offset, spot.bytes);
}

grpc::ByteBuffer EncodeReference(const v1::SharedSlot& reference) {
  const std::string content = reference.SerializeAsString();
  std::string text;
  AppendVarint(kTag, text);
  AppendVarint(content.size(), text);
  text += content;
  const grpc::Slice slice(text);
  return grpc::ByteBuffer(&slice, 1);
}

std::optional<v1::SharedSlot> FindReference(const grpc::ByteBuffer& message) {
  const ReceivedBytes bytes = BytesOf(message);
  PieceReader reader(bytes.pieces);
  std::optional<v1::SharedSlot> reference;
  while (!reader.AtEnd()) {
    const std::optional<uint64_t> tag = reader.Varint();
    if (!tag.has_value() || *tag > UINT32_MAX) return std::nullopt;
    if (*tag != kTag) {
      if (!reader.SkipField(static_cast<uint32_t>(*tag))) return std::nullopt;
      continue;
    }
    const std::optional<uint64_t> length = reader.Varint();
    const std::optional<Pieces> content = length.has_value() ? reader.Take(*length) : std::nullopt;
    if (!reference.has_value()) reference.emplace();
    if (!content.has_value() || !reference->MergeFromString(absl::StrJoin(*content, ""))) return std::nullopt;
  }
  return reference;
}

}  // namespace ballast
