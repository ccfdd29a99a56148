// SPDX-License-Identifier: Apache-2.0
#include "server/tables/row_gradients.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/codecs/codec.h"
#include "common/codecs/payload_reader.h"
#include "common/status/error_reason.h"
#include "server/weights/optimizers/gradient.h"

namespace ballast {
namespace {

absl::Status Invalid(absl::string_view message) {
  return WithReason(v1::ERROR_REASON_INVALID_REQUEST, absl::InvalidArgumentError(message));
}

// Gradients of `rows` rows in the order of the message's ids.
absl::StatusOr<ValueBuffer> Decode(const RowGradientsView& view, size_t rows, uint32_t dim) {
  if (rows == 0) {
    const size_t bytes = PayloadBytes(view.payload);
    return bytes == 0 ? absl::StatusOr<ValueBuffer>(ValueBuffer())
                      : Invalid(absl::StrCat("payload: got ", bytes, " bytes for no ids"));
  }
  const absl::StatusOr<const Codec*> codec = FindCodec(view.encoding);
  if (!codec.ok()) return Invalid(codec.status().message());
  // The blocks of the others would span rows.
  if (view.encoding > v1::ENCODING_BF16) {
    return Invalid(absl::StrCat("encoding: got ", (*codec)->name(), ", want fp32, fp16 or bf16 for rows"));
  }
  ValueBuffer values(rows * dim);
  if (absl::Status status = (*codec)->Decode(view.payload, values.mutable_values()); !status.ok()) {
    return Invalid(absl::StrCat("payload of ", rows, " ids of ", dim, " elements: ", status.message()));
  }
  return values;
}

ValueBuffer Merge(const MessageRows& order, absl::Span<const float> gradients, uint32_t dim) {
  ValueBuffer merged(order.hashes().size() * dim);
  float* const sums = merged.mutable_values().data();
  std::vector<bool> begun(order.hashes().size(), false);
  for (size_t at = 0; at < order.row_of().size(); ++at) {
    const uint32_t row = order.row_of()[at];
    const float* const from = gradients.data() + at * dim;
    float* const to = sums + size_t{row} * dim;
    if (begun[row]) {
      for (uint32_t i = 0; i < dim; ++i) to[i] += from[i];
    } else {
      std::copy_n(from, dim, to);
      begun[row] = true;
    }
  }
  return merged;
}

std::vector<uint32_t> MergeVersions(const MessageRows& order, absl::string_view bytes) {
  std::vector<uint32_t> versions(bytes.size() / sizeof(uint32_t));
  if (versions.empty()) return versions;
  std::memcpy(versions.data(), bytes.data(), bytes.size());
  if (order.in_order()) return versions;
  std::vector<uint32_t> oldest(order.hashes().size(), UINT32_MAX);
  for (size_t at = 0; at < versions.size(); ++at) {
    uint32_t& version = oldest[order.row_of()[at]];
    version = std::min(version, versions[at]);
  }
  return oldest;
}

// Uses of each row, of which a repeated id without `bytes` is one more.
absl::StatusOr<std::vector<uint16_t>> MergeUses(const MessageRows& order, absl::string_view bytes) {
  if (bytes.empty() && order.in_order()) return std::vector<uint16_t>();
  std::vector<uint16_t> uses(order.ids(), 1);
  if (!bytes.empty()) {
    if (bytes.size() != uses.size() * sizeof(uint16_t)) {
      return Invalid(absl::StrCat("uses: got ", bytes.size(), " bytes, want 2 for each of the ", uses.size(), " ids"));
    }
    std::memcpy(uses.data(), bytes.data(), bytes.size());
    const auto zero = std::find(uses.begin(), uses.end(), 0);
    if (zero != uses.end()) return Invalid(absl::StrCat("uses[", zero - uses.begin(), "]: got 0, want at least 1"));
  }
  if (order.in_order()) return uses;
  std::vector<uint16_t> sums(order.hashes().size(), 0);
  for (size_t at = 0; at < uses.size(); ++at) {
    uint16_t& sum = sums[order.row_of()[at]];
    sum = static_cast<uint16_t>(std::min<uint32_t>(uint32_t{sum} + uses[at], UINT16_MAX));
  }
  return sums;
}

}  // namespace

absl::StatusOr<RowGradients> DecodeRowGradients(const RowGradientsView& view, uint32_t dim, bool accept_non_finite) {
  absl::StatusOr<MessageRows> order = MessageRows::Of(view.ids, view.table_id, view.unordered);
  if (!order.ok()) return order.status();
  if (!view.versions.empty() && view.versions.size() != order->ids() * sizeof(uint32_t)) {
    return Invalid(
        absl::StrCat("versions: got ", view.versions.size(), " bytes, want 4 for each of the ", order->ids(), " ids"));
  }
  absl::StatusOr<ValueBuffer> values = Decode(view, order->ids(), dim);
  if (!values.ok()) return values.status();
  absl::StatusOr<std::vector<uint16_t>> uses = MergeUses(*order, view.uses);
  if (!uses.ok()) return uses.status();
  RowGradients gradients;
  gradients.uses = *std::move(uses);
  gradients.versions = MergeVersions(*order, view.versions);
  gradients.clock = view.clock;
  gradients.values = order->in_order() ? *std::move(values) : Merge(*order, values->values(), dim);
  // Checked last, because a sum may overflow.
  if (!accept_non_finite && !Gradient(gradients.values.values()).AllFinite()) {
    return Invalid("payload: has NaN or infinity, want finite numbers");
  }
  gradients.order = *std::move(order);
  return gradients;
}

}  // namespace ballast
