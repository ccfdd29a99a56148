// SPDX-License-Identifier: Apache-2.0
#include "cli/job_launch.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/command.h"

namespace ballast {
namespace {

constexpr absl::Duration kProgressInterval = absl::Milliseconds(500);
constexpr absl::Duration kProgressTimeout = absl::Milliseconds(300);

// Whether `text` has `name` ("worker 1") with no digit behind it.
bool Mentions(absl::string_view text, absl::string_view name) {
  for (size_t at = text.find(name); at != absl::string_view::npos; at = text.find(name, at + 1)) {
    const size_t behind = at + name.size();
    if (behind == text.size() || !absl::ascii_isdigit(text[behind])) return true;
  }
  return false;
}

}  // namespace

std::string WorkerTracePath(const std::string& run_dir, int rank) {
  return absl::StrCat(run_dir, "/logs/worker-", rank, ".trace.json");
}

LaunchResult JobLaunch::Run() {
  auto supervisor = Supervisor::Create(this);
  if (!supervisor.ok()) return {kExitFailure, std::string(supervisor.status().message())};
  supervisor_ = std::move(*supervisor);
  const absl::Status started = StartAll();
  if (started.ok()) Watch();
  if (failed() && signals_ == 0) AwaitAccused();
  StopAll();
  display_->Finish();
  if (signals_ > 0) return {kExitInterrupted, ""};
  if (failed()) {
    const int culprit = Culprit();
    const ExitStatus& end = *children_[culprit].end;
    const bool bad_input = !end.signaled && end.number == kExitBadInput;
    return {bad_input ? kExitBadInput : kExitFailure, DescribeFailure(culprit)};
  }
  if (!started.ok()) return {kExitFailure, std::string(started.message())};
  return {};
}

void JobLaunch::OnEnd(int child, const ExitStatus& status) {
  logs_->Finish(child);
  children_[child].end = status;
  // A worker may be done before the others; a server is never done by itself.
  const bool expected = children_[child].asked || (!children_[child].server && status.ok());
  if (!expected) failures_.push_back(child);
}

void JobLaunch::OnSignal(int) {
  ++signals_;
  if (signals_ == 1 && !failed()) {
    display_->PrintLine("stopping: the workers finish their step and save; once more to stop at once");
  }
}

absl::Status JobLaunch::StartAll() {
  const std::string address_file = absl::StrCat(plan_.run_dir, "/logs/server-0.address");
  unlink(address_file.c_str());
  for (int rank = 0; rank < plan_.servers; ++rank) {
    std::vector<std::string> flags = {
        "--listen", "127.0.0.1:0", "--servers", absl::StrCat(plan_.servers), "--workers", absl::StrCat(plan_.workers)};
    flags.insert(flags.end(), plan_.server_security.begin(), plan_.server_security.end());
    if (rank == 0) {
      flags.insert(flags.end(), {"--address_file", address_file});
    } else {
      flags.insert(flags.end(), {"--coordinator", coordinator_});
    }
    if (absl::Status status = StartChild(true, rank, std::move(flags)); !status.ok()) return status;
    if (rank > 0) continue;
    absl::StatusOr<std::string> address = WaitForAddress(address_file);
    if (!address.ok()) return address.status();
    if (address->empty()) return absl::CancelledError("the start was ended");
    coordinator_ = *address;
  }
  for (int rank = 0; rank < plan_.workers; ++rank) {
    if (absl::Status status = StartChild(false, rank, WorkerFlags(rank)); !status.ok()) return status;
  }
  return absl::OkStatus();
}

std::vector<std::string> JobLaunch::WorkerFlags(int rank) const {
  std::vector<std::string> flags = {"--job",    plan_.job_file, "--coordinator", coordinator_,
                                    "--device", plan_.device,   "--threads",     absl::StrCat(plan_.threads)};
  flags.insert(flags.end(), plan_.job_flags.begin(), plan_.job_flags.end());
  flags.insert(flags.end(), plan_.worker_security.begin(), plan_.worker_security.end());
  if (!plan_.trace_steps.empty()) {
    flags.insert(flags.end(), {"--trace", WorkerTracePath(plan_.run_dir, rank), "--trace_steps", plan_.trace_steps});
  }
  if (rank == 0) flags.insert(flags.end(), {"--run_dir", plan_.run_dir});
  return flags;
}

absl::Status JobLaunch::StartChild(bool server, int rank, std::vector<std::string> flags) {
  const std::string role = server ? "server" : "worker";
  std::vector<std::string> argv = {server ? plan_.server_binary : plan_.worker_binary, "--rank", absl::StrCat(rank)};
  argv.insert(argv.end(), std::make_move_iterator(flags.begin()), std::make_move_iterator(flags.end()));
  const std::string log = absl::StrCat(plan_.run_dir, "/logs/", role, "-", rank, ".log");
  if (absl::Status status = logs_->AddSource(absl::StrCat(role, " ", rank), log); !status.ok()) return status;
  absl::StatusOr<int> child = supervisor_->Start(argv);
  if (!child.ok()) return child.status();
  children_.push_back({server, false, std::nullopt});
  return absl::OkStatus();
}

absl::StatusOr<std::string> JobLaunch::WaitForAddress(const std::string& path) {
  const absl::Time deadline = absl::Now() + kStart;
  while (absl::Now() < deadline && signals_ == 0 && !failed()) {
    // It is renamed into place, so it is whole as soon as it is there.
    std::string address;
    if (std::getline(std::ifstream(path), address) && !address.empty()) {
      unlink(path.c_str());
      return address;
    }
    supervisor_->Poll(absl::Milliseconds(20));
  }
  if (signals_ > 0 || failed()) return std::string();
  return absl::DeadlineExceededError(absl::StrCat("server 0 (process ", supervisor_->pid(0), ") did not say within ",
                                                  absl::FormatDuration(kStart), " where it listens; see ",
                                                  logs_->path(0)));
}

void JobLaunch::Watch() {
  const std::unique_ptr<ProgressSource> source = connect_(coordinator_);
  absl::Time next = absl::Now();
  while (AnyRunning(false, true) && signals_ == 0 && !failed()) {
    if (absl::Now() >= next) {
      next = absl::Now() + kProgressInterval;
      // A server that is busy or on its way out answers the next time, or ends and is heard of.
      if (auto progress = source->GetProgress(kProgressTimeout); progress.ok()) display_->Update(progress->progress());
    }
    supervisor_->Poll(std::max(next - absl::Now(), absl::ZeroDuration()));
  }
}

bool JobLaunch::PollUntil(absl::Duration timeout, const std::function<bool()>& done) {
  const absl::Time deadline = absl::Now() + timeout;
  // The first signal began a stop, unless a failure did.
  const int patience = failed() ? 1 : 2;
  while (!done() && signals_ < patience && absl::Now() < deadline) supervisor_->Poll(deadline - absl::Now());
  return done();
}

void JobLaunch::AwaitAccused() {
  const int accused = Accused(failures_[0]);
  if (accused >= 0) PollUntil(absl::Seconds(2), [&] { return !supervisor_->running(accused); });
}

void JobLaunch::Stop(bool servers, bool workers, absl::Duration grace) {
  auto signal_running = [&](int signal) {
    for (size_t child = 0; child < children_.size(); ++child) {
      if (!(children_[child].server ? servers : workers) || !supervisor_->running(static_cast<int>(child))) continue;
      children_[child].asked = true;
      supervisor_->Signal(static_cast<int>(child), signal);
    }
  };
  auto all_ended = [&] { return !AnyRunning(servers, workers); };
  signal_running(SIGTERM);
  if (PollUntil(grace, all_ended)) return;
  signal_running(SIGKILL);
  // A process in the kernel's hands may take a moment; the supervisor's end waits for the rest.
  const absl::Time deadline = absl::Now() + kStop;
  while (!all_ended() && absl::Now() < deadline) supervisor_->Poll(deadline - absl::Now());
}

void JobLaunch::StopAll() {
  if (failed()) {
    Stop(true, true, kStop);
    return;
  }
  // The workers need the servers until they have saved.
  Stop(false, true, kSave);
  Stop(true, false, kStop);
}

bool JobLaunch::AnyRunning(bool servers, bool workers) const {
  return std::any_of(children_.begin(), children_.end(),
                     [&](const Child& child) { return (child.server ? servers : workers) && !child.end.has_value(); });
}

// The first that does not blame another one that failed, too: a worker which ends because the coordinator told it of
// a failure may well end before the one that failed.
int JobLaunch::Culprit() const {
  for (int child : failures_) {
    const int accused = children_[child].end->signaled ? -1 : Accused(child);
    if (std::find(failures_.begin(), failures_.end(), accused) == failures_.end()) return child;
  }
  return failures_[0];
}

int JobLaunch::Accused(int child) const {
  const std::string error = logs_->LastError(child);
  for (int other = 0; other < static_cast<int>(children_.size()); ++other) {
    if (other != child && Mentions(error, logs_->name(other))) return other;
  }
  return -1;
}

std::string JobLaunch::DescribeFailure(int child) const {
  std::string text =
      absl::StrCat(logs_->name(child), " (process ", supervisor_->pid(child), ") ", children_[child].end->ToString());
  if (children_[child].end->ok()) absl::StrAppend(&text, " before the job was done");
  display_->PrintLine(
      absl::StrCat("the last lines of ", logs_->name(child), ", all of them in ", logs_->path(child), ":"));
  for (const std::string& line : logs_->last_lines(child)) display_->PrintLine(absl::StrCat("  ", line));
  const std::string error = logs_->LastError(child);
  return error.empty() ? text : absl::StrCat(text, ": ", error);
}

}  // namespace ballast
