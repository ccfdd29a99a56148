// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/model/trainable_model.h"

namespace ballast {

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
