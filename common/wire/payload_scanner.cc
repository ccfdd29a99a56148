// SPDX-License-Identifier: Apache-2.0
#include "common/wire/payload_scanner.h"

#include <limits>
#include <utility>

#include "common/wire/payload_message.h"
#include "google/protobuf/wire_format_lite.h"

namespace ballast {

using google::protobuf::internal::WireFormatLite;

uint64_t PayloadScanner::next_bytes() const {
  switch (state_) {
    case State::kBytes:
    case State::kPayload:
      return left_;
    case State::kBroken:
      return std::numeric_limits<uint64_t>::max();
    default:
      // Each byte of a varint says whether another follows.
      return 1;
  }
}

void PayloadScanner::Take(absl::string_view bytes) {
  if (state_ == State::kBroken) return;
  if (in_item_) {
    if (bytes.size() > item_left_) {
      state_ = State::kBroken;
      return;
    }
    item_left_ -= bytes.size();
    item_.append(bytes.data(), bytes.size());
  }
  if (state_ == State::kBytes) {
    left_ -= bytes.size();
    if (left_ == 0) EndField();
    return;
  }
  const auto byte = static_cast<uint8_t>(bytes[0]);
  varint_ |= uint64_t{byte & 0x7fu} << varint_bits_;
  varint_bits_ += 7;
  if ((byte & 0x80) != 0) {
    if (varint_bits_ >= 64) state_ = State::kBroken;
    return;
  }
  varint_bits_ = 0;
  const uint64_t value = std::exchange(varint_, 0);
  switch (state_) {
    case State::kTag:
      return BeginField(value);
    case State::kLength:
      return BeginContent(value);
    default:
      return EndField();
  }
}

void PayloadScanner::SkipPayload(uint64_t bytes) {
  left_ -= bytes;
  item_left_ -= bytes;
  if (left_ == 0) EndItem();
}

void PayloadScanner::BeginField(uint64_t tag) {
  tag_ = static_cast<uint32_t>(tag);
  switch (tag <= UINT32_MAX ? WireFormatLite::GetTagWireType(tag_) : WireFormatLite::WIRETYPE_END_GROUP) {
    case WireFormatLite::WIRETYPE_VARINT:
      state_ = State::kVarint;
      return;
    case WireFormatLite::WIRETYPE_LENGTH_DELIMITED:
      state_ = State::kLength;
      return;
    case WireFormatLite::WIRETYPE_FIXED64:
      left_ = 8;
      state_ = State::kBytes;
      return;
    case WireFormatLite::WIRETYPE_FIXED32:
      left_ = 4;
      state_ = State::kBytes;
      return;
    default:
      state_ = State::kBroken;
  }
}

void PayloadScanner::BeginContent(uint64_t length) {
  const auto is = [this](int field) {
    return tag_ == WireFormatLite::MakeTag(field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
  };
  if (!in_item_ && is(field_)) {
    in_item_ = true;
    item_left_ = length;
    item_.clear();
    return EndField();
  }
  left_ = length;
  if (in_item_ && is(kPayloadField)) {
    // What an item has after a payload may be another one, which would replace it.
    if (length != item_left_) {
      state_ = State::kBroken;
      return;
    }
    item_.resize(field_begin_);
    state_ = State::kPayload;
    if (length == 0) EndItem();
    return;
  }
  state_ = State::kBytes;
  if (length == 0) EndField();
}

void PayloadScanner::EndField() {
  state_ = State::kTag;
  field_begin_ = item_.size();
  if (in_item_ && item_left_ == 0) EndItem();
}

void PayloadScanner::EndItem() {
  state_ = State::kTag;
  in_item_ = false;
  ++index_;
}

}  // namespace ballast
