// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/job_launch.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/command/command.h"
#include "cli/launch/placement.h"
#include "cli/launch/run_end.h"
#include "common/job/job_config.h"
#include "common/storage/checkpoint_folder.h"
#include "common/storage/file_system.h"

namespace ballast {
namespace {

constexpr absl::Duration kProgressInterval = absl::Milliseconds(500);
constexpr absl::Duration kProgressTimeout = absl::Milliseconds(300);
// The same at the end, when nothing else waits.
constexpr absl::Duration kLastProgressTimeout = absl::Seconds(2);
// Pause between attempts to report the end of a process to the coordinator.
constexpr absl::Duration kReportPause = absl::Milliseconds(100);
// Timeout for the child that the coordinator blames to exit by itself.
constexpr absl::Duration kAccusedTimeout = absl::Seconds(2);

// Returns whether the coordinator means the process with that id, server or worker and rank: hosts have the same ids,
// and a server and its standby may have switched roles.
bool IsMember(bool server, int rank, uint64_t id, const v1::Member& member, uint64_t process) {
  return (member.role() != v1::ROLE_WORKER) == server && static_cast<int>(member.rank()) == rank && id == process;
}

}  // namespace

std::string JobLaunch::Child::Name(absl::string_view separator) const {
  return absl::StrCat(!server ? "worker" : standby ? "standby" : "server", separator, rank);
}

std::string WorkerTracePath(const std::string& run_dir, int rank) {
  return absl::StrCat(run_dir, "/logs/worker-", rank, ".trace.json");
}

std::string ServerTracePath(const std::string& run_dir, int rank, bool standby) {
  return absl::StrCat(run_dir, "/logs/", standby ? "standby-" : "server-", rank, ".trace.json");
}

std::string CoordinatorAddressPath(const std::string& run_dir) {
  return absl::StrCat(run_dir, "/logs/server-0.control");
}

LaunchResult JobLaunch::Run() {
  auto fleet = Fleet::Create(this, PlanHosts(plan_));
  if (!fleet.ok()) return {kExitFailure, std::string(fleet.status().message())};
  fleet_ = std::move(*fleet);
  const absl::Status connected = ConnectHosts();
  absl::Status started = connected;
  if (started.ok() && signals_ == 0) started = StartAll(/*again=*/false);
  if (started.ok() && signals_ == 0) started = Watch();
  if (failed() && signals_ == 0) AwaitAccused();
  if (!failed() && started.ok()) SaveCheckpoint();
  StopAll();
  std::vector<uint64_t> processes;
  for (size_t child = 0; child < children_.size(); ++child) {
    processes.push_back(fleet_->pid(static_cast<int>(child)));
  }
  RemovePartialFiles(plan_.run_dir, processes, CheckpointsKept(plan_.durability));
  DisconnectHosts();
  display_->Finish();
  if (signals_ > 0) return {kExitInterrupted, "", restarts_};
  if (failed()) return Failure();
  if (!connected.ok()) {
    // A missing file does not appear by itself; a host that cannot be reached may return.
    return {absl::IsUnavailable(connected) ? kExitTemporary : kExitBadInput, std::string(connected.message())};
  }
  if (!started.ok()) return {kExitFailure, std::string(started.message()), restarts_};
  return {kExitSuccess, "", restarts_};
}

absl::Status JobLaunch::ConnectHosts() {
  absl::Status status = fleet_->Connect([this] { return signals_ > 0; });
  if (!status.ok() || signals_ > 0 || plan_.durability.mode() != v1::Durability::CHECKPOINT) return status;
  if (fleet_->shares_run_dir()) return status;
  return absl::FailedPreconditionError(
      absl::StrCat("run directory ", plan_.run_dir, ": not every host with a server has it, want --run-dir on a file ",
                   "system that all of them share: durability checkpoint writes its checkpoints there"));
}

void JobLaunch::DisconnectHosts() {
  for (const std::string& host : fleet_->Close(kStop)) {
    display_->PrintLine(absl::StrCat("warning: host ", host, " has not confirmed within ", absl::FormatDuration(kStop),
                                     " that its processes ended; they end within ", absl::FormatDuration(kSilence)));
  }
}

void JobLaunch::OnEnd(int index, const ExitStatus& status) {
  logs_->Finish(index);
  Child& child = children_[index];
  child.end = status;
  if (restart_all_) return;
  const RestartPolicy::Decision decision = policy_.OnEnd({.server = child.server,
                                                          .standby = child.standby,
                                                          .rank = child.rank,
                                                          .end = status,
                                                          .asked = child.asked,
                                                          .killed_by_chaos = child.killed_by_chaos,
                                                          .restarts = child.restarts,
                                                          .substitute = HasSubstitute(child)},
                                                         /*job_started=*/!coordinator_.empty());
  if (decision.action == RestartPolicy::Action::kFail) culprit_.AddFailure(index);
  // Nothing starts again once the run ends.
  if (failed() || signals_ > 0) return;
  switch (decision.action) {
    case RestartPolicy::Action::kNone:
    case RestartPolicy::Action::kFail:
      return;
    case RestartPolicy::Action::kRestartJob:
      restart_all_ = true;
      break;
    case RestartPolicy::Action::kRestart:
      child.restart_at = absl::Now() + decision.pause;
      child.restarts = decision.restarts;
      unreported_.push_back(index);
      break;
    case RestartPolicy::Action::kContinue:
      unreported_.push_back(index);
      break;
  }
  display_->PrintLine(absl::StrCat(logs_->name(index), " (process ", fleet_->pid(index), ") ", status.ToString(), "; ",
                                   decision.announcement));
}

bool JobLaunch::HasSubstitute(const Child& child) const {
  return std::any_of(children_.begin(), children_.end(), [&](const Child& other) {
    if (other.end.has_value() || other.server != child.server) return false;
    return !child.server || (other.rank == child.rank && other.standby != child.standby);
  });
}

bool JobLaunch::AnyToRestart() const {
  return std::any_of(children_.begin(), children_.end(),
                     [](const Child& child) { return child.restart_at.has_value(); });
}

absl::Time JobLaunch::RestartTime(int index) const {
  const Child& child = children_[index];
  if (!child.restart_at.has_value()) return absl::InfiniteFuture();
  const bool unreported = std::find(unreported_.begin(), unreported_.end(), index) != unreported_.end();
  return RestartPolicy::StartTime(*child.restart_at, child.server, !unreported);
}

absl::Status JobLaunch::RestartDue() {
  // By index, because StartChild appends to children_.
  for (size_t index = 0; index < children_.size(); ++index) {
    if (RestartTime(static_cast<int>(index)) > absl::Now()) continue;
    children_[index].restart_at.reset();
    Child next;
    next.server = children_[index].server;
    next.standby = children_[index].standby;
    next.rank = children_[index].rank;
    next.host = children_[index].host;
    next.restarts = children_[index].restarts;
    next.flags = FlagsAgain(children_[index]);
    if (absl::Status status = StartChild(std::move(next), /*again=*/true); !status.ok()) return status;
    ++restarts_;
  }
  return absl::OkStatus();
}

std::string JobLaunch::ResumeManifest() const {
  const auto newest = CheckpointFolder(PosixFileSystem(), absl::StrCat(plan_.run_dir, "/checkpoints")).Newest();
  return newest.ok() ? newest->manifest_path : plan_.resume;
}

absl::Status JobLaunch::RestartAll() {
  for (size_t child = 0; child < children_.size(); ++child) {
    children_[child].asked = true;
    children_[child].restart_at.reset();
    if (fleet_->running(static_cast<int>(child))) fleet_->Signal(static_cast<int>(child), SIGKILL);
  }
  unreported_.clear();
  const bool ended = PollUntil(kStop, [this] { return !AnyRunning(true, true); });
  restart_all_ = false;
  if (!ended) {
    return absl::DeadlineExceededError(
        absl::StrCat("timed out after ", absl::FormatDuration(kStop), " waiting for killed processes to end"));
  }
  if (signals_ > 0) return absl::OkStatus();
  restarts_ += plan_.servers + plan_.workers;
  const std::string manifest = ResumeManifest();
  display_->PrintLine(manifest.empty() ? "there is no checkpoint yet; the job starts from the beginning"
                                       : absl::StrCat("the job resumes from ", manifest));
  return StartAll(/*again=*/true);
}

void JobLaunch::ReportEnds(const v1::GetProgressResponse& progress, ProgressSource& source) {
  const bool finished = progress.progress().state() == v1::JOB_STATE_FINISHED;
  for (int index : std::exchange(unreported_, {})) {
    Child& child = children_[index];
    for (const v1::GetProgressResponse::MemberStatus& status : progress.members()) {
      if (!IsMember(child.server, child.rank, fleet_->pid(index), status.member(), status.process())) continue;
      // The worker had finished the job and saved.
      if (finished && !child.server && status.state() == "left") child.restart_at.reset();
      source.ReportEnd(status.member(), child.end->ToString(), kProgressTimeout).IgnoreError();
    }
  }
}

int JobLaunch::RunningServer(const v1::GetProgressResponse::MemberStatus& status) const {
  for (int child = 0; child < static_cast<int>(children_.size()); ++child) {
    const Child& server = children_[child];
    if (!server.server || server.end.has_value()) continue;
    if (IsMember(true, server.rank, fleet_->pid(child), status.member(), status.process())) return child;
  }
  return -1;
}

void JobLaunch::NotePairs(const v1::GetProgressResponse& progress) {
  in_step_.clear();
  for (const v1::GetProgressResponse::MemberStatus& standby : progress.members()) {
    if (!standby.in_step()) continue;
    for (const v1::GetProgressResponse::MemberStatus& server : progress.members()) {
      if (server.member().role() != v1::ROLE_SERVER || server.member().rank() != standby.member().rank()) continue;
      const int one = RunningServer(server), other = RunningServer(standby);
      if (one >= 0 && other >= 0) in_step_.insert({{one, other}, {other, one}});
    }
  }
}

bool JobLaunch::MayKill(int child) const {
  if (!children_[child].server || !with_standby()) return Alive(child);
  // The job survives only if the other process runs and has the whole shard.
  const auto pair = in_step_.find(child);
  return Alive(child) && pair != in_step_.end() && Alive(pair->second);
}

void JobLaunch::InjectKill() {
  if (!chaos_.has_value()) return;
  for (bool server : {true, false}) {
    std::vector<int> running;
    for (int child = 0; child < static_cast<int>(children_.size()); ++child) {
      if (children_[child].server == server && MayKill(child)) running.push_back(child);
    }
    const std::optional<int> target = chaos_->Target(server, running, absl::Now());
    if (!target.has_value()) continue;
    display_->PrintLine(absl::StrCat("chaos: killing ", logs_->name(*target), " (process ", fleet_->pid(*target), ")"));
    children_[*target].killed_by_chaos = true;
    fleet_->Signal(*target, SIGKILL);
  }
}

absl::Time JobLaunch::NextEvent(absl::Time latest) const {
  absl::Time next = latest;
  for (int child = 0; child < static_cast<int>(children_.size()); ++child) next = std::min(next, RestartTime(child));
  return chaos_.has_value() ? std::min(next, chaos_->next()) : next;
}

void JobLaunch::OnSignal(int) {
  ++signals_;
  if (signals_ == 1 && !failed()) {
    display_->PrintLine(absl::StrCat("stopping: ",
                                     plan_.durability.mode() == v1::Durability::NONE
                                         ? "the workers finish their step and save"
                                         : "the job takes a checkpoint, then the workers save",
                                     "; press Ctrl-C again to stop immediately"));
  }
}

absl::Time JobLaunch::PollProgress(ProgressSource& source) {
  const auto progress = source.GetProgress(kProgressTimeout);
  // A busy server responds to a later poll; the supervisor detects one that exits.
  if (!progress.ok()) return absl::Now() + (unreported_.empty() ? kProgressInterval : kReportPause);
  ReportEnds(*progress, source);
  NotePairs(*progress);
  if (hooks_.progress != nullptr) hooks_.progress(*progress);
  display_->Update(progress->progress());
  const v1::JobState state = progress->progress().state();
  // A finished job still evaluates and saves. Kills could prevent that forever: it may take longer than the interval.
  if (state == v1::JOB_STATE_FINISHED) chaos_.reset();
  if (state == v1::JOB_STATE_RUNNING && plan_.chaos.has_value() && !chaos_.has_value()) {
    chaos_.emplace(*plan_.chaos, absl::Now());
  }
  return absl::Now() + kProgressInterval;
}

absl::Status JobLaunch::Watch() {
  std::unique_ptr<ProgressSource> source = connect_(coordinator_);
  absl::Time next = absl::Now();
  size_t reported = 0;
  while ((AnyRunning(false, true) || AnyToRestart() || restart_all_) && signals_ == 0 && !failed()) {
    if (restart_all_) {
      if (absl::Status status = RestartAll(); !status.ok()) return status;
      source = connect_(coordinator_);
      continue;
    }
    if (absl::Now() >= next || unreported_.size() > reported) next = PollProgress(*source);
    // The ends that are still unreported are retried with the next poll.
    reported = unreported_.size();
    if (absl::Status status = RestartDue(); !status.ok()) return status;
    InjectKill();
    fleet_->Poll(std::max(NextEvent(next) - absl::Now(), absl::ZeroDuration()));
  }
  return absl::OkStatus();
}

bool JobLaunch::PollUntil(absl::Duration timeout, const std::function<bool()>& done) {
  const absl::Time deadline = absl::Now() + timeout;
  // If a failure stops the job, the first signal ends the wait; otherwise the first signal started the stop.
  const int max_signals = failed() ? 1 : 2;
  while (!done() && signals_ < max_signals && absl::Now() < deadline) fleet_->Poll(deadline - absl::Now());
  return done();
}

void JobLaunch::AwaitAccused() {
  if (coordinator_.empty()) return;
  // The call fails if the coordinator's own process has failed.
  const auto progress = connect_(coordinator_)->GetProgress(kProgressTimeout);
  if (!progress.ok()) return;
  const v1::JobFailure& failure = progress->progress().failure();
  std::vector<uint64_t> process_ids;
  for (size_t child = 0; child < children_.size(); ++child) {
    const uint64_t id = fleet_->pid(static_cast<int>(child));
    // The same id on another host is another process.
    const bool same = IsMember(children_[child].server, children_[child].rank, id, failure.member(), failure.process());
    process_ids.push_back(same ? id : std::numeric_limits<uint64_t>::max());
  }
  const std::optional<int> accused = culprit_.Accuse(failure, process_ids);
  if (accused.has_value()) PollUntil(kAccusedTimeout, [&] { return !fleet_->running(*accused); });
}

void JobLaunch::Stop(bool servers, bool workers, absl::Duration timeout) {
  auto signal_running = [&](int signal) {
    for (size_t child = 0; child < children_.size(); ++child) {
      if (!(children_[child].server ? servers : workers) || !fleet_->running(static_cast<int>(child))) continue;
      children_[child].asked = true;
      // Its last events may explain the failure. With this file it also has a handler; another program would end.
      if (failed() && signal == SIGTERM && access(HttpFile(children_[child]).c_str(), F_OK) == 0) {
        fleet_->Signal(static_cast<int>(child), SIGQUIT);
      }
      fleet_->Signal(static_cast<int>(child), signal);
    }
  };
  auto all_ended = [&] { return !AnyRunning(servers, workers); };
  signal_running(SIGTERM);
  if (PollUntil(timeout, all_ended)) return;
  signal_running(SIGKILL);
  // A process inside a system call may take a moment to die; ~Fleet waits for the rest.
  const absl::Time deadline = absl::Now() + kStop;
  while (!all_ended() && absl::Now() < deadline) fleet_->Poll(deadline - absl::Now());
}

void JobLaunch::SaveCheckpoint() {
  if (plan_.durability.mode() == v1::Durability::NONE || coordinator_.empty()) return;
  const auto coordinator = [](const Child& child) { return child.coordinates() && !child.end.has_value(); };
  const std::string line =
      ballast::SaveCheckpoint(*connect_(coordinator_), [&, signals = signals_](absl::Duration pause) {
        fleet_->Poll(pause);
        return signals_ == signals && std::any_of(children_.begin(), children_.end(), coordinator);
      });
  if (!line.empty()) display_->PrintLine(line);
}

void JobLaunch::StopAll() {
  if (failed()) {
    Stop(true, true, kStop);
    return;
  }
  // Workers need the servers until they have saved.
  Stop(false, true, kSave);
  ReportWorkersEnded();
  Stop(true, false, kStop);
}

void JobLaunch::ReportWorkersEnded() {
  if (hooks_.workers_ended == nullptr || coordinator_.empty() || signals_ > 1) return;
  const auto progress = connect_(coordinator_)->GetProgress(kLastProgressTimeout);
  if (progress.ok()) hooks_.workers_ended(*progress);
}

bool JobLaunch::AnyRunning(bool servers, bool workers) const {
  return std::any_of(children_.begin(), children_.end(),
                     [&](const Child& child) { return (child.server ? servers : workers) && !child.end.has_value(); });
}

LaunchResult JobLaunch::Failure() const {
  const int culprit = culprit_.Culprit();
  const auto& lines = logs_->last_lines(culprit);
  const FailureReport report = ReportFailure({.name = logs_->name(culprit),
                                              .process_id = fleet_->pid(culprit),
                                              .end = *children_[culprit].end,
                                              .log_path = logs_->path(culprit),
                                              .last_lines = {lines.begin(), lines.end()},
                                              .last_error = logs_->LastError(culprit)});
  for (const std::string& line : report.lines) display_->PrintLine(line);
  return {report.exit_status, report.error, restarts_};
}

}  // namespace ballast
