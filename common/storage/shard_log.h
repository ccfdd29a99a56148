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
#include "ballast/internal/v1/storage.pb.h"
#include "common/storage/file_system.h"
#include "common/storage/record_log.h"

namespace ballast {

// Files of a shard's state directory: logs, each named after its first record, and snapshots, each named after the
// last record that it includes (ballast/internal/v1/storage.proto).

// Format of the logs that this program writes; it reads no other.
inline constexpr uint32_t kLogFormat = 2;

std::string LogPath(absl::string_view directory, uint64_t first);
std::string SnapshotPath(absl::string_view directory, uint64_t position);

// Return the positions in the file names, ascending.
absl::StatusOr<std::vector<uint64_t>> ListLogs(FileSystem& files, const std::string& directory);
absl::StatusOr<std::vector<uint64_t>> ListSnapshots(FileSystem& files, const std::string& directory);

// Returns the description of the previous file for a log's header.
internal::v1::LogHeader::Previous DescribePrevious(uint64_t first, const LogDigest& digest);

// Result of reading a log.
struct LogEnd {
  uint64_t files = 0;
  uint64_t bytes = 0;
  // Position of the next record to write.
  uint64_t next = 1;
  // The newest file (none if no file was read), the end of its complete records, and the bytes after them.
  std::optional<uint64_t> newest;
  uint64_t newest_bytes = 0;
  uint64_t unfinished = 0;
  // The newest file that has a record, as the header of the next file must describe it.
  std::optional<internal::v1::LogHeader::Previous> last;
};

// A change in a log.
struct LogRecord {
  const std::string& path;
  uint64_t position = 0;
  uint64_t offset = 0;
  const internal::v1::ShardRecord& change;
  absl::string_view behind;
};

// Reads a log from record `from` on: 1, or the one after a snapshot. Files that lie completely before it are not
// read. `take` receives each change, until it returns an error. Only the newest file may end in a torn record;
// anything else that is damaged, missing or different from what its successor describes is DATA_LOSS with file and
// offset. FAILED_PRECONDITION, naming the file, for another format, or another shard if `shard` is given.
absl::StatusOr<LogEnd> ReadShardLog(FileSystem& files, const std::string& directory, uint64_t from,
                                    std::optional<uint32_t> shard,
                                    absl::FunctionRef<absl::Status(const LogRecord& record)> take);

}  // namespace ballast
