// SPDX-License-Identifier: Apache-2.0
#include "server/coordinator/progress_tracker.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/metrics/test_metric.h"
#include "common/metrics/work.h"
#include "common/text/validation_errors.h"
#include "google/protobuf/util/message_differencer.h"

namespace ballast {
namespace {

constexpr size_t kEpochs = 16;
// Limit on a figure of one report: 65,535 reports fit into a sum.
constexpr double kMaxFigure = uint64_t{1} << 48;

void Check(const v1::Work& work, ValidationErrors& errors) {
  for (int i = 0; i < work.GetDescriptor()->field_count(); ++i) {
    const google::protobuf::FieldDescriptor* field = work.GetDescriptor()->field(i);
    const bool count = field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_UINT64;
    const double figure = count ? static_cast<double>(work.GetReflection()->GetUInt64(work, field))
                                : work.GetReflection()->GetDouble(work, field);
    const std::string name = absl::StrCat("work.", field->name());
    if (field->number() == v1::Work::kLossSumFieldNumber) {
      errors.Check(std::isfinite(figure), name, figure, "a finite number");
    } else {
      errors.Check(figure >= 0 && figure <= kMaxFigure, name, figure, "0 to 2^48");
    }
  }
}

}  // namespace

absl::Status CheckReport(const v1::WorkerProgress& progress, const v1::Evaluation* evaluation, uint32_t servers,
                         uint32_t epochs) {
  ValidationErrors errors;
  Check(progress.work(), errors);
  errors.Check(progress.step() <= kMaxFigure, "step", progress.step(), "at most 2^48");
  errors.Check(std::isfinite(progress.learning_rate()), "learning_rate", progress.learning_rate(), "a finite number");
  errors.Check(static_cast<uint32_t>(progress.acknowledged_pushes_size()) <= servers, "acknowledged_pushes",
               progress.acknowledged_pushes_size(), absl::StrCat("at most ", servers, ", one for each server"));
  if (epochs > 0 && progress.work().examples() > 0) {
    errors.Check(progress.epoch() < epochs, "epoch", progress.epoch(), absl::StrCat("below ", epochs));
  }
  if (evaluation != nullptr) {
    const std::string most = absl::StrCat("at most ", epochs);
    errors.Check(epochs == 0 || evaluation->epoch() <= epochs, "evaluation.epoch", evaluation->epoch(), most);
    errors.Check(evaluation->accuracy() >= 0 && evaluation->accuracy() <= 1, "evaluation.accuracy",
                 evaluation->accuracy(), "0 to 1");
    // A model that has diverged predicts NaN: its evaluation is reported like a loss that is not finite.
    errors.Check(!(evaluation->auc() < 0 || evaluation->auc() > 1), "evaluation.auc", evaluation->auc(), "0 to 1");
    errors.Check(!(evaluation->calibration() < 0), "evaluation.calibration", evaluation->calibration(), "at least 0");
    errors.Check(evaluation->bayes_auc() >= 0 && evaluation->bayes_auc() <= 1, "evaluation.bayes_auc",
                 evaluation->bayes_auc(), "0 to 1");
  }
  return errors.First();
}

void ProgressTracker::Report(uint32_t rank, uint64_t incarnation, const v1::WorkerProgress& progress, double seconds) {
  Worker& worker = workers_[rank];
  if (progress.acknowledged_pushes_size() > 0) {
    pushes_[{rank, incarnation}] = {progress.acknowledged_pushes().begin(), progress.acknowledged_pushes().end()};
  }
  const v1::Work& work = progress.work();
  // A retry, because the response was lost: no two reports took the same time to the last bit.
  const bool again = (work.seconds() > 0 || work.examples() > 0) &&
                     google::protobuf::util::MessageDifferencer::Equals(worker.last, progress);
  if (again) return;
  worker.last = progress;
  worker.step = progress.step();
  if (progress.learning_rate() > 0) learning_rate_ = progress.learning_rate();
  Merge(work, total_);
  Merge(work, open_line_);
  if (work.examples() > 0) {
    v1::JobProgress::EpochWork& epoch = epochs_[progress.epoch()];
    epoch.set_epoch(progress.epoch());
    epoch.set_examples(epoch.examples() + work.examples());
    epoch.set_loss_sum(epoch.loss_sum() + work.loss_sum());
    if (epochs_.size() > kEpochs) epochs_.erase(epochs_.begin());
  }
  if (rank == 0) writer_lost_ = false;
  if (writer_lost_ || (rank == 0 && !progress.line_continues())) EndLine(seconds);
}

void ProgressTracker::EndLine(double seconds) {
  // Without examples it has no mean.
  if (open_line_.examples() == 0) return;
  line_ = std::exchange(open_line_, {});
  line_seconds_ = seconds - std::exchange(line_end_, seconds);
  ++lines_;
}

std::vector<v1::GetProgressResponse::WorkerPushes> ProgressTracker::Pushes() const {
  std::vector<v1::GetProgressResponse::WorkerPushes> all;
  for (const auto& [who, by_shard] : pushes_) {
    v1::GetProgressResponse::WorkerPushes& pushes = all.emplace_back();
    pushes.set_worker(who.first);
    pushes.set_incarnation(who.second);
    pushes.mutable_acknowledged()->Add(by_shard.begin(), by_shard.end());
  }
  return all;
}

internal::v1::ProgressTrackerState ProgressTracker::Export() const {
  internal::v1::ProgressTrackerState state;
  for (const auto& [rank, worker] : workers_) {
    internal::v1::ProgressTrackerState::Worker* to = state.add_workers();
    to->set_rank(rank);
    to->set_step(worker.step);
    *to->mutable_last() = worker.last;
    to->set_lease_steps(worker.lease_steps);
    to->set_lease_batches(worker.lease_batches);
  }
  state.set_examples(total_.examples());
  *state.mutable_total() = total_;
  *state.mutable_line() = line_;
  state.set_line_seconds(line_seconds_);
  state.set_lines(lines_);
  *state.mutable_open_line() = open_line_;
  state.set_line_end(line_end_);
  for (const auto& [number, epoch] : epochs_) {
    *state.add_epoch_work() = epoch;
    state.set_epoch(number);
  }
  state.set_learning_rate(learning_rate_);
  if (evaluation_.has_value()) *state.mutable_evaluation() = *evaluation_;
  for (v1::GetProgressResponse::WorkerPushes& pushes : Pushes()) *state.add_pushes() = std::move(pushes);
  return state;
}

void ProgressTracker::Restore(const internal::v1::ProgressTrackerState& state) {
  for (const internal::v1::ProgressTrackerState::Worker& worker : state.workers()) {
    workers_[worker.rank()] = {.step = worker.step(),
                               .last = worker.last(),
                               .lease_steps = worker.lease_steps(),
                               .lease_batches = worker.lease_batches()};
  }
  total_ = state.total();
  total_.set_examples(state.examples());
  line_ = state.line();
  line_seconds_ = state.line_seconds();
  lines_ = state.lines();
  open_line_ = state.open_line();
  line_end_ = state.line_end();
  for (const v1::JobProgress::EpochWork& epoch : state.epoch_work()) epochs_[epoch.epoch()] = epoch;
  learning_rate_ = state.learning_rate();
  if (state.has_evaluation()) evaluation_ = state.evaluation();
  for (const v1::GetProgressResponse::WorkerPushes& pushes : state.pushes()) {
    pushes_[{pushes.worker(), pushes.incarnation()}] = {pushes.acknowledged().begin(), pushes.acknowledged().end()};
  }
}

void ProgressTracker::EndedLease(uint32_t rank, uint64_t steps, uint64_t batches) {
  Worker& worker = workers_[rank];
  worker.lease_steps = steps;
  worker.lease_batches = batches;
}

void ProgressTracker::Resume(internal::v1::ProgressTrackerState state, uint32_t workers) {
  state.clear_pushes();
  const bool as_many = static_cast<uint32_t>(state.workers_size()) == workers;
  uint64_t steps = 0, batches = 0;
  for (const internal::v1::ProgressTrackerState::Worker& worker : state.workers()) {
    steps = std::max(steps, worker.lease_steps());
    batches = std::max(batches, worker.lease_batches());
  }
  const internal::v1::ProgressTrackerState before = state;
  state.clear_workers();
  for (uint32_t rank = 0; rank < workers; ++rank) {
    internal::v1::ProgressTrackerState::Worker* worker = state.add_workers();
    worker->set_rank(rank);
    worker->set_lease_steps(steps);
    worker->set_lease_batches(batches);
    for (const internal::v1::ProgressTrackerState::Worker& one : before.workers()) {
      if (as_many && one.rank() == rank) *worker = one;
    }
    worker->set_step(worker->lease_steps());
    worker->clear_last();
  }
  Restore(state);
}

uint64_t ProgressTracker::BatchesOf(uint32_t rank) const {
  const auto worker = workers_.find(rank);
  return worker == workers_.end() ? 0 : worker->second.lease_batches;
}

uint64_t ProgressTracker::StepOf(uint32_t rank) const {
  const auto worker = workers_.find(rank);
  return worker == workers_.end() ? 0 : worker->second.step;
}

void ProgressTracker::Fill(v1::JobProgress& progress) const {
  for (const auto& [rank, worker] : workers_) progress.set_step(std::max<uint64_t>(progress.step(), worker.step));
  *progress.mutable_total() = total_;
  progress.set_examples(total_.examples());
  progress.set_max_staleness(total_.max_staleness());
  progress.set_learning_rate(learning_rate_);
  *progress.mutable_line() = line_;
  progress.set_line_seconds(line_seconds_);
  progress.set_lines(lines_);
  if (line_.examples() > 0) progress.set_train_loss(line_.loss_sum() / line_.examples());
  if (line_seconds_ > 0) progress.set_samples_per_second(line_.examples() / line_seconds_);
  if (line_.seconds() > 0) progress.set_wait_share(line_.wait_seconds() / line_.seconds());
  for (const auto& [number, epoch] : epochs_) {
    *progress.add_epoch_work() = epoch;
    progress.set_epoch(number);
    progress.set_epoch_train_loss(epoch.loss_sum() / epoch.examples());
  }
  if (evaluation_.has_value()) *progress.mutable_last_evaluation() = *evaluation_;
}

bool EarlyStop::Improves(double value) const {
  if (!std::isfinite(value)) return false;
  if (state_.best_epoch() == 0) return true;
  const double gain = MetricGain(options_.metric(), value, state_.best());
  return gain > 0 && gain >= options_.min_change();
}

void EarlyStop::Evaluated(const v1::Evaluation& evaluation) {
  if (evaluation.epoch() <= state_.last_epoch()) return;
  state_.set_last_epoch(evaluation.epoch());
  const double value = MetricValue(options_.metric(), evaluation);
  if (!Improves(value)) return;
  state_.set_best(value);
  state_.set_best_epoch(evaluation.epoch());
}

std::string EarlyStop::Reason() const {
  const char* const metric = MetricName(options_.metric());
  if (state_.best_epoch() == 0) return absl::StrCat("the test ", metric, " was never a finite number");
  const uint32_t epochs = state_.last_epoch() - state_.best_epoch();
  return absl::StrFormat("the test %s has not improved for %d epoch%s; its best was %.4g after epoch %d", metric,
                         epochs, epochs == 1 ? "" : "s", state_.best(), state_.best_epoch());
}

}  // namespace ballast
