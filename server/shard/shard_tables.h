// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "ballast/internal/v1/storage.pb.h"
#include "server/memory/byte_budget.h"
#include "server/shard/push.h"
#include "server/shard/shard_state.h"
#include "server/tables/table.h"
#include "server/tensors/tensor_catalog.h"

namespace ballast {

// A push of rows whose gradients are decoded and which fits the shard.
struct CheckedRows {
  struct Part {
    Table* table = nullptr;
    RowGradients gradients;
    // Memory for the rows that begin, until they do, and of gradients that wait for their step.
    ByteBudget::Reservation room, waiting;
    Table::Turn turn;
  };
  // The tables of the push, then all others, which count its messages.
  std::vector<Part> parts;
};

inline StepMessage StepMessageOf(const PushTicket& push, uint32_t messages_of_step) {
  return {push.worker, push.incarnation, push.step, messages_of_step};
}

inline Table::Message TableMessageOf(const PushTicket& push, uint32_t messages_of_step) {
  return {StepMessageOf(push, messages_of_step), push.sequence, push.examples, push.schedule_position,
          push.unix_seconds};
}

// Decodes and checks the rows of one table in a push, and reserves memory for those that begin. `shard` is used in
// messages. INVALID_ARGUMENT; FAILED_PRECONDITION for a row of another shard; RESOURCE_EXHAUSTED.
absl::StatusOr<CheckedRows::Part> CheckRows(uint32_t shard, const PushTicket& push, uint32_t messages_of_step,
                                            Table* table, const RowGradientsView& view, bool accept_non_finite);

// Owns a shard's tables and checks requests against them. Invariant: a table is never replaced or removed, so pointers
// to it stay valid. Deliberately knows neither the journal nor the workers. Thread safety: all methods may be called
// from any thread.
class ShardTables {
 public:
  // `shard` is used in messages. `max_bytes`: limit on the memory of rows and tensors together.
  ShardTables(uint32_t shard, uint64_t max_bytes) : shard_(shard), budget_(max_bytes), memory_(&budget_) {}

  // Reserves memory for tensors. FAILED_PRECONDITION if rows have left too little.
  absl::StatusOr<ByteBudget::Reservation> ReserveTensors(uint64_t bytes);

  using Addition = std::vector<std::unique_ptr<Table>>;
  // Makes the tables that are new. INVALID_ARGUMENT for an invalid declaration, or a policy that tables do not have;
  // FAILED_PRECONDITION for one that differs from an earlier one.
  absl::StatusOr<Addition> Check(const JobConfig& job, absl::Span<const OwnedTable> tables) const;
  // FAILED_PRECONDITION unless all tables and tensors have ids and names of their own; the additions are about to be
  // added. `tensors` returns those of the shard.
  absl::Status CheckNames(absl::FunctionRef<std::vector<OwnedTensor>()> tensors,
                          const TensorCatalog::Addition& tensor_addition, const Addition& addition) const;
  // Adds what the last Check since the last Add returned. `tensors`: memory of the tensors that were declared with
  // them.
  void Add(Addition addition, ByteBudget::Reservation tensors);

  // NOT_FOUND for a table that is not declared.
  absl::StatusOr<Table*> Find(uint32_t id) const;
  // True if rows of a table expire by time, so that pushes need one.
  bool NeedTime() const;
  // By id.
  std::vector<Table*> All() const;
  std::vector<OwnedTable> Declared() const;

  // Checks all but the tables' steps. INVALID_ARGUMENT, NOT_FOUND, FAILED_PRECONDITION for a row of another shard,
  // RESOURCE_EXHAUSTED if there is no memory for the rows that begin.
  absl::StatusOr<CheckedRows> CheckPush(const PushTicket& push, uint32_t messages_of_step,
                                        absl::Span<const RowGradientsView> gradients, bool accept_non_finite) const;
  // True if tables must catch up with the push first, because their shard lost steps. FAILED_PRECONDITION if no worker
  // can be at its step, and the shard cannot have lost any, or so many.
  absl::StatusOr<bool> CheckSteps(const PushTicket& push, const CheckedRows& checked, bool may_have_lost) const;

 private:
  const uint32_t shard_;
  ByteBudget budget_;
  // Mutable, because it guards itself.
  mutable TableMemory memory_;
  mutable absl::Mutex mutex_;
  std::map<uint32_t, std::unique_ptr<Table>> tables_ ABSL_GUARDED_BY(mutex_);
  std::vector<ByteBudget::Reservation> tensors_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast
