// SPDX-License-Identifier: Apache-2.0
// Starting a job's processes, for the first time and again. Everything after the start is in job_launch.cc.
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/launch/job_launch.h"
#include "cli/launch/placement.h"
#include "cli/launch/program_words.h"

namespace ballast {

std::string JobLaunch::AddressFile(const Child& server) const {
  return absl::StrCat(plan_.run_dir, "/logs/", server.Name("-"), ".address");
}

std::string JobLaunch::ControlFile(const Child& server) const {
  return absl::StrCat(plan_.run_dir, "/logs/", server.Name("-"), ".control");
}

std::vector<std::string> JobLaunch::FlagsAgain(const Child& child) const {
  std::vector<std::string> flags = child.flags;
  if (!child.server) return flags;
  for (const auto& [flag, file] :
       {std::pair("--listen", AddressFile(child)), std::pair("--control_listen", ControlFile(child))}) {
    std::string address;
    std::getline(std::ifstream(file), address);
    const auto listen = std::find(flags.begin(), flags.end(), flag);
    if (!address.empty() && listen + 1 < flags.end()) *(listen + 1) = address;
  }
  return flags;
}

absl::Status JobLaunch::StartAll(bool again) {
  const std::string resume = again ? ResumeManifest() : plan_.resume;
  for (bool standby : {false, true}) {
    if (standby && !with_standby()) break;
    for (int rank = 0; rank < plan_.servers; ++rank) {
      if (absl::Status status = StartServer(rank, standby, resume, again); !status.ok()) return status;
    }
  }
  for (int rank = 0; rank < plan_.workers; ++rank) {
    Child worker{.rank = rank, .host = HostOfWorker(plan_, rank)};
    const bool program = !plan_.program.empty();
    worker.flags = program ? ProgramWords(plan_, rank, fleet_->cores(worker.host), coordinator_)
                           : WorkerFlags(plan_, rank, fleet_->cores(worker.host), coordinator_);
    if (again && rank == 0 && !program) worker.flags.push_back("--continue_run");
    if (!program) AddStatusFlags(worker);
    if (absl::Status status = StartChild(std::move(worker), again); !status.ok()) return status;
  }
  return absl::OkStatus();
}

std::string JobLaunch::HttpFile(const Child& child) const {
  return absl::StrCat(plan_.run_dir, "/logs/", child.Name("-"), ".http");
}

void JobLaunch::AddStatusFlags(Child& child) const {
  const std::string file = HttpFile(child);
  unlink(file.c_str());
  child.flags.insert(child.flags.end(), {"--http_port", "0", "--http_address_file", file, "--flight_dir",
                                         absl::StrCat(plan_.run_dir, "/logs")});
  if (!child.server) child.flags.insert(child.flags.end(), plan_.worker_pages.begin(), plan_.worker_pages.end());
}

absl::Status JobLaunch::StartServer(int rank, bool standby, const std::string& resume, bool again) {
  Child child{.server = true, .standby = standby, .rank = rank, .host = HostOfServer(plan_, rank, standby)};
  const bool coordinates = child.coordinates();
  const int host = child.host;
  const std::string address_file = AddressFile(child);
  const std::string control_file = ControlFile(child);
  unlink(address_file.c_str());
  unlink(control_file.c_str());
  const std::vector<std::string> address_flags = AddressFlags(plan_, host);
  std::vector<std::string>& flags = child.flags;
  flags = {"--rank", absl::StrCat(rank)};
  flags.insert(flags.end(), address_flags.begin(), address_flags.end());
  flags.insert(flags.end(), {"--servers", absl::StrCat(plan_.servers), "--workers", absl::StrCat(plan_.workers)});
  flags.insert(flags.end(), plan_.server_security.begin(), plan_.server_security.end());
  if (!coordinates) flags.insert(flags.end(), {"--coordinator", coordinator_});
  flags.insert(flags.end(), {"--address_file", address_file});
  if (with_standby()) flags.push_back("--with_standby");
  if (!plan_.trace_steps.empty()) {
    flags.insert(flags.end(), {"--trace", ServerTracePath(plan_.run_dir, rank, standby)});
  }
  if (plan_.durability.mode() != v1::Durability::NONE) {
    // With standbys, shards are held in memory only, but the coordinator's state is on disk.
    if (!with_standby() || coordinates) {
      flags.insert(flags.end(), {"--state_dir", absl::StrCat(plan_.run_dir, "/state/shard-", rank)});
    }
    if (fleet_->shares_run_dir())
      flags.insert(flags.end(), {"--checkpoint_dir", absl::StrCat(plan_.run_dir, "/checkpoints")});
  }
  if (!resume.empty()) flags.insert(flags.end(), {"--resume", resume});
  flags.insert(flags.end(), {"--control_listen", address_flags[1], "--control_address_file", control_file});
  AddStatusFlags(child);
  if (absl::Status status = StartChild(std::move(child), again); !status.ok()) return status;
  if (!coordinates) return absl::OkStatus();
  absl::StatusOr<std::string> address = WaitForAddress(address_file);
  if (!address.ok()) return address.status();
  if (address->empty()) return absl::CancelledError("startup was interrupted");
  // The server writes the control file before the address file.
  if (!std::getline(std::ifstream(control_file), coordinator_)) coordinator_ = *address;
  if (HasOtherHosts(plan_)) coordinator_ = WithPort(plan_.hosts[host].address, PortOf(coordinator_));
  return absl::OkStatus();
}

absl::Status JobLaunch::StartChild(Child child, bool again) {
  const std::string log = absl::StrCat(plan_.run_dir, "/logs/", child.Name("-"), ".log");
  const std::string on = HasOtherHosts(plan_) ? absl::StrCat(" on ", plan_.hosts[child.host].address) : "";
  absl::Status status = logs_->AddSource(child.Name(" ") + on, log, again);
  if (!status.ok()) return status;
  const bool program = !child.server && !plan_.program.empty();
  absl::StatusOr<int> started =
      program ? fleet_->Start(child.host, kEnvironmentProgram, child.flags)
              : fleet_->StartOwn(child.host, child.server, child.server ? plan_.server_binary : plan_.worker_binary,
                                 child.flags);
  if (!started.ok()) return started.status();
  children_.push_back(std::move(child));
  return absl::OkStatus();
}

absl::StatusOr<std::string> JobLaunch::WaitForAddress(const std::string& path) {
  const absl::Time deadline = absl::Now() + kStart;
  while (absl::Now() < deadline && signals_ == 0 && !failed()) {
    // The file is renamed into place, so it is complete as soon as it exists.
    std::string address;
    if (std::getline(std::ifstream(path), address) && !address.empty()) return address;
    fleet_->Poll(absl::Milliseconds(20));
  }
  if (signals_ > 0 || failed()) return std::string();
  return absl::DeadlineExceededError(absl::StrCat("timed out after ", absl::FormatDuration(kStart), " waiting for ",
                                                  logs_->name(0), " (process ", fleet_->pid(0),
                                                  ") to write its address; see ", logs_->path(0)));
}

}  // namespace ballast
