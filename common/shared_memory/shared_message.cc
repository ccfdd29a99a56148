// SPDX-License-Identifier: Apache-2.0
#include "common/shared_memory/shared_message.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/wire/payload_message.h"

namespace ballast {
namespace {

// The tag of field 16, bytes, as a varint.
constexpr uint8_t kTag[] = {0x82, 0x01};
// Of the tag, a length of one byte, and two numbers of 9 and three of at most 6.
constexpr size_t kMaxReferenceBytes = 40;

constexpr size_t kAlignment = 64;

}  // namespace

std::optional<MessageSpot> CopyMessage(const grpc::ByteBuffer& message, absl::Span<char> block) {
  const size_t bytes = message.Length();
  if (bytes + kAlignment > block.size()) return std::nullopt;
  const ReceivedBytes from = BytesOf(message);
  size_t ahead = 0;
  for (absl::string_view piece : from.pieces) {
    if (piece.size() > PayloadMessageWriter::kCopiedBytes) break;
    ahead += piece.size();
  }
  const size_t offset = (kAlignment - ahead % kAlignment) % kAlignment;
  char* to = block.data() + offset;
  for (absl::string_view piece : from.pieces) {
    std::memcpy(to, piece.data(), piece.size());
    to += piece.size();
  }
  return MessageSpot{static_cast<uint32_t>(offset), static_cast<uint32_t>(bytes)};
}

absl::StatusOr<absl::string_view> MessageAt(const v1::SharedBlock& reference, absl::Span<char> block) {
  if (uint64_t{reference.offset()} + reference.bytes() > block.size()) {
    return absl::InvalidArgumentError(absl::StrCat("message in shared memory: got bytes ", reference.offset(), " to ",
                                                   uint64_t{reference.offset()} + reference.bytes(), " of a block of ",
                                                   block.size()));
  }
  return absl::string_view(block.data() + reference.offset(), reference.bytes());
}

grpc::ByteBuffer EncodeReference(const v1::SharedBlock& reference) {
  const std::string content = reference.SerializeAsString();
  std::string text(std::begin(kTag), std::end(kTag));
  text.push_back(static_cast<char>(content.size()));
  text += content;
  const grpc::Slice slice(text);
  return grpc::ByteBuffer(&slice, 1);
}

std::optional<v1::SharedBlock> FindReference(const grpc::ByteBuffer& message) {
  constexpr size_t kHeader = sizeof(kTag) + 1;
  if (message.Length() < kHeader || message.Length() > kMaxReferenceBytes) return std::nullopt;
  grpc::Slice bytes;
  if (!message.DumpToSingleSlice(&bytes).ok() || !std::equal(std::begin(kTag), std::end(kTag), bytes.begin()) ||
      bytes.begin()[2] != bytes.size() - kHeader) {
    return std::nullopt;
  }
  v1::SharedBlock reference;
  if (!reference.ParseFromArray(bytes.begin() + kHeader, bytes.size() - kHeader)) return std::nullopt;
  return reference;
}

}  // namespace ballast
