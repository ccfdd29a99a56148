// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace ballast {

// Finds the payloads of a message (see payload_message.h) while it arrives, so that they can be received where they
// belong. Finds those that end their items, as PayloadMessageWriter writes them, and none after bytes that break the
// wire format; only SplitPayloadMessage says whether the message is valid. Thread safety: none.
class PayloadScanner {
 public:
  // `field` contains the items.
  explicit PayloadScanner(int field) : field_(field) {}

  // True if the next bytes are those of a payload.
  bool in_payload() const { return state_ == State::kPayload; }
  // Number of the next bytes that go to the same place, from 1: the rest of a payload, or some bytes between payloads.
  // May be more than the message has left.
  uint64_t next_bytes() const;

  // Takes bytes between payloads: next_bytes() at most.
  void Take(absl::string_view bytes);
  // Passes over that many bytes of a payload: next_bytes() at most.
  void SkipPayload(uint64_t bytes);

  // In a payload: the item's other fields, encoded, and the number of items before it.
  const std::string& item() const { return item_; }
  size_t index() const { return index_; }

 private:
  // The part of the message that is next; kVarint and kBytes are contents of fields.
  enum class State { kTag, kLength, kVarint, kBytes, kPayload, kBroken };

  void BeginField(uint64_t tag);
  void BeginContent(uint64_t length);
  void EndField();
  void EndItem();

  const int field_;
  State state_ = State::kTag;
  // The part of a varint that was taken, and its bits.
  uint64_t varint_ = 0;
  int varint_bits_ = 0;
  // The current field's tag, and the bytes left of its content.
  uint32_t tag_ = 0;
  uint64_t left_ = 0;
  bool in_item_ = false;
  // Bytes left of the item.
  uint64_t item_left_ = 0;
  // The item's bytes without a payload, and where its current field begins in them.
  std::string item_;
  size_t field_begin_ = 0;
  size_t index_ = 0;
};

}  // namespace ballast
