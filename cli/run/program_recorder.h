// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ballast/v1/coordinator_service.pb.h"
#include "ballast/v1/parameter_service.pb.h"
#include "cli/launch/launch_session.h"
#include "common/run/progress_recorder.h"
#include "common/run/run_folder.h"
#include "common/run/summary.h"

namespace ballast {

// Writes the metrics and the summary of a run whose workers are a user's program: what the workers have reported to the
// coordinator. Invariant: each line, evaluation and epoch is written once. Does not know the processes. Thread safety:
// confined to one thread.
class ProgramRecorder : public LaunchObserver {
 public:
  static absl::StatusOr<ProgramRecorder> Create(const RunFolder& folder);

  void OnProgress(const v1::GetProgressResponse& progress) override;
  void OnWorkersEnded(const v1::GetProgressResponse& progress, absl::Span<const v1::GetStatusResponse> shards) override;

  // Writes the summary, once the session has ended. Returns the first error of all that this object wrote.
  absl::Status Finish(bool interrupted);

 private:
  ProgramRecorder(const RunFolder& folder, ProgressRecorder metrics) : folder_(folder), metrics_(std::move(metrics)) {}
  void Record(const v1::JobProgress& progress);

  const RunFolder folder_;
  ProgressRecorder metrics_;
  absl::Status status_;
  v1::GetProgressResponse progress_;
  std::vector<v1::GetStatusResponse> shards_;
  // The newest evaluation that has a line.
  std::optional<v1::Evaluation> tested_;
};

}  // namespace ballast
