// SPDX-License-Identifier: Apache-2.0
#include "common/wire/payload_message.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"

namespace ballast {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedOutputStream;

uint32_t BytesTag(int field) { return WireFormatLite::MakeTag(field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED); }

bool IsTag(uint64_t tag) {
  return tag <= UINT32_MAX && WireFormatLite::GetTagFieldNumber(static_cast<uint32_t>(tag)) > 0;
}

std::optional<EncodedItem> SplitItem(absl::Span<const absl::string_view> pieces) {
  EncodedItem item;
  PieceReader reader(pieces);
  while (!reader.AtEnd()) {
    const std::optional<uint64_t> tag = reader.Varint();
    if (!tag.has_value() || !IsTag(*tag)) return std::nullopt;
    if (*tag != BytesTag(kPayloadField)) {
      if (!reader.CopyField(static_cast<uint32_t>(*tag), item.text)) return std::nullopt;
      continue;
    }
    const std::optional<uint64_t> bytes = reader.Varint();
    if (!bytes.has_value()) return std::nullopt;
    std::optional<Pieces> payload = reader.Take(*bytes);
    if (!payload.has_value()) return std::nullopt;
    item.payload = *std::move(payload);
  }
  return item;
}

constexpr size_t kAlignment = sizeof(float);
// Longer lengths are refused by protobuf's own readers.
constexpr int kMaxLengthBytes = 5;

// Returns the bytes before an item's payload, with up to `zeros` more than they need; `item`: its other fields.
std::string EncodeHeader(int field, const std::string& item, uint64_t payload_bytes, int zeros) {
  const auto may_add = [](uint64_t length) {
    return std::max(0, kMaxLengthBytes - static_cast<int>(CodedOutputStream::VarintSize64(length)));
  };
  const int of_payload = std::min(zeros, may_add(payload_bytes));
  std::string inside = item;
  AppendVarint(BytesTag(kPayloadField), inside);
  AppendVarint(payload_bytes, inside, of_payload);
  std::string header;
  AppendVarint(BytesTag(field), header);
  const uint64_t length = inside.size() + payload_bytes;
  AppendVarint(length, header, std::min(zeros - of_payload, may_add(length)));
  return header + inside;
}

absl::Status Malformed() {
  return WithReason(v1::ERROR_REASON_MALFORMED_MESSAGE,
                    absl::InvalidArgumentError("got bytes that are not a protobuf message"));
}

}  // namespace

PayloadMessageWriter::PayloadMessageWriter(const google::protobuf::MessageLite& envelope, bool aligns)
    : aligns_(aligns), text_(envelope.SerializeAsString()) {}

void PayloadMessageWriter::FlushText() {
  if (text_.empty()) return;
  flushed_ += text_.size();
  slices_.emplace_back(text_);
  text_.clear();
}

std::string PayloadMessageWriter::HeaderOf(int field, const std::string& item, uint64_t payload_bytes) {
  std::string header = EncodeHeader(field, item, payload_bytes, 0);
  if (!aligns_) return header;
  const uint64_t at = flushed_ + text_.size();
  if (!first_payload_.has_value()) first_payload_ = at + header.size();
  const auto aligned = [&] { return (at + header.size() - *first_payload_) % kAlignment == 0; };
  // A zero may make the item's length need another byte, so that its place is passed over once.
  for (size_t zeros = 1; zeros <= kAlignment && !aligned(); ++zeros) {
    header = EncodeHeader(field, item, payload_bytes, zeros);
  }
  return header;
}

void PayloadMessageWriter::Add(int field, const google::protobuf::MessageLite& item, grpc::Slice payload) {
  const std::string text = item.SerializeAsString();
  if (payload.size() == 0) {
    AppendVarint(BytesTag(field), text_);
    AppendVarint(text.size(), text_);
    text_ += text;
    return;
  }
  text_ += HeaderOf(field, text, payload.size());
  if (payload.size() <= kCopiedBytes) {
    text_.append(reinterpret_cast<const char*>(payload.begin()), payload.size());
    return;
  }
  FlushText();
  flushed_ += payload.size();
  slices_.push_back(std::move(payload));
}

grpc::ByteBuffer PayloadMessageWriter::Finish() {
  FlushText();
  // An empty message still needs one slice.
  if (slices_.empty()) slices_.emplace_back();
  return grpc::ByteBuffer(slices_.data(), slices_.size());
}

absl::StatusOr<EncodedParts> SplitPayloadMessage(absl::Span<const absl::string_view> pieces, int field,
                                                 size_t max_items) {
  EncodedParts parts;
  PieceReader reader(pieces);
  while (!reader.AtEnd()) {
    const std::optional<uint64_t> tag = reader.Varint();
    if (!tag.has_value() || !IsTag(*tag)) return Malformed();
    if (*tag != BytesTag(field)) {
      if (reader.CopyField(static_cast<uint32_t>(*tag), parts.envelope)) continue;
      return Malformed();
    }
    const std::optional<uint64_t> bytes = reader.Varint();
    const std::optional<Pieces> content = bytes.has_value() ? reader.Take(*bytes) : std::nullopt;
    std::optional<EncodedItem> item = content.has_value() ? SplitItem(*content) : std::nullopt;
    if (!item.has_value()) return Malformed();
    if (parts.items.size() == max_items) {
      return absl::InvalidArgumentError(absl::StrCat("got a message of more than ", max_items, " slices"));
    }
    parts.items.push_back(*std::move(item));
  }
  return parts;
}

grpc::ByteBuffer EncodeMessage(const google::protobuf::MessageLite& message) {
  const grpc::Slice bytes(message.SerializeAsString());
  return grpc::ByteBuffer(&bytes, 1);
}

ReceivedBytes BytesOf(const grpc::ByteBuffer& buffer) {
  ReceivedBytes bytes;
  // Only a compressed buffer can fail to dump; it then has no bytes.
  if (!buffer.Dump(&bytes.slices).ok()) bytes.slices.clear();
  bytes.pieces.reserve(bytes.slices.size());
  for (const grpc::Slice& slice : bytes.slices) {
    bytes.pieces.emplace_back(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

}  // namespace ballast
