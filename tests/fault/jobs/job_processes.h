// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tests/fault/programs/program.h"

namespace ballast {

struct JobProcessesOptions {
  // Paths of ballast_server and ballast_worker.
  std::string server;
  std::string worker;
  std::string job_file;
  // Run directory of worker 0.
  std::string run_dir;
  uint32_t servers = 2;
  uint32_t workers = 3;
  // Flags of every server; "RANK" in them stands for its rank.
  std::vector<std::string> server_flags;
  std::vector<std::string> worker_flags;
};

// Owns a job's real servers and workers, started by hand as operators do, without `launch` to watch them. Kills all
// of them when it goes out of scope. Thread safety: confined to the main thread, like Program.
class JobProcesses {
 public:
  explicit JobProcesses(JobProcessesOptions options) : options_(std::move(options)) {}

  // Starts server 0 first.
  absl::Status StartServers();
  // Replaces the previous worker, which has ended.
  absl::Status StartWorker(uint32_t rank);
  absl::Status StartWorkers();

  const std::vector<std::unique_ptr<ServerProcess>>& servers() const { return servers_; }
  Program& worker(uint32_t rank) { return *workers_[rank]; }
  std::vector<std::string> addresses() const;

  // Reads the output of all processes until `deadline`.
  void Hear(absl::Time deadline);

  // Sends SIGTERM; workers must end before servers. Returns an error if one does not end with the expected status.
  absl::Status EndWorkers();
  absl::Status EndServers();
  // Sends SIGKILL to all servers at once, like the loss of their machine.
  absl::Status KillServers();

 private:
  const JobProcessesOptions options_;
  std::vector<std::unique_ptr<ServerProcess>> servers_;
  std::vector<std::unique_ptr<Program>> workers_;
};

}  // namespace ballast
