// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/model/trainable_model.h"

namespace ballast {

// Undoes the scaling of a loss, where the devices have its gradients, and finds out whether these were finite: of that
// one float a device leaves it. It decides nothing. Thread safety: none; the thread that trains.
class GradientUnscaler {
 public:
  explicit GradientUnscaler(TrainableModel* model) : model_(*model) {}

  // Issues: the parameter's gradient times `factor`, after a look at it. RESOURCE_EXHAUSTED where a device has not even
  // room for a float.
  absl::Status Unscale(size_t index, float factor);
  // Whether all gradients since the last time were finite. Waits for the devices.
  absl::StatusOr<bool> TakeFinite();

 private:
  TrainableModel& model_;
  // Of each device that has gradients: a float that is not 0 where one was not finite.
  std::map<Device*, std::unique_ptr<Buffer>> flags_;
};

}  // namespace ballast
