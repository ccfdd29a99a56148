// SPDX-License-Identifier: Apache-2.0
#include <signal.h>

#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/command/command.h"
#include "cli/launch/launch_conclusion.h"
#include "cli/launch/launch_environment.h"
#include "cli/launch/launch_session.h"
#include "cli/run/program_recorder.h"
#include "cli/run/run_request.h"
#include "common/job/job_file.h"
#include "common/job/job_overrides.h"
#include "common/run/launch_record.h"

namespace ballast {
namespace {

constexpr char kUsage[] =
    "usage: ballast run [flags] -- PROGRAM [ARGUMENTS]\n\n"
    "Starts servers, and PROGRAM as many times as there are workers, on this machine or on those of --hosts. Each\n"
    "program has RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its environment, as\n"
    "torchrun sets them, and the addresses and credentials with which ballast.connect(), or ballast_join() of the C\n"
    "library, joins the job without arguments. Shows the progress that the programs log, and writes metrics and a\n"
    "report to a run directory, BALLAST_RUN_DIR. A program that dies by a signal or ends with 3 is started again; one\n"
    "that ends with another status than 0 ends the run. Ctrl-C tells the programs to end (SIGTERM); a second Ctrl-C\n"
    "stops them immediately. Each flag can also be set as an environment variable, such as BALLAST_WORKERS.\n\n"
    "Example: ballast run --workers 2 -- python3 examples/python/fashion_mnist_torch.py\n\n";

std::string Command(const std::vector<std::string>& program) {
  std::string command;
  for (const std::string& word : program) absl::StrAppend(&command, command.empty() ? "" : " ", ShellWord(word));
  return command;
}

void PrintStart(const LaunchRequest& request, std::ostream& err) {
  const LaunchPlan& plan = request.plan;
  err << absl::StrFormat("job %s: servers %d, workers %d of %s; run directory %s", plan.job, plan.servers, plan.workers,
                         Command(plan.program), plan.run_dir)
      << std::endl;
  PrintResume(request, err);
}

// Runs the programs in a new run directory.
CommandResult RunPrograms(LaunchRequest& request, const RunFolder& folder, std::ostream& out, std::ostream& err) {
  const std::string comment = absl::StrCat("# Written by ballast run: ", Command(request.plan.program), "\n");
  if (absl::Status status = SaveJob(folder.job(), request.job, comment); !status.ok()) {
    return Fail(err, status, kExitBadInput);
  }
  UseRunFolder(folder, request.plan);
  absl::StatusOr<ProgramRecorder> recorder = ProgramRecorder::Create(folder);
  if (!recorder.ok()) return Fail(err, recorder.status(), kExitFailure);
  // If the reader of our output exits, SIGPIPE must not kill this process and orphan its children.
  signal(SIGPIPE, SIG_IGN);
  PrintStart(request, err);
  const LaunchSession session = {.insecure = request.insecure, .verbose = request.verbose, .observer = &*recorder};
  const LaunchResult result = RunSession(request.plan, session, err);
  const bool interrupted = result.exit_status == kExitInterrupted;
  if (result.exit_status == kExitSuccess || interrupted) {
    if (absl::Status status = recorder->Finish(interrupted); !status.ok()) {
      err << "warning: the metrics are incomplete: " << status.message() << "\n";
    }
  }
  return ConcludeLaunch(request, folder, result, out, err);
}

}  // namespace

CommandResult RunProgramCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err) {
  const absl::StatusOr<Arguments> arguments = Arguments::Parse(RunFlags(), WithEnvironment(RunFlags(), args, err));
  if (!arguments.ok()) return Fail(err, arguments.status(), kExitBadInput);
  if (arguments->help()) {
    out << kUsage << DescribeFlags(RunFlags());
    return kExitSuccess;
  }
  absl::StatusOr<LaunchRequest> request = ReadRunRequest(*arguments, OwnPath());
  if (!request.ok()) return Fail(err, request.status(), kExitBadInput);
  absl::StatusOr<std::string> server = FindBinary("server", OwnPath());
  if (!server.ok()) return Fail(err, server.status(), kExitFailure);
  request->plan.server_binary = *std::move(server);
  const SignalDelay delay;
  const absl::StatusOr<RunFolder> folder = CreateRunFolder(request->run_dir, request->plan.job);
  if (!folder.ok()) return Fail(err, folder.status(), kExitBadInput);
  absl::StatusOr<LaunchRecord> record = LaunchRecord::Create(folder->path(), absl::Now());
  if (!record.ok()) return Fail(err, record.status(), kExitBadInput);
  return EndRecord(*record, RunPrograms(*request, *folder, out, err), err);
}

}  // namespace ballast
