// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/status/error_reason.h"
#include "server/policies/slice_policy.h"

namespace ballast {
namespace {

// Above any real job's steps, and low enough that sums of a few clocks do not overflow.
constexpr uint64_t kMaxSteps = uint64_t{1} << 60;

// Applies a gradient on arrival. A worker's clock is the number of steps that it has finished; a pull at step t waits
// while the slowest active (not paused) worker has a clock below t - staleness (stale synchronous parallel: Ho et
// al., 2013).
//
// A worker that returns from a pause far behind would block all others until it has caught up. Instead, its clock
// resumes at the slowest worker's and rises with its steps, but stays within the bound above the slowest until its
// own count has caught up. So others wait for it like for any worker. The slowest clock never goes back.
//
// Its pulls still use its own count. If they used the raised clock, slices could wait for each other in a cycle,
// because messages reach each slice at a different time and clocks differ by slice. With its own count, every worker
// that is waited for has finished fewer steps than the one that waits, by counts that are equal at every slice.
class BoundedPolicy : public SlicePolicy {
 public:
  BoundedPolicy(const v1::ConsistencyPolicy::Bounded& config, uint32_t workers)
      : steps_ahead_(config.steps_ahead()), scale_by_staleness_(config.scale_by_staleness()), workers_(workers) {}

  absl::Status CheckStep(uint64_t step, const SliceWeights&) const override {
    if (step < kMaxSteps) return absl::OkStatus();
    return WithReason(v1::ERROR_REASON_STEP_TOO_EARLY,
                      absl::FailedPreconditionError(
                          absl::StrCat("got a gradient for step ", step, ", want a step below ", kMaxSteps)),
                      {{"step", absl::StrCat(step)}});
  }

  PushDisposition Offer(const PushTicket& push, uint64_t from_version, const Gradient& gradient,
                        SliceWeights& weights) override {
    AdvanceClock(workers_[push.worker], push.step + 1);
    RaiseSlowest();
    weights.Reach(push.schedule_position);
    if (push.examples == 0) return PushDisposition::kApplied;
    SliceWeights::ApplyOptions options;
    if (scale_by_staleness_) options.rate_scale = RateScale(StalenessOf(from_version, weights));
    weights.Apply(gradient, options);
    return PushDisposition::kApplied;
  }

  bool Pause(uint32_t worker, SliceWeights&) override {
    workers_[worker].paused = true;
    RaiseSlowest();
    return false;
  }

  void CatchUp(uint32_t worker, uint64_t version, uint64_t finished, SliceWeights& weights) override {
    weights.SkipTo(version);
    if (finished > workers_[worker].finished && finished < kMaxSteps) AdvanceClock(workers_[worker], finished);
    RaiseSlowest();
  }

  bool MayPull(const PullQuery& pull, const SliceWeights&) const override {
    const auto is_active = [](const Worker& worker) { return !worker.paused; };
    return slowest_ >= WantedClock(pull) || std::none_of(workers_.begin(), workers_.end(), is_active);
  }

  void OnPull(uint32_t, const SliceWeights&) override {}

  std::vector<uint32_t> Missing(const PullQuery& pull) const override {
    std::vector<uint32_t> missing;
    for (uint32_t rank = 0; rank < workers_.size(); ++rank) {
      if (!workers_[rank].paused && workers_[rank].clock < WantedClock(pull)) missing.push_back(rank);
    }
    return missing;
  }

  uint64_t Bytes() const override { return 0; }

  PolicyState Save() const override {
    PolicyState state;
    for (const Worker& worker : workers_) {
      internal::v1::PolicyState::Clock* clock = state.fields.add_clocks();
      clock->set_paused(worker.paused);
      clock->set_finished(worker.finished);
      clock->set_clock(worker.clock);
    }
    state.fields.set_slowest(slowest_);
    return state;
  }

  absl::Status Restore(PolicyState state, const SliceWeights&) override {
    if (static_cast<size_t>(state.fields.clocks_size()) != workers_.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("clocks: got ", state.fields.clocks_size(), " workers, want ", workers_.size()));
    }
    for (size_t rank = 0; rank < workers_.size(); ++rank) {
      const internal::v1::PolicyState::Clock& clock = state.fields.clocks(rank);
      workers_[rank] = {clock.paused(), clock.finished(), clock.clock()};
    }
    slowest_ = state.fields.slowest();
    return absl::OkStatus();
  }

 private:
  struct Worker {
    bool paused = false;
    // The worker's own count since it last returned.
    uint64_t finished = 0;
    // At least `finished`.
    uint64_t clock = 0;
  };

  void AdvanceClock(Worker& worker, uint64_t finished) const {
    if (worker.paused) {
      worker.paused = false;
      // The worker may have restarted at step 0.
      worker.finished = finished;
      worker.clock = std::max(finished, slowest_);
    } else if (finished > worker.finished) {
      const uint64_t lifted = worker.clock + (finished - worker.finished);
      const uint64_t highest = std::max(worker.clock, slowest_ + steps_ahead_ + 1);
      worker.finished = finished;
      worker.clock = std::max(finished, std::min(lifted, highest));
    }
  }

  // Without active workers the clock does not change.
  void RaiseSlowest() {
    uint64_t slowest = std::numeric_limits<uint64_t>::max();
    for (const Worker& worker : workers_) {
      if (!worker.paused) slowest = std::min(slowest, worker.clock);
    }
    if (slowest != std::numeric_limits<uint64_t>::max()) slowest_ = slowest;
  }

  // The clock that the slowest worker must reach before the pull may proceed.
  uint64_t WantedClock(const PullQuery& pull) const { return pull.step > steps_ahead_ ? pull.step - steps_ahead_ : 0; }

  const uint64_t steps_ahead_;
  const bool scale_by_staleness_;
  // By rank. All workers are active at the start.
  std::vector<Worker> workers_;
  // Clock of the slowest active worker.
  uint64_t slowest_ = 0;
};

}  // namespace

std::unique_ptr<SlicePolicy> MakeBoundedPolicy(const v1::ConsistencyPolicy& config, uint32_t workers) {
  return std::make_unique<BoundedPolicy>(config.bounded(), workers);
}

}  // namespace ballast
