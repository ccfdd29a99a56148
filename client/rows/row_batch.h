// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "ballast/v1/table.pb.h"
#include "client/rows/row_clocks.h"

namespace ballast {

// Rows of one table to read, and the caller's memory for them, which belongs to the client from the call until its
// future is ready. Ids may be in any order, and repeated: each position gets its row.
struct RowPull {
  uint32_t table_id = 0;
  absl::Span<const uint64_t> ids;
  // [ids, dim], row-major.
  absl::Span<float> values;
  // The values of a row that does not exist; by default initial ones, or zeros in a table with admission.
  v1::RowQuery::Missing missing = v1::RowQuery::MISSING_UNSPECIFIED;
  // Each row's updates so far, for RowPush. One per id, or empty if the caller does not need them.
  absl::Span<uint32_t> versions;
  // 1 for a row that exists, otherwise 0. One per id, or empty if the caller does not need them.
  absl::Span<uint8_t> present;
};

// Gradients of rows of one table in the caller's memory, which belongs to the client from the call until its future is
// ready. Ids may be in any order; the gradients of a repeated id are added in their order, and each is a use.
struct RowPush {
  uint32_t table_id = 0;
  absl::Span<const uint64_t> ids;
  // [ids, dim], row-major.
  absl::Span<const float> gradients;
  // Versions that RowPull returned, one per id; of a repeated id the oldest counts. If empty, staleness is not counted.
  absl::Span<const uint32_t> versions;
  // The number of times that the batch used each id, for a caller that has added gradients itself; empty: once, and as
  // often as an id is repeated.
  absl::Span<const uint16_t> uses = {};
  // RowsResult.clocks of the pull of these rows, for policies with staleness_of TABLE. If null, that staleness is not
  // counted.
  const RowClocks* clocks = nullptr;
};

// Result of a call for rows. A pull sets only the bytes, the retries and the clocks.
struct RowsResult {
  // Distinct rows that were updated; among them, rows that began with this push, and rows whose version was not
  // reached. Under policy sync, those of a step that this push completed.
  uint64_t applied = 0;
  uint64_t created = 0;
  uint64_t orphaned = 0;
  // Rows that did not begin, because their ids are not admitted yet, and rows that were evicted meanwhile.
  uint64_t not_admitted = 0;
  uint64_t evicted = 0;
  // Policy sync: rows whose gradients wait for their step, and rows whose step is over.
  uint64_t kept = 0;
  uint64_t dropped = 0;
  // Largest staleness of a row, in its updates; with staleness_of TABLE, in steps of the table's clock.
  uint32_t max_staleness = 0;
  // The shard had already accepted an earlier attempt, whose response was lost; the push was still applied only once.
  bool duplicate = false;
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
  uint32_t retries = 0;
  // The clocks that a pull received, of the tables whose policy has staleness_of TABLE. If a push has rows of several
  // pulls, add theirs.
  RowClocks clocks;
};

}  // namespace ballast
