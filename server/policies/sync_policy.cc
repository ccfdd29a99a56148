// SPDX-License-Identifier: Apache-2.0
#include "server/policies/sync_policy.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

// Gathers one contribution of every worker for a step, then applies their mean weighted by examples, once. The slice's
// version is the step that gathers.
//
// The sum is folded as gradients come. Where the order is to be deterministic it is folded in rank order: a gradient
// that comes before a lower rank's is held until that one is in.
class SyncPolicy : public SlicePolicy {
 public:
  SyncPolicy(bool deterministic, uint32_t workers) : deterministic_(deterministic), arrived_(workers, false) {}

  absl::Status CheckStep(uint64_t step, const SliceWeights& weights) const override {
    if (step <= weights.version()) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat("got a gradient for step ", step, ", want at most step ",
                                                      weights.version(), ", whose update is not done"));
  }

  Verdict Offer(const Contribution& contribution, SliceWeights& weights) override {
    if (contribution.step < weights.version() || arrived_[contribution.worker]) return Verdict::kDropped;
    arrived_[contribution.worker] = true;
    ++arrivals_;
    examples_ += contribution.examples;
    if (!deterministic_ || contribution.worker == NextToFold()) {
      Fold(contribution.examples, contribution.gradient);
      folded_ = std::max(folded_, contribution.worker + 1);
    } else {
      Held& held = held_[contribution.worker];
      held.examples = contribution.examples;
      contribution.gradient.ForEachBlock([&](size_t, absl::Span<const float> block) {
        held.gradient.insert(held.gradient.end(), block.begin(), block.end());
      });
    }
    if (deterministic_) FoldHeld();
    if (arrivals_ < arrived_.size()) return Verdict::kKept;
    Finish(weights);
    return Verdict::kApplied;
  }

  bool Pause(uint32_t, SliceWeights&) override { return false; }

  bool MayPull(const PullTerms& pull, const SliceWeights& weights) const override {
    return weights.version() >= pull.step;
  }

  void OnPull(uint32_t, const SliceWeights&) override {}

  std::vector<uint32_t> Missing(const PullTerms&) const override {
    std::vector<uint32_t> missing;
    for (uint32_t rank = 0; rank < arrived_.size(); ++rank) {
      if (!arrived_[rank]) missing.push_back(rank);
    }
    return missing;
  }

 private:
  struct Held {
    uint32_t examples = 0;
    std::vector<float> gradient;
  };

  uint32_t NextToFold() const { return folded_; }

  void FoldHeld() {
    for (auto next = held_.begin(); next != held_.end() && next->first == folded_; next = held_.erase(next)) {
      Fold(next->second.examples, Gradient(next->second.gradient));
      ++folded_;
    }
  }

  void Fold(uint32_t examples, const Gradient& gradient) {
    if (examples == 0) return;
    const float weight = examples;
    const bool first_of_all = sum_.empty();
    sum_.resize(gradient.size());
    gradient.ForEachBlock([&](size_t first, absl::Span<const float> block) {
      float* sum = sum_.data() + first;
      if (first_of_all) {
        for (size_t i = 0; i < block.size(); ++i) sum[i] = weight * block[i];
      } else {
        for (size_t i = 0; i < block.size(); ++i) sum[i] += weight * block[i];
      }
    });
  }

  void Finish(SliceWeights& weights) {
    if (examples_ == 0) {
      weights.Skip();
    } else {
      weights.Apply(Gradient(sum_), {.gradient_scale = static_cast<float>(1.0 / static_cast<double>(examples_))});
    }
    std::fill(arrived_.begin(), arrived_.end(), false);
    arrivals_ = 0;
    examples_ = 0;
    folded_ = 0;
    sum_.clear();
  }

  const bool deterministic_;
  // By rank, for the step that gathers.
  std::vector<bool> arrived_;
  uint32_t arrivals_ = 0;
  uint64_t examples_ = 0;
  // All ranks below it are in the sum.
  uint32_t folded_ = 0;
  std::map<uint32_t, Held> held_;
  // Of examples times gradient; its memory is kept from step to step.
  std::vector<float> sum_;
};

}  // namespace

std::unique_ptr<SlicePolicy> MakeSyncPolicy(const v1::ConsistencyPolicy& config, uint32_t workers) {
  return std::make_unique<SyncPolicy>(config.sync().deterministic(), workers);
}

}  // namespace ballast
