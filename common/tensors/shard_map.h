// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ballast/v1/coordinator_service.pb.h"
#include "ballast/v1/tensor.pb.h"

namespace ballast {

// A slice and the rank of the shard that owns it.
struct PlacedSlice {
  uint32_t index = 0;
  uint64_t offset = 0;
  uint64_t elements = 0;
  uint32_t shard = 0;
};

// A tensor and where its slices are, ascending by index.
struct PlacedTensor {
  v1::TensorSpec spec;
  std::vector<PlacedSlice> slices;
};

// Which shard owns what. A value: copies are independent.
// Invariant: a tensor's slices cover it once, and every owner is below shards().size().
class ShardMap {
 public:
  ShardMap() = default;
  // `control_addresses`: of the shards' control ports, an empty one for a shard without; none for no shard with one.
  explicit ShardMap(std::vector<std::string> shard_addresses, std::vector<std::string> control_addresses = {})
      : shards_(std::move(shard_addresses)), controls_(std::move(control_addresses)) {
    controls_.resize(shards_.size());
  }

  // INVALID_ARGUMENT when the message breaks the invariant.
  static absl::StatusOr<ShardMap> FromProto(const v1::ShardMap& proto);
  v1::ShardMap ToProto() const;

  // Adds tensors, each slice to the shard that holds the fewest elements so far, larger slices first; the same input
  // gives the same map. A tensor that is there already must be equal, else FAILED_PRECONDITION; INVALID_ARGUMENT for a
  // map that no message could carry (about 130,000 slices). Nothing is added then.
  absl::Status Place(absl::Span<const v1::TensorSpec> specs);

  // The shard of that rank is elsewhere from now on.
  void Move(uint32_t shard, std::string address, std::string control_address);
  // Its control port alone is; nobody needs a newer map for that.
  void MoveControl(uint32_t shard, std::string address) { controls_[shard] = std::move(address); }

  uint64_t epoch() const { return epoch_; }
  const std::vector<std::string>& shards() const { return shards_; }
  // Of the control ports, by rank; empty where control calls go to the shard's address.
  const std::vector<std::string>& controls() const { return controls_; }
  const std::vector<PlacedTensor>& tensors() const { return tensors_; }

  // By id; nullptr where there is none.
  const PlacedTensor* Find(uint32_t tensor_id) const;

 private:
  uint64_t epoch_ = 1;
  std::vector<std::string> shards_;
  // As many as shards.
  std::vector<std::string> controls_;
  std::vector<PlacedTensor> tensors_;
};

// OK when both are the same declaration, else FAILED_PRECONDITION saying where they differ.
absl::Status CheckSameSpec(const v1::TensorSpec& declared, const v1::TensorSpec& again);

}  // namespace ballast
