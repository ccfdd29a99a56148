// SPDX-License-Identifier: Apache-2.0
#include "server/tables/steps/step_accumulator.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status/error_reason.h"

namespace ballast {

MergedRows StepAccumulator::Closed::Merge(uint32_t dim, bool count_uses) const {
  std::vector<RowAddend> addends;
  for (const BufferedRows& rows : messages) {
    if (rows.examples == 0) continue;
    addends.push_back({rows.worker, rows.examples, rows.hashes, rows.gradients.values(), rows.uses});
  }
  return MergeRows(addends, dim, examples, count_uses);
}

absl::Status StepAccumulator::CheckStep(uint64_t step) const {
  if (step <= applied_) return absl::OkStatus();
  const char* const hint =
      applied_ > first_step_ ? "" : "; a table that is declared after training began needs its first_step";
  return WithReason(v1::ERROR_REASON_STEP_TOO_EARLY,
                    absl::FailedPreconditionError(absl::StrCat("got rows for step ", step, ", want at most step ",
                                                               applied_, ", whose update is not done", hint)),
                    {{"step", absl::StrCat(step)}});
}

StepAccumulator::Offered StepAccumulator::Offer(const StepMessage& place, BufferedRows rows,
                                                ByteBudget::Reservation memory) {
  State::Worker& worker = workers_[place.worker];
  if (place.incarnation < worker.incarnation) return {.dropped = true};
  worker.paused = false;
  if (place.incarnation > worker.incarnation && !worker.arrived) Discard(place.worker);
  worker.incarnation = place.incarnation;
  if (place.step < gathering_ || worker.arrived) return {.dropped = true};
  worker.examples = std::max(worker.examples, rows.examples);
  buffered_.emplace(std::pair(place.worker, rows.sequence), std::move(rows));
  memory_.Add(std::move(memory));
  if (open_.Add(place)) {
    worker.arrived = true;
    ++arrivals_;
  }
  return {.closed = CloseIfComplete()};
}

std::optional<StepAccumulator::Closed> StepAccumulator::Pause(uint32_t worker) {
  workers_[worker].paused = true;
  if (!workers_[worker].arrived) Discard(worker);
  return CloseIfComplete();
}

StepAccumulator::CaughtUp StepAccumulator::CatchUp(uint32_t worker, uint64_t seen, uint64_t ended) {
  CaughtUp caught_up;
  const uint64_t before = gathering_;
  // The messages of a step are accepted only after the update of the step before.
  seen = std::min(std::max(seen, ended > 0 ? ended - 1 : 0), gathering_ + kMostLost);
  const auto close = [&] {
    Closed closed = Close();
    if (!closed.messages.empty()) caught_up.closed = std::move(closed);
  };
  if (gathering_ < seen) {
    // Messages of this step that are sent again will be dropped.
    close();
    gathering_ = seen;
  }
  if (ended == gathering_ + 1 && !workers_[worker].arrived) {
    // Some of its messages were lost. Those that were not count.
    open_.Forget(worker);
    workers_[worker].arrived = true;
    ++arrivals_;
    if (MayClose()) close();
  }
  caught_up.lost = gathering_ - before - (caught_up.closed.has_value() ? 1 : 0);
  return caught_up;
}

std::vector<uint32_t> StepAccumulator::Missing(uint64_t step) const {
  // A later step also needs the workers that have already contributed to this one.
  const bool later = step > gathering_ + 1;
  std::vector<uint32_t> missing;
  for (uint32_t rank = 0; rank < workers_.size(); ++rank) {
    if (!workers_[rank].paused && (later || !workers_[rank].arrived)) missing.push_back(rank);
  }
  return missing;
}

StepAccumulator::State StepAccumulator::Save() const {
  State state{gathering_, workers_, open_.Save(), {}};
  for (const auto& [key, rows] : buffered_) state.messages.push_back(rows);
  return state;
}

absl::Status StepAccumulator::Restore(State state, ByteBudget::Reservation memory) {
  if (state.workers.size() != workers_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("step of rows: got the state of ", state.workers.size(), " workers, want ", workers_.size()));
  }
  for (const BufferedRows& rows : state.messages) {
    if (rows.worker < workers_.size()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("buffered rows: got worker ", rows.worker, ", want one below ", workers_.size()));
  }
  gathering_ = applied_ = state.gathering;
  workers_ = std::move(state.workers);
  arrivals_ = std::count_if(workers_.begin(), workers_.end(), [](const State::Worker& one) { return one.arrived; });
  open_.Restore(state.open_steps);
  buffered_.clear();
  for (BufferedRows& rows : state.messages) {
    const std::pair key(rows.worker, rows.sequence);
    buffered_.emplace(key, std::move(rows));
  }
  memory_ = std::move(memory);
  return absl::OkStatus();
}

bool StepAccumulator::MayClose() const {
  if (arrivals_ == 0 || arrivals_ >= quorum_) return arrivals_ > 0;
  return std::all_of(workers_.begin(), workers_.end(),
                     [](const State::Worker& one) { return one.arrived || one.paused; });
}

std::optional<StepAccumulator::Closed> StepAccumulator::CloseIfComplete() {
  return MayClose() ? std::optional(Close()) : std::nullopt;
}

StepAccumulator::Closed StepAccumulator::Close() {
  Closed closed{gathering_, 0, {}, std::move(memory_)};
  for (auto& [key, rows] : buffered_) {
    if (workers_[rows.worker].arrived) closed.messages.push_back(std::move(rows));
  }
  for (uint32_t rank = 0; rank < workers_.size(); ++rank) {
    State::Worker& worker = workers_[rank];
    if (worker.arrived) closed.examples += worker.examples;
    worker.arrived = false;
    worker.examples = 0;
    open_.Forget(rank);
  }
  buffered_.clear();
  memory_ = ByteBudget::Reservation();
  arrivals_ = 0;
  ++gathering_;
  return closed;
}

void StepAccumulator::Discard(uint32_t worker) {
  const auto first = buffered_.lower_bound({worker, 0});
  buffered_.erase(first, buffered_.lower_bound({worker + 1, 0}));
  workers_[worker].examples = 0;
  open_.Forget(worker);
}

}  // namespace ballast
