// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status/error_reason.h"
#include "server/policies/slice_policy.h"
#include "server/policies/weighted_sum.h"

namespace ballast {
namespace {

// Gathers contributions to a step until a quorum or all active (not paused) workers have contributed, then applies
// their mean, weighted by examples, once. The slice's version is the step being gathered.
//
// A worker that fell behind, because steps closed without it or it had paused, pulls without waiting. Its own count
// of steps stays behind, so a gradient also counts for the step whose values it was computed from; the worker is
// active again as soon as it has the newest values. Workers that are behind never wait, so slices cannot wait for
// each other in a cycle.
class SyncPolicy : public SlicePolicy {
 public:
  SyncPolicy(bool deterministic, uint32_t quorum, uint32_t workers)
      : deterministic_(deterministic), quorum_(quorum), arrived_(workers, false), paused_(workers, false) {}

  absl::Status CheckStep(uint64_t step, const SliceWeights& weights) const override {
    if (step <= weights.version()) return absl::OkStatus();
    return WithReason(
        v1::ERROR_REASON_STEP_TOO_EARLY,
        absl::FailedPreconditionError(absl::StrCat("got a gradient for step ", step, ", want at most step ",
                                                   weights.version(), ", whose update is not done")),
        {{"step", absl::StrCat(step)}});
  }

  PushDisposition Offer(const PushTicket& push, uint64_t from_version, const Gradient& gradient,
                        SliceWeights& weights) override {
    paused_[push.worker] = false;
    gathering_ = weights.version();
    const bool in_time = push.step >= gathering_ || from_version >= gathering_;
    if (!in_time || arrived_[push.worker]) return PushDisposition::kDropped;
    weights.Reach(push.schedule_position);
    arrived_[push.worker] = true;
    ++arrivals_;
    examples_ += push.examples;
    if (!MayClose()) {
      Take(push, gradient);
      return PushDisposition::kBuffered;
    }
    // The last gradient of a step is added while the optimizer reads it, if its place in the order is the last.
    if (arrivals_ == 1 && examples_ > 0) {
      weights.Apply(gradient);
    } else if (held_.empty() && !sum_.empty() && push.examples > 0) {
      weights.Apply(sum_.With(push.examples, gradient), {.gradient_scale = sum_.ScaleWith(push.examples)});
    } else {
      Take(push, gradient);
      ApplySum(weights);
    }
    BeginNext(weights);
    return PushDisposition::kApplied;
  }

  bool Pause(uint32_t worker, SliceWeights& weights) override {
    paused_[worker] = true;
    if (!MayClose()) return false;
    Close(weights);
    return true;
  }

  void CatchUp(uint32_t worker, uint64_t version, uint64_t finished, SliceWeights& weights) override {
    // A gradient for a step was accepted only after the update of the step before.
    const uint64_t seen = std::max(version, finished > 0 ? finished - 1 : 0);
    if (weights.version() < seen) {
      // A repeated gradient for the older step will be dropped, so the contributions so far are all that it will get.
      if (arrivals_ > 0) Close(weights);
      weights.SkipTo(seen);
      BeginNext(weights);
    }
    gathering_ = weights.version();
    if (finished != gathering_ + 1 || arrived_[worker]) return;
    // Its gradient for the step being gathered was accepted and lost.
    arrived_[worker] = true;
    ++arrivals_;
    if (MayClose()) Close(weights);
  }

  bool MayPull(const PullQuery& pull, const SliceWeights& weights) const override {
    return weights.version() >= pull.step;
  }

  void OnPull(uint32_t, const SliceWeights&) override {}

  std::vector<uint32_t> Missing(const PullQuery& pull) const override {
    // A later step also needs the workers that have already contributed to this one.
    const bool later = pull.step > gathering_ + 1;
    std::vector<uint32_t> missing;
    for (uint32_t rank = 0; rank < arrived_.size(); ++rank) {
      if (!paused_[rank] && (later || !arrived_[rank])) missing.push_back(rank);
    }
    return missing;
  }

  uint64_t Bytes() const override { return sum_.bytes() + held_bytes_; }

  PolicyState Save() const override {
    PolicyState state;
    internal::v1::PolicyState& fields = state.fields;
    fields.set_gathering(gathering_);
    for (size_t rank = 0; rank < arrived_.size(); ++rank) {
      fields.add_arrived(arrived_[rank]);
      fields.add_paused(paused_[rank]);
    }
    fields.set_examples(examples_);
    fields.set_folded(folded_);
    sum_.Save(state);
    state.held.reserve(held_.size());
    for (const auto& [worker, kept] : held_) state.held.push_back({worker, kept.examples, kept.values});
    return state;
  }

  absl::Status Restore(PolicyState state, const SliceWeights& weights) override {
    const internal::v1::PolicyState& fields = state.fields;
    const int workers = static_cast<int>(arrived_.size());
    if (fields.arrived_size() != workers || fields.paused_size() != workers) {
      return absl::InvalidArgumentError(
          absl::StrCat("policy: got the state of ", fields.arrived_size(), " workers, want ", workers));
    }
    const size_t elements = weights.values().size();
    if (absl::Status status = sum_.Restore(state, elements); !status.ok()) return status;
    for (PolicyState::Held& held : state.held) {
      const size_t want = held.examples > 0 ? elements : 0;
      if (held.values.size() != want || held.worker >= arrived_.size()) {
        return absl::InvalidArgumentError(absl::StrCat("held gradient of worker ", held.worker, ": got ",
                                                       held.values.size(), " elements, want ", want,
                                                       " and a worker below ", workers));
      }
      Hold(held.worker, {held.examples, std::move(held.values)});
    }
    gathering_ = fields.gathering();
    std::copy(fields.arrived().begin(), fields.arrived().end(), arrived_.begin());
    std::copy(fields.paused().begin(), fields.paused().end(), paused_.begin());
    arrivals_ = std::count(arrived_.begin(), arrived_.end(), true);
    examples_ = fields.examples();
    folded_ = fields.folded();
    return absl::OkStatus();
  }

 private:
  bool MayClose() const {
    if (arrivals_ == 0 || arrivals_ >= quorum_) return arrivals_ > 0;
    for (size_t rank = 0; rank < arrived_.size(); ++rank) {
      if (!arrived_[rank] && !paused_[rank]) return false;
    }
    return true;
  }

  // If the order matters, a gradient is held until all lower ranks are in or the step closes.
  void Take(const PushTicket& push, const Gradient& gradient) {
    if (!deterministic_ || push.worker == folded_) {
      sum_.Add(push.examples, gradient);
      folded_ = push.worker + 1;
    } else {
      Hold(push.worker, sum_.Keep(push.examples, gradient));
    }
    while (!held_.empty() && held_.begin()->first == folded_) FoldFirstHeld();
  }

  void Hold(uint32_t worker, WeightedSum::Kept kept) {
    held_bytes_ += kept.values.bytes();
    held_.emplace(worker, std::move(kept));
  }

  void FoldFirstHeld() {
    held_bytes_ -= held_.begin()->second.values.bytes();
    sum_.Add(std::move(held_.begin()->second));
    folded_ = held_.begin()->first + 1;
    held_.erase(held_.begin());
  }

  void ApplySum(SliceWeights& weights) {
    while (!held_.empty()) FoldFirstHeld();
    if (examples_ == 0) return weights.Skip();
    weights.Apply(sum_.gradient(), {.gradient_scale = sum_.scale()});
  }

  void Close(SliceWeights& weights) {
    ApplySum(weights);
    BeginNext(weights);
  }

  void BeginNext(const SliceWeights& weights) {
    gathering_ = weights.version();
    std::fill(arrived_.begin(), arrived_.end(), false);
    arrivals_ = 0;
    examples_ = 0;
    folded_ = 0;
    sum_.Clear();
  }

  const bool deterministic_;
  const uint32_t quorum_;
  // The step being gathered, and by rank, whether the worker has contributed.
  uint64_t gathering_ = 0;
  std::vector<bool> arrived_;
  uint32_t arrivals_ = 0;
  uint64_t examples_ = 0;
  std::vector<bool> paused_;
  // If the order matters, all ranks below this one are in the sum.
  uint32_t folded_ = 0;
  std::map<uint32_t, WeightedSum::Kept> held_;
  uint64_t held_bytes_ = 0;
  WeightedSum sum_;
};

}  // namespace

std::unique_ptr<SlicePolicy> MakeSyncPolicy(const v1::ConsistencyPolicy& config, uint32_t workers) {
  const uint32_t quorum = config.sync().quorum() == 0 ? workers : config.sync().quorum();
  return std::make_unique<SyncPolicy>(config.sync().deterministic(), quorum, workers);
}

// On the servers local SGD is sync over rounds: a worker's step is the number of times that it has handed in.
std::unique_ptr<SlicePolicy> MakeLocalSgdPolicy(const v1::ConsistencyPolicy& config, uint32_t workers) {
  return std::make_unique<SyncPolicy>(config.local_sgd().deterministic(), workers, workers);
}

}  // namespace ballast
