// SPDX-License-Identifier: Apache-2.0
#include "worker/model/losses/loss_table.h"

#include "absl/status/status.h"

namespace ballast {

absl::StatusOr<std::unique_ptr<Loss>> MakeLoss(const v1::Loss& config, const LossSite& site) {
  switch (config.kind_case()) {
    case v1::Loss::kSoftmaxCrossEntropy:
      return MakeSoftmaxCrossEntropy(site);
    case v1::Loss::kMeanSquaredError:
      return MakeMeanSquaredError(site);
    case v1::Loss::KIND_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(
      "model: its loss is not set, want one of softmax_cross_entropy, mean_squared_error");
}

}  // namespace ballast
