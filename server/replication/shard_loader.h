// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "ballast/internal/v1/standby_service.pb.h"
#include "common/storage/snapshot_file.h"
#include "server/shard/parameter_shard.h"
#include "server/shard/shard_builder.h"

namespace ballast {

// A standby's shard from a stream's records: put together beside the shard until the transfer has ended, then the shard
// itself. Invariant: what was taken is equal to the server's as of position(). Thread safety: none.
class ShardLoader {
 public:
  // The shard is new.
  ShardLoader(uint32_t rank, ParameterShard* shard) : rank_(rank), shard_(shard) {}

  // The next record. DATA_LOSS for one that is not, FAILED_PRECONDITION for another shard's or one of a newer format.
  absl::Status Take(internal::v1::ReplicateRequest::Kind kind, uint64_t position, absl::string_view record);

  // All changes up to this one are made.
  uint64_t position() const { return position_; }
  // The transfer has ended.
  bool whole() const { return whole_; }

 private:
  absl::Status TakeSnapshot(uint64_t position, absl::string_view bytes);
  absl::Status TakeChange(uint64_t position, absl::string_view bytes);
  absl::Status TakeEnd(uint64_t position, absl::string_view bytes);

  const uint32_t rank_;
  ParameterShard* const shard_;
  SnapshotParser parser_;
  // From the outline to the end.
  std::optional<ShardBuilder> builder_;
  uint64_t position_ = 0;
  bool whole_ = false;
};

}  // namespace ballast
