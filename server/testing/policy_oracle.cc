// SPDX-License-Identifier: Apache-2.0
#include "server/testing/policy_oracle.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ballast {
namespace {

uint32_t QuorumOf(const v1::ConsistencyPolicy& policy, uint32_t workers) {
  if (policy.has_local_sgd()) return workers;
  if (!policy.has_sync()) return 0;
  return policy.sync().quorum() == 0 ? workers : policy.sync().quorum();
}

}  // namespace

PolicyOracle::PolicyOracle(const v1::ConsistencyPolicy& policy, uint32_t workers, Tally* tally)
    : policy_(policy), quorum_(QuorumOf(policy, workers)), workers_(workers), tally_(*tally) {}

void PolicyOracle::Compare(const Seen& after) {
  Expect(after.version == version_, "version is ", after.version, ", want ", version_);
  Expect(after.value == value_, "weight is ", after.value, ", want ", value_, ", from exactly the applied gradients");
  Expect(after.rate == rate_, "learning rate was scaled by ", after.rate, ", want ", rate_);
}

void PolicyOracle::Offered(const Push& push, PushDisposition disposition, const Seen& after) {
  if (is_sync()) {
    OfferedToSync(push, disposition, after);
  } else {
    OfferedOnArrival(push, disposition);
  }
  workers_[push.worker].paused = false;
  Compare(after);
}

void PolicyOracle::OfferedToSync(const Push& push, PushDisposition disposition, const Seen& after) {
  workers_[push.worker].paused = false;
  const bool in_already = HasGathered(push.worker);
  const bool late = push.step < version_ && push.from_version < version_;
  if (disposition == PushDisposition::kDropped) {
    ++tally_.dropped;
    Expect(late || in_already, "dropped worker ", push.worker, "'s gradient, which was in time");
    return;
  }
  Expect(!late, "used worker ", push.worker, "'s gradient for step ", push.step, " at ", version_);
  Expect(!in_already, "counted worker ", push.worker, " twice in step ", version_);
  gathered_.push_back(push);
  Expect((disposition == PushDisposition::kApplied) == MayClose(), "step ", version_, " with ", gathered_.size(),
         " in, quorum ", quorum_, ": ",
         disposition == PushDisposition::kApplied ? "closed too early" : "did not close");
  if (after.version > version_) Close();
}

bool PolicyOracle::HasGathered(uint32_t worker) const {
  return std::any_of(gathered_.begin(), gathered_.end(), [&](const Push& push) { return push.worker == worker; });
}

bool PolicyOracle::MayClose() const {
  if (gathered_.empty()) return false;
  if (gathered_.size() >= quorum_) return true;
  for (uint32_t rank = 0; rank < workers_.size(); ++rank) {
    if (!HasGathered(rank) && !workers_[rank].paused) return false;
  }
  return true;
}

void PolicyOracle::Close() {
  Expect(gathered_.size() <= quorum_, "applied ", gathered_.size(), " gradients, quorum ", quorum_);
  double sum = 0, examples = 0;
  for (const Push& push : gathered_) {
    sum += static_cast<double>(push.examples) * push.gradient;
    examples += push.examples;
  }
  if (examples > 0) value_ -= static_cast<float>(std::round(sum / examples));
  if (gathered_.size() < quorum_) ++tally_.closed_below_quorum;
  ++version_;
  ++tally_.applied;
  gathered_.clear();
}

void PolicyOracle::OfferedOnArrival(const Push& push, PushDisposition disposition) {
  Expect(disposition == PushDisposition::kApplied, "did not apply worker ", push.worker, "'s gradient on arrival");
  if (policy_.has_bounded()) MoveClock(push);
  if (push.examples == 0) return;
  const Worker& worker = workers_[push.worker];
  const float lambda = policy_.async().delay_compensation();
  float gradient = push.gradient;
  if (lambda > 0 && worker.pulled) gradient += lambda * gradient * gradient * (value_ - worker.handed_out);
  const bool scaled = policy_.async().scale_by_staleness() || policy_.bounded().scale_by_staleness();
  rate_ = scaled ? 1.0f / static_cast<float>(1 + version_ - push.from_version) : 1.0f;
  value_ -= std::round(gradient);
  ++version_;
  ++tally_.applied;
}

void PolicyOracle::MoveClock(const Push& push) {
  Worker& worker = workers_[push.worker];
  const uint64_t finished = push.step + 1;
  if (worker.paused) {
    if (finished < slowest_) ++tally_.lifted;
    worker.lift = slowest_ > finished ? slowest_ - finished : 0;
  } else {
    // The lift shrinks so that the clock does not pass the front.
    const uint64_t before = worker.finished + worker.lift, front = slowest_ + policy_.bounded().steps_ahead() + 1;
    while (worker.lift > 0 && finished + worker.lift > std::max(before, front)) --worker.lift;
  }
  worker.finished = finished;
  worker.paused = false;
  slowest_ = Slowest();
}

uint64_t PolicyOracle::Slowest() const {
  std::vector<uint64_t> clocks;
  for (const Worker& worker : workers_) {
    if (!worker.paused) clocks.push_back(worker.finished + worker.lift);
  }
  return clocks.empty() ? slowest_ : *std::min_element(clocks.begin(), clocks.end());
}

void PolicyOracle::Paused(uint32_t worker, const Seen& after) {
  workers_[worker].paused = workers_[worker].ever_paused = true;
  const uint64_t slowest = Slowest();
  Expect(slowest >= slowest_, "the slowest clock decreased");
  slowest_ = slowest;
  if (is_sync()) {
    Expect((after.version > version_) == MayClose(), "worker ", worker, "'s pause ",
           after.version > version_ ? "closed" : "did not close", " step ", version_, " with ", gathered_.size(),
           " in");
    if (after.version > version_) {
      ++tally_.closed_by_pause;
      Close();
    }
  }
  Compare(after);
}

std::vector<uint32_t> PolicyOracle::Waited(const PullQuery& pull) const {
  std::vector<uint32_t> ranks;
  for (uint32_t rank = 0; rank < workers_.size(); ++rank) {
    const Worker& worker = workers_[rank];
    if (worker.paused) continue;
    bool waited = false;
    if (is_sync()) {
      waited = pull.step > version_ + 1 || (pull.step == version_ + 1 && !HasGathered(rank));
    } else if (policy_.has_bounded()) {
      waited = worker.finished + worker.lift + policy_.bounded().steps_ahead() < pull.step;
    }
    if (waited) ranks.push_back(rank);
  }
  return ranks;
}

void PolicyOracle::Answered(const PullQuery& pull, const Seen& now) {
  Compare(now);
  if (is_sync()) {
    Expect(pull.step <= version_, "answered a pull at step ", pull.step, " from version ", version_);
  }
  const std::vector<uint32_t> waited = Waited(pull);
  Expect(waited.empty(), "answered a pull at step ", pull.step, " ahead of worker ", absl::StrJoin(waited, ", "));
  if (!pull.worker.has_value()) return;
  Worker& puller = workers_[*pull.worker];
  puller.pulled = true;
  puller.handed_out = now.value;
  if (!policy_.has_bounded() || puller.ever_paused) return;
  // The same promise for workers that never paused, without lifts.
  for (const Worker& worker : workers_) {
    Expect(worker.ever_paused || pull.step <= worker.finished + policy_.bounded().steps_ahead(),
           "answered a pull at step ", pull.step, " while a worker had finished ", worker.finished);
  }
}

void PolicyOracle::Waits(const PullQuery& pull, const std::vector<uint32_t>& missing) {
  const std::vector<uint32_t> want = Waited(pull);
  Expect(missing == want, "a pull at step ", pull.step, " names workers ", absl::StrJoin(missing, ", "), ", want ",
         absl::StrJoin(want, ", "));
  Expect(!want.empty() || MayWaitForEver(pull), "a pull at step ", pull.step, " waits for no worker");
}

bool PolicyOracle::MayWaitForEver(const PullQuery& pull) const {
  return is_sync() && !pull.worker.has_value() && pull.step > version_;
}

void PolicyOracle::Ended() {
  Expect(gathered_.empty(), gathered_.size(), " gradients of step ", version_, " were never applied");
}

}  // namespace ballast
