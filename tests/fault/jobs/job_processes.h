// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tests/fault/oracle/server_process.h"
#include "tests/fault/programs/program.h"

namespace ballast {

struct JobProcessesOptions {
  // Paths of ballast_server and ballast_worker.
  std::string server;
  std::string worker;
  std::string job_file;
  // Of worker 0.
  std::string run_dir;
  uint32_t servers = 2;
  uint32_t workers = 3;
  // Of every server; "RANK" in them stands for its rank.
  std::vector<std::string> server_flags;
  std::vector<std::string> worker_flags;
};

// A job's real servers and workers, started by hand as operators do, without `launch` to watch over them. All are
// killed where it goes out of scope. Thread safety: confined to the main thread, as Program is.
class JobProcesses {
 public:
  explicit JobProcesses(JobProcessesOptions options) : options_(std::move(options)) {}

  // Server 0 first.
  absl::Status StartServers();
  // In the place of the one before, which has ended.
  absl::Status StartWorker(uint32_t rank);
  absl::Status StartWorkers();

  const std::vector<std::unique_ptr<ServerProcess>>& servers() const { return servers_; }
  Program& worker(uint32_t rank) { return *workers_[rank]; }
  std::vector<std::string> addresses() const;

  // Takes up what all of them say, until `deadline`.
  void Hear(absl::Time deadline);

  // With SIGTERM, workers first. An error where one does not end, or ends otherwise than it should.
  absl::Status EndWorkers();
  absl::Status EndServers();
  // With SIGKILL, all servers at once, as when their machine goes.
  absl::Status KillServers();

 private:
  const JobProcessesOptions options_;
  std::vector<std::unique_ptr<ServerProcess>> servers_;
  std::vector<std::unique_ptr<Program>> workers_;
};

}  // namespace ballast
