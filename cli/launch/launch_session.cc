// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/launch_session.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "cli/command/command.h"
#include "cli/command/server_connection.h"
#include "cli/display/log_merger.h"
#include "cli/display/progress_display.h"
#include "cli/launch/launch_security.h"
#include "cli/launch/placement.h"
#include "cli/report/run_catalog.h"
#include "common/rpc/credentials.h"
#include "common/storage/checkpoint_folder.h"
#include "common/storage/file_system.h"

namespace ballast {
namespace {

bool IsTerminal(const std::ostream& err) {
  const char* term = std::getenv("TERM");
  return &err == &std::cerr && isatty(STDERR_FILENO) == 1 && term != nullptr && absl::string_view(term) != "dumb";
}

bool SpeaksUtf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value != nullptr && *value != '\0') {
      const std::string name_and_charset = absl::AsciiStrToLower(value);
      return absl::StrContains(name_and_charset, "utf-8") || absl::StrContains(name_and_charset, "utf8");
    }
  }
  return false;
}

// Credentials with which this process itself polls progress and reports ended processes. If they cannot be loaded, the
// job runs without a progress display.
Credentials OwnCredentials(const LaunchSecurity* security) {
  if (security == nullptr) return Credentials::Load({.insecure = true}).value_or(Credentials());
  return Credentials::Load(security->keys().AdminOptions()).value_or(Credentials());
}

// Polls the progress of a launch, and renews its certificates with each poll.
class LaunchProgress : public ProgressSource {
 public:
  // `security` outlives this; null: no certificates.
  LaunchProgress(const std::string& address, const Credentials& credentials, const std::string& job,
                 LaunchSecurity* security)
      : server_(ServerConnection::Open(address, credentials, /*patient=*/true, job)), security_(security) {}

  absl::StatusOr<v1::GetProgressResponse> GetProgress(absl::Duration timeout) override {
    // A failure is retried with the next poll; the certificates stay valid for hours.
    if (security_ != nullptr) security_->RenewIfDue(absl::Now()).IgnoreError();
    return server_->GetProgress(timeout);
  }

  absl::Status ReportEnd(const v1::Member& member, const std::string& how, absl::Duration timeout) override {
    return server_->ReportEnd(member, how, timeout);
  }

  absl::StatusOr<v1::SaveCheckpointResponse> SaveCheckpoint(v1::SaveCheckpointRequest request,
                                                            absl::Duration timeout) override {
    return server_->SaveCheckpoint(std::move(request), timeout);
  }

 private:
  const std::unique_ptr<ServerConnection> server_;
  LaunchSecurity* const security_;
};

// Timeout for each server to tell its totals.
constexpr absl::Duration kStatusTimeout = absl::Seconds(2);

// Returns the states of the shards; empty if one does not respond.
std::vector<v1::GetStatusResponse> AskShards(const v1::GetProgressResponse& progress, const Credentials& credentials,
                                             const std::string& job) {
  std::vector<v1::GetStatusResponse> shards;
  for (const v1::GetProgressResponse::MemberStatus& member : progress.members()) {
    if (member.member().role() != v1::ROLE_SERVER || member.state() != "joined") continue;
    const auto server = ServerConnection::Open(member.address(), credentials, /*patient=*/false, job);
    absl::StatusOr<v1::GetStatusResponse> shard = server->GetStatus(kStatusTimeout);
    if (!shard.ok()) return {};
    shards.push_back(*std::move(shard));
  }
  return shards;
}

}  // namespace

SignalDelay::SignalDelay() {
  sigemptyset(&delayed_);
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&delayed_, signal);
  pthread_sigmask(SIG_BLOCK, &delayed_, &before_);
}

SignalDelay::~SignalDelay() {
  const timespec no_time = {};
  while (sigtimedwait(&delayed_, nullptr, &no_time) > 0) {
  }
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

absl::StatusOr<RunFolder> CreateRunFolder(const std::string& run_dir, const std::string& job) {
  absl::StatusOr<RunFolder> folder =
      run_dir.empty() ? RunFolder::CreateUnder(kRuns, job, absl::Now()) : RunFolder::Create(run_dir);
  if (!folder.ok()) return folder.status();
  const auto checkpoints = CheckpointFolder(PosixFileSystem(), folder->path() + "/checkpoints").List();
  if (checkpoints.ok() && !checkpoints->empty()) {
    return absl::AlreadyExistsError(absl::StrCat("run directory ", folder->path(), ": already holds ",
                                                 checkpoints->back().manifest_path,
                                                 "; choose another one, or move it away"));
  }
  std::error_code error;
  std::filesystem::create_directories(folder->path() + "/logs", error);
  if (error) {
    return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot create the directory ", folder->path(), "/logs"));
  }
  return folder;
}

void UseRunFolder(const RunFolder& folder, LaunchPlan& plan) {
  plan.run_dir = folder.path();
  plan.job_file = folder.job();
  if (!HasOtherHosts(plan)) return;
  // On other hosts, a path of this machine must not depend on the working directory.
  std::error_code error;
  plan.run_dir = std::filesystem::absolute(folder.path(), error).lexically_normal().string();
  plan.job_file = RunFolder(plan.run_dir).job();
  if (plan.resume.empty()) return;
  plan.resume = std::filesystem::absolute(plan.resume, error).lexically_normal().string();
}

void PrintResume(const LaunchRequest& request, std::ostream& err) {
  if (!request.resume) return;
  err << (request.plan.resume.empty() ? "no run of this job has a checkpoint; the job starts from the beginning"
                                      : absl::StrCat("the job resumes from ", request.plan.resume))
      << std::endl;
  if (request.all_epochs_done) {
    err << "all its epochs are done, and nothing is left to train: to train on, raise training.epochs" << std::endl;
  }
}

CommandResult EndRecord(LaunchRecord& record, CommandResult result, std::ostream& err) {
  if (absl::Status status = record.End(result.exit_status, result.error.message()); !status.ok()) {
    err << "warning: " << status.message() << "\n";
  }
  return result;
}

std::string ShellWord(absl::string_view word) {
  const bool plain = std::all_of(word.begin(), word.end(),
                                 [](char c) { return absl::ascii_isalnum(c) || absl::StrContains("-_./=+,:@[]", c); });
  if (plain && !word.empty()) return std::string(word);
  return absl::StrCat("'", absl::StrReplaceAll(word, {{"'", "'\\''"}, {"\n", " "}, {"\r", " "}}), "'");
}

LaunchResult RunSession(LaunchPlan& plan, const LaunchSession& session, std::ostream& err) {
  std::unique_ptr<LaunchSecurity> security;
  if (session.insecure) {
    const bool remote = HasOtherHosts(plan);
    err << "WARNING: --insecure: any process " << (remote ? "that reaches these hosts" : "on this machine")
        << " can read and change the job" << std::endl;
    if (remote) plan.server_security = plan.worker_security = {"--insecure"};
  } else {
    std::vector<std::string> hosts;
    for (const JobHost& host : plan.hosts) hosts.push_back(host.address);
    auto made = LaunchSecurity::Create(plan.run_dir, plan.job, hosts, absl::Now());
    if (!made.ok()) return {kExitFailure, std::string(made.status().message())};
    security = *std::move(made);
    plan.server_security = security->keys().ServerFlags();
    plan.worker_security = security->keys().WorkerFlags();
    plan.worker_pages = security->keys().WorkerPageFlags();
  }
  const bool terminal = IsTerminal(err);
  const bool color = terminal && std::getenv("NO_COLOR") == nullptr;
  ProgressDisplay::Options options;
  options.in_place = terminal;
  options.rich = color && SpeaksUtf8();
  options.width = TerminalWidth;
  options.epochs = session.epochs;
  options.endless = session.endless;
  options.metrics = RunFolder(plan.run_dir).metrics();
  ProgressDisplay display(options, &err, Clock::Real());
  auto print = [&](absl::string_view line) { display.PrintLine(line); };
  LogMerger logs(session.verbose ? std::function<void(absl::string_view)>(print) : nullptr, color, print);
  LaunchHooks hooks;
  if (session.observer != nullptr) {
    hooks.progress = [&](const v1::GetProgressResponse& progress) { session.observer->OnProgress(progress); };
    hooks.workers_ended = [&](const v1::GetProgressResponse& progress) {
      session.observer->OnWorkersEnded(progress, AskShards(progress, OwnCredentials(security.get()), plan.job));
    };
  }
  return JobLaunch(
             plan, &logs, &display,
             [&](const std::string& address) {
               return std::make_unique<LaunchProgress>(address, OwnCredentials(security.get()), plan.job,
                                                       security.get());
             },
             std::move(hooks))
      .Run();
}

}  // namespace ballast
