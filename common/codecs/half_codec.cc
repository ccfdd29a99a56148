// SPDX-License-Identifier: Apache-2.0
#include "common/codecs/half_codec.h"

#include "common/codecs/payload_reader.h"

namespace ballast {
namespace {

class HalfDecoder : public PayloadDecoder {
 public:
  HalfDecoder(Codec::Pieces pieces, HalfCodec::DecodeElements decode) : reader_(pieces, 0), decode_(decode) {}

  void Next(absl::Span<float> out) override {
    while (!out.empty()) {
      const absl::string_view run = reader_.Next(2, out.size());
      decode_(run.data(), run.size() / 2, out.data());
      out.remove_prefix(run.size() / 2);
    }
  }

 private:
  PayloadReader reader_;
  const HalfCodec::DecodeElements decode_;
};

}  // namespace

size_t HalfCodec::Encode(absl::Span<const float> values, uint64_t, char* out) const {
  encode_(values.data(), values.size(), out);
  return values.size() * 2;
}

absl::StatusOr<std::unique_ptr<PayloadDecoder>> HalfCodec::OpenPayload(Pieces pieces, size_t elements) const {
  if (absl::Status status = CheckPayloadSize(*this, pieces, elements); !status.ok()) return status;
  return std::make_unique<HalfDecoder>(pieces, decode_);
}

}  // namespace ballast
