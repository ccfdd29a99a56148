// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "ballast/v1/tensor.pb.h"
#include "server/memory/value_buffer.h"
#include "server/tables/message_rows.h"

namespace ballast {

// Received gradients of rows of one table, as views of the caller's memory; see ballast.v1.RowGradients.
struct RowGradientsView {
  uint32_t table_id = 0;
  absl::string_view ids;
  bool unordered = false;
  absl::string_view versions;
  v1::Encoding encoding = v1::ENCODING_FP32;
  absl::Span<const absl::string_view> payload;
  absl::string_view uses = {};
  std::optional<uint64_t> clock = {};
};

// The gradients of a message's distinct rows, in the order of their hashes: [rows, dim].
struct RowGradients {
  MessageRows order;
  ValueBuffer values;
  // Versions as pulled: the oldest, of a row that the message has more than once. Empty: staleness is not counted.
  std::vector<uint32_t> versions;
  // The number of times that each was used, at least 1; empty: once.
  std::vector<uint16_t> uses;
  // Clock of the table when the rows were pulled, for policies by which the table's staleness counts.
  std::optional<uint64_t> clock;
};

// Decodes gradients of `dim` elements per id; those of a repeated id are added, in the message's order.
// INVALID_ARGUMENT if ids, versions, uses and payload do not fit each other, if the ids are out of order, or if a
// number is not finite and `accept_non_finite` is false.
absl::StatusOr<RowGradients> DecodeRowGradients(const RowGradientsView& view, uint32_t dim, bool accept_non_finite);

}  // namespace ballast
