// SPDX-License-Identifier: Apache-2.0
#include "common/run/summary_sources.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/job/job_overrides.h"
#include "common/job/kind_names.h"
#include "common/metrics/histogram.h"
#include "common/run/metrics.h"
#include "common/text/number_text.h"

namespace ballast {
namespace {

Distribution Describe(const v1::Histogram& histogram) {
  Distribution distribution;
  distribution.buckets.assign(histogram.buckets().begin(), histogram.buckets().end());
  distribution.mean = histogram.count() == 0 ? 0 : histogram.sum() / histogram.count();
  distribution.max = histogram.max();
  return distribution;
}

}  // namespace

void AddJob(const v1::Job& job, Summary& summary) {
  const v1::ConsistencyPolicy& policy = job.policy();
  summary.job = job.name();
  summary.mode = KindName(policy);
  if (policy.sync().quorum() > 0) summary.quorum = policy.sync().quorum();
  if (policy.has_bounded()) summary.steps_ahead = policy.bounded().steps_ahead();
  if (policy.has_local_sgd()) summary.local_steps = policy.local_sgd().local_steps();
  summary.codec = EncodingName(job.codec().gradients());
  summary.value_codec = EncodingName(job.codec().values());
  summary.precision = PrecisionName(job.training().precision());
}

void AddProgress(const v1::JobProgress& progress, Summary& summary) {
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
  summary.stopped_early = progress.stopped_early();
  summary.learning_rate = AsWritten(progress.learning_rate());
  const v1::Work& total = progress.total();
  summary.max_staleness = total.max_staleness();
  summary.mean_staleness = Mean(total.staleness_sum(), total.pushes());
  summary.dropped = total.dropped();
  summary.wait_share = Mean(total.wait_seconds(), total.seconds());
  summary.caused_wait_seconds.clear();
  for (const v1::CausedWait& wait : progress.caused_waits()) {
    summary.caused_wait_seconds.resize(std::max<size_t>(summary.caused_wait_seconds.size(), wait.worker() + 1));
    summary.caused_wait_seconds[wait.worker()] = wait.seconds();
  }
  summary.bytes_sent = total.bytes_sent();
  summary.bytes_received = total.bytes_received();
  summary.gradient_bytes = total.bytes_sent();
  summary.bytes_sent_per_step = Mean(total.bytes_sent(), total.steps());
  summary.bytes_received_per_step = Mean(total.bytes_received(), total.steps());
  summary.workers_lost = progress.workers_lost();
  summary.examples_repeated = progress.examples_repeated();
  summary.skipped_steps = total.skipped();
}

void AddEvaluation(const v1::Evaluation& evaluation, Summary& summary) {
  summary.test_loss = evaluation.loss();
  if (evaluation.has_accuracy()) summary.test_accuracy = evaluation.accuracy();
  if (evaluation.has_auc()) {
    summary.test_auc = evaluation.auc();
    summary.log_loss = evaluation.loss();
  }
  if (evaluation.has_calibration()) summary.calibration = evaluation.calibration();
  if (evaluation.has_bayes_auc()) summary.bayes_auc = evaluation.bayes_auc();
}

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

}  // namespace ballast
