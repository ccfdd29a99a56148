// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/storage/file_system.h"

namespace ballast {

// Files of a coordinator's directory: logs, each named after its first record. A record is either a complete state
// (ballast/internal/v1/coordinator_state.proto) that replaces all earlier ones, or empty: a mark that the state
// before it is on disk. A log is removed only after a later one holds a state.

std::string CoordinatorLogPath(absl::string_view directory, uint64_t first);

// Returns the positions in the file names, ascending. NOT_FOUND if the directory does not exist.
absl::StatusOr<std::vector<uint64_t>> ListCoordinatorLogs(FileSystem& files, const std::string& directory);

// Contents of the logs of a directory.
struct CoordinatorStates {
  // Number of complete states.
  uint64_t records = 0;
  uint64_t bytes = 0;
  // Bytes after the last complete record of a file, left by a crash.
  uint64_t unfinished = 0;
  // Position of the next record to write.
  uint64_t next = 1;
  // The last state and its position; empty if there is none.
  std::string last;
  uint64_t last_position = 0;
};

// Reads all logs. DATA_LOSS, with file and offset, if one is damaged, or if a state must have existed and no complete
// one is left.
absl::StatusOr<CoordinatorStates> ReadCoordinatorLogs(FileSystem& files, const std::string& directory);

}  // namespace ballast
