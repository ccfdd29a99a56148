// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ballast/internal/v1/storage.pb.h"
#include "server/shard/push.h"
#include "server/shard/shard_state.h"
#include "server/shard/shard_tables.h"
#include "server/shard/table_builder.h"
#include "server/tensors/tensor_catalog.h"

namespace ballast {

// The complete contents of a shard.
struct BuiltShard {
  JobConfig job;
  TensorCatalog catalog;
  ShardTables::Addition tables;
  // By rank; may be fewer than the job's workers.
  std::vector<internal::v1::WindowState> windows;
};

// Owns a shard under construction from captured slices and tables, which nobody else sees. Slices may be captured one
// after another; a slice that has been added follows the changes that its original makes. A change may arrive after a
// slice that was captured later: that capture already contains it, so it is not applied to that slice again. Invariant:
// each slice equals its original as of the last change applied to both. Deliberately has no push windows: each change
// was validated where it was first made, and arrives once.
// Thread safety: none.
class ShardBuilder {
 public:
  // Returns the same errors as ParameterShard::Declare. `tables` is empty.
  static absl::StatusOr<ShardBuilder> Begin(uint32_t shard, uint64_t max_bytes, JobConfig job,
                                            std::vector<OwnedTensor> tensors, TableBuilder tables);

  // Adds tensors and tables, and skips known ones. The caller adds their slices with Add, and what the tables hold with
  // tables().
  absl::Status Declare(std::vector<OwnedTensor> tensors, absl::Span<const OwnedTable> tables);

  TableBuilder& tables() { return tables_; }

  // Adds a slice whose capture contains all changes up to `captured_at`. INVALID_ARGUMENT if no tensor has the slice,
  // if it was already added, or if it does not fit.
  absl::Status Add(ShardState::SliceEntry slice, uint64_t captured_at);

  // Applies gradients of slices that had been added when the push was made. FAILED_PRECONDITION for a gradient of any
  // other slice, INVALID_ARGUMENT for one that does not fit.
  absl::Status Push(const PushTicket& push, absl::Span<const GradientView> gradients);
  // Applies the change at `position` to the added slices that were captured before it; later captures contain it.
  // INVALID_ARGUMENT for values that do not fit.
  absl::Status SetValues(uint64_t position, absl::Span<const ValueView> values);
  // Like SetValues, for a worker that pauses. INVALID_ARGUMENT for a rank that the job does not have.
  absl::Status Pause(uint64_t position, uint32_t worker);

  // Like SetValues, for a push of rows.
  absl::Status PushRows(uint64_t position, const PushTicket& push, uint32_t messages_of_step,
                        absl::Span<const RowGradientsView> gradients);

  // INVALID_ARGUMENT if slices or rows are missing or there are more windows than workers.
  absl::StatusOr<BuiltShard> Finish(std::vector<internal::v1::WindowState> windows) &&;

  uint64_t slices() const { return built_.catalog.slice_count(); }

 private:
  ShardBuilder(BuiltShard built, TableBuilder tables) : built_(std::move(built)), tables_(std::move(tables)) {}
  absl::Status CheckWorker(uint32_t worker) const;
  absl::Status Offer(const PushTicket& push, const GradientView& view);
  // True if the slice has been added and its capture does not contain the change at that position.
  bool Lacks(const SliceKey& key, uint64_t position) const;

  BuiltShard built_;
  TableBuilder tables_;
  // By slice: position of the last change that its capture contains.
  absl::flat_hash_map<SliceKey, uint64_t> captured_at_;
};

}  // namespace ballast
