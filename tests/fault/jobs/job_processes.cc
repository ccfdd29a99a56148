// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/jobs/job_processes.h"

#include <signal.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace ballast {

absl::Status JobProcesses::StartServers() {
  servers_.clear();
  for (uint32_t rank = 0; rank < options_.servers; ++rank) {
    std::vector<std::string> flags = {"--rank", absl::StrCat(rank)};
    if (rank == 0) {
      flags.insert(flags.end(),
                   {"--servers", absl::StrCat(options_.servers), "--workers", absl::StrCat(options_.workers)});
    } else {
      flags.insert(flags.end(), {"--coordinator", servers_[0]->address()});
    }
    for (const std::string& flag : options_.server_flags) {
      flags.push_back(absl::StrReplaceAll(flag, {{"RANK", absl::StrCat(rank)}}));
    }
    auto server = ServerProcess::Start(options_.server, "127.0.0.1", std::move(flags));
    if (!server.ok()) return server.status();
    servers_.push_back(*std::move(server));
  }
  return absl::OkStatus();
}

absl::Status JobProcesses::StartWorker(uint32_t rank) {
  std::vector<std::string> words = {options_.worker, "--coordinator", servers_[0]->address()};
  words.insert(words.end(), {"--job", options_.job_file, "--rank", absl::StrCat(rank)});
  words.insert(words.end(), {"--threads", "1", "--device", "cpu"});
  if (rank == 0) words.insert(words.end(), {"--run_dir", options_.run_dir});
  words.insert(words.end(), options_.worker_flags.begin(), options_.worker_flags.end());
  auto worker = Program::Start(std::move(words));
  if (!worker.ok()) return worker.status();
  workers_.resize(std::max<size_t>(workers_.size(), rank + 1));
  workers_[rank] = *std::move(worker);
  return absl::OkStatus();
}

absl::Status JobProcesses::StartWorkers() {
  for (uint32_t rank = 0; rank < options_.workers; ++rank) {
    if (absl::Status status = StartWorker(rank); !status.ok()) return status;
  }
  return absl::OkStatus();
}

std::vector<std::string> JobProcesses::addresses() const {
  std::vector<std::string> addresses;
  for (const auto& server : servers_) addresses.push_back(server->address());
  return addresses;
}

void JobProcesses::Hear(absl::Time deadline) {
  std::vector<Program*> programs;
  for (const auto& server : servers_) programs.push_back(server->program());
  for (const auto& worker : workers_) programs.push_back(worker.get());
  Program::Hear(programs, deadline);
}

absl::Status JobProcesses::EndWorkers() {
  for (const auto& worker : workers_) worker->Signal(SIGTERM);
  for (size_t rank = 0; rank < workers_.size(); ++rank) {
    const absl::StatusOr<ExitStatus> ended = workers_[rank]->AwaitEnd(absl::Seconds(60));
    if (!ended.ok()) return ended.status();
    // Workers exit with 130 when interrupted.
    if (!ended->signaled && ended->number == 130) continue;
    return absl::InternalError(absl::StrCat("worker ", rank, " ", ended->ToString(), ", want status 130; output:\n",
                                            workers_[rank]->output()));
  }
  return absl::OkStatus();
}

absl::Status JobProcesses::EndServers() {
  // Server 0 ends last, because without it the others have no job.
  for (size_t i = servers_.size(); i-- > 0;) {
    if (absl::Status status = servers_[i]->End(); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status JobProcesses::KillServers() {
  for (const auto& server : servers_) server->Signal(SIGKILL);
  for (const auto& server : servers_) {
    if (absl::Status status = server->Kill(); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace ballast
