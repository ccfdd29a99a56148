// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "common/codecs/codec.h"
#include "common/codecs/payload_reader.h"
#include "common/simd/instruction_set.h"

namespace ballast {
namespace {

constexpr size_t kBlock = 1024;

size_t Blocks(size_t elements) { return (elements + kBlock - 1) / kBlock; }

// Sums in float64, which a block of floats cannot overflow, in lanes, so that it vectorizes with equal bits everywhere.
ABSL_ATTRIBUTE_ALWAYS_INLINE inline float MeanMagnitude(const float* __restrict values, size_t n) {
  constexpr size_t kLanes = 16;
  double sums[kLanes] = {};
  const size_t whole = n / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] += __builtin_fabsf(values[i + lane]);
  }
  double sum = 0;
  for (size_t i = whole; i < n; ++i) sum += __builtin_fabsf(values[i]);
  for (double lane : sums) sum += lane;
  // The compiler decides which of two NaNs a sum keeps.
  return sum == sum ? static_cast<float>(sum / static_cast<double>(n)) : std::numeric_limits<float>::quiet_NaN();
}

ABSL_ATTRIBUTE_ALWAYS_INLINE inline void PackSigns(const float* __restrict values, size_t n, char* __restrict bits) {
  for (size_t i = 0; i < n; i += 8) {
    uint32_t byte = 0;
    for (size_t j = 0; j < std::min<size_t>(8, n - i); ++j) byte |= std::bit_cast<uint32_t>(values[i + j]) >> 31 << j;
    bits[i / 8] = static_cast<char>(byte);
  }
}

ABSL_ATTRIBUTE_ALWAYS_INLINE inline void EncodeBody(absl::Span<const float> values, char* magnitudes, char* bits) {
  for (size_t first = 0; first < values.size(); first += kBlock) {
    const size_t n = std::min(kBlock, values.size() - first);
    const float magnitude = MeanMagnitude(values.data() + first, n);
    std::memcpy(magnitudes + first / kBlock * sizeof(float), &magnitude, sizeof(float));
    PackSigns(values.data() + first, n, bits + first / 8);
  }
}

// Decodes whole bytes only.
ABSL_ATTRIBUTE_ALWAYS_INLINE inline void DecodeBody(const char* __restrict bits, size_t n, float magnitude,
                                                    float* __restrict values) {
  const uint32_t positive = std::bit_cast<uint32_t>(magnitude);
  for (size_t byte = 0; byte < n / 8; ++byte) {
    const uint32_t signs = static_cast<unsigned char>(bits[byte]);
    for (size_t j = 0; j < 8; ++j) values[byte * 8 + j] = std::bit_cast<float>(positive ^ signs >> j << 31);
  }
}

class SignDecoder : public PayloadDecoder {
 public:
  SignDecoder(Codec::Pieces pieces, size_t elements)
      : magnitudes_(pieces, 0), bits_(pieces, Blocks(elements) * sizeof(float)) {}

  void Next(absl::Span<float> out) override {
    while (!out.empty()) {
      if (left_in_block_ == 0) {
        magnitude_ = magnitudes_.NextAs<float>();
        left_in_block_ = kBlock;
      }
      const size_t bytes = std::min(out.size(), left_in_block_) / 8;
      if (bits_left_ > 0 || bytes == 0) {
        NextElement(out);
        continue;
      }
      const absl::string_view run = bits_.Next(1, bytes);
      RunLoop([from = run.data(), n = run.size() * 8, magnitude = magnitude_, to = out.data()]()
                  ABSL_ATTRIBUTE_ALWAYS_INLINE { DecodeBody(from, n, magnitude, to); });
      left_in_block_ -= run.size() * 8;
      out.remove_prefix(run.size() * 8);
    }
  }

 private:
  // Used if a byte's elements are not all in one block, or not all requested.
  void NextElement(absl::Span<float>& out) {
    if (bits_left_ == 0) {
      byte_ = bits_.NextAs<uint8_t>();
      bits_left_ = 8;
    }
    out.front() = std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude_) ^ uint32_t{byte_} << 31);
    byte_ >>= 1;
    --bits_left_;
    --left_in_block_;
    out.remove_prefix(1);
  }

  PayloadReader magnitudes_;
  PayloadReader bits_;
  float magnitude_ = 0;
  size_t left_in_block_ = 0;
  // Remaining bits of a byte that was begun.
  uint8_t byte_ = 0;
  int bits_left_ = 0;
};

class Sign : public Codec {
 public:
  Sign() : Codec({v1::ENCODING_SIGN, "sign", /*carries_values=*/false, /*wants_error_feedback=*/true}) {}

  size_t EncodedBytes(size_t elements) const override { return Blocks(elements) * sizeof(float) + (elements + 7) / 8; }

  size_t Encode(absl::Span<const float> values, uint64_t, char* out) const override {
    char* bits = out + Blocks(values.size()) * sizeof(float);
    RunLoop([=]() ABSL_ATTRIBUTE_ALWAYS_INLINE { EncodeBody(values, out, bits); });
    return EncodedBytes(values.size());
  }

  absl::StatusOr<std::unique_ptr<PayloadDecoder>> OpenPayload(Pieces pieces, size_t elements) const override {
    if (absl::Status status = CheckPayloadSize(*this, pieces, elements); !status.ok()) return status;
    if (absl::Status status = CheckScales(*this, pieces, Blocks(elements)); !status.ok()) return status;
    return std::make_unique<SignDecoder>(pieces, elements);
  }
};

}  // namespace

// Signs, with the mean magnitude of each 1024 elements.
std::unique_ptr<const Codec> MakeSign(const v1::Codec&) { return std::make_unique<Sign>(); }

}  // namespace ballast
