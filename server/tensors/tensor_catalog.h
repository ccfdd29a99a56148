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

// Names a slice of a shard.
struct SliceKey {
  uint32_t tensor_id = 0;
  uint32_t slice_index = 0;

  friend bool operator==(const SliceKey&, const SliceKey&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const SliceKey& key) {
    return H::combine(std::move(h), key.tensor_id, key.slice_index);
  }
};

// A tensor and the part of it that a shard owns.
struct OwnedTensor {
  v1::TensorSpec spec;
  std::vector<v1::SliceRange> slices;
};

// A shard's tensors, and the slices of them that it owns. Nothing is ever removed, so pointers to slices stay good.
// Knows neither the job nor its workers. Thread safety: none; its shard guards it.
class TensorCatalog {
 public:
  // What a declaration adds.
  struct Tensor {
    v1::TensorSpec spec;
    std::unique_ptr<Optimizer> optimizer;
    std::vector<v1::SliceRange> slices;
  };
  struct Addition {
    std::vector<std::pair<uint32_t, std::unique_ptr<Tensor>>> tensors;
    // Of weights and slots, and of what is kept about them.
    uint64_t bytes = 0, other_bytes = 0;
    // Once MakeSlices has made them.
    std::vector<std::pair<SliceKey, std::unique_ptr<Slice>>> slices;
  };
  // A slice's state that takes the place of its initial values.
  using SavedSlices = absl::flat_hash_map<SliceKey, SliceState>;

  // `max_bytes`: of weights, optimizer slots and what is kept about them, which of many small tensors is the most.
  // `shard` is for messages.
  TensorCatalog(uint32_t shard, uint64_t max_bytes) : shard_(shard), max_bytes_(max_bytes) {}

  // What is new among the tensors, after cutting those without slices. INVALID_ARGUMENT for what is wrong in itself,
  // FAILED_PRECONDITION for what was declared differently before, and for what does not fit.
  absl::StatusOr<Addition> Check(std::vector<OwnedTensor>& tensors) const;

  // Makes the slices of an addition, each as it was saved or else with its initial values. Takes as long as there is
  // data, with all cores; knows no catalog, so that no lock need be held. `check` is asked before each slice, from any
  // thread: its first error ends the work. NOT_FOUND for a saved slice that is not among them, INVALID_ARGUMENT for one
  // that is not like them.
  static absl::Status MakeSlices(const v1::ConsistencyPolicy& policy, uint32_t workers, SavedSlices saved,
                                 absl::FunctionRef<absl::Status()> check, Addition& addition);

  // What Check answered since the last Add, its slices made, or without slices for Insert to bring them.
  void Add(Addition addition);

  // A saved slice of a tensor that was added without slices. INVALID_ARGUMENT for one that no tensor has, that is here
  // already, or that does not fit its tensor.
  absl::Status Insert(SliceKey key, SliceState captured, const v1::ConsistencyPolicy& policy, uint32_t workers);
  // How many slices the tensors have; Insert has not brought all of them where slice_count() is less.
  size_t declared_slices() const { return declared_slices_; }

  // NOT_FOUND for what is not here.
  absl::StatusOr<Slice*> Find(SliceKey key) const;

  // By id; slices by index.
  std::vector<OwnedTensor> Tensors() const;
  std::vector<std::pair<SliceKey, Slice*>> Slices() const;

  size_t tensor_count() const { return tensors_.size(); }
  size_t slice_count() const { return slices_.size(); }
  // Of weights and slots.
  uint64_t bytes() const { return bytes_; }

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
