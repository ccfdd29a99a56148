// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>

#include <cstdint>
#include <ostream>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "ballast/v1/coordinator_service.pb.h"
#include "ballast/v1/parameter_service.pb.h"
#include "cli/command/command.h"
#include "cli/launch/job_launch.h"
#include "cli/launch/launch_request.h"
#include "common/run/launch_record.h"
#include "common/run/run_folder.h"

namespace ballast {

// While it exists, SIGINT, SIGTERM and SIGHUP do not end this process, which may be writing a file; JobLaunch handles
// them nevertheless. Forgets those that nobody has handled.
class SignalDelay {
 public:
  SignalDelay();
  ~SignalDelay();
  SignalDelay(const SignalDelay&) = delete;

 private:
  sigset_t delayed_;
  sigset_t before_;
};

// Creates a run directory for a job: `run_dir`, or a new one under kRuns if that is empty. ALREADY_EXISTS if it holds a
// run, or checkpoints, which a later restart would take for its own.
absl::StatusOr<RunFolder> CreateRunFolder(const std::string& run_dir, const std::string& job);

// Completes a plan with the paths of its run.
void UseRunFolder(const RunFolder& folder, LaunchPlan& plan);

// Returns a word as a shell takes it. A line break in it does not end a comment.
std::string ShellWord(absl::string_view word);

// Says which checkpoint the job resumes from, if it is to resume.
void PrintResume(const LaunchRequest& request, std::ostream& err);

// Records how a launch ends, and returns its result.
CommandResult EndRecord(LaunchRecord& record, CommandResult result, std::ostream& err);

// Follows the progress of a launch.
class LaunchObserver {
 public:
  virtual ~LaunchObserver() = default;
  virtual void OnProgress(const v1::GetProgressResponse& progress) = 0;
  // All workers have ended, and the servers still run. `shards` is empty if not all of them responded.
  virtual void OnWorkersEnded(const v1::GetProgressResponse& progress,
                              absl::Span<const v1::GetStatusResponse> shards) = 0;
};

struct LaunchSession {
  // Number of epochs; 0: the job's progress tells it.
  int64_t epochs = 0;
  // The job has a stream of data, whose end nobody knows.
  bool endless = false;
  bool insecure = false;
  // Show the logs of all processes.
  bool verbose = false;
  // Null: nobody follows. Outlives the session.
  LaunchObserver* observer = nullptr;
};

// Runs the processes of a plan to their end, with certificates and tokens of their own, and shows the progress on
// `err`.
LaunchResult RunSession(LaunchPlan& plan, const LaunchSession& session, std::ostream& err);

}  // namespace ballast
