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
#include "server/tensors/tensor_catalog.h"

namespace ballast {

// What a shard consists of.
struct BuiltShard {
  JobConfig job;
  TensorCatalog catalog;
  // By rank; may be fewer than the job's workers.
  std::vector<internal::v1::WindowState> windows;
};

// A shard that is put together from captured slices, while nobody else sees it. Slices may be captured one after
// another, and a slice that is here follows the changes that its original makes meanwhile. A change may come after a
// slice that was captured later: the capture holds it already, so it is not made to that slice again.
// Invariant: each slice equals its original as of the last change that was made to both. Deliberately has no push
// windows: changes were found good where they were first made, and come once.
// Thread safety: none.
class ShardBuilder {
 public:
  // INVALID_ARGUMENT and FAILED_PRECONDITION as ParameterShard::Declare.
  static absl::StatusOr<ShardBuilder> Begin(uint32_t shard, uint64_t max_bytes, JobConfig job,
                                            std::vector<OwnedTensor> tensors);

  // More tensors; those that are known already may be among them. Their slices are to be added.
  absl::Status Declare(std::vector<OwnedTensor> tensors);

  // A slice whose capture holds all changes up to `captured_at`. INVALID_ARGUMENT for a slice that no tensor has, that
  // came before, or that does not fit.
  absl::Status Add(ShardState::SliceEntry slice, uint64_t captured_at);

  // Gradients of slices that were here when the push was made: FAILED_PRECONDITION for a gradient of another,
  // INVALID_ARGUMENT for one that does not fit.
  absl::Status Push(const PushTicket& push, absl::Span<const GradientView> gradients);
  // The change at `position`, made to the slices that are here and were captured before it; the captures of the others
  // hold it. INVALID_ARGUMENT for values that do not fit.
  absl::Status SetValues(uint64_t position, absl::Span<const ValueView> values);
  // The same for a worker that pauses. INVALID_ARGUMENT for a rank that the job does not have.
  absl::Status Pause(uint64_t position, uint32_t worker);

  // INVALID_ARGUMENT while slices are missing, and for more windows than workers.
  absl::StatusOr<BuiltShard> Finish(std::vector<internal::v1::WindowState> windows) &&;

  uint64_t slices() const { return built_.catalog.slice_count(); }

 private:
  explicit ShardBuilder(BuiltShard built) : built_(std::move(built)) {}
  absl::Status CheckWorker(uint32_t worker) const;
  absl::Status Offer(const PushTicket& push, const GradientView& view);
  // True if the slice is here and its capture does not hold the change at that position.
  bool Lacks(const SliceKey& key, uint64_t position) const;

  BuiltShard built_;
  // By slice: the last change that its capture holds.
  absl::flat_hash_map<SliceKey, uint64_t> captured_at_;
};

}  // namespace ballast
