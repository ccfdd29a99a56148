// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/storage/file_system.h"

namespace ballast {

// The files of a coordinator's directory: logs, each named after its first record. A record is a whole state
// (ballast/internal/v1/coordinator_state.proto), so only the last state counts, or it is empty: a mark, which says that
// the state before it is on the disk. A log goes only after a later one holds a state.

std::string CoordinatorLogPath(absl::string_view directory, uint64_t first);

// The positions that the files' names tell, ascending. NOT_FOUND if there is no such directory.
absl::StatusOr<std::vector<uint64_t>> ListCoordinatorLogs(FileSystem& files, const std::string& directory);

// What the logs of a directory hold.
struct CoordinatorStates {
  // Whole states.
  uint64_t records = 0;
  uint64_t bytes = 0;
  // What a crash left behind the last whole record of a file.
  uint64_t unfinished = 0;
  // Position of the record that would come next.
  uint64_t next = 1;
  // The last state and its position; empty if there is none.
  std::string last;
  uint64_t last_position = 0;
};

// Reads all of them. DATA_LOSS, with file and offset, if one is damaged, and if there must have been a state
// and none is whole.
absl::StatusOr<CoordinatorStates> ReadCoordinatorLogs(FileSystem& files, const std::string& directory);

}  // namespace ballast
