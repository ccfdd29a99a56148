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

// Owns a standby's shard while it is loaded from a stream's records: a separate builder until the transfer ends, then
// the shard itself. Invariant: the loaded state equals the server's as of position(). Thread safety: none.
class ShardLoader {
 public:
  // `shard` must be new.
  ShardLoader(uint32_t rank, ParameterShard* shard) : rank_(rank), shard_(shard) {}

  // Takes a record. DATA_LOSS if it is invalid, FAILED_PRECONDITION if it is another shard's or has a newer format.
  absl::Status Take(internal::v1::ReplicateRequest::Kind kind, uint64_t position, absl::string_view record);

  // All changes up to this position are applied.
  uint64_t position() const { return position_; }
  // True once the transfer has ended.
  bool whole() const { return whole_; }

 private:
  absl::Status TakeSnapshot(uint64_t position, absl::string_view bytes);
  absl::Status TakeChange(uint64_t position, absl::string_view bytes);
  absl::Status TakeEnd(uint64_t position, absl::string_view bytes);

  const uint32_t rank_;
  ParameterShard* const shard_;
  SnapshotParser parser_;
  // Set from the outline until the end of the transfer.
  std::optional<ShardBuilder> builder_;
  uint64_t position_ = 0;
  bool whole_ = false;
};

}  // namespace ballast
