// SPDX-License-Identifier: Apache-2.0
#include "worker/training/training_loop.h"

#include <algorithm>
#include <cmath>
#include <iostream>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/flight/flight_recorder.h"
#include "common/metrics/test_metric.h"

namespace ballast {

std::vector<std::vector<size_t>> FieldsOfTables(const TrainableModel& model) {
  std::vector<std::vector<size_t>> fields;
  for (const TableUse& use : model.tables()) fields.push_back(use.fields);
  return fields;
}

Evaluator::Evaluator(const Dataset* dataset, TrainableModel* model, RowSource* rows, int64_t batch_size)
    : dataset_(dataset),
      model_(model),
      rows_(rows),
      batch_size_(batch_size),
      indexer_(FieldsOfTables(*model), dataset->id_fields().size()) {}

absl::StatusOr<BatchResult> Evaluator::EvaluateBatch(uint64_t begin, uint64_t examples, uint64_t step) {
  indices_.resize(examples);
  for (uint64_t i = 0; i < examples; ++i) indices_[i] = begin + i;
  features_.resize(examples * dataset_->features());
  labels_.resize(examples);
  absl::Status read =
      dataset_->Read(indices_, absl::MakeSpan(features_), absl::MakeSpan(labels_), rows_ == nullptr ? nullptr : &ids_);
  if (!read.ok()) return read;
  BatchView view{.features = features_, .labels = labels_, .examples = static_cast<int64_t>(examples)};
  if (rows_ != nullptr) {
    indexer_.Index(ids_, batch_rows_);
    const absl::StatusOr<absl::Span<const RowsView>> rows = rows_->FetchForEvaluation(step, batch_rows_);
    if (!rows.ok()) return rows.status();
    view.tables = *rows;
  }
  outputs_.resize(model_->predicts_probability() ? examples : 0);
  absl::StatusOr<BatchResult> result = model_->Evaluate(view, absl::MakeSpan(outputs_));
  if (!result.ok()) return result.status();
  for (size_t i = 0; i < outputs_.size(); ++i) scores_.push_back({outputs_[i], labels_[i] == 1});
  return result;
}

absl::StatusOr<v1::Evaluation> Evaluator::Evaluate(uint64_t step) {
  BatchResult sum;
  scores_.clear();
  for (uint64_t begin = 0; begin < dataset_->size(); begin += batch_size_) {
    const uint64_t examples = std::min<uint64_t>(batch_size_, dataset_->size() - begin);
    const absl::StatusOr<BatchResult> result = EvaluateBatch(begin, examples, step);
    if (!result.ok()) return result.status();
    sum += *result;
  }
  v1::Evaluation evaluation;
  evaluation.set_loss(sum.loss_sum / dataset_->size());
  if (model_->classifies()) evaluation.set_accuracy(static_cast<double>(sum.correct) / dataset_->size());
  if (!model_->predicts_probability()) return evaluation;
  evaluation.set_auc(AreaUnderCurve(scores_));
  const double calibration = Calibration(scores_);
  if (std::isfinite(calibration)) evaluation.set_calibration(calibration);
  if (!bayes_auc_.has_value()) bayes_auc_ = dataset_->BayesAuc();
  if (bayes_auc_->has_value()) evaluation.set_bayes_auc(**bayes_auc_);
  return evaluation;
}

namespace {

// Time to wait for a lease before the worker pauses; longer than a call to the coordinator takes. In lock step all
// workers get their leases at about the same time, and a checkpoint delays them all together, so the time is longer.
constexpr absl::Duration kLeaseTimeout = absl::Milliseconds(100);
constexpr absl::Duration kLockStepLeaseTimeout = absl::Seconds(1);
// Steps after which a worker continues even if it has not reached the others' step; a few steps normally suffice.
constexpr int kMaxStepsToCatchUp = 100;

}  // namespace

absl::Status TrainingLoop::Run() {
  if (absl::Status status = parts_.exchange->PullAll(0); !status.ok()) return status;
  if (options_.returns || options_.resumes) {
    if (absl::Status status = LearnProgress(); !status.ok()) return status;
  }
  while (!options_.interrupted->load()) {
    absl::StatusOr<std::optional<Batch>> batch = NextBatch();
    tally_.since = std::min(tally_.since, absl::Now());
    if (!batch.ok()) return batch.status();
    if (!batch->has_value()) return EndJob();
    if ((*batch)->marks_epoch) {
      if (absl::Status status = EndOpenEpoch((*batch)->epoch); !status.ok()) return status;
      continue;
    }
    if (std::exchange(away_, false)) {
      if (absl::Status status = CatchUp(); !status.ok()) return status;
      step_began_ = absl::Now();
    }
    // A lease taken over from another worker may belong to an earlier epoch.
    if ((*batch)->epoch > epoch_) {
      if (absl::Status status = AwaitAll(); !status.ok()) return status;
      BeginLeaseEnd();
      if (absl::Status status = EndEpoch((*batch)->epoch); !status.ok()) return status;
      // An evaluation is no part of a step.
      step_began_ = absl::Now();
    }
    {
      FlightScope flight({.activity = FlightActivity::kStep, .step = step_, .amount = (*batch)->examples});
      const absl::Status status = Train(**batch);
      flight.End(status);
      if (!status.ok()) return status;
    }
    if ((*batch)->last_of_lease) {
      if (absl::Status status = EndLease(**batch); !status.ok()) return status;
      if (absl::Status status = AwaitData(); !status.ok()) return status;
    }
    parts_.batches->Recycle(**std::move(batch));
  }
  // Lets the last step's gradients reach the servers and the newest values return.
  if (absl::Status status = AwaitAll(); !status.ok()) return status;
  BeginLeaseEnd();
  return AwaitLeaseEnd();
}

absl::Status TrainingLoop::LearnProgress() {
  absl::StatusOr<v1::GetProgressResponse> response = parts_.coordinator->GetProgress();
  if (!response.ok()) return response.status();
  progress_ = response->progress();
  // Epochs that were already evaluated are not evaluated again.
  epoch_ = std::min(progress_.last_evaluation().epoch(), options_.epochs);
  return parts_.recorder == nullptr ? absl::OkStatus() : parts_.recorder->Resume(progress_);
}

// While the others do not wait for this worker, each tensor advances at its own time. From this worker's first push on,
// the others wait for it at every tensor in turn, so it pushes without examples until all tensors are at the same step.
// A gradient pushed earlier would be its second one in the same step for some tensors, and would be dropped.
absl::Status TrainingLoop::CatchUp() {
  if (absl::Status status = parts_.exchange->PullAll(0); !status.ok()) return status;
  if (options_.stride == Stride::kOwn) return absl::OkStatus();
  step_ = parts_.exchange->pulled_versions().first;
  if (options_.stride == Stride::kNewest) return absl::OkStatus();
  for (int i = 0; i < kMaxStepsToCatchUp && !options_.interrupted->load(); ++i) {
    parts_.exchange->BeginBatch(step_, 0, /*last_of_step=*/true);
    if (absl::Status status = PassEmptyBatch(/*last_of_step=*/true); !status.ok()) return status;
    ++step_;
    if (absl::Status status = AwaitAll(); !status.ok()) return status;
    if (parts_.exchange->pulled_versions() == std::make_pair(step_, step_)) break;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<Batch>> TrainingLoop::NextBatch() {
  if (options_.timeline != nullptr) options_.timeline->BeginStep(step_ + 1);
  const TimelineScope span(options_.timeline, TimelineRow::kWait, "wait for", "data");
  FlightScope flight({.activity = FlightActivity::kData, .step = step_});
  const absl::Time began = absl::Now();
  absl::StatusOr<std::optional<Batch>> batch = parts_.batches->Next();
  const absl::Time now = absl::Now();
  // Until the first batch the job gathers.
  const bool gathers = tally_.since == absl::InfiniteFuture();
  if (options_.metrics != nullptr && !gathers) options_.metrics->AddDataWait(now - began);
  if (batches_of_step_ == 0) step_began_ = gathers ? now : began;
  flight.End(batch.status());
  return batch;
}

absl::StatusOr<absl::Span<const RowsView>> TrainingLoop::FetchRows(const Batch& batch) {
  if (parts_.rows == nullptr) return absl::Span<const RowsView>();
  return parts_.rows->Fetch(batch.sequence, step_, batch.tables);
}

absl::Status TrainingLoop::PrefetchRows(uint64_t step) {
  const Batch* const next = parts_.batches->Peek();
  return next == nullptr ? absl::OkStatus() : parts_.rows->Prefetch(next->sequence, step, next->tables);
}

absl::Status TrainingLoop::PassEmptyBatch(bool last_of_step) {
  absl::Status status = parts_.exchange->PassEmptyBatch();
  if (status.ok() && parts_.rows != nullptr) status = parts_.rows->PushNothing(step_, last_of_step);
  return status;
}

absl::Status TrainingLoop::AwaitAll() {
  absl::Status status = parts_.exchange->AwaitAll();
  if (status.ok() && parts_.rows != nullptr) status = parts_.rows->AwaitPushes();
  return status;
}

absl::Status TrainingLoop::Train(const Batch& batch) {
  const TimelineScope span(options_.timeline, TimelineRow::kSteps, "batch");
  const bool last_of_step = ++batches_of_step_ == options_.batches_per_step || batch.last_of_lease;
  parts_.exchange->BeginBatch(step_, batch.examples, last_of_step, batch.share);
  if (batch.examples == 0) {
    if (absl::Status status = PassEmptyBatch(last_of_step); !status.ok()) return status;
  } else {
    const absl::StatusOr<absl::Span<const RowsView>> rows = FetchRows(batch);
    if (!rows.ok()) return rows.status();
    const uint64_t next_step = step_ + (last_of_step ? 1 : 0);
    const bool early = parts_.rows != nullptr && parts_.rows->pulls_early();
    if (early) {
      if (absl::Status status = PrefetchRows(next_step); !status.ok()) return status;
    }
    const BatchView view{.features = batch.features,
                         .labels = batch.labels,
                         .examples = batch.examples,
                         .step = batches_,
                         .seed = options_.seed,
                         .loss_scale = parts_.exchange->loss_scale(),
                         .tables = *rows};
    absl::StatusOr<BatchResult> result = parts_.model->Train(view, *parts_.exchange);
    if (!result.ok()) return result.status();
    tally_.epoch = batch.epoch;
    tally_.examples += result->examples;
    tally_.loss_sum += result->loss_sum;
    if (parts_.rows != nullptr) {
      absl::Status status = parts_.rows->Push(step_, batch.examples, last_of_step, batch.share);
      if (status.ok() && !early) status = PrefetchRows(next_step);
      if (!status.ok()) return status;
    }
  }
  if (lease_ends_.ready()) {
    if (absl::Status status = AwaitLeaseEnd(); !status.ok()) return status;
  }
  // The forward pass has waited for the pushes of the batch before.
  BeginLeaseEnd();
  ++batches_;
  if (!last_of_step) return absl::OkStatus();
  batches_of_step_ = 0;
  ++step_;
  if (options_.metrics != nullptr) options_.metrics->AddStep(absl::Now() - step_began_);
  return ++unrecorded_steps_ < options_.report_every_steps ? absl::OkStatus() : BeginReport(std::nullopt);
}

// Pauses at the servers, because no one should wait for a worker that itself waits for others to finish the last data.
absl::Status TrainingLoop::AwaitData() {
  const absl::Duration timeout = options_.stride == Stride::kOwn ? kLeaseTimeout : kLockStepLeaseTimeout;
  if (!options_.pauses || parts_.batches->AwaitLease(timeout)) return absl::OkStatus();
  absl::Status status = AwaitAll();
  if (status.ok()) status = parts_.exchange->Pause();
  if (!status.ok()) return status;
  away_ = true;
  parts_.batches->AwaitLease(absl::InfiniteDuration());
  return absl::OkStatus();
}

// A lease is complete only once every shard has acknowledged its pushes. While a worker waits for that, it computes
// nothing, so it does not wait if the next batch is there, whose forward pass waits for the same pushes.
absl::Status TrainingLoop::EndLease(const Batch& batch) {
  if (absl::Status status = AwaitLeaseEnd(); !status.ok()) return status;
  const bool waits = parts_.rows != nullptr || parts_.batches->Peek() == nullptr;
  if (waits) {
    if (absl::Status status = AwaitAll(); !status.ok()) return status;
  }
  done_lease_ = {.id = batch.lease_id, .steps = step_, .batches = batches_};
  if (tally_.examples > 0) done_lease_->progress = TakeTally(TakeStats());
  if (!waits) return absl::OkStatus();
  BeginLeaseEnd();
  return AwaitLeaseEnd();
}

void TrainingLoop::BeginLeaseEnd() {
  std::optional<DoneLease> lease = std::exchange(done_lease_, std::nullopt);
  if (!lease.has_value()) return;
  if (lease->progress.has_value()) {
    lease->progress->set_line_continues(true);
    SetAcknowledgedPushes(*lease->progress);
  }
  lease_ends_.Begin(*std::move(lease));
}

absl::Status TrainingLoop::AwaitLeaseEnd() {
  absl::StatusOr<std::optional<v1::JobProgress>> progress = lease_ends_.Await();
  if (!progress.ok() || !progress->has_value()) return progress.status();
  const std::optional<Reported> reported = std::exchange(reported_, std::nullopt);
  // Reports of leases have no rate.
  if ((*progress)->learning_rate() == 0) (*progress)->set_learning_rate(progress_.learning_rate());
  progress_ = **std::move(progress);
  return reported.has_value() ? Record(*reported) : absl::OkStatus();
}

absl::Status TrainingLoop::BeginReport(std::optional<v1::Evaluation> evaluation) {
  // Reports arrive in the order of their steps.
  if (absl::Status status = AwaitLeaseEnd(); !status.ok()) return status;
  const ExchangeStats stats = TakeStats();
  reported_ = Reported{stats.loss_scale, epoch_, evaluation};
  unrecorded_steps_ = 0;
  lease_ends_.Begin({.progress = TakeTally(stats), .evaluation = std::move(evaluation)});
  return absl::OkStatus();
}

absl::Status TrainingLoop::Record(const Reported& reported) {
  const std::optional<v1::Evaluation>& evaluation = reported.evaluation;
  if (evaluation.has_value()) {
    std::cerr << absl::StrFormat("epoch %d: test loss %.4g", evaluation->epoch(), evaluation->loss())
              << EvaluationText(*evaluation) << std::endl;
  }
  if (parts_.recorder == nullptr) return absl::OkStatus();
  if (absl::Status status = parts_.recorder->Train(progress_, reported.loss_scale); !status.ok()) return status;
  if (evaluation.has_value()) {
    absl::Status status = parts_.recorder->Test(*evaluation, progress_.seconds());
    if (status.ok()) status = parts_.recorder->KeepBest(*parts_.model, *evaluation, progress_);
    if (!status.ok()) return status;
  }
  return parts_.recorder->EndEpochs(progress_, reported.epoch);
}

absl::Status TrainingLoop::EndEpoch(uint32_t epochs_done) {
  std::optional<v1::Evaluation> evaluation;
  if (parts_.evaluator != nullptr) {
    if (absl::Status status = AwaitAll(); !status.ok()) return status;
    const TimelineScope span(options_.timeline, TimelineRow::kSteps, "evaluate");
    FlightScope flight({.activity = FlightActivity::kEvaluate, .step = step_});
    // Without lock step, the newest rows are those of step 0, for which nobody waits.
    absl::StatusOr<v1::Evaluation> evaluated = parts_.evaluator->Evaluate(options_.stride == Stride::kOwn ? 0 : step_);
    flight.End(evaluated.status());
    if (!evaluated.ok()) return evaluated.status();
    evaluation = *std::move(evaluated);
    evaluation->set_epoch(epochs_done);
    // In async mode the other workers may be ahead, or may have done the whole epoch.
    evaluation->set_step(std::max(step_, progress_.step()));
  }
  epoch_ = epochs_done;
  return Report(std::move(evaluation));
}

absl::Status TrainingLoop::EndOpenEpoch(uint32_t epochs_done) {
  if (away_) {
    if (absl::Status status = parts_.exchange->PullAll(0); !status.ok()) return status;
  }
  return EndEpoch(epochs_done);
}

absl::Status TrainingLoop::EndJob() {
  if (absl::Status status = AwaitAll(); !status.ok()) return status;
  // In async mode the other workers have pushed since this worker's last pull.
  if (absl::Status status = parts_.exchange->PullAll(0); !status.ok()) return status;
  // If the training ended between two epochs, the last one was evaluated.
  const uint32_t begun = parts_.coordinator->epochs_done();
  const uint32_t epochs = begun > 0 ? std::min(begun, options_.epochs) : options_.epochs;
  return epochs == epoch_ && epoch_ < options_.epochs ? Report(std::nullopt) : EndEpoch(epochs);
}

ExchangeStats TrainingLoop::TakeStats() {
  ExchangeStats stats = parts_.exchange->TakeStats();
  if (parts_.rows == nullptr) return stats;
  const RowStats rows = parts_.rows->TakeStats();
  stats.waited += rows.waited;
  stats.pushes += rows.pushes;
  stats.max_staleness = std::max(stats.max_staleness, rows.max_staleness);
  stats.staleness_sum += rows.staleness_sum;
  stats.bytes_sent += rows.bytes_sent;
  stats.bytes_received += rows.bytes_received;
  return stats;
}

void TrainingLoop::SetAcknowledgedPushes(v1::WorkerProgress& progress) const {
  const std::vector<uint64_t> pushes = parts_.exchange->acknowledged_pushes();
  progress.mutable_acknowledged_pushes()->Assign(pushes.begin(), pushes.end());
}

v1::WorkerProgress TrainingLoop::TakeTally(const ExchangeStats& stats) {
  const absl::Time now = absl::Now();
  v1::WorkerProgress mine;
  mine.set_step(step_);
  mine.set_epoch(tally_.epoch);
  mine.set_learning_rate(stats.learning_rate);
  SetAcknowledgedPushes(mine);
  v1::Work& work = *mine.mutable_work();
  work.set_examples(tally_.examples);
  work.set_loss_sum(tally_.loss_sum);
  work.set_steps(stats.steps);
  // The machine's clock may have been set back.
  work.set_seconds(std::max(0.0, absl::ToDoubleSeconds(now - tally_.since)));
  // The first values are pulled before that time.
  work.set_wait_seconds(std::clamp(absl::ToDoubleSeconds(stats.waited), 0.0, work.seconds()));
  work.set_pushes(stats.pushes);
  work.set_staleness_sum(stats.staleness_sum);
  work.set_max_staleness(stats.max_staleness);
  work.set_dropped(stats.dropped);
  work.set_skipped(stats.skipped);
  work.set_bytes_sent(stats.bytes_sent);
  work.set_bytes_received(stats.bytes_received);
  tally_ = {.since = now};
  if (options_.metrics != nullptr) options_.metrics->Add(mine, stats.loss_scale, stats.figures);
  return mine;
}

absl::Status TrainingLoop::Report(std::optional<v1::Evaluation> evaluation) {
  absl::Status status = BeginReport(std::move(evaluation));
  return status.ok() ? AwaitLeaseEnd() : status;
}

}  // namespace ballast
