// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ballast/v1/tensor.pb.h"
#include "tests/fault/network/two_hosts.h"
#include "tests/fault/programs/count_fields.h"
#include "tests/fault/proxy/fault_proxy.h"

namespace ballast {

// Faults while the oracle's workers push, one per source file.

// An oracle's job on real servers, and the faults injected into it.
struct FaultRunOptions {
  // Path of ballast_server.
  std::string server;
  std::vector<std::string> server_flags;
  uint32_t servers = 2;
  uint32_t workers = 4;
  v1::ConsistencyPolicy policy;
  // Unless NONE, servers get their own directories in `state_folder`, which is emptied. With STANDBY each shard has a
  // server and a standby, which workers reach without a proxy.
  v1::Durability::Mode durability = v1::Durability::NONE;
  std::string state_folder;
  // Pushes per worker; the run ends after them, or after `time`.
  uint64_t pushes = 500;
  absl::Duration time = absl::InfiniteDuration();
  // Size of each of the eight tensors of a push. From 2048 on, messages in shared memory leave gradients and values
  // where they are.
  uint32_t elements = 64;
  // Size of tensors that nobody pushes.
  uint32_t idle_mib = 0;
  // Workers call servers in shared memory. Lost replies do not concern these calls, but each end of a connection does.
  bool shared_memory = false;
  // Workers call servers on data streams. Retries of such calls are made over gRPC.
  bool data_streams = true;
  // Interval at which all connections by proxies end. Calls in shared memory then lose their responses, and workers use
  // the connections until they have memory again.
  absl::Duration cut_every = absl::InfiniteDuration();
  // Faults on each worker's connections to each server.
  FaultPlan plan;
  uint64_t seed = 1;
  // Interval at which one server after the other is killed (SIGKILL) and restarted on the same port, counted from the
  // recovery of the previous one; with STANDBY, once each standby could take over.
  absl::Duration kill_every = absl::InfiniteDuration();
  // With STANDBY: servers are stopped instead, and continue after their standbys took over, without being told. The
  // server with the coordinator is not stopped.
  bool freeze = false;
  // The run ends after this many kills.
  uint64_t kills = 1000000;
  // If set, servers are on its far host, and workers reach them by its cable without a proxy; `plan` then injects no
  // faults.
  const TwoHosts* hosts = nullptr;
  // Duration of a network partition, and time between the end of one and the next.
  absl::Duration partition_every = absl::InfiniteDuration();
  absl::Duration partition_for = absl::Seconds(1);
  // Timeout of one attempt: short, to notice a dropped reply soon, yet far longer than a normal response takes.
  absl::Duration rpc_timeout = absl::Seconds(1);
  // A fault after which no push is acknowledged for this long is a hang.
  absl::Duration timeout = absl::Seconds(30);
};

// Results of one or more runs of the oracle's job with injected faults.
struct FaultCounts {
  uint64_t pushes_acknowledged = 0;
  uint64_t pushes_lost = 0;
  uint64_t pushes_duplicated = 0;
  uint64_t wrong_weights = 0;
  uint64_t wrong_pulls = 0;
  uint64_t retries = 0;
  // Duplicate pushes that servers recognized and acknowledged like the first.
  uint64_t duplicates_refused = 0;
  uint64_t replies = 0;
  uint64_t replies_dropped = 0;
  uint64_t connections = 0;
  // Messages in shared memory that the servers have got; those of a server that was killed are not counted.
  uint64_t shared_calls = 0;
  // Likewise calls on data streams.
  uint64_t stream_calls = 0;
  uint64_t kills = 0;
  uint64_t restarts = 0;
  uint64_t partitions = 0;
  uint64_t hangs = 0;
  // Use of all servers together, after the first pushes and at the end.
  uint64_t resident_first = 0;
  uint64_t resident_last = 0;
  uint64_t descriptors_first = 0;
  uint64_t descriptors_last = 0;
  // Time from each kill, and from each healing, to the first push acknowledged after it.
  std::vector<double> recovery_seconds;
  std::vector<double> healing_seconds;
  double seconds = 0;

  static std::vector<NamedCount<FaultCounts>> Fields() {
    using C = FaultCounts;
    return {{"kills", &C::kills},
            {"restarts", &C::restarts},
            {"pushes_acknowledged", &C::pushes_acknowledged},
            {"pushes_lost", &C::pushes_lost},
            {"pushes_duplicated", &C::pushes_duplicated},
            {"wrong_weights", &C::wrong_weights},
            {"wrong_pulls", &C::wrong_pulls},
            {"retries", &C::retries},
            {"duplicates_refused", &C::duplicates_refused},
            {"replies", &C::replies},
            {"replies_dropped", &C::replies_dropped},
            {"connections", &C::connections},
            {"shared_calls", &C::shared_calls},
            {"stream_calls", &C::stream_calls},
            {"partitions", &C::partitions},
            {"hangs", &C::hangs},
            {"resident_bytes_first", &C::resident_first},
            {"resident_bytes_last", &C::resident_last},
            {"descriptors_first", &C::descriptors_first},
            {"descriptors_last", &C::descriptors_last}};
  }
  void Add(const FaultCounts& other);
  // True if nothing was lost, applied twice, wrong or hung.
  bool good() const { return pushes_lost + pushes_duplicated + wrong_weights + wrong_pulls + hangs == 0; }
  nlohmann::ordered_json ToJson() const;
};

// An error is a failure of the test itself, or a push without a response; losses and long recoveries are in the
// counts. To be called by the main thread.
absl::StatusOr<FaultCounts> RunFaults(const FaultRunOptions& options);

struct OldIncarnationOptions {
  // Path of ballast_server.
  std::string server;
  uint32_t rounds = 5;
  // Pushes in flight in each round.
  uint32_t late_pushes = 20;
  uint64_t seed = 1;
};

struct OldIncarnationCounts {
  uint64_t rounds = 0;
  // Late pushes, sent before the successor's first push but received after it: refused (correct) or accepted.
  uint64_t refused = 0;
  uint64_t accepted = 0;
  // Rounds after which the weights did not match the accepted pushes.
  uint64_t wrong_weights = 0;

  static std::vector<NamedCount<OldIncarnationCounts>> Fields() {
    using C = OldIncarnationCounts;
    return {{"rounds", &C::rounds},
            {"refused", &C::refused},
            {"accepted", &C::accepted},
            {"wrong_weights", &C::wrong_weights}};
  }
  void Add(const OldIncarnationCounts& other) { AddFields(other, *this); }
  bool good() const { return rounds > 0 && accepted == 0 && wrong_weights == 0; }
  nlohmann::ordered_json ToJson() const;
};

// Cuts a worker with pushes in flight off a real server and replaces it by its successor; when the partition heals
// the pushes arrive. Each must be refused with FAILED_PRECONDITION and leave the weights unchanged. To be called by
// the main thread.
absl::StatusOr<OldIncarnationCounts> SendLatePushes(const OldIncarnationOptions& options);

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
