// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ballast/v1/job.pb.h"
#include "worker/model/layers/layer.h"
#include "worker/model/losses/loss.h"

namespace ballast {

// One computation of a model. Values are counted: 0 is the features, i + 1 is what node i gives.
struct ChainNode {
  // Null for the sum that ends a residual, the values `input` + `shortcut`, and for a copy of `input` to another
  // device.
  std::unique_ptr<Layer> layer;
  // The value that it is computed from, which an earlier node gives.
  size_t input = 0;
  size_t shortcut = 0;
  int64_t outputs = 0;
  // Unique: the job file's, or "dense1"; of a copy, "dense1 input".
  std::string name;
  // Where it is computed, as index of the worker's devices; `input` and `shortcut` are there, too, but for a copy.
  size_t device = 0;
  bool carries = false;
  // The job file wants its value computed again rather than kept.
  bool recompute = false;

  bool sums() const { return layer == nullptr && !carries; }
};

// The layers of a model in an order in which they can be computed, each fitting what it is computed from, and the loss
// of the last value. Residuals are taken apart. Knows no device.
struct LayerChain {
  int64_t features = 0;
  size_t features_device = 0;
  // At least one of them has parameters.
  std::vector<ChainNode> nodes;
  std::unique_ptr<Loss> loss;
  // "28x28x1 -> conv2d 32 3x3 -> relu".
  std::string layers;
};

// `devices` are the names of those that layers may ask for, the worker's own first; one without a name where there are
// none. INVALID_ARGUMENT names the layer, what it got and what it wants.
absl::StatusOr<LayerChain> BuildLayerChain(const v1::Model& model, int64_t features,
                                           absl::Span<const std::string> devices = {});

// "784 -> dense 512 -> relu -> dense 10 -> softmax cross-entropy, 407,050 parameters".
std::string Describe(const LayerChain& chain);

}  // namespace ballast
