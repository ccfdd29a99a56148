// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/codecs/codec.h"

namespace ballast {

// Bytes of all the pieces.
size_t PayloadBytes(Codec::Pieces pieces);

// INVALID_ARGUMENT where there are more elements than kMaxElements, or the payload has not exactly the bytes that
// `codec` needs for them.
absl::Status CheckPayloadSize(const Codec& codec, Codec::Pieces pieces, size_t elements);

// INVALID_ARGUMENT where one of the binary32 `scales` that the payload begins with is not finite. It has so many.
absl::Status CheckScales(const Codec& codec, Codec::Pieces pieces, size_t scales);

// Walks over a payload's pieces from some offset on. Views only.
// Thread safety: one thread at a time.
class PayloadReader {
 public:
  // The widest unit that Next() knows.
  static constexpr size_t kMaxUnit = 4;

  // Begins `offset` bytes into the payload, at most at its end.
  PayloadReader(Codec::Pieces pieces, size_t offset);

  // The next bytes: a whole number of units of `unit` bytes, at least one, at most `max_units`. They lie in place, but
  // for a unit that was cut, which is handed out alone and is gone with the next call. The payload has so many left.
  absl::string_view Next(size_t unit, size_t max_units);

  // The next unit, by value.
  template <typename T>
  T NextAs();

 private:
  Codec::Pieces pieces_;
  // Of pieces_.front(), read already.
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
