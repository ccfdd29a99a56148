// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "ballast/v1/tensor.pb.h"

namespace ballast {

// Decodes one checked payload to fp32, front to back. Thread safety: one thread at a time.
class PayloadDecoder {
 public:
  virtual ~PayloadDecoder() = default;

  // Writes the next out.size() elements. All calls together must not exceed the payload's elements.
  virtual void Next(absl::Span<float> out) = 0;
};

// Encodes and decodes one payload layout (ballast.v1.Encoding). Its parameters affect only encoding: any codec can
// decode a payload of its encoding. Does not know tensors, messages or residuals. Thread safety: immutable.
class Codec {
 public:
  // The memory pieces of a payload: split at any byte, unaligned.
  using Pieces = absl::Span<const absl::string_view>;

  // Maximum number of elements in a payload.
  static constexpr size_t kMaxElements = size_t{1} << 31;
  // Number of elements per block in DecodeBlocks: small enough to stay in a core's L1 cache.
  static constexpr size_t kBlockElements = 4096;

  virtual ~Codec() = default;

  v1::Encoding encoding() const { return traits_.encoding; }
  // "fp32", "fp16", "bf16", "int8", "top_k" or "sign".
  absl::string_view name() const { return traits_.name; }
  // Returns whether values may use this encoding; gradients always may.
  bool carries_values() const { return traits_.carries_values; }
  // Returns whether the sender should add the encoding error to its next gradient (error feedback).
  bool wants_error_feedback() const { return traits_.wants_error_feedback; }

  // Size in bytes of the buffer that Encode() needs for `elements` elements, at most kMaxElements.
  virtual size_t EncodedBytes(size_t elements) const = 0;

  // Writes the payload to `out`, which has EncodedBytes(values.size()) bytes and does not overlap `values`; returns
  // its length. The same values and seed give the same bytes on every machine; the seed is for stochastic rounding.
  virtual size_t Encode(absl::Span<const float> values, uint64_t seed, char* out) const = 0;

  // Checks the whole payload before anything is decoded. INVALID_ARGUMENT if it is not a valid payload of that many
  // elements: wrong length, a scale that is not finite, or indices that are not ascending. The pieces, and the span
  // of them, must outlive the decoder.
  virtual absl::StatusOr<std::unique_ptr<PayloadDecoder>> OpenPayload(Pieces pieces, size_t elements) const = 0;

  // Decodes all elements to `out`, which has exactly the payload's number of elements. Fails like OpenPayload(), and
  // then writes nothing.
  absl::Status Decode(Pieces pieces, absl::Span<float> out) const;

  // Passes all elements to `visit` in order, in blocks of kBlockElements, the last one shorter; `first` is the index
  // of a block's first element. Fails like OpenPayload(), and then calls nothing.
  absl::Status DecodeBlocks(Pieces pieces, size_t elements,
                            absl::FunctionRef<void(size_t first, absl::Span<const float> block)> visit) const;

 protected:
  struct Traits {
    v1::Encoding encoding;
    absl::string_view name;
    bool carries_values;
    bool wants_error_feedback;
  };

  explicit Codec(const Traits& traits) : traits_(traits) {}

 private:
  const Traits traits_;
};

// INVALID_ARGUMENT for a configuration outside the limits of tensor.proto.
absl::Status ValidateCodec(const v1::Codec& config);

// Creates the codec of the job's gradients, with its parameters. Fails like ValidateCodec().
absl::StatusOr<std::unique_ptr<const Codec>> MakeGradientCodec(const v1::Codec& config);

// Returns the codec with default parameters, which decodes any payload of that encoding and encodes values; it is
// never destroyed. INVALID_ARGUMENT, listing the valid encodings, for an unknown one.
absl::StatusOr<const Codec*> FindCodec(v1::Encoding encoding);

// Like FindCodec; the error also suggests the nearest name.
absl::StatusOr<const Codec*> FindCodecByName(absl::string_view name);

// Returns whether payloads of that encoding are the floats themselves; an unspecified one means so.
bool SendsFloats(v1::Encoding encoding);

// SplitMix64's output function (Steele et al., 2014): decorrelates neighboring numbers.
inline uint64_t MixBits(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Derives a seed for Codec::Encode from the numbers that identify the payload: worker, step, tensor and slice of a
// gradient; tensor, slice and version of values. The same on every machine; depends on the order of the numbers.
inline uint64_t CodecSeed(std::initializer_list<uint64_t> numbers) {
  uint64_t seed = numbers.size();
  for (uint64_t number : numbers) seed = MixBits(seed ^ number);
  return seed;
}

}  // namespace ballast
