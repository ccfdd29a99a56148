// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/codecs/codec.h"

namespace ballast {

// Returns the total bytes of all pieces.
size_t PayloadBytes(Codec::Pieces pieces);

// INVALID_ARGUMENT if there are more elements than kMaxElements, or the payload does not have exactly the bytes that
// `codec` needs for them.
absl::Status CheckPayloadSize(const Codec& codec, Codec::Pieces pieces, size_t elements);

// INVALID_ARGUMENT if one of the `scales` binary32 numbers at the start of the payload is not finite. The payload has
// at least that many.
absl::Status CheckScales(const Codec& codec, Codec::Pieces pieces, size_t scales);

// Reads a payload's pieces in order from an offset. Does not own the memory. Thread safety: one thread at a time.
class PayloadReader {
 public:
  // Widest unit that Next() accepts.
  static constexpr size_t kMaxUnit = 4;

  // Starts `offset` bytes into the payload, at most at its end.
  PayloadReader(Codec::Pieces pieces, size_t offset);

  // Returns the next bytes: a whole number of units of `unit` bytes, from 1 to `max_units`. Points into the payload,
  // except that a unit split across pieces is copied and returned alone, valid until the next call. The payload must
  // have that many bytes left.
  absl::string_view Next(size_t unit, size_t max_units);

  template <typename T>
  T NextAs();

 private:
  Codec::Pieces pieces_;
  // Bytes of pieces_.front() already read.
  size_t read_ = 0;
  char stitched_[kMaxUnit];
};

template <typename T>
T PayloadReader::NextAs() {
  T value;
  __builtin_memcpy(&value, Next(sizeof(T), 1).data(), sizeof(T));
  return value;
}

}  // namespace ballast
