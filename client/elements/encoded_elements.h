// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "absl/types/span.h"
#include "ballast/v1/tensor.pb.h"

namespace ballast {

// Encoded elements in the caller's memory, as bf16 or fp16. Each element has the same number of bytes, so a part of the
// payload is the payload of a part of the elements. `Byte` is char or const char.
template <typename Byte>
struct EncodedElements {
  static constexpr size_t kBytesEach = 2;

  v1::Encoding encoding = v1::ENCODING_UNSPECIFIED;
  absl::Span<Byte> bytes;

  bool empty() const { return bytes.empty(); }
  // Empty if this is empty.
  EncodedElements Part(size_t offset, size_t elements) const {
    return empty() ? *this : EncodedElements{encoding, bytes.subspan(offset * kBytesEach, elements * kBytesEach)};
  }
};

}  // namespace ballast
