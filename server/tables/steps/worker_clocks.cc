// SPDX-License-Identifier: Apache-2.0
#include "server/tables/steps/worker_clocks.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status/error_reason.h"

namespace ballast {
namespace {

// Above any real job's steps, and low enough that sums of a few clocks do not overflow.
constexpr uint64_t kMaxSteps = uint64_t{1} << 60;

}  // namespace

absl::Status WorkerClocks::CheckStep(uint64_t step) const {
  if (step < kMaxSteps) return absl::OkStatus();
  return WithReason(
      v1::ERROR_REASON_STEP_TOO_EARLY,
      absl::FailedPreconditionError(absl::StrCat("got rows for step ", step, ", want a step below ", kMaxSteps)),
      {{"step", absl::StrCat(step)}});
}

uint64_t WorkerClocks::Finish(uint32_t rank, uint64_t finished) {
  State::Worker& worker = workers_[rank];
  const uint64_t rise = finished > worker.finished ? finished - worker.finished : 0;
  if (worker.paused) {
    // The worker may have restarted at step 0.
    worker = {false, finished, std::max(finished, slowest_)};
  } else if (rise > 0) {
    const uint64_t highest = std::max(worker.clock, slowest_ + steps_ahead_ + 1);
    worker.clock = std::max(finished, std::min(worker.clock + rise, highest));
    worker.finished = finished;
  }
  RaiseSlowest();
  return rise;
}

uint64_t WorkerClocks::CatchUp(uint32_t worker, uint64_t finished) {
  const bool behind = finished > workers_[worker].finished && finished < kMaxSteps;
  return behind ? Finish(worker, finished) : 0;
}

void WorkerClocks::Pause(uint32_t worker) {
  workers_[worker].paused = true;
  RaiseSlowest();
}

bool WorkerClocks::MayPull(uint64_t step) const {
  return slowest_ >= WantedClock(step) ||
         std::all_of(workers_.begin(), workers_.end(), [](const State::Worker& worker) { return worker.paused; });
}

std::vector<uint32_t> WorkerClocks::Missing(uint64_t step) const {
  std::vector<uint32_t> missing;
  for (uint32_t rank = 0; rank < workers_.size(); ++rank) {
    if (!workers_[rank].paused && workers_[rank].clock < WantedClock(step)) missing.push_back(rank);
  }
  return missing;
}

WorkerClocks::State WorkerClocks::Together(uint32_t workers, uint64_t steps) {
  return {std::vector<State::Worker>(workers, {false, steps, steps}), steps};
}

absl::Status WorkerClocks::Restore(State state) {
  if (state.workers.size() != workers_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("clocks: got ", state.workers.size(), " workers, want ", workers_.size()));
  }
  workers_ = std::move(state.workers);
  slowest_ = state.slowest;
  return absl::OkStatus();
}

void WorkerClocks::RaiseSlowest() {
  uint64_t slowest = std::numeric_limits<uint64_t>::max();
  for (const State::Worker& worker : workers_) {
    if (!worker.paused) slowest = std::min(slowest, worker.clock);
  }
  if (slowest != std::numeric_limits<uint64_t>::max()) slowest_ = slowest;
}

}  // namespace ballast
