// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "ballast/internal/v1/storage.pb.h"
#include "ballast/v1/parameter_service.pb.h"
#include "server/shard/push.h"
#include "server/shard/shard_state.h"
#include "server/tables/row_gradients.h"
#include "server/tables/table.h"

namespace ballast {

// A change as the journal records it.
struct JournalEntry {
  internal::v1::ShardRecord record;
  // The bytes that follow the record, as views of the caller's memory.
  std::vector<absl::string_view> payloads;
  // Number of slices in whose order the change has a place.
  size_t parts = 0;
};

JournalEntry EncodePush(const PushTicket& push, absl::Span<const GradientView> gradients);
// `parts`: the number of tables in whose order the push has a place.
JournalEntry EncodeRows(const PushTicket& push, uint32_t messages_of_step, absl::Span<const RowGradientsView> gradients,
                        size_t parts);
// Encodes the values with the given indices, which are set at rest.
JournalEntry EncodeValues(absl::Span<const ValueView> values, absl::Span<const size_t> indices);
JournalEntry EncodePause(uint32_t worker, uint64_t incarnation, size_t slices);
// Encodes a change that is made at rest.
JournalEntry EncodeCatchUp(uint32_t worker, uint64_t incarnation, absl::Span<const SeenSlice> seen,
                           const SeenSteps& rows);

// `checkpoint`: the one that the tensors start from, if any.
internal::v1::LoggedDeclaration EncodeDeclaration(const JobConfig& job, absl::Span<const OwnedTensor> tensors,
                                                  absl::Span<const OwnedTable> tables,
                                                  const std::string& checkpoint = "");

JobConfig DecodeJobConfig(const internal::v1::LoggedDeclaration& declaration);
std::vector<OwnedTensor> DecodeTensors(const internal::v1::LoggedDeclaration& declaration);
std::vector<OwnedTable> DecodeTables(const internal::v1::LoggedDeclaration& declaration);

// A log on disk, for people.
struct LogStatus {
  // Bytes after the newest snapshot or the one that is being written, and those that a machine failure could lose now.
  uint64_t bytes = 0, unsynced_bytes = 0;
  // Time of each write to the disk until it was safe.
  v1::Histogram sync_microseconds;
  // Time of the newest snapshot, InfinitePast if there is none, and how long it took; 0 if an earlier process took it.
  absl::Time snapshot = absl::InfinitePast();
  absl::Duration snapshot_took;
};

// Write-ahead log: the shard appends a record before it applies a change, so that the change survives the process.
// Thread safety: all methods may be called from any thread.
class ShardJournal {
 public:
  virtual ~ShardJournal() = default;

  // Appends a record, followed by the bytes of `behind`, and returns its position. First calls `admit`; if that
  // returns false, writes nothing and returns 0. Calls `in_order` after the record is written. Both calls for one
  // record happen before those for the next, so check, record and order are atomic; neither may block.
  // RESOURCE_EXHAUSTED if there is no space, UNAVAILABLE if the log can no longer be written; then nothing was
  // written and `in_order` is not called, though `admit` may have been.
  virtual absl::StatusOr<uint64_t> Append(const internal::v1::ShardRecord& record,
                                          absl::Span<const absl::string_view> behind, absl::FunctionRef<bool()> admit,
                                          absl::FunctionRef<void()> in_order) = 0;

  // Calls `done` once this record and all earlier ones are as durable as the job requires, possibly before returning.
  virtual void AwaitDurable(uint64_t position, std::function<void(absl::Status)> done) = 0;

  // Like AwaitDurable, but waits until a machine failure cannot lose the record, whatever the job requires.
  virtual void AwaitSynced(uint64_t position, std::function<void(absl::Status)> done) = 0;

  // Not set if the journal is not a log on disk. Does not wait for the disk.
  virtual std::optional<LogStatus> log() const = 0;
};

}  // namespace ballast
