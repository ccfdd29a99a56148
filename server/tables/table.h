// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "ballast/v1/table.pb.h"
#include "common/tables/row_hash.h"
#include "server/memory/byte_budget.h"
#include "server/tables/row_gradients.h"
#include "server/tables/row_initializer.h"
#include "server/tables/sparse_table.h"
#include "server/tables/steps/step_messages.h"
#include "server/tables/table_memory.h"
#include "server/weights/optimizers/row_optimizer.h"

namespace ballast {

// A table and the ranges of it that a shard owns.
struct OwnedTable {
  v1::TableSpec spec;
  std::vector<v1::RangeSpan> spans;
};

// Rows as a pull reads them, in the order of the message's ids.
struct PulledRows {
  // [ids, dim].
  ValueBuffer values;
  std::vector<uint32_t> versions;
  // See ballast.v1.RowValues.
  std::string present;
};

// Owns a table's part at one shard: its rows, the rule by which gradients change them, and its clock. Deliberately
// knows neither the job nor the wire. Thread safety: all methods may be called from any thread.
class Table {
 public:
  // INVALID_ARGUMENT for a specification or spans that are not valid. `memory` outlives the table, whose rows it
  // limits.
  static absl::StatusOr<std::unique_ptr<Table>> Make(OwnedTable table, bool scale_by_staleness, TableMemory* memory);

  const OwnedTable& owned() const { return owned_; }
  const v1::TableSpec& spec() const { return owned_.spec; }

  // FAILED_PRECONDITION with reason NOT_OWNER if the shard does not own the range of one of the hashes.
  absl::Status CheckOwned(absl::Span<const uint64_t> hashes) const;

  // Reserves memory for those of the rows that do not exist. RESOURCE_EXHAUSTED above the limit.
  absl::StatusOr<ByteBudget::Reservation> MakeRoom(absl::Span<const uint64_t> hashes) const;

  // A push's turn among the changes of the table.
  struct Turn {
    uint64_t clock = 0;
    float learning_rate = 0;
    // See SparseTable::ReserveOrder; empty if changes are not ordered.
    std::vector<uint64_t> places;
    // Rows of this range and of later ones are left as they are.
    uint32_t end_range = std::numeric_limits<uint32_t>::max();
  };
  // Takes the next turn, for a push at that position in the job (PushHeader.schedule_position). Each message to the
  // shard takes one, with or without rows here: from these, the table knows which steps are complete. Turns of
  // `ordered` changes must be taken in the order of their records, and each must be used.
  Turn TakeTurn(std::optional<double> position, const StepMessage& message, absl::Span<const uint64_t> hashes,
                bool ordered);

  // Forgets the messages of the worker's incomplete steps; when it returns, it sends them again.
  void Pause(uint32_t worker);

  // Applies gradients, all of whose rows the shard owns.
  BatchOutcome Apply(const RowGradients& gradients, const Turn& turn);

  // Missing rows have their initial values, or zeros if `zero_missing`.
  PulledRows Pull(const MessageRows& order, bool zero_missing) const;

  // The table besides its rows.
  struct State {
    // Steps of workers that have ended here.
    uint64_t clock = 0;
    // The furthest schedule position of the pushes.
    std::optional<double> position;
    // Steps of which some messages have come.
    std::vector<StepMessages::Open> open_steps;
  };
  State state() const;
  void SetState(const State& state);

  // See SparseTable.
  std::unique_ptr<TableCapture> BeginCapture() const { return rows_.BeginCapture(); }
  std::unique_ptr<TableCapture> BeginCapture(uint32_t first, uint32_t count) const {
    return rows_.BeginCapture(first, count);
  }

  // Adds rows of a capture, all of which the shard owns. `images`: see RowsPiece. DATA_LOSS if they cannot be rows of
  // this table, RESOURCE_EXHAUSTED if there is no memory for them.
  absl::Status Restore(absl::Span<const uint64_t> hashes, absl::string_view images);
  // Bytes of a row's image.
  size_t image_bytes() const { return rows_.layout().image_words() * sizeof(uint32_t); }

  struct Status {
    uint64_t rows = 0;
    uint64_t bytes = 0;
    uint64_t clock = 0;
  };
  Status status() const;

 private:
  Table(OwnedTable owned, RowInitializer initializer, std::unique_ptr<RowOptimizer> optimizer, bool scale_by_staleness,
        TableMemory* memory);
  absl::Status NotOwner(uint32_t range) const;
  // Memory that a new row takes, with its part of the index and of the free space that growth leaves.
  uint64_t BytesOfNewRow() const;

  const OwnedTable owned_;
  const bool scale_by_staleness_;
  // Initial values by hash.
  class Initial : public InitialRows {
   public:
    Initial(RowInitializer values, uint32_t table_id) : values_(std::move(values)), table_id_(table_id) {}
    void Fill(uint64_t hash, absl::Span<float> weights) const override {
      values_.Fill(RowIdOf(hash, table_id_), weights);
    }

   private:
    const RowInitializer values_;
    const uint32_t table_id_;
  };
  const Initial initial_;
  const std::unique_ptr<RowOptimizer> optimizer_;
  TableMemory* const memory_;
  SparseTable rows_;

  mutable absl::Mutex mutex_;
  uint64_t clock_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<double> position_ ABSL_GUARDED_BY(mutex_);
  StepMessages messages_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast
