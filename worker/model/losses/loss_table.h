// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "ballast/v1/job.pb.h"
#include "worker/model/losses/loss.h"

namespace ballast {

// The last layer of a model, whose output is the input of the loss.
struct LossSite {
  std::string layer;
  int64_t outputs = 0;
};

// INVALID_ARGUMENT if the kind is not set, or does not fit the last layer, which the message names.
absl::StatusOr<std::unique_ptr<Loss>> MakeLoss(const v1::Loss& config, const LossSite& site);

}  // namespace ballast
