// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/trace_join.h"

#include <unistd.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/launch/job_launch.h"
#include "common/storage/file.h"
#include "common/trace/trace_file.h"

namespace ballast {

void JoinTraces(const std::string& run_dir, int workers, const std::string& path, std::ostream& out,
                std::ostream& err) {
  std::vector<std::string> traces;
  std::vector<std::string> joined;
  for (int rank = 0; rank < workers; ++rank) {
    const std::string part = WorkerTracePath(run_dir, rank);
    absl::StatusOr<std::string> text = ReadFile(part);
    if (!text.ok()) {
      err << "warning: worker " << rank << " left no timeline: " << text.status().message() << "\n";
      continue;
    }
    traces.push_back(*std::move(text));
    joined.push_back(part);
  }
  if (traces.empty()) return;
  const absl::StatusOr<MergedTrace> merged = MergeTraces(traces);
  const absl::Status status = merged.ok() ? WriteFileAtomically(path, {merged->json}) : merged.status();
  if (!status.ok()) {
    err << "warning: cannot merge the timelines: " << status.message() << "; each worker's timeline is in " << run_dir
        << "/logs\n";
    return;
  }
  for (const std::string& part : joined) unlink(part.c_str());
  if (merged->left_out > 0) {
    err << "warning: the timeline had no room for " << merged->left_out
        << " spans; choose fewer steps (--trace-steps)\n";
  }
  out << "timeline: " << path << std::endl;
}

}  // namespace ballast
