// SPDX-License-Identifier: Apache-2.0
#include "worker/training/run_recorder.h"

#include <algorithm>
#include <iostream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/job/job_overrides.h"
#include "common/job/kind_names.h"
#include "common/program/version.h"
#include "common/run/safetensors.h"
#include "common/storage/file.h"
#include "google/protobuf/text_format.h"
#include "worker/training/shard_totals.h"

namespace ballast {
namespace {

// Returns the shortest decimal that rounds to the float: 0.0005 instead of 0.0005000000237.
double AsWritten(float number) {
  double shortest = number;
  (void)absl::SimpleAtod(absl::StrCat(number), &shortest);
  return shortest;
}

}  // namespace

absl::StatusOr<RunRecorder> RunRecorder::Create(Options options) {
  absl::StatusOr<RunFolder> folder = options.run_dir.empty()
                                         ? RunFolder::CreateUnder("runs", options.job.name(), absl::Now())
                                         : RunFolder::Create(options.run_dir);
  if (options.resumes && absl::IsAlreadyExists(folder.status())) folder = RunFolder(options.run_dir);
  if (!folder.ok()) return folder.status();
  absl::StatusOr<MetricsWriter> metrics = MetricsWriter::Open(folder->metrics());
  if (!metrics.ok()) return metrics.status();
  std::string text;
  google::protobuf::TextFormat::PrintToString(options.job, &text);
  if (absl::Status status = WriteFileAtomically(folder->job(), {text}); !status.ok()) return status;
  return RunRecorder(std::move(options), *std::move(folder), *std::move(metrics));
}

void RunRecorder::Count(const ExchangeStats& stats) {
  const double steps = total_.steps + stats.steps;
  if (steps > 0) {
    total_.mean_staleness = (total_.mean_staleness * total_.steps + stats.mean_staleness * stats.steps) / steps;
  }
  total_.steps += stats.steps;
  total_.waited += stats.waited;
  total_.bytes_sent += stats.bytes_sent;
  total_.bytes_received += stats.bytes_received;
  total_.skipped += stats.skipped;
  total_.loss_scale = stats.loss_scale;
}

absl::Status RunRecorder::Train(const v1::JobProgress& progress, const ExchangeStats& stats) {
  TrainMetrics metrics;
  metrics.epoch = progress.epoch() + 1;
  metrics.step = progress.step();
  metrics.examples = progress.examples();
  metrics.seconds = progress.seconds();
  metrics.loss = progress.train_loss();
  metrics.learning_rate = AsWritten(progress.learning_rate());
  metrics.samples_per_second = progress.samples_per_second();
  metrics.staleness = stats.mean_staleness;
  metrics.wait_share = progress.wait_share();
  metrics.max_staleness = stats.max_staleness;
  const double steps = std::max<uint64_t>(1, stats.steps);
  metrics.bytes_sent = stats.bytes_sent / steps;
  metrics.bytes_received = stats.bytes_received / steps;
  metrics.dropped = stats.dropped;
  metrics.skipped_steps = stats.skipped;
  metrics.loss_scale = stats.loss_scale;
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

absl::Status RunRecorder::WriteModel(TrainableModel& model, const v1::JobProgress& progress) {
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
  return WriteSafetensors(
      folder_.model(), tensors,
      {{"job", options_.job.name()}, {"step", absl::StrCat(progress.step())}, {"ballast", kVersion}});
}

Summary RunRecorder::Summarize(const v1::JobProgress& progress) const {
  const v1::ConsistencyPolicy& policy = options_.job.policy();
  Summary summary;
  summary.job = options_.job.name();
  summary.mode = KindName(policy);
  if (policy.sync().quorum() > 0) summary.quorum = policy.sync().quorum();
  if (policy.has_bounded()) summary.staleness_bound = policy.bounded().staleness();
  if (policy.has_local_sgd()) summary.local_steps = policy.local_sgd().local_steps();
  summary.codec = EncodingName(options_.job.codec().gradients());
  summary.value_codec = EncodingName(options_.job.codec().values());
  summary.precision = PrecisionName(options_.job.training().precision());
  summary.servers = options_.servers;
  summary.workers = options_.workers;
  const uint64_t per_epoch = progress.epochs() == 0 ? 0 : progress.total_examples() / progress.epochs();
  // Examples of a lost worker's lease are counted twice, so cap the epochs.
  summary.epochs = per_epoch == 0 ? 0 : std::min<uint64_t>(progress.examples() / per_epoch, progress.epochs());
  summary.steps = progress.step();
  summary.examples = progress.examples();
  summary.seconds = progress.seconds();
  summary.samples_per_second = progress.seconds() > 0 ? progress.examples() / progress.seconds() : 0;
  summary.train_loss = progress.epoch_train_loss();
  if (progress.has_last_evaluation()) {
    summary.test_loss = progress.last_evaluation().loss();
    if (progress.last_evaluation().has_accuracy()) summary.test_accuracy = progress.last_evaluation().accuracy();
  }
  summary.learning_rate = AsWritten(progress.learning_rate());
  summary.max_staleness = progress.max_staleness();
  summary.mean_staleness = total_.mean_staleness;
  if (progress.seconds() > 0) summary.wait_share = absl::ToDoubleSeconds(total_.waited) / progress.seconds();
  if (total_.steps > 0) {
    summary.bytes_sent_per_step = static_cast<double>(total_.bytes_sent) / total_.steps;
    summary.bytes_received_per_step = static_cast<double>(total_.bytes_received) / total_.steps;
  }
  summary.workers_lost = progress.workers_lost();
  summary.examples_repeated = progress.examples_repeated();
  summary.skipped_steps = total_.skipped;
  summary.memory = options_.memory;
  summary.loss_scale = total_.loss_scale;
  summary.run_dir = folder_.path();
  summary.device = options_.device;
  summary.version = kVersion;
  return summary;
}

absl::Status RunRecorder::Finish(TrainableModel& model, const v1::JobProgress& progress, const Totals& totals,
                                 bool interrupted) {
  if (absl::Status status = WriteModel(model, progress); !status.ok()) return status;
  Summary summary = Summarize(progress);
  summary.interrupted = interrupted;
  AddShards(totals.shards, summary);
  if (totals.reported.has_value() && !totals.shards.empty()) AddPushes(*totals.reported, totals.shards, summary);
  if (const std::string losses = DescribeLosses(summary); !losses.empty()) std::cerr << losses << std::endl;
  return WriteSummary(folder_.summary(), summary);
}

}  // namespace ballast
