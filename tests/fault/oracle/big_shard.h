// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace ballast {

struct BigShardOptions {
  // Path of ballast_server.
  std::string server;
  // Folder for the coordinator's state.
  std::string folder;
  // What the shard holds beside the tensors that are pushed.
  uint32_t state_mib = 64;
  // Of the link to the standby.
  uint64_t bytes_per_second = 20'000'000;
  uint32_t workers = 2;
  // Of each of the eight tensors of a push; workers push as fast as they are answered.
  uint32_t elements = 32768;
  // For the standby to get in step.
  absl::Duration patience = absl::Seconds(60);
};

struct BigShardCounts {
  uint64_t state_bytes = 0;
  // From the declaration until the standby could take over; what the link alone would take for the state.
  double seconds_to_step = 0, seconds_of_link = 0;
  // Standbys that it took; reports of bytes that differed from the one before; lines of progress in the server's log.
  uint64_t standbys = 0, progress_reports = 0, progress_lines = 0;
  // Pushes acknowledged before the standby was in step, their bytes in a second, and the longest time without one.
  uint64_t pushes_behind = 0;
  double push_bytes_per_second = 0, longest_gap_seconds = 0;
  // Resident memory at most.
  uint64_t server_peak_bytes = 0, standby_peak_bytes = 0;
  // After the takeover, as OracleReport has them.
  uint64_t pushes_acknowledged = 0, pushes_lost = 0, pushes_duplicated = 0, wrong_weights = 0;

  // One standby was enough, memory had its limit, nothing was lost, and pushes went on all the time.
  bool good() const;
  nlohmann::ordered_json ToJson() const;
};

// A pair of real servers, the standby at the end of a slow link, and workers that push more than the link carries while
// the standby is brought up to date. Then the server is killed, and the books are compared with what its standby has.
// An error is one of the test's own, or a standby that was not in step in time. To be called by the main thread.
absl::StatusOr<BigShardCounts> RunBigShard(const BigShardOptions& options);

}  // namespace ballast
