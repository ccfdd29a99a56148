// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ballast/v1/tensor.pb.h"
#include "server/tensors/slice.h"
#include "server/weights/optimizers/optimizer.h"

namespace ballast {

// Identifies a slice within a shard.
struct SliceKey {
  uint32_t tensor_id = 0;
  uint32_t slice_index = 0;

  friend bool operator==(const SliceKey&, const SliceKey&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const SliceKey& key) {
    return H::combine(std::move(h), key.tensor_id, key.slice_index);
  }
};

// A tensor and the slices of it that a shard owns.
struct OwnedTensor {
  v1::TensorSpec spec;
  std::vector<v1::SliceRange> slices;
};

// Owns a shard's tensors and slices. Nothing is ever removed, so pointers to slices stay valid. Deliberately knows
// neither the job nor its workers. Thread safety: none; guarded by its shard.
class TensorCatalog {
 public:
  struct Tensor {
    v1::TensorSpec spec;
    std::unique_ptr<Optimizer> optimizer;
    std::vector<v1::SliceRange> slices;
  };
  struct Addition {
    std::vector<std::pair<uint32_t, std::unique_ptr<Tensor>>> tensors;
    // Bytes of weights and slots, and estimated bytes of other data.
    uint64_t bytes = 0, other_bytes = 0;
    // Filled in by MakeSlices.
    std::vector<std::pair<SliceKey, std::unique_ptr<Slice>>> slices;
  };
  // State that replaces the initial values of slices.
  using SavedSlices = absl::flat_hash_map<SliceKey, SliceState>;

  // `max_bytes`: limit on weights, optimizer slots and other data, which dominates for many small tensors. `shard` is
  // used in messages.
  TensorCatalog(uint32_t shard, uint64_t max_bytes) : shard_(shard), max_bytes_(max_bytes) {}

  // Returns the new tensors, after cutting tensors without slices. INVALID_ARGUMENT for an invalid declaration,
  // FAILED_PRECONDITION for one that differs from an earlier one or does not fit.
  absl::StatusOr<Addition> Check(std::vector<OwnedTensor>& tensors) const;

  // Creates the slices of an addition, with saved state or initial values. Uses all cores and takes time proportional
  // to the data; needs no catalog and so no lock. Calls `check` before each slice, from any thread; its first error
  // ends the work. NOT_FOUND for a saved slice that was not added, INVALID_ARGUMENT for one that does not fit.
  static absl::Status MakeSlices(const v1::ConsistencyPolicy& policy, uint32_t workers, SavedSlices saved,
                                 absl::FunctionRef<absl::Status()> check, Addition& addition);

  // Adds what the last Check since the last Add returned, with its slices made, or without slices if Insert adds
  // them.
  void Add(Addition addition);

  // Adds a saved slice of a tensor that was added without slices. INVALID_ARGUMENT if no tensor has it, if it was
  // already added, or if it does not fit its tensor.
  absl::Status Insert(SliceKey key, SliceState captured, const v1::ConsistencyPolicy& policy, uint32_t workers);
  // Number of slices of all tensors; larger than slice_count() until Insert has added all of them.
  size_t declared_slices() const { return declared_slices_; }

  // NOT_FOUND for an unknown tensor, FAILED_PRECONDITION for a slice that this shard does not own.
  absl::StatusOr<Slice*> Find(SliceKey key) const;

  // Sorted by id; slices by index.
  std::vector<OwnedTensor> Tensors() const;
  std::vector<std::pair<SliceKey, Slice*>> Slices() const;

  size_t tensor_count() const { return tensors_.size(); }
  size_t slice_count() const { return slices_.size(); }
  // Bytes of weights and slots.
  uint64_t bytes() const { return bytes_; }
  uint64_t other_bytes() const { return other_bytes_; }

  // Bytes of the slices' weights, and of what their policies keep. Takes time proportional to the slices.
  struct Memory {
    uint64_t weights = 0, policies = 0;
  };
  Memory memory() const;

 private:
  absl::Status CutWhole(std::vector<OwnedTensor>& tensors) const;
  absl::StatusOr<Addition> Plan(std::vector<OwnedTensor>& tensors) const;

  uint32_t shard_;
  uint64_t max_bytes_;
  uint64_t bytes_ = 0, other_bytes_ = 0;
  size_t declared_slices_ = 0;
  absl::flat_hash_map<uint32_t, std::unique_ptr<Tensor>> tensors_;
  absl::flat_hash_map<SliceKey, std::unique_ptr<Slice>> slices_;
};

}  // namespace ballast
