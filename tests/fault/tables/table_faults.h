// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ballast/v1/tensor.pb.h"
#include "tests/fault/programs/count_fields.h"

namespace ballast {

// Rows of tables that are counted while servers and workers are killed.

struct TableFaultOptions {
  // Paths of ballast_server and of counting_worker.
  std::string server;
  std::string counting_worker;
  // Existing directory of the test's own, for the state of servers and of worker processes.
  std::string folder;
  // Not NONE.
  v1::Durability::Mode durability = v1::Durability::WAL;
  // Policy sync, deterministic: each row has its exact value after every step. Otherwise async.
  bool sync = false;
  uint32_t servers = 2;
  // Workers that are threads of this process and never die, at least 1; and workers that are processes, which are
  // killed. Synchronous workers are threads.
  uint32_t threads = 3;
  uint32_t processes = 1;
  uint32_t rows = 20000;
  uint64_t seed = 1;
  // The run ends with the kill of a server that reaches one of these.
  uint64_t kills = 1000000;
  absl::Duration time = absl::InfiniteDuration();
  // Mean of the random time between the recovery of a server and the kill of the next.
  absl::Duration kill_every = absl::Milliseconds(150);
  // Each worker process is killed after this many kills of servers.
  uint64_t kills_per_process = 4;
  // Interval at which all rows are read while nobody pushes.
  absl::Duration check_every = absl::Seconds(15);
  // A kill after which no push is acknowledged for this long is a hang.
  absl::Duration timeout = absl::Seconds(30);
};

struct TableFaultCounts {
  // Servers and worker processes that were killed with SIGKILL.
  uint64_t kills = 0;
  uint64_t restarts = 0;
  uint64_t worker_kills = 0;
  uint64_t pushes_acknowledged = 0;
  // Messages of killed workers, one per server and push, without a response: applied, or never received.
  uint64_t unknown_applied = 0;
  uint64_t unknown_lost = 0;
  // Attempts of pushes after the first; pushes that a server had already accepted before it was asked again.
  uint64_t retries = 0;
  uint64_t duplicates_refused = 0;
  // Times that all rows were read; rows compared, by TCP and by shared memory; rows that were wrong.
  uint64_t checks = 0;
  uint64_t rows_checked = 0;
  uint64_t rows_wrong = 0;
  // Policy sync: rows that workers pulled after each step, and those that were wrong.
  uint64_t rows_pulled = 0;
  uint64_t rows_pulled_wrong = 0;
  uint64_t hangs = 0;
  // Describes the first wrong row; empty if there is none.
  std::string first_wrong;
  // Time from each kill of a server to the first push acknowledged after it.
  std::vector<double> recovery_seconds;

  static std::vector<NamedCount<TableFaultCounts>> Fields() {
    using C = TableFaultCounts;
    return {{"kills", &C::kills},
            {"restarts", &C::restarts},
            {"worker_kills", &C::worker_kills},
            {"pushes_acknowledged", &C::pushes_acknowledged},
            {"unknown_applied", &C::unknown_applied},
            {"unknown_lost", &C::unknown_lost},
            {"retries", &C::retries},
            {"duplicates_refused", &C::duplicates_refused},
            {"checks", &C::checks},
            {"rows_checked", &C::rows_checked},
            {"rows_wrong", &C::rows_wrong},
            {"rows_pulled", &C::rows_pulled},
            {"rows_pulled_wrong", &C::rows_pulled_wrong},
            {"hangs", &C::hangs}};
  }
  bool good() const { return rows_wrong + rows_pulled_wrong + hangs == 0 && rows_checked > 0; }
  nlohmann::ordered_json ToJson() const;
};

// Counts rows on real servers that are killed and restarted, and compares every row with the ledgers. An error is a
// failure of the test itself, or a push without a response; wrong rows are in the counts. To be called by the main
// thread.
absl::StatusOr<TableFaultCounts> CountRowsUnderKills(const TableFaultOptions& options);

}  // namespace ballast
