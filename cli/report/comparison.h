// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/report/run_catalog.h"
#include "common/run/metrics.h"

namespace ballast {

// A run that is compared with others.
struct ComparedRun {
  // Names the run in charts and tables.
  std::string name;
  RunInfo info;
  Metrics metrics;
};

// Returns the fields of the jobs that are not the same in all of them, by their path in the job file
// ("optimizer.adam.learning_rate"), each with its text in every job, in the order of the jobs; "–" in a job that does
// not set the field, and in one that is unknown.
std::map<std::string, std::vector<std::string>> JobDifferences(const std::vector<ComparedRun>& runs);

// Returns a self-contained HTML page: charts of the loss and of the test AUC, accuracy or loss, over examples and over
// seconds, and a table of the runs, the best first, with what differs between their jobs.
std::string RenderComparison(const std::string& title, const std::vector<ComparedRun>& runs);

// Reads the runs in these directories and writes the page to `path`. A directory that cannot be read is skipped and
// returned; INVALID_ARGUMENT if none can be read.
absl::StatusOr<std::vector<RunList::Skipped>> WriteComparison(const std::string& title,
                                                              const std::vector<std::string>& directories,
                                                              const std::string& path);

}  // namespace ballast
