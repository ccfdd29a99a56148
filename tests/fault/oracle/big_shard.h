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
  // Directory for the coordinator's state.
  std::string folder;
  // Size of the shard's tensors that nobody pushes.
  uint32_t state_mib = 64;
  // Bandwidth of the link to the standby.
  uint64_t bytes_per_second = 20'000'000;
  uint32_t workers = 2;
  // Size of each of the eight tensors of a push; workers push as fast as the server responds.
  uint32_t elements = 32768;
  // Timeout for the standby to get in step.
  absl::Duration timeout = absl::Seconds(60);
};

struct BigShardCounts {
  uint64_t state_bytes = 0;
  // Time from the declaration until the standby could take over; time that the link alone would take for the state.
  double seconds_to_step = 0, seconds_of_link = 0;
  // Standbys that were needed; progress reports whose byte count had changed; lines of progress in the server's log.
  uint64_t standbys = 0, progress_reports = 0, progress_lines = 0;
  // Pushes acknowledged before the standby was in step, their bytes per second, and the longest time without one.
  uint64_t pushes_behind = 0;
  double push_bytes_per_second = 0, longest_gap_seconds = 0;
  // Peak resident memory.
  uint64_t server_peak_bytes = 0, standby_peak_bytes = 0;
  // Results after the takeover, as in OracleReport.
  uint64_t pushes_acknowledged = 0, pushes_lost = 0, pushes_duplicated = 0, wrong_weights = 0;

  // True if one standby was enough, memory stayed in its limit, nothing was lost, and pushes never stopped.
  bool good() const;
  nlohmann::ordered_json ToJson() const;
};

// Runs a real server and its standby behind a slow link, with workers that push more than the link carries while the
// standby is brought up to date. Then kills the server and compares the acknowledged pushes with the standby's
// weights. An error is a failure of the test itself, or a standby that was not in step in time. To be called by the
// main thread.
absl::StatusOr<BigShardCounts> RunBigShard(const BigShardOptions& options);

}  // namespace ballast
