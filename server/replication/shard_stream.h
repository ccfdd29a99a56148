// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "ballast/internal/v1/standby_service.pb.h"
#include "ballast/internal/v1/storage.pb.h"
#include "common/storage/snapshot_file.h"
#include "server/shard/parameter_shard.h"
#include "server/shard/shard_builder.h"
#include "server/shard/shard_state.h"

namespace ballast {

// The server's messages to its standby (ballast/internal/v1/standby_service.proto): records of storage.proto, split
// into parts.

// Returns the bytes of a change: the message and the bytes that follow it.
std::string JoinChange(const internal::v1::ShardRecord& record, absl::Span<const absl::string_view> behind);

// Like JoinChange, for a push with only those gradients for which `keep` is true.
std::string JoinPushOf(const std::vector<bool>& keep, const internal::v1::ShardRecord& record,
                       absl::Span<const absl::string_view> behind);

// Sends one record. Stops and returns false when `send` does.
using SendPart = absl::FunctionRef<bool(const internal::v1::ReplicateRequest& part)>;
bool SendRecord(internal::v1::ReplicateRequest::Kind kind, uint64_t position, absl::string_view record, SendPart send);

// The parts of a transfer, in this order: the shard's job, tensors and tables; the slices; for each table its state,
// then its rows; the end.
bool SendOutline(uint32_t shard, uint64_t position, const ShardState& outline, SendPart send);
bool SendSlice(uint64_t position, const ShardState::SliceEntry& slice, SendPart send);
bool SendTable(uint64_t position, const ShardState::TableEntry& table, SendPart send);
bool SendRows(uint64_t position, const ShardState::TableEntry& table, const RowsPiece& piece, SendPart send);
bool SendEnd(uint64_t position, const internal::v1::TransferEnd& end, SendPart send);

// The number of messages plus bytes of data, as in ReplicateResponse.taken.
inline uint64_t CountPart(const internal::v1::ReplicateRequest& part) { return 1 + part.data().size(); }

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

// A server's stream to its standby, as the journal uses it. The transport is the implementation's matter.
// Thread safety: one thread reads, one writes, any may cancel.
class StandbyStream {
 public:
  virtual ~StandbyStream() = default;

  // Sends a message. `more`: the next one follows at once, so this one may be buffered. False if the stream has ended.
  virtual bool Write(const internal::v1::ReplicateRequest& part, bool more) = 0;

  // Blocks until a response arrives. False if the stream has ended.
  virtual bool Read(internal::v1::ReplicateResponse& response) = 0;

  // Ends the stream: Write and Read return false soon.
  virtual void Cancel() = 0;

  // Returns the error that ended the stream, or OK. Call it once, after the last Read and Write.
  virtual absl::Status Finish() = 0;
};

}  // namespace ballast
