// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "ballast/internal/v1/standby_service.pb.h"
#include "ballast/internal/v1/storage.pb.h"
#include "common/storage/snapshot_file.h"
#include "server/shard_capture.h"

namespace ballast {

// What a server sends to its standby, as ballast/internal/v1/standby_service.proto has it: records of storage.proto,
// cut into messages.

// The bytes of a change: the message, and what stands behind it.
std::string JoinChange(const internal::v1::ShardRecord& record, absl::Span<const absl::string_view> behind);

// Sends one record; false as soon as `send` says so.
using SendPart = absl::FunctionRef<bool(const internal::v1::ReplicateRequest& part)>;
bool SendRecord(internal::v1::ReplicateRequest::Kind kind, uint64_t position, absl::string_view record, SendPart send);

// Sends a captured shard, in which all changes up to that position are.
bool SendSnapshot(uint32_t shard, uint64_t position, const ShardCapture& capture, SendPart send);

// Puts a snapshot together again, record by record. Thread safety: none.
class SnapshotAssembler {
 public:
  explicit SnapshotAssembler(uint32_t shard) : shard_(shard) {}

  // Whether the snapshot is complete. DATA_LOSS for what is no snapshot's next record, FAILED_PRECONDITION for another
  // shard's or one of a newer format.
  absl::StatusOr<bool> Add(absl::string_view record);

  // Once it is complete.
  ShardCapture TakeCapture() { return std::move(capture_); }

 private:
  const uint32_t shard_;
  SnapshotParser parser_;
  ShardCapture capture_;
};

}  // namespace ballast
