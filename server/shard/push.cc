// SPDX-License-Identifier: Apache-2.0
#include "server/shard/push.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/codecs/codec.h"
#include "common/status/error_reason.h"
#include "common/storage/checksum.h"
#include "server/weights/optimizers/gradient.h"

namespace ballast {
namespace {

absl::Status Invalid(absl::string_view message) {
  return WithReason(v1::ERROR_REASON_INVALID_REQUEST, absl::InvalidArgumentError(message));
}

}  // namespace

absl::StatusOr<DecodedValues> DecodeValues(const ValueView& view, size_t elements, bool accept_non_finite) {
  const absl::StatusOr<const Codec*> codec = FindCodec(view.encoding);
  if (!codec.ok()) return Invalid(codec.status().message());
  if (!(*codec)->carries_values()) return Invalid(absl::StrCat((*codec)->name(), " is for gradients only"));
  ValueBuffer values = ValueBuffer::Readable(elements);
  const absl::Span<float> floats = values.mutable_values();
  if (absl::Status status = (*codec)->Decode(view.payload, floats); !status.ok()) return Invalid(status.message());
  if (!accept_non_finite && !Gradient(absl::MakeConstSpan(floats)).AllFinite()) {
    return Invalid("has NaN or infinity, want finite numbers");
  }
  const uint64_t checksum = Checksum({reinterpret_cast<const char*>(floats.data()), floats.size() * sizeof(float)});
  return DecodedValues{std::move(values), checksum};
}

}  // namespace ballast
