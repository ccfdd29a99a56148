// SPDX-License-Identifier: Apache-2.0
#include "server/coordinator/progress_tracker.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "google/protobuf/util/message_differencer.h"

namespace ballast {
namespace {

// Time span of rates and losses.
constexpr absl::Duration kRecent = absl::Seconds(2);

}  // namespace

void ProgressTracker::Report(uint32_t rank, uint64_t incarnation, const v1::WorkerProgress& progress, absl::Time now) {
  Worker& worker = workers_[rank];
  if (progress.acknowledged_pushes_size() > 0) {
    pushes_[{rank, incarnation}] = {progress.acknowledged_pushes().begin(), progress.acknowledged_pushes().end()};
  }
  // A retry, because the response was lost: no two reports took the same time to the last bit.
  const bool again =
      progress.examples() > 0 && google::protobuf::util::MessageDifferencer::Equals(worker.last, progress);
  if (again) return;
  worker.last = progress;
  worker.step = progress.step();
  worker.recent.push_back({now, progress});
  while (worker.recent.size() > 1 && now - worker.recent.front().at > kRecent) worker.recent.pop_front();
  examples_ += progress.examples();
  max_staleness_ = std::max(max_staleness_, progress.max_staleness());
  if (progress.epoch() > epoch_) {
    epoch_ = progress.epoch();
    epoch_examples_ = 0;
    epoch_loss_sum_ = 0;
  }
  if (progress.epoch() == epoch_) {
    epoch_examples_ += progress.examples();
    epoch_loss_sum_ += progress.loss_sum();
  }
}

void ProgressTracker::Forget(uint32_t rank) {
  if (const auto worker = workers_.find(rank); worker != workers_.end()) worker->second.recent.clear();
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
  state.set_examples(examples_);
  state.set_max_staleness(max_staleness_);
  state.set_epoch(epoch_);
  state.set_epoch_examples(epoch_examples_);
  state.set_epoch_loss_sum(epoch_loss_sum_);
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
  examples_ = state.examples();
  max_staleness_ = state.max_staleness();
  epoch_ = state.epoch();
  epoch_examples_ = state.epoch_examples();
  epoch_loss_sum_ = state.epoch_loss_sum();
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
  uint64_t examples = 0;
  double loss = 0, waited = 0, worked = 0, rate = 0;
  for (const auto& [rank, worker] : workers_) {
    uint64_t own_examples = 0;
    double own_seconds = 0;
    for (const Entry& entry : worker.recent) {
      own_examples += entry.progress.examples();
      own_seconds += entry.progress.seconds();
      loss += entry.progress.loss_sum();
      waited += entry.progress.wait_seconds();
      if (entry.progress.learning_rate() > 0) progress.set_learning_rate(entry.progress.learning_rate());
    }
    examples += own_examples;
    worked += own_seconds;
    if (own_seconds > 0) rate += own_examples / own_seconds;
    progress.set_step(std::max<uint64_t>(progress.step(), worker.step));
  }
  progress.set_epoch(epoch_);
  progress.set_examples(examples_);
  progress.set_max_staleness(max_staleness_);
  progress.set_samples_per_second(rate);
  if (examples > 0) progress.set_train_loss(loss / examples);
  if (epoch_examples_ > 0) progress.set_epoch_train_loss(epoch_loss_sum_ / epoch_examples_);
  if (worked > 0) progress.set_wait_share(waited / worked);
  if (evaluation_.has_value()) *progress.mutable_last_evaluation() = *evaluation_;
}

bool EarlyStop::Improves(double value) const {
  if (!std::isfinite(value)) return false;
  if (state_.best_epoch() == 0) return true;
  const double gain = options_.metric() == v1::TEST_ACCURACY ? value - state_.best() : state_.best() - value;
  return gain > 0 && gain >= options_.min_change();
}

void EarlyStop::Evaluated(const v1::Evaluation& evaluation) {
  if (evaluation.epoch() <= state_.last_epoch()) return;
  state_.set_last_epoch(evaluation.epoch());
  const double value = options_.metric() == v1::TEST_ACCURACY ? evaluation.accuracy() : evaluation.loss();
  if (!Improves(value)) return;
  state_.set_best(value);
  state_.set_best_epoch(evaluation.epoch());
}

std::string EarlyStop::Reason() const {
  const char* const metric = options_.metric() == v1::TEST_ACCURACY ? "accuracy" : "loss";
  if (state_.best_epoch() == 0) return absl::StrCat("the test ", metric, " was never a finite number");
  const uint32_t epochs = state_.last_epoch() - state_.best_epoch();
  return absl::StrFormat("the test %s has not improved for %d epoch%s; its best was %.4g after epoch %d", metric,
                         epochs, epochs == 1 ? "" : "s", state_.best(), state_.best_epoch());
}

}  // namespace ballast
