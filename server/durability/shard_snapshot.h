// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/storage/file_system.h"
#include "common/storage/snapshot_file.h"
#include "server/shard/shard_state.h"

namespace ballast {

// Where a captured shard stands among others.
struct SnapshotPlace {
  uint32_t shard = 0;
  // How many there are; 0 where that is not known.
  uint32_t shards = 0;
  // As ballast.internal.v1.SnapshotHeader.
  uint64_t position = 0;
};

// Writes a captured shard to a new file, and syncs it. RESOURCE_EXHAUSTED where the disk is full; some of the file may
// be there then.
absl::Status WriteSnapshot(FileSystem* files, const std::string& path, const SnapshotPlace& place,
                           const ShardState& capture);

// Reads a snapshot again as a recovery would, all of it: DATA_LOSS with file and offset where it is not what was
// written.
absl::Status VerifySnapshot(const std::string& path, const SnapshotPlace& place, const ShardState& capture);

// What a snapshot says of the whole shard, and of a slice besides its values.
internal::v1::SnapshotHeader MakeHeader(const SnapshotPlace& place, const ShardState& capture);
internal::v1::SliceState MakeState(const ShardState::SliceEntry& slice);

// Hands over the records of a slice: its own, and one for each gradient that it holds. Each has a framed message and
// what comes behind it. Ends with the first that `take` refuses.
absl::Status VisitSlice(
    const ShardState::SliceEntry& slice,
    absl::FunctionRef<absl::Status(absl::string_view frame, absl::Span<const absl::Span<const float>> behind)> take);

// The number of those records.
uint64_t CountRecords(const ShardState::SliceEntry& slice);

// The same, read again. Slices and values come later.
ShardState ToCapture(const internal::v1::SnapshotHeader& header);
ShardState::SliceEntry ToSliceEntry(SnapshotSlice slice);

}  // namespace ballast
