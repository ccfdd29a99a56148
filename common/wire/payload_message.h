// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "common/status/error_reason.h"
#include "common/wire/limits.h"
#include "common/wire/message_checks.h"
#include "common/wire/piece_reader.h"
#include "google/protobuf/message_lite.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"

namespace ballast {

// Data plane messages are an envelope with repeated items, each of which ends in a payload of bytes: field 15. They
// are ordinary protobuf; the functions and classes here encode and decode them without copying payloads into or out
// of protobuf strings.

// Number of the field with an item's payload.
inline constexpr int kPayloadField = 15;

// Writes an envelope, then its items. Thread safety: none.
class PayloadMessageWriter {
 public:
  // Payloads up to this size are cheaper to copy than to reference.
  static constexpr size_t kCopiedBytes = 2048;

  // `envelope` has no items. With `aligns`, payloads lie at multiples of 4 bytes from each other, so that a receiver
  // who aligns one has all their floats aligned: the lengths before a payload may then have more bytes than they need,
  // as protobuf permits. Payloads of more than 2 MiB may miss it.
  explicit PayloadMessageWriter(const google::protobuf::MessageLite& envelope, bool aligns = false);

  // Adds an item to repeated field `field`; `item` has no payload.
  void Add(int field, const google::protobuf::MessageLite& item, grpc::Slice payload);

  // Returns the message. Call it once.
  grpc::ByteBuffer Finish();

 private:
  void FlushText();
  // Returns what comes before an item's payload; `item`: its other fields.
  std::string HeaderOf(int field, const std::string& item, uint64_t payload_bytes);

  const bool aligns_;
  std::vector<grpc::Slice> slices_;
  // Bytes in slices_.
  uint64_t flushed_ = 0;
  // Place of the first payload.
  std::optional<uint64_t> first_payload_;
  // Bytes written after the last of slices_.
  std::string text_;
};

// An encoded item of a repeated field with a payload.
struct EncodedItem {
  std::string text;
  Pieces payload;
};

// The encoded parts of a message. Splitting returns INVALID_ARGUMENT if `pieces` is not a protobuf message, or has
// more than `max_items` items.
struct EncodedParts {
  std::string envelope;
  std::vector<EncodedItem> items;
};
absl::StatusOr<EncodedParts> SplitPayloadMessage(absl::Span<const absl::string_view> pieces, int field,
                                                 size_t max_items);

// A decoded message; the payloads are views of the pieces.
template <typename Item>
struct ItemWithPayload {
  Item item;
  Pieces payload;
};
template <typename Envelope, typename Item>
struct PayloadMessage {
  Envelope envelope;
  std::vector<ItemWithPayload<Item>> items;
};

// Like SplitPayloadMessage, but a failure locates the fault, as MalformedMessage does.
template <typename Envelope, typename Item>
absl::StatusOr<PayloadMessage<Envelope, Item>> DecodePayloadMessage(absl::Span<const absl::string_view> pieces,
                                                                    int field, size_t max_items) {
  absl::StatusOr<EncodedParts> parts = SplitPayloadMessage(pieces, field, max_items);
  const auto malformed = [&] { return MalformedMessage(*Envelope::descriptor(), absl::StrJoin(pieces, "")); };
  if (!parts.ok()) return ReasonOf(parts.status()) == v1::ERROR_REASON_MALFORMED_MESSAGE ? malformed() : parts.status();
  PayloadMessage<Envelope, Item> message;
  bool parsed = message.envelope.ParseFromString(parts->envelope);
  message.items.resize(parts->items.size());
  for (size_t i = 0; i < parts->items.size(); ++i) {
    parsed = parsed && message.items[i].item.ParseFromString(parts->items[i].text);
    message.items[i].payload = std::move(parts->items[i].payload);
  }
  if (parsed) return message;
  return malformed();
}

// The memory pieces of a received message; `slices` keeps them alive.
struct ReceivedBytes {
  std::vector<grpc::Slice> slices;
  std::vector<absl::string_view> pieces;
};
ReceivedBytes BytesOf(const grpc::ByteBuffer& buffer);

// Encodes a message without payloads.
grpc::ByteBuffer EncodeMessage(const google::protobuf::MessageLite& message);

// If `max_elements` is set, refuses a message with more elements without parsing it; see CheckElements.
template <typename Message>
absl::StatusOr<Message> DecodeMessage(const ReceivedBytes& bytes,
                                      size_t max_elements = std::numeric_limits<size_t>::max()) {
  const std::string text = absl::StrJoin(bytes.pieces, "");
  if (absl::Status status = CheckElements(*Message::descriptor(), text, max_elements); !status.ok()) return status;
  Message message;
  if (message.ParseFromString(text)) return message;
  return MalformedMessage(*Message::descriptor(), text);
}

}  // namespace ballast
