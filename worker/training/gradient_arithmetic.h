// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/model/trainable_model.h"

namespace ballast {

// Computes what a worker pushes for one tensor after several batches: the mean of their gradients, or under local SGD
// the change that its local steps made. Memory grows to one copy of the tensor for each of the two that is used.
// Thread safety: none; one thread at a time.
class GradientAccumulator {
 public:
  // Adds the gradient of a batch, which is the mean over `examples` (at least 1).
  void Add(absl::Span<const float> gradient, uint32_t examples);

  // Returns the mean over all examples since the last call, or empty if there were none. Valid until the next Add.
  absl::Span<const float> TakeMean();

  // Makes one step of plain SGD on the worker's own copy: weights -= learning_rate * TakeMean().
  void Step(float learning_rate, absl::Span<float> weights);

  // Returns the amount that Step has subtracted from the weights since the last call, or empty if there was no step.
  // Valid until the next Step.
  absl::Span<const float> TakeChange(absl::Span<const float> weights);

 private:
  // Sum of the gradients, each times its number of examples; after TakeMean, their mean.
  std::vector<float> sum_;
  uint64_t examples_ = 0;
  // The weights before the first step; after TakeChange, their change.
  std::vector<float> before_;
  bool stepped_ = false;
};

// Owns the factor that multiplies the loss so that small gradients do not underflow in fp16. The factor is halved after
// an overflow and doubled after 2000 batches without one: Micikevicius et al., "Mixed precision training", 2018, with
// the constants of NVIDIA's guide and PyTorch's GradScaler. It is a power of two, so dividing by it is exact.
// Thread safety: none.
class LossScaler {
 public:
  static constexpr float kFirst = 65536.0f;
  static constexpr uint32_t kGrowthInterval = 2000;
  // 2^-14 and 2^24. Gradients that overflow at the smallest scale show that training has diverged.
  static constexpr float kMin = 1.0f / 16384;
  static constexpr float kMax = 16777216.0f;

  float scale() const { return scale_; }
  // Call after each batch; `finite` is true if all of its gradients were finite.
  void Update(bool finite);

 private:
  float scale_ = kFirst;
  // Finite batches since the scale changed.
  uint32_t good_ = 0;
};

// Divides gradients by the loss scale on the devices that hold them, and checks that they are finite; only one float
// per device comes back to the host. Thread safety: none; the training thread calls it.
class GradientUnscaler {
 public:
  explicit GradientUnscaler(TrainableModel* model) : model_(*model) {}

  // Issues the check of the parameter's gradient and then its multiplication by `factor`. RESOURCE_EXHAUSTED if the
  // device has no memory for one float.
  absl::Status Unscale(size_t index, float factor);
  // Returns whether all gradients since the last call were finite. Waits for the devices.
  absl::StatusOr<bool> TakeFinite();

 private:
  TrainableModel& model_;
  // One float per device with gradients; it is not 0 if a gradient there was not finite.
  std::map<Device*, std::unique_ptr<Buffer>> flags_;
};

}  // namespace ballast
