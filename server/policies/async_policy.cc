// SPDX-License-Identifier: Apache-2.0
#include "server/policies/async_policy.h"

namespace ballast {
namespace {

// A gradient is applied on arrival; nobody waits.
class AsyncPolicy : public SlicePolicy {
 public:
  absl::Status CheckStep(uint64_t, const SliceWeights&) const override { return absl::OkStatus(); }

  Verdict Offer(const Contribution& contribution, SliceWeights& weights) override {
    if (contribution.examples > 0) weights.Apply(contribution.gradient);
    return Verdict::kApplied;
  }

  bool Pause(uint32_t, SliceWeights&) override { return false; }
  bool MayPull(const PullTerms&, const SliceWeights&) const override { return true; }
  void OnPull(uint32_t, const SliceWeights&) override {}
  std::vector<uint32_t> Missing(const PullTerms&) const override { return {}; }
};

}  // namespace

std::unique_ptr<SlicePolicy> MakeAsyncPolicy(const v1::ConsistencyPolicy&, uint32_t) {
  return std::make_unique<AsyncPolicy>();
}

}  // namespace ballast
