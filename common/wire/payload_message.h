// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "common/status/error_reason.h"
#include "common/wire/element_count.h"
#include "common/wire/limits.h"
#include "common/wire/malformed_message.h"
#include "common/wire/piece_reader.h"
#include "google/protobuf/message_lite.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"

namespace ballast {

// The messages of the data plane are an envelope with repeated items, each of which ends in a payload of bytes: field
// 15. They are ordinary protobuf; these two encode and decode them around the payloads, which are neither copied into
// nor out of a protobuf string.

// Writes an envelope, then its items. Thread safety: none.
class PayloadMessageWriter {
 public:
  // Payloads up to this size are cheaper to copy than to send from where they lie.
  static constexpr size_t kCopiedBytes = 2048;

  // `envelope` has no items.
  explicit PayloadMessageWriter(const google::protobuf::MessageLite& envelope);

  // Adds an item to repeated field `field`; `item` has no payload.
  void Add(int field, const google::protobuf::MessageLite& item, grpc::Slice payload);

  // The message. Once.
  grpc::ByteBuffer Finish();

 private:
  void FlushText();

  std::vector<grpc::Slice> slices_;
  // What has been written behind the last of slices_.
  std::string text_;
};

// A field that is repeated and carries a payload, as it was found.
struct EncodedItem {
  std::string text;
  Pieces payload;
};

// A message in its parts, which are encoded protobuf still. INVALID_ARGUMENT where `pieces` is no protobuf message, or
// has more than `max_items`.
struct EncodedParts {
  std::string envelope;
  std::vector<EncodedItem> items;
};
absl::StatusOr<EncodedParts> SplitPayloadMessage(absl::Span<const absl::string_view> pieces, int field,
                                                 size_t max_items);

// The message decoded; the payloads are views of the pieces.
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

// As SplitPayloadMessage; the failure says where the bytes are wrong, as MalformedMessage does.
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

// The pieces of memory in which a received message lies; `slices` keeps them.
struct ReceivedBytes {
  std::vector<grpc::Slice> slices;
  std::vector<absl::string_view> pieces;
};
ReceivedBytes BytesOf(const grpc::ByteBuffer& buffer);

// Messages without payloads.
grpc::ByteBuffer EncodeMessage(const google::protobuf::MessageLite& message);

// With `max_elements`, bytes of a message with more than that within it are refused and not parsed; see CheckElements.
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
