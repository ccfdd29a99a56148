// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ballast/v1/job.pb.h"
#include "worker/model/layers/layer.h"
#include "worker/model/losses/loss.h"

namespace ballast {

// One computation of a model. Values are counted: 0 is the features, i + 1 is what node i gives.
struct ChainNode {
  // Null for the sum that ends a residual: the values `input` + `shortcut`.
  std::unique_ptr<Layer> layer;
  // The value that it is computed from, which an earlier node gives.
  size_t input = 0;
  size_t shortcut = 0;
  int64_t outputs = 0;
  // Unique: the job file's, or "dense1".
  std::string name;
};

// The layers of a model in an order in which they can be computed, each fitting what it is computed from, and the loss
// of the last value. Residuals are taken apart. Knows no device.
struct LayerChain {
  int64_t features = 0;
  // At least one of them has parameters.
  std::vector<ChainNode> nodes;
  std::unique_ptr<Loss> loss;
  // "28x28x1 -> conv2d 32 3x3 -> relu".
  std::string layers;
};

// INVALID_ARGUMENT names the layer, what it got and what it wants.
absl::StatusOr<LayerChain> BuildLayerChain(const v1::Model& model, int64_t features);

// "784 -> dense 512 -> relu -> dense 10 -> softmax cross-entropy, 407,050 parameters".
std::string Describe(const LayerChain& chain);

}  // namespace ballast
