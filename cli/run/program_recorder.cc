// SPDX-License-Identifier: Apache-2.0
#include "cli/run/program_recorder.h"

#include <utility>

#include "common/job/job_file.h"
#include "common/program/this_process.h"
#include "common/run/summary_sources.h"
#include "google/protobuf/util/message_differencer.h"

namespace ballast {

absl::StatusOr<ProgramRecorder> ProgramRecorder::Create(const RunFolder& folder) {
  absl::StatusOr<ProgressRecorder> metrics = ProgressRecorder::Open(folder);
  if (!metrics.ok()) return metrics.status();
  return ProgramRecorder(folder, *std::move(metrics));
}

void ProgramRecorder::OnProgress(const v1::GetProgressResponse& progress) {
  Record(progress.progress());
  progress_ = progress;
}

void ProgramRecorder::OnWorkersEnded(const v1::GetProgressResponse& progress,
                                     absl::Span<const v1::GetStatusResponse> shards) {
  Record(progress.progress());
  progress_ = progress;
  shards_.assign(shards.begin(), shards.end());
}

void ProgramRecorder::Record(const v1::JobProgress& progress) {
  status_.Update(metrics_.Train(progress, std::nullopt));
  if (progress.has_last_evaluation()) {
    const v1::Evaluation& newest = progress.last_evaluation();
    if (!tested_.has_value() || !google::protobuf::util::MessageDifferencer::Equals(*tested_, newest)) {
      status_.Update(metrics_.Test(newest, progress.seconds()));
      tested_ = newest;
    }
  }
  // A script may evaluate an epoch a while after its last example, or never.
  status_.Update(metrics_.EndEpochs(progress, progress.epochs_done()));
}

absl::Status ProgramRecorder::Finish(bool interrupted) {
  Summary summary;
  // Worker 0 has completed the file that the launch began.
  if (const auto job = JobText::ReadFile(folder_.job()); job.ok()) AddJob((*job)->job(), summary);
  summary.servers = progress_.servers();
  summary.workers = progress_.workers();
  AddProgress(progress_.progress(), summary);
  if (progress_.progress().has_last_evaluation()) AddEvaluation(progress_.progress().last_evaluation(), summary);
  AddShards(shards_, summary);
  metrics_.Finish(progress_.progress(), shards_);
  if (!shards_.empty()) AddPushes(progress_, shards_, summary);
  summary.run_dir = folder_.path();
  summary.device = "program";
  summary.interrupted = interrupted;
  summary.version = kVersion;
  status_.Update(WriteSummary(folder_.summary(), summary));
  return status_;
}

}  // namespace ballast
