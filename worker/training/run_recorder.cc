// SPDX-License-Identifier: Apache-2.0
#include "worker/training/run_recorder.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/policy_config.h"
#include "common/run/file.h"
#include "common/run/safetensors.h"
#include "common/run/summary.h"
#include "common/version.h"
#include "google/protobuf/text_format.h"

namespace ballast {

absl::StatusOr<RunRecorder> RunRecorder::Create(Options options) {
  absl::StatusOr<RunFolder> folder = options.run_dir.empty()
                                         ? RunFolder::CreateUnder("runs", options.job.name(), absl::Now())
                                         : RunFolder::Create(options.run_dir);
  if (!folder.ok()) return folder.status();
  absl::StatusOr<MetricsWriter> metrics = MetricsWriter::Open(folder->metrics());
  if (!metrics.ok()) return metrics.status();
  std::string text;
  google::protobuf::TextFormat::PrintToString(options.job, &text);
  if (absl::Status status = WriteFileAtomically(folder->job(), {text}); !status.ok()) return status;
  return RunRecorder(std::move(options), *std::move(folder), *std::move(metrics));
}

absl::Status RunRecorder::Train(const v1::JobProgress& progress, const ExchangeStats& stats) {
  TrainMetrics metrics;
  metrics.epoch = progress.epoch() + 1;
  metrics.step = progress.step();
  metrics.examples = progress.examples();
  metrics.seconds = progress.seconds();
  metrics.loss = progress.train_loss();
  metrics.learning_rate = progress.learning_rate();
  metrics.samples_per_second = progress.samples_per_second();
  metrics.staleness = stats.mean_staleness;
  metrics.wait_share = progress.wait_share();
  return metrics_.Write(metrics);
}

absl::Status RunRecorder::Test(const v1::Evaluation& evaluation, double seconds) {
  TestMetrics metrics;
  metrics.epoch = evaluation.epoch();
  metrics.step = evaluation.step();
  metrics.seconds = seconds;
  metrics.loss = evaluation.loss();
  if (evaluation.has_accuracy()) metrics.accuracy = evaluation.accuracy();
  return metrics_.Write(metrics);
}

absl::Status RunRecorder::WriteModel(Model& model, const v1::JobProgress& progress) {
  std::vector<std::vector<float>> copies;
  std::vector<TensorView> tensors;
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    const Parameter& parameter = model.parameters()[i];
    absl::Span<const float> values = model.HostParameter(i);
    if (values.empty()) {
      return absl::UnimplementedError(absl::StrCat("tensor \"", parameter.name, "\" cannot be read from its device"));
    }
    tensors.push_back({parameter.name, parameter.shape, values});
  }
  return WriteSafetensors(
      folder_.model(), tensors,
      {{"job", options_.job.name()}, {"step", absl::StrCat(progress.step())}, {"ballast", kVersion}});
}

absl::Status RunRecorder::Finish(Model& model, const v1::JobProgress& progress, bool interrupted) {
  if (absl::Status status = WriteModel(model, progress); !status.ok()) return status;
  Summary summary;
  summary.job = options_.job.name();
  summary.mode = std::string(PolicyMode(options_.job.policy()));
  summary.servers = options_.servers;
  summary.workers = options_.workers;
  const uint64_t per_epoch = progress.epochs() == 0 ? 0 : progress.total_examples() / progress.epochs();
  summary.epochs = per_epoch == 0 ? 0 : progress.examples() / per_epoch;
  summary.steps = progress.step();
  summary.examples = progress.examples();
  summary.seconds = progress.seconds();
  summary.samples_per_second = progress.seconds() > 0 ? progress.examples() / progress.seconds() : 0;
  summary.train_loss = progress.epoch_train_loss();
  if (progress.has_last_evaluation()) {
    summary.test_loss = progress.last_evaluation().loss();
    if (progress.last_evaluation().has_accuracy()) summary.test_accuracy = progress.last_evaluation().accuracy();
  }
  summary.run_dir = folder_.path();
  summary.interrupted = interrupted;
  summary.device = options_.device;
  summary.version = kVersion;
  return WriteSummary(folder_.summary(), summary);
}

}  // namespace ballast
