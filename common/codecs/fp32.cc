// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "common/codecs/codec.h"
#include "common/codecs/payload_reader.h"
#include "common/simd/large_copy.h"

namespace ballast {
namespace {

class Fp32Decoder : public PayloadDecoder {
 public:
  explicit Fp32Decoder(Codec::Pieces pieces) : reader_(pieces, 0) {}

  void Next(absl::Span<float> out) override {
    while (!out.empty()) {
      const absl::string_view run = reader_.Next(sizeof(float), out.size());
      CopyLarge(run, reinterpret_cast<char*>(out.data()));
      out.remove_prefix(run.size() / sizeof(float));
    }
  }

 private:
  PayloadReader reader_;
};

class Fp32 : public Codec {
 public:
  Fp32() : Codec({v1::ENCODING_FP32, "fp32", /*carries_values=*/true, /*wants_error_feedback=*/false}) {}

  size_t EncodedBytes(size_t elements) const override { return elements * sizeof(float); }

  size_t Encode(absl::Span<const float> values, uint64_t, char* out) const override {
    const size_t bytes = values.size() * sizeof(float);
    if (bytes > 0) std::memcpy(out, values.data(), bytes);
    return bytes;
  }

  absl::StatusOr<std::unique_ptr<PayloadDecoder>> OpenPayload(Pieces pieces, size_t elements) const override {
    if (absl::Status status = CheckPayloadSize(*this, pieces, elements); !status.ok()) return status;
    return std::make_unique<Fp32Decoder>(pieces);
  }
};

}  // namespace

// Binary32 as it is.
std::unique_ptr<const Codec> MakeFp32(const v1::Codec&) { return std::make_unique<Fp32>(); }

}  // namespace ballast
