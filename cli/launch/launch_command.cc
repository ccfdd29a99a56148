// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "cli/command/command.h"
#include "cli/command/server_connection.h"
#include "cli/launch/job_launch.h"
#include "cli/launch/launch_conclusion.h"
#include "cli/launch/launch_environment.h"
#include "cli/launch/launch_request.h"
#include "cli/launch/launch_security.h"
#include "cli/launch/placement.h"
#include "cli/report/run_catalog.h"
#include "common/job/job_config.h"
#include "common/job/job_file.h"
#include "common/rpc/credentials.h"
#include "common/run/launch_record.h"
#include "common/run/run_folder.h"
#include "common/storage/checkpoint_folder.h"
#include "common/storage/file_system.h"

namespace ballast {
namespace {

constexpr char kUsage[] =
    "usage: ballast launch JOB [flags]\n\n"
    "Trains the job described in the text file JOB, or in standard input if JOB is -, on this machine or on those\n"
    "of --hosts: starts servers and workers, shows the progress, and writes metrics, model and report to a run\n"
    "directory. Ctrl-C saves a checkpoint, unless the durability is none, and the model, and stops the job; a\n"
    "second Ctrl-C stops it immediately. Each flag can also be set as an environment variable, such as\n"
    "BALLAST_MODE; the command line takes precedence.\n\n";

// Returns a word as a shell takes it. A line break does not end a comment.
std::string Quoted(absl::string_view word) {
  const bool plain = std::all_of(word.begin(), word.end(),
                                 [](char c) { return absl::ascii_isalnum(c) || absl::StrContains("-_./=+,:@[]", c); });
  if (plain && !word.empty()) return std::string(word);
  return absl::StrCat("'", absl::StrReplaceAll(word, {{"'", "'\\''"}, {"\n", " "}, {"\r", " "}}), "'");
}

absl::Status CheckJobFile(const LaunchRequest& request, const RunFolder& folder) {
  const std::string& file = request.source.path;
  std::error_code error;
  if (std::filesystem::equivalent(file, folder.job(), error)) {
    return absl::InvalidArgumentError(absl::StrCat("run directory ", folder.path(), ": got the job file ", file,
                                                   " in it, which the run would replace; want another directory"));
  }
  return absl::OkStatus();
}

// Writes the job that runs.
absl::Status WriteJob(const LaunchRequest& request, const RunFolder& folder) {
  const std::string& file = request.source.path;
  std::string flags;
  for (const std::string& flag : ToFlags(request.source))
    absl::StrAppend(&flags, flags.empty() ? " with " : " ", Quoted(flag));
  const LaunchPlan& plan = request.plan;
  std::string comment =
      absl::StrFormat("# Written by ballast launch: %s%s. Paths are absolute, and defaults are filled in.\n",
                      file == "-" ? "standard input" : absl::Utf8SafeCEscape(file), flags);
  absl::StrAppendFormat(&comment,
                        "# Repeat the run with: ballast launch job.textproto --servers %d --workers %d%s "
                        "--device %s%s\n",
                        plan.servers, plan.workers, plan.threads == 0 ? "" : absl::StrCat(" --threads ", plan.threads),
                        plan.device, plan.gpus.empty() ? "" : absl::StrCat(" --gpus ", plan.gpus));
  return SaveJob(folder.job(), request.job, comment);
}

absl::StatusOr<RunFolder> CreateRunFolder(const LaunchRequest& request) {
  absl::StatusOr<RunFolder> folder = request.run_dir.empty()
                                         ? RunFolder::CreateUnder(kRuns, request.job.name(), absl::Now())
                                         : RunFolder::Create(request.run_dir);
  if (!folder.ok()) return folder.status();
  if (absl::Status status = CheckJobFile(request, *folder); !status.ok()) return status;
  // A later restart of this job would take them for its own.
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

// While it exists, SIGINT, SIGTERM and SIGHUP do not end this process, which may be writing a file; JobLaunch handles
// them nevertheless. Forgets those that nobody has handled.
class SignalDelay {
 public:
  SignalDelay() {
    sigemptyset(&delayed_);
    for (int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&delayed_, signal);
    pthread_sigmask(SIG_BLOCK, &delayed_, &before_);
  }
  ~SignalDelay() {
    const timespec no_time = {};
    while (sigtimedwait(&delayed_, nullptr, &no_time) > 0) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SignalDelay(const SignalDelay&) = delete;

 private:
  sigset_t delayed_;
  sigset_t before_;
};

// Copies the best model of the run that this one resumes, if the job keeps the best.
void TakeBestModel(const LaunchRequest& request, const RunFolder& folder, std::ostream& err) {
  if (request.plan.resume.empty() || request.job.training().keep_best() == v1::TEST_METRIC_UNSPECIFIED) return;
  const std::filesystem::path checkpoints = std::filesystem::path(request.plan.resume).parent_path();
  const std::string model = RunFolder(checkpoints.parent_path().string()).model();
  std::error_code error;
  if (checkpoints.filename() != "checkpoints" || !std::filesystem::exists(model, error)) return;
  std::filesystem::copy_file(model, folder.model(), error);
  if (error) err << "warning: " << model << " was not copied: " << error.message() << std::endl;
}

LaunchResult RunJob(LaunchRequest& request, std::ostream& err) {
  std::unique_ptr<LaunchSecurity> security;
  if (request.insecure) {
    const bool remote = HasOtherHosts(request.plan);
    err << "WARNING: --insecure: any process " << (remote ? "that reaches these hosts" : "on this machine")
        << " can read and change the job" << std::endl;
    if (remote) request.plan.server_security = request.plan.worker_security = {"--insecure"};
  } else {
    std::vector<std::string> hosts;
    for (const JobHost& host : request.plan.hosts) hosts.push_back(host.address);
    auto made = LaunchSecurity::Create(request.plan.run_dir, request.job.name(), hosts, absl::Now());
    if (!made.ok()) return {kExitFailure, std::string(made.status().message())};
    security = *std::move(made);
    request.plan.server_security = security->keys().ServerFlags();
    request.plan.worker_security = security->keys().WorkerFlags();
  }
  const bool terminal = IsTerminal(err);
  const bool color = terminal && std::getenv("NO_COLOR") == nullptr;
  ProgressDisplay::Options options;
  options.in_place = terminal;
  options.rich = color && SpeaksUtf8();
  options.width = TerminalWidth;
  options.epochs = request.job.training().epochs();
  options.endless = request.job.data().has_stream();
  options.metrics = RunFolder(request.plan.run_dir).metrics();
  ProgressDisplay display(options, &err, Clock::Real());
  auto print = [&](absl::string_view line) { display.PrintLine(line); };
  LogMerger logs(request.verbose ? std::function<void(absl::string_view)>(print) : nullptr, color, print);
  return JobLaunch(request.plan, &logs, &display,
                   [&](const std::string& address) {
                     return std::make_unique<LaunchProgress>(address, OwnCredentials(security.get()),
                                                             request.job.name(), security.get());
                   })
      .Run();
}

// Completes the plan with the paths of this run.
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

void PrintStart(const LaunchRequest& request, const RunFolder& folder, std::ostream& err) {
  const LaunchPlan& plan = request.plan;
  const size_t hosts = plan.hosts.size();
  err << absl::StrFormat("job %s: %s, servers %d%s, workers %d%s%s; run directory %s", request.job.name(),
                         DescribeMode(request.job), plan.servers,
                         plan.durability.mode() == v1::Durability::STANDBY ? " with a standby each" : "", plan.workers,
                         plan.threads == 0 ? "" : absl::StrFormat(" with %d threads each", plan.threads),
                         hosts == 0 ? "" : absl::StrFormat(" on %d host%s", hosts, hosts == 1 ? "" : "s"),
                         folder.path())
      << std::endl;
  if (!request.resume) return;
  err << (plan.resume.empty() ? "no run of this job has a checkpoint; the job starts from the beginning"
                              : absl::StrCat("the job resumes from ", plan.resume))
      << std::endl;
  if (request.all_epochs_done) {
    err << "all its epochs are done, and nothing is left to train: to train on, raise training.epochs" << std::endl;
  }
}

}  // namespace

CommandResult LaunchCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err) {
  EnvironmentFlags environment = TakeEnvironmentFlags(LaunchFlags(), args);
  for (const std::string& line : environment.lines) err << line << std::endl;
  std::vector<std::string> words = std::move(environment.words);
  words.insert(words.end(), args.begin(), args.end());
  const absl::StatusOr<Arguments> arguments = ParseLaunch(words);
  if (!arguments.ok()) return Fail(err, arguments.status(), kExitBadInput);
  if (arguments->help()) {
    out << kUsage << DescribeFlags(LaunchFlags());
    return kExitSuccess;
  }
  if (arguments->positional() == std::vector<std::string>{"-"} && isatty(STDIN_FILENO) == 1) {
    err << "reading the job from standard input; Ctrl-D ends it" << std::endl;
  }
  absl::StatusOr<LaunchRequest> request = ReadLaunchRequest(*arguments);
  if (!request.ok()) return Fail(err, request.status(), kExitBadInput);
  for (auto [program, path] :
       {std::pair{"server", &request->plan.server_binary}, std::pair{"worker", &request->plan.worker_binary}}) {
    absl::StatusOr<std::string> found = FindBinary(program, OwnPath());
    if (!found.ok()) return Fail(err, found.status(), kExitFailure);
    *path = *std::move(found);
  }
  const SignalDelay delay;
  const absl::StatusOr<RunFolder> folder = CreateRunFolder(*request);
  if (!folder.ok()) return Fail(err, folder.status(), kExitBadInput);
  absl::StatusOr<LaunchRecord> record = LaunchRecord::Create(folder->path(), absl::Now());
  if (!record.ok()) return Fail(err, record.status(), kExitBadInput);
  if (absl::Status status = WriteJob(*request, *folder); !status.ok()) return Fail(err, status, kExitBadInput);
  UseRunFolder(*folder, request->plan);
  // If the reader of our output exits, SIGPIPE must not kill this process and orphan its children.
  signal(SIGPIPE, SIG_IGN);
  PrintStart(*request, *folder, err);
  TakeBestModel(*request, *folder, err);
  CommandResult result = ConcludeLaunch(*request, *folder, RunJob(*request, err), out, err);
  if (absl::Status status = record->End(result.exit_status, result.error.message()); !status.ok()) {
    err << "warning: " << status.message() << "\n";
  }
  return result;
}

}  // namespace ballast
