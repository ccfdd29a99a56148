// SPDX-License-Identifier: Apache-2.0
#include "common/codecs/codec.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/text/nearest_name.h"

namespace ballast {

// Each is defined in the file of its name.
using MakeCodec = std::unique_ptr<const Codec>(const v1::Codec&);
MakeCodec MakeFp32, MakeFp16, MakeBf16, MakeInt8, MakeTopK, MakeSign;

namespace {

constexpr struct {
  v1::Encoding encoding;
  MakeCodec* make;
} kCodecs[] = {
    {v1::ENCODING_FP32, MakeFp32}, {v1::ENCODING_FP16, MakeFp16},  {v1::ENCODING_BF16, MakeBf16},
    {v1::ENCODING_INT8, MakeInt8}, {v1::ENCODING_TOP_K, MakeTopK}, {v1::ENCODING_SIGN, MakeSign},
};

const std::vector<std::unique_ptr<const Codec>>& AllCodecs() {
  static const auto* const codecs = [] {
    auto* made = new std::vector<std::unique_ptr<const Codec>>;
    for (const auto& entry : kCodecs) made->push_back(entry.make(v1::Codec()));
    return made;
  }();
  return *codecs;
}

std::vector<std::string> CodecNames(bool of_values) {
  std::vector<std::string> names;
  for (const auto& codec : AllCodecs()) {
    if (!of_values || codec->carries_values()) names.emplace_back(codec->name());
  }
  return names;
}

std::string ValidNames(bool of_values = false) { return absl::StrJoin(CodecNames(of_values), ", "); }

v1::Encoding KnownEncoding(v1::Encoding encoding) {
  return encoding == v1::ENCODING_UNSPECIFIED ? v1::ENCODING_FP32 : encoding;
}

}  // namespace

bool SendsFloats(v1::Encoding encoding) { return KnownEncoding(encoding) == v1::ENCODING_FP32; }

absl::Status Codec::Decode(Pieces pieces, absl::Span<float> out) const {
  auto decoder = OpenPayload(pieces, out.size());
  if (!decoder.ok()) return decoder.status();
  (*decoder)->Next(out);
  return absl::OkStatus();
}

absl::Status Codec::DecodeBlocks(Pieces pieces, size_t elements,
                                 absl::FunctionRef<void(size_t, absl::Span<const float>)> visit) const {
  auto decoder = OpenPayload(pieces, elements);
  if (!decoder.ok()) return decoder.status();
  alignas(64) float block[kBlockElements];
  for (size_t first = 0; first < elements; first += kBlockElements) {
    const size_t count = std::min(kBlockElements, elements - first);
    (*decoder)->Next(absl::MakeSpan(block, count));
    visit(first, absl::MakeConstSpan(block, count));
  }
  return absl::OkStatus();
}

absl::Status ValidateCodec(const v1::Codec& config) {
  if (auto codec = FindCodec(config.gradients()); !codec.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("codec of gradients: ", codec.status().message()));
  }
  auto values = FindCodec(config.values());
  if (!values.ok()) return absl::InvalidArgumentError(absl::StrCat("codec of values: ", values.status().message()));
  if (!(*values)->carries_values()) {
    return absl::InvalidArgumentError(absl::StrCat("codec of values: got ", (*values)->name(),
                                                   ", which is for gradients only; want one of ", ValidNames(true)));
  }
  // 0 also means that the field is not set. Written so that NaN is refused too.
  if (!(config.top_k_fraction() >= 0 && config.top_k_fraction() <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("codec: top_k_fraction: got ", config.top_k_fraction(), ", want above 0 and at most 1"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<const Codec>> MakeGradientCodec(const v1::Codec& config) {
  if (absl::Status status = ValidateCodec(config); !status.ok()) return status;
  for (const auto& entry : kCodecs) {
    if (entry.encoding == KnownEncoding(config.gradients())) return entry.make(config);
  }
  return absl::InternalError(absl::StrCat("encoding ", config.gradients(), " has no maker"));
}

absl::StatusOr<const Codec*> FindCodec(v1::Encoding encoding) {
  for (const auto& codec : AllCodecs()) {
    if (codec->encoding() == KnownEncoding(encoding)) return codec.get();
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown encoding ", encoding, ", want one of ", ValidNames()));
}

absl::StatusOr<const Codec*> FindCodecByName(absl::string_view name) {
  for (const auto& codec : AllCodecs()) {
    if (codec->name() == name) return codec.get();
  }
  const std::vector<std::string> names = CodecNames(/*of_values=*/false);
  const NearestName nearest = FindNearestName(name, names);
  return absl::InvalidArgumentError(
      absl::StrCat("unknown codec \"", name.substr(0, 64), "\", want one of ", ValidNames(),
                   nearest.distance <= 2 ? absl::StrCat(" (did you mean ", *nearest.name, "?)") : ""));
}

}  // namespace ballast
