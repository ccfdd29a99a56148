// SPDX-License-Identifier: Apache-2.0
// Payloads of every codec are decoded or refused, with the same result wherever they are cut.
#include <cstring>

#include "common/codecs/codec.h"
#include "tests/fuzz/fuzz_target.h"

namespace ballast {
namespace {

// Two int8 blocks, nearly five sign blocks.
constexpr size_t kMaxElements = 5000;

constexpr v1::Encoding kEncodings[] = {v1::ENCODING_FP32, v1::ENCODING_FP16,  v1::ENCODING_BF16,
                                       v1::ENCODING_INT8, v1::ENCODING_TOP_K, v1::ENCODING_SIGN};

}  // namespace

std::vector<std::string> FuzzSeeds() {
  std::vector<std::string> seeds;
  for (char kind = 0; kind < 6; ++kind) {
    for (size_t elements : {1, 3, 300, 1100}) {
      v1::Codec config;
      config.set_gradients(kEncodings[static_cast<int>(kind)]);
      const auto codec = MakeGradientCodec(config);
      Require(codec.ok(), "every encoding has a codec");
      std::vector<float> values(elements);
      for (size_t i = 0; i < elements; ++i) values[i] = static_cast<float>(i % 7) - 2.5f;
      std::string payload((*codec)->EncodedBytes(elements), '\0');
      payload.resize((*codec)->Encode(values, 1, payload.data()));
      const char cut = static_cast<char>(elements % 11);
      seeds.push_back(std::string({kind, cut, static_cast<char>(elements), static_cast<char>(elements >> 8)}) +
                      payload);
    }
  }
  return seeds;
}

void FuzzOne(FuzzInput input) {
  const absl::StatusOr<const Codec*> codec = FindCodec(kEncodings[input.Byte() % 6]);
  Require(codec.ok(), "every encoding has a codec");
  const uint8_t cut = input.Byte();
  const size_t elements = input.Number(2) % (kMaxElements + 1);
  const std::vector<absl::string_view> whole = {input.Rest()}, pieces = Cut(input.Rest(), cut);
  // One element more is a wrong size for every codec but top-k.
  std::vector<float> once(elements + 1, 7.0f), again(elements + 1, 7.0f);
  const absl::Status status = (*codec)->Decode(whole, absl::MakeSpan(once).first(elements));
  Require((*codec)->Decode(pieces, absl::MakeSpan(again).first(elements)) == status, "cuts do not change the status");
  Require(std::memcmp(once.data(), again.data(), sizeof(float) * once.size()) == 0, "cuts do not change the values");
  Require(once.back() == 7.0f, "nothing is written after the values");
  if (!status.ok()) Require(once.front() == 7.0f || elements == 0, "a refused payload writes nothing");
  // No payload of this size can have that many elements.
  Require(!(*codec)->OpenPayload(whole, Codec::kMaxElements + 1).ok(), "the number of elements is bounded");
}

}  // namespace ballast
