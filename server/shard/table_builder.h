// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/shard/push.h"
#include "server/shard/shard_tables.h"
#include "server/tables/table.h"

namespace ballast {

// Rows of a capture, as views of the caller's memory; see RowsPiece.
struct CapturedRows {
  uint32_t range = 0;
  uint32_t ranges = 0;
  absl::Span<const uint64_t> hashes;
  absl::string_view images;
  absl::Span<const absl::string_view> uses;
};

// Owns the tables of a shard under construction from captures, which nobody else sees. Each table's ranges arrive in
// ascending order, each whole before the next change, with the position up to which their capture contains the changes;
// a range that has arrived follows the later ones. Invariant: each range that has arrived, and each clock, equals its
// original as of the last change applied to both. Thread safety: none.
class TableBuilder {
 public:
  // Makes tables; see ShardTables::Check.
  using Make = std::function<absl::StatusOr<ShardTables::Addition>(absl::Span<const OwnedTable>)>;

  TableBuilder(uint32_t shard, Make make) : shard_(shard), make_(std::move(make)) {}

  // Adds tables, and skips known ones. The errors of ParameterShard::Declare.
  absl::Status Declare(absl::Span<const OwnedTable> tables);

  // Adds a table's state, which contains all changes up to `captured_at`. INVALID_ARGUMENT for a table that is not
  // declared or already has its state.
  absl::Status AddState(uint32_t table, Table::State state, uint64_t captured_at);

  // Adds rows. INVALID_ARGUMENT if ranges are not in order, DATA_LOSS for rows that do not fit, RESOURCE_EXHAUSTED.
  absl::Status AddRows(uint32_t table, const CapturedRows& rows, uint64_t captured_at);

  // Applies the change at `position` to what was captured before it. INVALID_ARGUMENT for one that does not fit.
  absl::Status Push(uint64_t position, const PushTicket& push, uint32_t messages_of_step,
                    absl::Span<const RowGradientsView> gradients, bool accept_non_finite);

  // Like Push, for a pause of the worker.
  void Pause(uint64_t position, uint32_t worker);

  // INVALID_ARGUMENT if a state or ranges are missing.
  absl::StatusOr<ShardTables::Addition> Finish() &&;

 private:
  struct Building {
    std::unique_ptr<Table> table;
    std::optional<uint64_t> state_at;
    // For each range that has arrived, from the table's first one on, the position of the last change that its capture
    // contains; ascending.
    std::vector<uint64_t> captured_at;
  };

  absl::StatusOr<Building*> Find(uint32_t table);
  // Applies the turn of the change at `position` to the ranges that were captured before it.
  static void Apply(uint64_t position, Table::Turn turn, const RowGradients& gradients, Building& building);
  absl::Status Push(uint64_t position, const PushTicket& push, uint32_t messages_of_step, const RowGradientsView* view,
                    bool accept_non_finite, Building& building);

  const uint32_t shard_;
  const Make make_;
  // By id.
  std::map<uint32_t, Building> tables_;
};

}  // namespace ballast
