// SPDX-License-Identifier: Apache-2.0
#include "cli/hosts/fleet.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "common/program/core_count.h"

namespace ballast {

struct Fleet::RemoteListener : ProcessListener {
  explicit RemoteListener(Fleet* fleet) : fleet(fleet) {}
  void OnOutput(int process, absl::string_view bytes) override { fleet->listener_->OnOutput(process, bytes); }
  void OnEnd(int process, const ExitStatus& status) override { fleet->End(process, status); }
  void OnSignal(int) override {}

  Fleet* const fleet;
};

absl::StatusOr<std::unique_ptr<Fleet>> Fleet::Create(ProcessListener* listener,
                                                     std::vector<RemoteHost::Options> hosts) {
  std::unique_ptr<Fleet> fleet(new Fleet(listener));
  absl::StatusOr<std::unique_ptr<Supervisor>> supervisor = Supervisor::Create(fleet.get());
  if (!supervisor.ok()) return supervisor.status();
  fleet->supervisor_ = *std::move(supervisor);
  for (RemoteHost::Options& host : hosts) {
    const bool local = host.host.local;
    fleet->hosts_.push_back(local ? nullptr
                                  : std::make_unique<RemoteHost>(std::move(host), fleet->remote_listener_.get()));
    if (!local) fleet->supervisor_->AddSource(fleet->hosts_.back().get());
  }
  return fleet;
}

Fleet::Fleet(ProcessListener* listener)
    : listener_(listener), remote_listener_(std::make_unique<RemoteListener>(this)) {}

Fleet::~Fleet() = default;

absl::Status Fleet::Connect(const std::function<bool()>& stop) {
  for (const auto& host : hosts_) {
    if (host != nullptr) host->Connect();
  }
  while (true) {
    bool ready = true;
    for (const auto& host : hosts_) {
      if (host == nullptr) continue;
      if (host->state() == RemoteHost::State::kLost) return host->error();
      ready = ready && host->state() == RemoteHost::State::kReady;
    }
    if (ready || stop()) return absl::OkStatus();
    supervisor_->Poll(RemoteHost::kConnect);
  }
}

std::vector<std::string> Fleet::Close(absl::Duration timeout) {
  for (const auto& host : hosts_) {
    if (host != nullptr) host->HangUp();
  }
  const auto ended = [](const std::unique_ptr<RemoteHost>& host) { return host == nullptr || host->ended(); };
  const absl::Time deadline = absl::Now() + timeout;
  while (!std::all_of(hosts_.begin(), hosts_.end(), ended) && absl::Now() < deadline) {
    supervisor_->Poll(deadline - absl::Now());
  }
  std::vector<std::string> silent;
  for (const auto& host : hosts_) {
    if (!ended(host)) silent.push_back(host->host().address);
  }
  return silent;
}

int Fleet::cores(int host) const {
  if (hosts_[host] != nullptr) return static_cast<int>(hosts_[host]->ready().cores());
  return CoreCount();
}

bool Fleet::shares_run_dir() const {
  return std::all_of(hosts_.begin(), hosts_.end(), [](const std::unique_ptr<RemoteHost>& host) {
    return host == nullptr || !host->has_servers() || host->ready().shares_run_dir();
  });
}

absl::StatusOr<int> Fleet::StartOwn(int host, bool server, const std::string& program,
                                    const std::vector<std::string>& flags) {
  if (hosts_[host] == nullptr) return StartHere(host, program, flags);
  const int process = AddRemote(host);
  hosts_[host]->StartOwn(process, server, flags);
  return process;
}

absl::StatusOr<int> Fleet::Start(int host, const std::string& program, const std::vector<std::string>& words) {
  if (hosts_[host] == nullptr) return StartHere(host, program, words);
  const int process = AddRemote(host);
  hosts_[host]->Start(process, program, words);
  return process;
}

int Fleet::AddRemote(int host) {
  processes_.push_back({.host = host});
  return static_cast<int>(processes_.size()) - 1;
}

absl::StatusOr<int> Fleet::StartHere(int host, const std::string& program, const std::vector<std::string>& words) {
  const int process = static_cast<int>(processes_.size());
  std::vector<std::string> argv = {program};
  argv.insert(argv.end(), words.begin(), words.end());
  const absl::StatusOr<int> child = supervisor_->Start(argv);
  if (!child.ok()) return child.status();
  processes_.push_back({.host = host, .child = *child});
  children_.push_back(process);
  return process;
}

void Fleet::Signal(int process, int signal) {
  const Member& target = processes_[process];
  if (target.child >= 0) return supervisor_->Signal(target.child, signal);
  hosts_[target.host]->Signal(process, signal);
}

uint64_t Fleet::pid(int process) const {
  const Member& target = processes_[process];
  return target.child >= 0 ? static_cast<uint64_t>(supervisor_->pid(target.child)) : hosts_[target.host]->id(process);
}

void Fleet::End(int process, const ExitStatus& status) {
  processes_[process].ended = true;
  listener_->OnEnd(process, status);
}

}  // namespace ballast
