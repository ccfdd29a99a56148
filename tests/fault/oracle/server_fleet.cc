// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/oracle/server_fleet.h"

#include <signal.h>

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace ballast {

absl::StatusOr<std::unique_ptr<ServerFleet>> ServerFleet::Start(Options options) {
  std::unique_ptr<ServerFleet> fleet(new ServerFleet(std::move(options)));
  const uint32_t processes = fleet->options_.servers * (fleet->paired() ? 2 : 1);
  for (uint32_t i = 0; i < processes; ++i) {
    const absl::Status status = fleet->OnServersHost([&] { return fleet->StartProcess(i); });
    if (!status.ok()) return status;
  }
  if (fleet->paired()) {
    auto link = CoordinatorLink::Connect(fleet->coordinator(), absl::Seconds(20));
    if (!link.ok()) return link.status();
    fleet->link_ = *std::move(link);
  }
  return fleet;
}

std::vector<std::string> ServerFleet::addresses() const {
  std::vector<std::string> addresses;
  if (paired()) return addresses;
  for (const auto& process : processes_) addresses.push_back(process->address());
  return addresses;
}

absl::Status ServerFleet::AwaitSpares(absl::Duration timeout) {
  if (!paired()) return absl::OkStatus();
  const absl::Time deadline = absl::Now() + timeout;
  std::vector<Program*> programs;
  for (const auto& process : processes_) programs.push_back(process->program());
  while (true) {
    const absl::StatusOr<v1::GetProgressResponse> progress = link_->GetProgress();
    if (!progress.ok()) {
      return absl::Status(progress.status().code(), absl::StrCat(progress.status().message(), "\n", Outputs()));
    }
    if (progress->progress().state() == v1::JOB_STATE_FAILED) {
      return absl::AbortedError(absl::StrCat(progress->progress().reason(), "\n", Outputs()));
    }
    uint32_t in_step = 0;
    for (const auto& member : progress->members()) in_step += member.in_step() && member.state() == "joined";
    if (in_step == options_.servers) return absl::OkStatus();
    if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(in_step, " of ", options_.servers, " standbys are in step after ",
                                                      absl::FormatDuration(timeout), "\n", Outputs()));
    }
    Program::Hear(programs, absl::Now() + absl::Milliseconds(20));
  }
}

absl::Status ServerFleet::KillNext() {
  victim_ = harmed_++ % processes_.size();
  return processes_[victim_]->Kill();
}

absl::Status ServerFleet::Restart() {
  return OnServersHost([this] { return processes_[victim_]->Restart(); });
}

void ServerFleet::FreezeNext() {
  victim_ = 1 + harmed_++ % (processes_.size() - 1);
  processes_[victim_]->Signal(SIGSTOP);
}

void ServerFleet::Thaw() { processes_[victim_]->Signal(SIGCONT); }

absl::Status ServerFleet::End() {
  link_.reset();
  for (const auto& process : processes_) {
    const absl::Status status = paired() ? process->Kill() : process->End();
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

ProcessUse ServerFleet::use() const {
  ProcessUse all;
  for (const auto& process : processes_) {
    const ProcessUse use = process->use();
    all.resident_bytes += use.resident_bytes;
    all.descriptors += use.descriptors;
  }
  return all;
}

absl::Status ServerFleet::StartProcess(uint32_t number) {
  std::vector<std::string> flags = options_.flags;
  flags.insert(flags.end(), {"--workers", absl::StrCat(options_.workers)});
  // No other host is in the far host's network.
  if (options_.hosts != nullptr) flags.push_back("--insecure");
  if (options_.durability != v1::Durability::NONE && (number == 0 || !paired())) {
    const std::string folder = absl::StrCat(options_.state_folder, "/", number);
    std::filesystem::remove_all(folder);
    flags.insert(flags.end(), {"--state_dir", folder});
  }
  if (paired()) {
    flags.insert(flags.end(),
                 {"--with_standby", "--servers", absl::StrCat(options_.servers), "--rank", absl::StrCat(number)});
    if (number > 0) flags.insert(flags.end(), {"--coordinator", coordinator()});
  }
  const std::string host = options_.hosts == nullptr ? "127.0.0.1" : TwoHosts::far_address();
  auto server = ServerProcess::Start(options_.server, host, std::move(flags));
  if (server.ok()) processes_.push_back(*std::move(server));
  return server.status();
}

std::string ServerFleet::Outputs() {
  std::string all;
  for (const auto& process : processes_) absl::StrAppend(&all, process->address(), ":\n", process->output());
  return all;
}

absl::Status ServerFleet::OnServersHost(const std::function<absl::Status()>& run) const {
  return options_.hosts == nullptr ? run() : options_.hosts->OnFar(run);
}

}  // namespace ballast
