// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "ballast/v1/coordinator_service.pb.h"
#include "common/program/process.h"

namespace ballast {

// Finds the process whose failure ended the run. Owns the numbers of the processes that failed, in the order of their
// exits, and the number of the process that the coordinator blames. Compares process ids, never texts. Does not know
// how a process failed. Thread safety: none.
class CulpritFinder {
 public:
  // Process number `process` failed, and the job did not survive it. Call in the order of the exits.
  void AddFailure(int process) { failures_.push_back(process); }
  bool failed() const { return !failures_.empty(); }

  // Takes the coordinator's report on a failed job. `process_ids` has the id of each process by its number. Returns
  // the number of the process at fault, which may still be running; none if the report names no member of this run.
  std::optional<int> Accuse(const v1::JobFailure& failure, absl::Span<const uint64_t> process_ids);

  // Returns the failed process that the coordinator blames, otherwise the first that failed. Requires failed().
  int Culprit() const;

 private:
  std::vector<int> failures_;
  std::optional<int> accused_;
};

// A process that failed.
struct FailedProcess {
  // Such as "worker 1".
  std::string name;
  uint64_t process_id = 0;
  ExitStatus end;
  std::string log_path;
  // The newest line is at the back.
  std::vector<std::string> last_lines;
  // The last error in its log; empty: none.
  std::string last_error;
};

// A failed run, as the user sees it.
struct FailureReport {
  int exit_status = 0;
  // Names the process and its error.
  std::string error;
  // The last lines of its log without that error, below a heading that names the log.
  std::vector<std::string> lines;
};

FailureReport ReportFailure(const FailedProcess& culprit);

}  // namespace ballast
