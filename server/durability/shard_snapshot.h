// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/storage/file_system.h"
#include "common/storage/snapshot_file.h"
#include "server/shard/shard_builder.h"
#include "server/shard/shard_state.h"

namespace ballast {

// Identifies a captured shard.
struct SnapshotPlace {
  uint32_t shard = 0;
  // Number of shards; 0 if unknown.
  uint32_t shards = 0;
  // See ballast.internal.v1.SnapshotHeader.
  uint64_t position = 0;
  // Set if the tables have only what changed since then.
  std::optional<internal::v1::SnapshotHeader::Parent> parent;
};

// Writes a captured shard to a new file and syncs it; takes the rows out of the capture. RESOURCE_EXHAUSTED if the disk
// is full; part of the file may remain.
absl::Status WriteSnapshot(FileSystem* files, const std::string& path, const SnapshotPlace& place,
                           const ShardState& capture);

// Reads the whole snapshot back as a recovery would. DATA_LOSS with file and offset if it differs from what was
// written; the rows themselves are compared by the checksums of their records alone.
absl::Status VerifySnapshot(const std::string& path, const SnapshotPlace& place, const ShardState& capture);

// The messages of a snapshot for the whole shard, and for one slice or table without its values.
internal::v1::SnapshotHeader MakeHeader(const SnapshotPlace& place, const ShardState& capture);
internal::v1::SliceState MakeState(const ShardState::SliceEntry& slice);
internal::v1::TableState MakeState(const ShardState::TableEntry& table);

// Passes `take` each record of a slice: its own, and one for each gradient that it holds. A record is a framed
// message and the arrays that follow it. Stops at the first error that `take` returns.
absl::Status VisitSlice(
    const ShardState::SliceEntry& slice,
    absl::FunctionRef<absl::Status(absl::string_view frame, absl::Span<const absl::Span<const float>> behind)> take);

// Passes `take` each record of a table: its state, then its rows, which it takes out of the capture. A record is a
// framed message and the bytes that follow it. Stops at the first error that `take` returns.
absl::Status VisitTable(
    const ShardState::TableEntry& table,
    absl::FunctionRef<absl::Status(absl::string_view frame, absl::Span<const absl::string_view> behind)> take);

// Passes `take` the records of a table besides its rows.
absl::Status VisitTableState(
    const ShardState::TableEntry& table,
    absl::FunctionRef<absl::Status(absl::string_view frame, absl::Span<const absl::string_view> behind)> take);

// Passes `take` the record of rows that were taken out of the table's capture.
absl::Status VisitRows(
    const ShardState::TableEntry& table, const RowsPiece& piece,
    absl::FunctionRef<absl::Status(absl::string_view frame, absl::Span<const absl::string_view> behind)> take);

// The number of records that VisitSlice passes.
uint64_t CountRecords(const ShardState::SliceEntry& slice);

// Decodes the messages. ToCapture returns a state without slices and rows.
ShardState ToCapture(const internal::v1::SnapshotHeader& header);
ShardState::SliceEntry ToSliceEntry(SnapshotSlice slice);
Table::State ToTableState(SnapshotTable table);

// Adds a part of a snapshot, which contains all changes up to `captured_at`. DATA_LOSS or INVALID_ARGUMENT for one that
// does not fit.
absl::Status AddPart(SnapshotPart part, uint64_t captured_at, ShardBuilder& builder);

// Owns a thread that takes a snapshot when one is due, and tries again after a failure. Deliberately does not know
// when one is due or what it contains. Thread safety: all methods may be called from any thread.
class SnapshotThread {
 public:
  struct Options {
    // Delay before the first retry; it doubles with each failure, up to `longest_retry`.
    absl::Duration first_retry = absl::Seconds(1);
    absl::Duration longest_retry = absl::Minutes(1);
    // Called from the thread; `on_failure` before the delay.
    std::function<absl::Status()> take;
    std::function<void(const absl::Status& status, absl::Duration retry)> on_failure;
  };

  explicit SnapshotThread(Options options);
  // Waits for the current snapshot, but not for a retry.
  ~SnapshotThread();
  SnapshotThread(const SnapshotThread&) = delete;

  // Requests a snapshot. Does not shorten the delay before a retry.
  void Request();

  uint64_t failures() const;

 private:
  void Run();
  // Returns false once this is stopping.
  bool AwaitDue();

  const Options options_;
  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool due_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t failures_ ABSL_GUARDED_BY(mutex_) = 0;
  std::thread thread_;
};

}  // namespace ballast
