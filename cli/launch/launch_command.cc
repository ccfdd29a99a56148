// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/command/command.h"
#include "cli/launch/launch_conclusion.h"
#include "cli/launch/launch_environment.h"
#include "cli/launch/launch_page.h"
#include "cli/launch/launch_request.h"
#include "cli/launch/launch_session.h"
#include "common/job/job_config.h"
#include "common/job/job_file.h"
#include "common/run/launch_record.h"
#include "common/run/run_folder.h"

namespace ballast {
namespace {

constexpr char kUsage[] =
    "usage: ballast launch JOB [flags]\n\n"
    "Trains the job described in the text file JOB, or in standard input if JOB is -, on this machine or on those\n"
    "of --hosts: starts servers and workers, shows the progress, and writes metrics, model and report to a run\n"
    "directory. Ctrl-C saves a checkpoint, unless the durability is none, and the model, and stops the job; a\n"
    "second Ctrl-C stops it immediately. Each flag can also be set as an environment variable, such as\n"
    "BALLAST_MODE; the command line takes precedence.\n\n";

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
    absl::StrAppend(&flags, flags.empty() ? " with " : " ", ShellWord(flag));
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
  PrintResume(request, err);
}

}  // namespace

CommandResult LaunchCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err) {
  const absl::StatusOr<Arguments> arguments = ParseLaunch(WithEnvironment(LaunchFlags(), args, err));
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
  const absl::StatusOr<RunFolder> folder = CreateRunFolder(request->run_dir, request->job.name());
  if (!folder.ok()) return Fail(err, folder.status(), kExitBadInput);
  if (absl::Status status = CheckJobFile(*request, *folder); !status.ok()) return Fail(err, status, kExitBadInput);
  absl::StatusOr<LaunchRecord> record = LaunchRecord::Create(folder->path(), absl::Now());
  if (!record.ok()) return Fail(err, record.status(), kExitBadInput);
  if (absl::Status status = WriteJob(*request, *folder); !status.ok()) return Fail(err, status, kExitBadInput);
  UseRunFolder(*folder, request->plan);
  // If the reader of our output exits, SIGPIPE must not kill this process and orphan its children.
  signal(SIGPIPE, SIG_IGN);
  PrintStart(*request, *folder, err);
  TakeBestModel(*request, *folder, err);
  std::optional<LaunchPage> page;
  if (request->page) {
    absl::StatusOr<LaunchPage> started = LaunchPage::Start(OwnPath(), folder->path(), err);
    if (!started.ok()) return EndRecord(*record, Fail(err, started.status(), kExitFailure), err);
    page.emplace(*std::move(started));
  }
  const LaunchSession session = {.epochs = request->job.training().epochs(),
                                 .endless = request->job.data().has_stream(),
                                 .insecure = request->insecure,
                                 .verbose = request->verbose};
  return EndRecord(*record, ConcludeLaunch(*request, *folder, RunSession(request->plan, session, err), out, err), err);
}

}  // namespace ballast
