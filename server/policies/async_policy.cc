// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "server/policies/slice_policy.h"

namespace ballast {
namespace {

// Applies a gradient on arrival; no pull waits. For delay compensation, keeps each worker's last pulled values.
class AsyncPolicy : public SlicePolicy {
 public:
  AsyncPolicy(const v1::ConsistencyPolicy::Async& config, uint32_t workers)
      : scale_by_staleness_(config.scale_by_staleness()), lambda_(config.delay_compensation()) {
    if (lambda_ > 0) handed_out_.resize(workers);
  }

  absl::Status CheckStep(uint64_t, const SliceWeights&) const override { return absl::OkStatus(); }

  PushDisposition Offer(const PushTicket& push, uint64_t from_version, const Gradient& gradient,
                        SliceWeights& weights) override {
    weights.Reach(push.schedule_position);
    if (push.examples == 0) return PushDisposition::kApplied;
    SliceWeights::ApplyOptions options;
    if (scale_by_staleness_) options.rate_scale = RateScale(StalenessOf(from_version, weights));
    if (WantsCompensation(push.worker, weights)) {
      weights.Apply(Compensate(push.worker, gradient, weights), options);
    } else {
      weights.Apply(gradient, options);
    }
    return PushDisposition::kApplied;
  }

  bool Pause(uint32_t, SliceWeights&) override { return false; }
  void CatchUp(uint32_t, uint64_t version, uint64_t, SliceWeights& weights) override { weights.SkipTo(version); }
  bool MayPull(const PullQuery&, const SliceWeights&) const override { return true; }

  void OnPull(uint32_t worker, const SliceWeights& weights) override {
    if (worker >= handed_out_.size()) return;
    ValueBuffer& handed_out = handed_out_[worker];
    handed_out_elements_ -= handed_out.size();
    handed_out = weights.ShareValues();
    handed_out_elements_ += handed_out.size();
  }

  std::vector<uint32_t> Missing(const PullQuery&) const override { return {}; }

  // At most: workers that pulled the same values share their memory.
  uint64_t Bytes() const override { return handed_out_elements_ * sizeof(float); }

  PolicyState Save() const override { return {}; }
  absl::Status Restore(PolicyState, const SliceWeights&) override { return absl::OkStatus(); }

 private:
  // The compensation is zero if the worker has the newest values.
  bool WantsCompensation(uint32_t worker, const SliceWeights& weights) const {
    return worker < handed_out_.size() && handed_out_[worker].size() > 0 &&
           handed_out_[worker].values().data() != weights.values().data();
  }

  // g + lambda * g * g * (w - w_then) (DC-ASGD: Zheng et al., 2017, eq. 10). Valid until this thread's next call.
  Gradient Compensate(uint32_t worker, const Gradient& gradient, const SliceWeights& weights) const {
    // Per thread, because a buffer per slice would double the memory of the weights.
    static thread_local std::vector<float> compensated;
    compensated.resize(gradient.size());
    const float* now = weights.values().data();
    const float* then = handed_out_[worker].values().data();
    gradient.ForEachBlock([&](size_t first, absl::Span<const float> block) {
      for (size_t i = 0; i < block.size(); ++i) {
        const float g = block[i];
        compensated[first + i] = g + lambda_ * g * g * (now[first + i] - then[first + i]);
      }
    });
    return Gradient(absl::MakeConstSpan(compensated));
  }

  const bool scale_by_staleness_;
  const float lambda_;
  // By rank; empty without delay compensation.
  std::vector<ValueBuffer> handed_out_;
  uint64_t handed_out_elements_ = 0;
};

}  // namespace

std::unique_ptr<SlicePolicy> MakeAsyncPolicy(const v1::ConsistencyPolicy& config, uint32_t workers) {
  return std::make_unique<AsyncPolicy>(config.async(), workers);
}

}  // namespace ballast
