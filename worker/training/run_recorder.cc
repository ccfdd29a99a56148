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
#include "common/job/kind_names.h"
#include "common/metrics/test_metric.h"
#include "common/program/this_process.h"
#include "common/run/safetensors.h"
#include "google/protobuf/util/message_differencer.h"

namespace ballast {
namespace {

void Merge(const v1::Histogram& from, v1::Histogram& to) {
  for (int i = 0; i < from.buckets_size(); ++i) {
    if (i == to.buckets_size()) to.add_buckets(0);
    to.set_buckets(i, to.buckets(i) + from.buckets(i));
  }
  to.set_count(to.count() + from.count());
  to.set_sum(to.sum() + from.sum());
  to.set_max(std::max(to.max(), from.max()));
}

Distribution Describe(const v1::Histogram& histogram) {
  Distribution distribution;
  distribution.buckets.assign(histogram.buckets().begin(), histogram.buckets().end());
  distribution.mean = histogram.count() == 0 ? 0 : histogram.sum() / histogram.count();
  distribution.max = histogram.max();
  return distribution;
}

}  // namespace

void AddShards(absl::Span<const v1::GetStatusResponse> shards, Summary& summary) {
  v1::Histogram staleness, waits;
  summary.server_seconds = shards.empty() ? 0 : summary.seconds;
  for (const v1::GetStatusResponse& shard : shards) {
    Merge(shard.staleness(), staleness);
    Merge(shard.wait_microseconds(), waits);
    summary.max_staleness = std::max<int64_t>(summary.max_staleness, shard.max_staleness());
    summary.server_seconds = std::min(summary.server_seconds, shard.uptime_seconds());
    for (const v1::GetStatusResponse::Table& table : shard.tables()) {
      summary.rows = summary.rows.value_or(0) + static_cast<int64_t>(table.rows());
      summary.table_bytes = summary.table_bytes.value_or(0) + static_cast<int64_t>(table.bytes());
    }
  }
  summary.staleness = Describe(staleness);
  summary.wait_microseconds = Describe(waits);
}

void AddPushes(const v1::GetProgressResponse& reported, absl::Span<const v1::GetStatusResponse> shards,
               Summary& summary) {
  uint64_t all_lost = 0, duplicated = 0;
  summary.pushes_lost_by_shard.clear();
  for (const v1::GetStatusResponse& shard : shards) {
    uint64_t lost = 0;
    for (const v1::GetStatusResponse::WorkerPushes& worker : shard.worker_pushes()) {
      // Pushes of the newest incarnation, and of earlier ones.
      uint64_t acknowledged = 0, acknowledged_before = 0;
      for (const v1::GetProgressResponse::WorkerPushes& report : reported.pushes()) {
        const int rank = static_cast<int>(shard.shard());
        if (report.worker() != worker.worker() || rank >= report.acknowledged_size()) continue;
        (report.incarnation() == worker.incarnation() ? acknowledged : acknowledged_before) +=
            report.acknowledged(rank);
      }
      const uint64_t accepted = worker.accepted_of_incarnation();
      const uint64_t accepted_before = worker.accepted() - accepted;
      if (acknowledged > accepted) lost += acknowledged - accepted;
      if (acknowledged_before > accepted_before) lost += acknowledged_before - accepted_before;
      // Each sequence number counts once.
      if (accepted > worker.highest_sequence()) duplicated += accepted - worker.highest_sequence();
    }
    all_lost += lost;
    summary.pushes_lost_by_shard.push_back(static_cast<int64_t>(lost));
  }
  summary.pushes_lost = all_lost;
  summary.pushes_duplicated = duplicated;
}

std::string DescribeLosses(const Summary& summary) {
  std::string text;
  for (size_t rank = 0; rank < summary.pushes_lost_by_shard.size(); ++rank) {
    const int64_t lost = summary.pushes_lost_by_shard[rank];
    if (lost == 0) continue;
    absl::StrAppend(&text, text.empty() ? "" : ", ", "shard ", rank, " lost ", lost, " acknowledged pushes");
  }
  if (text.empty()) return text;
  return absl::StrCat(text, ": restarted without the last second of the log, so training continued from older weights");
}

namespace {

// Returns 0 for no elements.
double Mean(double sum, double count) { return count > 0 ? sum / count : 0; }

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

absl::Status RunRecorder::Resume(const v1::JobProgress& progress) {
  lines_ = progress.lines();
  const absl::StatusOr<Metrics> metrics = ReadMetrics(folder_.metrics());
  if (!metrics.ok()) return metrics.status();
  // In a new directory the lines begin here.
  const bool begins = metrics->train.empty() && metrics->test.empty() && metrics->epochs.empty();
  epoch_ = begins ? progress.epochs_done() : 0;
  epoch_end_ = begins ? progress.seconds() : 0;
  epoch_examples_ = begins ? progress.examples() : 0;
  for (const EpochMetrics& line : metrics->epochs) {
    // If the job has returned to a checkpoint, the epochs after it come again.
    if (line.epoch > progress.epochs_done()) continue;
    epoch_ = static_cast<uint32_t>(line.epoch);
    epoch_end_ = line.seconds;
    epoch_examples_ = line.examples;
  }
  return absl::OkStatus();
}

absl::Status RunRecorder::Train(const v1::JobProgress& progress, std::optional<float> loss_scale) {
  loss_scale_ = loss_scale;
  if (std::exchange(lines_, progress.lines()) == progress.lines()) return absl::OkStatus();
  const v1::Work& line = progress.line();
  TrainMetrics metrics;
  metrics.epoch = progress.epoch() + 1;
  metrics.step = progress.step();
  metrics.examples = progress.examples();
  metrics.seconds = progress.seconds();
  metrics.over_examples = line.examples();
  metrics.over_seconds = progress.line_seconds();
  metrics.loss = progress.train_loss();
  metrics.learning_rate = AsWritten(progress.learning_rate());
  metrics.samples_per_second = progress.samples_per_second();
  metrics.staleness = Mean(line.staleness_sum(), line.pushes());
  metrics.wait_share = progress.wait_share();
  metrics.max_staleness = line.max_staleness();
  metrics.bytes_sent = Mean(line.bytes_sent(), line.steps());
  metrics.bytes_received = Mean(line.bytes_received(), line.steps());
  metrics.dropped = line.dropped();
  metrics.skipped_steps = line.skipped();
  metrics.loss_scale = loss_scale;
  return metrics_.Write(metrics);
}

absl::Status RunRecorder::EndEpochs(const v1::JobProgress& progress, uint32_t evaluated) {
  const uint32_t done = std::min(progress.epochs_done(), evaluated);
  uint64_t examples = 0;
  for (const v1::JobProgress::EpochWork& epoch : progress.epoch_work()) {
    if (epoch.epoch() >= epoch_ && epoch.epoch() < done) examples += epoch.examples();
  }
  if (examples == 0) return absl::OkStatus();
  // Several epochs that end together share the time.
  const double seconds = progress.seconds() - epoch_end_;
  const double rate = Mean(static_cast<double>(progress.examples() - epoch_examples_), seconds);
  for (const v1::JobProgress::EpochWork& epoch : progress.epoch_work()) {
    if (epoch.epoch() < epoch_ || epoch.epoch() >= done) continue;
    epoch_ = epoch.epoch() + 1;
    epoch_end_ += seconds * epoch.examples() / examples;
    EpochMetrics metrics;
    metrics.epoch = epoch_;
    metrics.step = progress.step();
    metrics.examples = progress.examples();
    metrics.seconds = epoch_end_;
    metrics.epoch_examples = epoch.examples();
    metrics.train_loss = epoch.loss_sum() / epoch.examples();
    metrics.samples_per_second = rate;
    if (absl::Status status = metrics_.Write(metrics); !status.ok()) return status;
  }
  epoch_end_ = progress.seconds();
  epoch_examples_ = progress.examples();
  return absl::OkStatus();
}

absl::Status RunRecorder::Test(const v1::Evaluation& evaluation, double seconds) {
  TestMetrics metrics;
  metrics.epoch = evaluation.epoch();
  metrics.step = evaluation.step();
  metrics.seconds = seconds;
  metrics.loss = evaluation.loss();
  if (evaluation.has_accuracy()) metrics.accuracy = evaluation.accuracy();
  if (evaluation.has_auc()) {
    metrics.auc = evaluation.auc();
    metrics.log_loss = evaluation.loss();
  }
  if (evaluation.has_calibration()) metrics.calibration = evaluation.calibration();
  return metrics_.Write(metrics);
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
  const v1::ConsistencyPolicy& policy = options_.job.policy();
  Summary summary;
  summary.job = options_.job.name();
  summary.mode = KindName(policy);
  if (policy.sync().quorum() > 0) summary.quorum = policy.sync().quorum();
  if (policy.has_bounded()) summary.steps_ahead = policy.bounded().steps_ahead();
  if (policy.has_local_sgd()) summary.local_steps = policy.local_sgd().local_steps();
  summary.codec = EncodingName(options_.job.codec().gradients());
  summary.value_codec = EncodingName(options_.job.codec().values());
  summary.precision = PrecisionName(options_.job.training().precision());
  summary.servers = options_.servers;
  summary.workers = options_.workers;
  summary.epochs = progress.epochs_done();
  summary.steps = progress.step();
  summary.examples = progress.examples();
  summary.seconds = progress.seconds();
  summary.samples_per_second = progress.seconds() > 0 ? progress.examples() / progress.seconds() : 0;
  summary.train_loss = progress.epoch_train_loss();
  if (!progress.epoch_work().empty()) {
    summary.train_loss_epoch = progress.epoch_work().rbegin()->epoch() + 1;
    summary.train_loss_examples = progress.epoch_work().rbegin()->examples();
  }
  if (best_.has_value() || progress.has_last_evaluation()) {
    const v1::Evaluation& evaluation = best_.has_value() ? *best_ : progress.last_evaluation();
    summary.test_loss = evaluation.loss();
    if (evaluation.has_accuracy()) summary.test_accuracy = evaluation.accuracy();
    if (evaluation.has_auc()) {
      summary.test_auc = evaluation.auc();
      summary.log_loss = evaluation.loss();
    }
    if (evaluation.has_calibration()) summary.calibration = evaluation.calibration();
    if (evaluation.has_bayes_auc()) summary.bayes_auc = evaluation.bayes_auc();
  }
  if (best_.has_value()) summary.best_epoch = best_->epoch();
  summary.stopped_early = progress.stopped_early();
  summary.learning_rate = AsWritten(progress.learning_rate());
  const v1::Work& total = progress.total();
  summary.max_staleness = total.max_staleness();
  summary.mean_staleness = Mean(total.staleness_sum(), total.pushes());
  summary.dropped = total.dropped();
  summary.wait_share = Mean(total.wait_seconds(), total.seconds());
  summary.bytes_sent = total.bytes_sent();
  summary.bytes_received = total.bytes_received();
  summary.gradient_bytes = total.bytes_sent();
  summary.bytes_sent_per_step = Mean(total.bytes_sent(), total.steps());
  summary.bytes_received_per_step = Mean(total.bytes_received(), total.steps());
  summary.workers_lost = progress.workers_lost();
  summary.examples_repeated = progress.examples_repeated();
  summary.skipped_steps = total.skipped();
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
  if (totals.reported.has_value() && !totals.shards.empty()) AddPushes(*totals.reported, totals.shards, summary);
  if (const std::string losses = DescribeLosses(summary); !losses.empty()) std::cerr << losses << std::endl;
  return WriteSummary(folder_.summary(), summary);
}

}  // namespace ballast
