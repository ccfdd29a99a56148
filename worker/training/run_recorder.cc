// SPDX-License-Identifier: Apache-2.0
#include "worker/training/run_recorder.h"

#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/job/job_file.h"
#include "common/job/job_overrides.h"
#include "common/metrics/test_metric.h"
#include "common/program/this_process.h"
#include "common/run/safetensors.h"
#include "common/run/summary_sources.h"
#include "google/protobuf/util/message_differencer.h"

namespace ballast {

absl::StatusOr<RunRecorder> RunRecorder::Create(Options options) {
  absl::StatusOr<RunFolder> folder = options.run_dir.empty()
                                         ? RunFolder::CreateUnder("runs", options.job.name(), absl::Now())
                                         : RunFolder::Create(options.run_dir);
  if (options.resumes && absl::IsAlreadyExists(folder.status())) folder = RunFolder(options.run_dir);
  if (!folder.ok()) return folder.status();
  absl::StatusOr<ProgressRecorder> metrics = ProgressRecorder::Open(*folder);
  if (!metrics.ok()) return metrics.status();
  // The file of `ballast launch` also says where the job came from.
  const v1::Job job = WithAbsolutePaths(options.job, options.job_folder);
  const absl::StatusOr<v1::Job> written = LoadJob(folder->job());
  if (!written.ok() || !google::protobuf::util::MessageDifferencer::Equals(*written, job)) {
    if (absl::Status status = SaveJob(folder->job(), job, ""); !status.ok()) return status;
  }
  if (absl::Status status = WriteDescription(folder->description(), options.description); !status.ok()) return status;
  RunRecorder recorder(std::move(options), *std::move(folder), *std::move(metrics));
  recorder.FindBest();
  return recorder;
}

void RunRecorder::FindBest() {
  if (options_.job.training().keep_best() == v1::TEST_METRIC_UNSPECIFIED || !options_.resumes) return;
  absl::StatusOr<Safetensors> kept = ReadSafetensors(folder_.model());
  if (!kept.ok()) {
    if (!absl::IsNotFound(kept.status())) std::cerr << "warning: no best model: " << kept.status().message() << "\n";
    return;
  }
  v1::Evaluation best;
  uint32_t epoch = 0;
  double loss = 0, accuracy = 0, auc = 0, calibration = 0, bayes_auc = 0;
  if (!absl::SimpleAtoi(kept->metadata["epoch"], &epoch) || !absl::SimpleAtod(kept->metadata["test_loss"], &loss)) {
    return;
  }
  best.set_epoch(epoch);
  best.set_loss(loss);
  if (absl::SimpleAtod(kept->metadata["test_accuracy"], &accuracy)) best.set_accuracy(accuracy);
  if (absl::SimpleAtod(kept->metadata["test_auc"], &auc)) best.set_auc(auc);
  if (absl::SimpleAtod(kept->metadata["calibration"], &calibration)) best.set_calibration(calibration);
  if (absl::SimpleAtod(kept->metadata["bayes_auc"], &bayes_auc)) best.set_bayes_auc(bayes_auc);
  best_ = best;
}

absl::Status RunRecorder::Train(const v1::JobProgress& progress, std::optional<float> loss_scale) {
  loss_scale_ = loss_scale;
  return metrics_.Train(progress, loss_scale);
}

absl::Status RunRecorder::KeepBest(TrainableModel& model, const v1::Evaluation& evaluation,
                                   const v1::JobProgress& progress) {
  const v1::TestMetric metric = options_.job.training().keep_best();
  if (metric == v1::TEST_METRIC_UNSPECIFIED) return absl::OkStatus();
  // A value that is not a number is never better.
  const auto better = [metric](const v1::Evaluation& a, const v1::Evaluation& b) {
    const double value = MetricValue(metric, a), than = MetricValue(metric, b);
    return MetricGain(metric, value, than) > 0 || std::isnan(than);
  };
  if (best_.has_value() && !better(evaluation, *best_)) return absl::OkStatus();
  if (absl::Status status = WriteModel(model, progress, &evaluation); !status.ok()) return status;
  best_ = evaluation;
  return absl::OkStatus();
}

absl::Status RunRecorder::WriteModel(TrainableModel& model, const v1::JobProgress& progress,
                                     const v1::Evaluation* evaluation) {
  const absl::StatusOr<std::vector<Statistic>> statistics = model.Statistics();
  if (!statistics.ok()) return statistics.status();
  std::vector<std::vector<float>> copies;
  std::vector<TensorView> tensors;
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    const Parameter& parameter = model.parameters()[i];
    absl::Span<const float> values = model.HostParameter(i);
    if (values.empty()) {
      std::vector<float>& copy = copies.emplace_back(parameter.elements);
      if (absl::Status status = model.GetParameter(i, absl::MakeSpan(copy)); !status.ok()) return status;
      values = copy;
    }
    tensors.push_back({parameter.name, parameter.shape, values});
  }
  for (const Statistic& statistic : *statistics) {
    tensors.push_back({statistic.name, {static_cast<int64_t>(statistic.values.size())}, statistic.values});
  }
  std::map<std::string, std::string> metadata =
      ToMetadata(options_.description, evaluation == nullptr ? progress.step() : evaluation->step());
  if (evaluation != nullptr) {
    metadata["epoch"] = absl::StrCat(evaluation->epoch());
    metadata["test_loss"] = absl::StrFormat("%.17g", evaluation->loss());
    if (evaluation->has_accuracy()) metadata["test_accuracy"] = absl::StrFormat("%.17g", evaluation->accuracy());
    if (evaluation->has_auc()) metadata["test_auc"] = absl::StrFormat("%.17g", evaluation->auc());
    if (evaluation->has_calibration()) metadata["calibration"] = absl::StrFormat("%.17g", evaluation->calibration());
    if (evaluation->has_bayes_auc()) metadata["bayes_auc"] = absl::StrFormat("%.17g", evaluation->bayes_auc());
  }
  return WriteSafetensors(folder_.model(), tensors, metadata);
}

Summary RunRecorder::Summarize(const v1::JobProgress& progress) const {
  Summary summary;
  AddJob(options_.job, summary);
  summary.servers = options_.servers;
  summary.workers = options_.workers;
  AddProgress(progress, summary);
  if (best_.has_value()) {
    AddEvaluation(*best_, summary);
    summary.best_epoch = best_->epoch();
  } else if (progress.has_last_evaluation()) {
    AddEvaluation(progress.last_evaluation(), summary);
  }
  summary.memory = options_.memory;
  summary.loss_scale = loss_scale_;
  summary.run_dir = folder_.path();
  summary.device = options_.device;
  summary.version = kVersion;
  return summary;
}

absl::Status RunRecorder::Finish(TrainableModel& model, const v1::JobProgress& progress, const Totals& totals,
                                 bool interrupted) {
  if (!best_.has_value()) {
    if (absl::Status status = WriteModel(model, progress, nullptr); !status.ok()) return status;
  }
  Summary summary = Summarize(progress);
  summary.interrupted = interrupted;
  summary.gpu_peak_bytes = totals.gpu_peak_bytes;
  AddShards(totals.shards, summary);
  metrics_.Finish(progress, totals.shards);
  if (totals.reported.has_value() && !totals.shards.empty()) AddPushes(*totals.reported, totals.shards, summary);
  if (const std::string losses = DescribeLosses(summary); !losses.empty()) std::cerr << losses << std::endl;
  return WriteSummary(folder_.summary(), summary);
}

}  // namespace ballast
