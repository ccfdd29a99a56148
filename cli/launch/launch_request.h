// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ballast/v1/job.pb.h"
#include "cli/launch/job_launch.h"
#include "common/job/job_source.h"
#include "common/program/arguments.h"

namespace ballast {

// Maximum number of servers, and of workers.
inline constexpr int kMaxProcesses = 64;

// The parsed command line of `ballast launch`. `plan` lacks the paths of the programs, of the run directory and of the
// file in it.
struct LaunchRequest {
  LaunchPlan plan;
  JobSource source;
  // The job of that source, with all defaults.
  v1::Job job;
  // Empty: a new one under runs/.
  std::string run_dir;
  // --resume was given. If `plan.resume` is empty nevertheless, there is no checkpoint.
  bool resume = false;
  // The checkpoint to resume from is one after the job's last epoch.
  bool all_epochs_done = false;
  // Path of the timeline; empty: none.
  std::string trace;
  bool insecure = false;
  bool json = false;
  bool verbose = false;
  // Serve the live page.
  bool page = false;
};

// Parses the words after "launch"; an unknown flag that resembles a field of the job is answered with --set.
absl::StatusOr<Arguments> ParseLaunch(absl::Span<const std::string> words);

// Parts of ReadLaunchRequest for other commands with the same flags. ReadCommonFlags: the run directory, the output,
// and the processes with their hosts, threads, restarts and timeouts. ReadOverrides: the mode, the codecs, the
// precision and the durability. ReadResume: needs the job. CheckChaos: the durability must outlive the kills.
absl::Status ReadCommonFlags(const Arguments& arguments, LaunchRequest& request);
absl::StatusOr<JobOverrides> ReadOverrides(const Arguments& arguments);
absl::Status ReadResume(const Arguments& arguments, LaunchRequest& request);
absl::Status CheckChaos(const LaunchPlan& plan);

// Resolves the job and checks all flags against it. Reads files, but writes none. Errors name the flag, or the file and
// the line.
absl::StatusOr<LaunchRequest> ReadLaunchRequest(const Arguments& arguments);

// Returns the job that `ballast launch` would train with these words, or the error with which it would refuse them.
absl::StatusOr<v1::Job> CheckLaunch(absl::Span<const std::string> words);

}  // namespace ballast
