// SPDX-License-Identifier: Apache-2.0
#include "common/codecs/payload_reader.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace ballast {

static_assert(std::endian::native == std::endian::little, "payloads are read and written in the machine's own order");

size_t PayloadBytes(Codec::Pieces pieces) {
  size_t bytes = 0;
  for (absl::string_view piece : pieces) bytes += piece.size();
  return bytes;
}

absl::Status CheckPayloadSize(const Codec& codec, Codec::Pieces pieces, size_t elements) {
  if (elements > Codec::kMaxElements) {
    return absl::InvalidArgumentError(
        absl::StrCat(codec.name(), " payload of ", elements, " elements, want at most ", Codec::kMaxElements));
  }
  const size_t got = PayloadBytes(pieces), want = codec.EncodedBytes(elements);
  if (got == want) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(codec.name(), " payload has ", got, " bytes, want ", want, " for ", elements, " elements"));
}

absl::Status CheckScales(const Codec& codec, Codec::Pieces pieces, size_t scales) {
  PayloadReader reader(pieces, 0);
  for (size_t i = 0; i < scales; ++i) {
    const float scale = reader.NextAs<float>();
    if (std::isfinite(scale)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(codec.name(), " payload: scale of block ", i, " is ", scale, ", want a finite one"));
  }
  return absl::OkStatus();
}

PayloadReader::PayloadReader(Codec::Pieces pieces, size_t offset) : pieces_(pieces) {
  while (!pieces_.empty() && offset >= pieces_.front().size()) {
    offset -= pieces_.front().size();
    pieces_.remove_prefix(1);
  }
  read_ = offset;
}

absl::string_view PayloadReader::Next(size_t unit, size_t max_units) {
  while (read_ == pieces_.front().size()) {
    pieces_.remove_prefix(1);
    read_ = 0;
  }
  const size_t left = pieces_.front().size() - read_;
  if (left >= unit) {
    const absl::string_view run(pieces_.front().data() + read_, std::min(left / unit, max_units) * unit);
    read_ += run.size();
    return run;
  }
  for (size_t have = 0; have < unit;) {
    const size_t take = std::min(unit - have, pieces_.front().size() - read_);
    std::memcpy(stitched_ + have, pieces_.front().data() + read_, take);
    have += take;
    read_ += take;
    if (have < unit) {
      pieces_.remove_prefix(1);
      read_ = 0;
    }
  }
  return {stitched_, unit};
}

}  // namespace ballast
