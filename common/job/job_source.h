// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ballast/v1/job.pb.h"
#include "common/job/job_overrides.h"

namespace ballast {

// The parts that a command makes its job from, in the order in which they apply.
struct JobSource {
  // The job file; "-" is standard input.
  std::string path;
  // Files merged over the job (--set-file): a field that such a file sets replaces the job's, a list as a whole.
  std::vector<std::string> set_files;
  // Fields to set (--set), each as for SetField. The last one of a field counts.
  std::vector<std::string> sets;
  // Short flags.
  JobOverrides overrides;
  // Also requires that the files that the data names exist.
  bool with_data = false;
};

// Reads a job and applies the rest of its source; a missing policy becomes sync. Relative paths in a file are relative
// to its directory, those of --set and of standard input to the current directory; in the result all are absolute.
// `workers` is 0 if not known yet. Blocks until the end of standard input, if that is the source. INVALID_ARGUMENT
// lists up to five faults, each at the file and line, or the --set, that caused it, and names a --set and a short flag
// that are for the same field; NOT_FOUND if a file does not exist.
absl::StatusOr<v1::Job> ResolveJob(const JobSource& source, uint32_t workers);

// Returns the job with the defaults that job.proto and tensor.proto state, so that a reader sees what runs: numbers of
// the messages that the job has (their Limits.zero), encodings, strides and initializers. The result trains to the same
// bits. Leaves out the optimizers' optional constants, whose defaults are more precise than a float, and the names of
// layers. Once more changes nothing.
v1::Job WithDefaults(v1::Job job);

// Returns all but the path as command-line words: {"--set", "training.epochs=3", "--mode", "async"}.
std::vector<std::string> ToFlags(const JobSource& source);

}  // namespace ballast
