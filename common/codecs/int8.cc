// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "common/codecs/codec.h"
#include "common/codecs/payload_reader.h"
#include "common/simd/instruction_set.h"

namespace ballast {
namespace {

constexpr size_t kBlock = 256;
constexpr float kSteps = 127;
// Largest float whose product with kSteps is finite.
constexpr float kLargestScale = 0x1.020406p121f;

size_t Blocks(size_t elements) { return (elements + kBlock - 1) / kBlock; }

// Source of the stochastic rounding.
struct Random {
  explicit Random(uint64_t seed) {
    seed = MixBits(seed);
    first = static_cast<uint32_t>(seed);
    second = static_cast<uint32_t>(seed >> 32);
  }

  // Uniform over (k + 1/2) / 2^16, a function of the element's index only: MurmurHash3's finalizer with a key.
  ABSL_ATTRIBUTE_ALWAYS_INLINE float At(uint32_t index) const {
    uint32_t x = index * 0x9e3779b9u + first;
    x ^= x >> 16;
    x = x * 0x85ebca6bu + second;
    x ^= x >> 13;
    x *= 0xc2b2ae35u;
    return (static_cast<float>(static_cast<int32_t>(x >> 16)) + 0.5f) * 0x1p-16f;
  }

  uint32_t first;
  uint32_t second;
};

// scale = max|x| / 127, at least the smallest normal number; q = floor(x / scale + random), whose mean is x / scale.
// A block that is not finite gets a scale that is not, so that the receiver refuses it instead of training on it.
ABSL_ATTRIBUTE_ALWAYS_INLINE inline float EncodeBlock(const float* __restrict values, size_t n, uint32_t first,
                                                      const Random& random, int8_t* __restrict quantized) {
  int32_t largest_bits = 0;
  for (size_t i = 0; i < n; ++i) {
    const int32_t magnitude = std::bit_cast<int32_t>(values[i]) & 0x7fffffff;
    largest_bits = magnitude > largest_bits ? magnitude : largest_bits;
  }
  if (largest_bits == 0 || largest_bits >= 0x7f800000) {
    std::memset(quantized, 0, n);
    return largest_bits == 0 ? 0 : std::numeric_limits<float>::quiet_NaN();
  }
  const float scale =
      std::min(std::max(std::bit_cast<float>(largest_bits) / kSteps, std::numeric_limits<float>::min()), kLargestScale);
  const float inverse = 1 / scale;
  for (size_t i = 0; i < n; ++i) {
    const float y = values[i] * inverse + random.At(first + static_cast<uint32_t>(i));
    int32_t q = static_cast<int32_t>(y);
    q -= static_cast<float>(q) > y ? 1 : 0;
    q = q > 127 ? 127 : q;
    q = q < -127 ? -127 : q;
    quantized[i] = static_cast<int8_t>(q);
  }
  return scale;
}

ABSL_ATTRIBUTE_ALWAYS_INLINE inline void EncodeBody(absl::Span<const float> values, const Random& random, char* scales,
                                                    int8_t* quantized) {
  size_t first = 0;
  for (; first + kBlock <= values.size(); first += kBlock) {
    const float scale = EncodeBlock(values.data() + first, kBlock, first, random, quantized + first);
    std::memcpy(scales + first / kBlock * sizeof(float), &scale, sizeof(float));
  }
  if (first < values.size()) {
    const float scale = EncodeBlock(values.data() + first, values.size() - first, first, random, quantized + first);
    std::memcpy(scales + first / kBlock * sizeof(float), &scale, sizeof(float));
  }
}

ABSL_ATTRIBUTE_ALWAYS_INLINE inline void DecodeBody(const char* __restrict quantized, size_t n, float scale,
                                                    float* __restrict values) {
  for (size_t i = 0; i < n; ++i) values[i] = scale * static_cast<float>(static_cast<signed char>(quantized[i]));
}

class Int8Decoder : public PayloadDecoder {
 public:
  Int8Decoder(Codec::Pieces pieces, size_t elements)
      : scales_(pieces, 0), quantized_(pieces, Blocks(elements) * sizeof(float)) {}

  void Next(absl::Span<float> out) override {
    while (!out.empty()) {
      if (left_in_block_ == 0) {
        scale_ = scales_.NextAs<float>();
        left_in_block_ = kBlock;
      }
      const absl::string_view run = quantized_.Next(1, std::min(out.size(), left_in_block_));
      RunLoop([from = run.data(), n = run.size(), scale = scale_, to = out.data()]()
                  ABSL_ATTRIBUTE_ALWAYS_INLINE { DecodeBody(from, n, scale, to); });
      left_in_block_ -= run.size();
      out.remove_prefix(run.size());
    }
  }

 private:
  PayloadReader scales_;
  PayloadReader quantized_;
  float scale_ = 0;
  size_t left_in_block_ = 0;
};

class Int8 : public Codec {
 public:
  Int8() : Codec({v1::ENCODING_INT8, "int8", /*carries_values=*/true, /*wants_error_feedback=*/true}) {}

  size_t EncodedBytes(size_t elements) const override { return Blocks(elements) * sizeof(float) + elements; }

  size_t Encode(absl::Span<const float> values, uint64_t seed, char* out) const override {
    int8_t* quantized = reinterpret_cast<int8_t*>(out + Blocks(values.size()) * sizeof(float));
    const Random random(seed);
    RunLoop([=]() ABSL_ATTRIBUTE_ALWAYS_INLINE { EncodeBody(values, random, out, quantized); });
    return EncodedBytes(values.size());
  }

  absl::StatusOr<std::unique_ptr<PayloadDecoder>> OpenPayload(Pieces pieces, size_t elements) const override {
    if (absl::Status status = CheckPayloadSize(*this, pieces, elements); !status.ok()) return status;
    if (absl::Status status = CheckScales(*this, pieces, Blocks(elements)); !status.ok()) return status;
    return std::make_unique<Int8Decoder>(pieces, elements);
  }
};

}  // namespace

// Signed bytes with a scale for each 256 elements, rounded up or down at random so that the mean is the value.
std::unique_ptr<const Codec> MakeInt8(const v1::Codec&) { return std::make_unique<Int8>(); }

}  // namespace ballast
