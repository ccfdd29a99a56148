// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "ballast/v1/tensor.pb.h"

namespace ballast {

// Turns one checked payload back into fp32, front to back.
// Thread safety: one thread at a time.
class PayloadDecoder {
 public:
  virtual ~PayloadDecoder() = default;

  // Writes the next out.size() elements. No more than the payload has, in all the calls together.
  virtual void Next(absl::Span<float> out) = 0;
};

// One layout of a payload (ballast.v1.Encoding says which): fp32 to bytes and back. Its parameters are the encoder's
// only; what one codec wrote, any codec of the same encoding reads. Knows nothing of tensors, messages or residuals.
// Thread safety: immutable.
class Codec {
 public:
  // A payload's pieces of memory as they came to lie: cut anywhere, aligned to nothing.
  using Pieces = absl::Span<const absl::string_view>;

  // The most elements that a payload may have.
  static constexpr size_t kMaxElements = size_t{1} << 31;
  // Elements of the blocks that DecodeBlocks hands out: small enough to stay in a core's first cache.
  static constexpr size_t kBlockElements = 4096;

  virtual ~Codec() = default;

  v1::Encoding encoding() const { return traits_.encoding; }
  // "fp32", "fp16", "bf16", "int8", "top_k" or "sign".
  absl::string_view name() const { return traits_.name; }
  // Whether values may travel in it; gradients always may.
  bool carries_values() const { return traits_.carries_values; }
  // Whether the sender should add what was lost to its next gradient.
  bool wants_error_feedback() const { return traits_.wants_error_feedback; }

  // What Encode() writes for so many elements, at most kMaxElements.
  virtual size_t EncodedBytes(size_t elements) const = 0;

  // Writes the payload to `out`, which has EncodedBytes(values.size()) and overlaps no value; answers its length.
  // The same values and seed give the same bytes on every machine; the seed is of stochastic rounding.
  virtual size_t Encode(absl::Span<const float> values, uint64_t seed, char* out) const = 0;

  // Looks at the whole payload before anything is decoded. INVALID_ARGUMENT where it is not one of so many elements:
  // shorter, longer, with a scale that is not finite or indices that are not ascending. The pieces, and the span of
  // them, outlive the decoder.
  virtual absl::StatusOr<std::unique_ptr<PayloadDecoder>> OpenPayload(Pieces pieces, size_t elements) const = 0;

  // Writes all elements to `out`, which has exactly as many as the payload. Errors as OpenPayload(); nothing is written
  // then.
  absl::Status Decode(Pieces pieces, absl::Span<float> out) const;

  // Hands out all elements in order, in blocks of kBlockElements, the last one shorter; `first` is the index of a
  // block's first element. Errors as OpenPayload(); nothing is handed out then.
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

// INVALID_ARGUMENT for a configuration out of the limits of tensor.proto.
absl::Status ValidateCodec(const v1::Codec& config);

// The codec of the job's gradients, with its parameters. INVALID_ARGUMENT as ValidateCodec().
absl::StatusOr<std::unique_ptr<const Codec>> MakeGradientCodec(const v1::Codec& config);

// With parameters left unset: what decodes any payload of that encoding, and encodes values. Lives for ever.
// INVALID_ARGUMENT, saying what exists, where there is none.
absl::StatusOr<const Codec*> FindCodec(v1::Encoding encoding);

// As above; the error says too what was probably meant.
absl::StatusOr<const Codec*> FindCodecByName(absl::string_view name);

}  // namespace ballast
