// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ballast/v1/job.pb.h"
#include "worker/model/layers/layer.h"
#include "worker/model/losses/loss.h"

namespace ballast {

// The layers of a model in order, each fitting the one before it, and the loss that ends them. Knows no device.
struct LayerChain {
  int64_t features = 0;
  // At least one of them has parameters.
  std::vector<std::unique_ptr<Layer>> layers;
  std::unique_ptr<Loss> loss;
};

// INVALID_ARGUMENT names the layer, what it got and what it wants.
absl::StatusOr<LayerChain> BuildLayerChain(const v1::Model& model, int64_t features);

// "784 -> dense 512 -> relu -> dense 10 -> softmax cross-entropy, 407,050 parameters".
std::string Describe(const LayerChain& chain);

}  // namespace ballast
