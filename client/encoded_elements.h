// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "absl/types/span.h"
#include "ballast/v1/tensor.pb.h"

namespace ballast {

// Elements in the caller's memory as they travel: a payload in an encoding that has the same number of bytes for each
// of them, bf16 or fp16, so that a part of it is the payload of those elements. `Byte` is char, or const char.
template <typename Byte>
struct EncodedElements {
  static constexpr size_t kBytesEach = 2;

  v1::Encoding encoding = v1::ENCODING_UNSPECIFIED;
  absl::Span<Byte> bytes;

  bool empty() const { return bytes.empty(); }
  // Of nothing, nothing.
  EncodedElements Part(size_t offset, size_t elements) const {
    return empty() ? *this : EncodedElements{encoding, bytes.subspan(offset * kBytesEach, elements * kBytesEach)};
  }
};

}  // namespace ballast
