// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "common/codecs/codec.h"

namespace ballast {

// A codec that converts each element independently to 2 bytes. Its functions convert n elements; `half` is unaligned.
// Thread safety: immutable.
class HalfCodec : public Codec {
 public:
  using EncodeElements = void (*)(const float* values, size_t n, char* half);
  using DecodeElements = void (*)(const char* half, size_t n, float* values);

  HalfCodec(v1::Encoding encoding, absl::string_view name, EncodeElements encode, DecodeElements decode)
      : Codec({encoding, name, /*carries_values=*/true, /*wants_error_feedback=*/false}),
        encode_(encode),
        decode_(decode) {}

  size_t EncodedBytes(size_t elements) const override { return elements * 2; }
  size_t Encode(absl::Span<const float> values, uint64_t seed, char* out) const override;
  absl::StatusOr<std::unique_ptr<PayloadDecoder>> OpenPayload(Pieces pieces, size_t elements) const override;

 private:
  const EncodeElements encode_;
  const DecodeElements decode_;
};

}  // namespace ballast
