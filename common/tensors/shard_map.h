// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ballast/v1/coordinator_service.pb.h"
#include "ballast/v1/table.pb.h"
#include "ballast/v1/tensor.pb.h"
#include "common/tables/placed_table.h"

namespace ballast {

// A slice and the rank of the shard that owns it.
struct PlacedSlice {
  uint32_t index = 0;
  uint64_t offset = 0;
  uint64_t elements = 0;
  uint32_t shard = 0;
};

// A tensor and its slices, ascending by index.
struct PlacedTensor {
  v1::TensorSpec spec;
  std::vector<PlacedSlice> slices;
};

// Owns the assignment of slices and of tables' ranges to shards. A value: copies are independent. Invariant: a tensor's
// slices cover it exactly once, a table's spans likewise, and every owner is below shards().size().
class ShardMap {
 public:
  ShardMap() = default;
  // `control_addresses` has one entry per shard, empty for a shard without a control port; the list is empty if no
  // shard has one.
  explicit ShardMap(std::vector<std::string> shard_addresses, std::vector<std::string> control_addresses = {})
      : shards_(std::move(shard_addresses)), controls_(std::move(control_addresses)) {
    controls_.resize(shards_.size());
  }

  // INVALID_ARGUMENT if the message breaks the invariant.
  static absl::StatusOr<ShardMap> FromProto(const v1::ShardMap& proto);
  v1::ShardMap ToProto() const;

  // Adds tensors, each slice to the shard that holds the fewest elements so far, larger slices first; the same input
  // gives the same map. Adds tables, each with equal parts for all shards. FAILED_PRECONDITION if a tensor or table
  // already exists and differs, or has the id or name of one of the other kind; INVALID_ARGUMENT for a map that no
  // message could carry (about 130,000 slices). After an error the map is unchanged. Tensors that `earlier` has are cut
  // as they are there, so that a job can resume from what another version has saved; null: there is none.
  absl::Status Place(absl::Span<const v1::TensorSpec> specs, absl::Span<const v1::TableSpec> tables = {},
                     const ShardMap* earlier = nullptr);

  // Changes the shard's addresses.
  void Move(uint32_t shard, std::string address, std::string control_address);
  // Changes the control port only, which needs no new epoch.
  void MoveControl(uint32_t shard, std::string address) { controls_[shard] = std::move(address); }

  uint64_t epoch() const { return epoch_; }
  const std::vector<std::string>& shards() const { return shards_; }
  // Addresses of the control ports, by rank; an empty one means that control calls go to the shard's address.
  const std::vector<std::string>& controls() const { return controls_; }
  const std::vector<PlacedTensor>& tensors() const { return tensors_; }
  const std::vector<PlacedTable>& tables() const { return tables_; }

  // Return nullptr for an unknown id.
  const PlacedTensor* Find(uint32_t tensor_id) const;
  const PlacedTable* FindTable(uint32_t table_id) const;

 private:
  uint64_t epoch_ = 1;
  std::vector<std::string> shards_;
  // Has one entry per shard.
  std::vector<std::string> controls_;
  std::vector<PlacedTensor> tensors_;
  std::vector<PlacedTable> tables_;
};

}  // namespace ballast
