// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ballast/v1/job.pb.h"
#include "worker/model/layers/layer.h"
#include "worker/model/losses/loss.h"

namespace ballast {

// One computation of a model. Values are numbered: 0 is the features, i + 1 is the output of node i.
struct ChainNode {
  // Null for the sum `input` + `shortcut` that ends a residual, and for a copy of `input` to another device.
  std::unique_ptr<Layer> layer;
  // The value from which the node is computed; an earlier node computes it.
  size_t input = 0;
  size_t shortcut = 0;
  int64_t outputs = 0;
  // Unique name: from the job file, or like "dense1"; a copy is called "dense1 input".
  std::string name;
  // Index among the worker's devices. `input` and `shortcut` are on the same device, except for a copy.
  size_t device = 0;
  bool carries = false;
  // True if the job file asks to recompute the value in backward instead of keeping it.
  bool recompute = false;
  // True if the layer's parameters keep their values in training.
  bool frozen = false;
  // Index in LayerChain::tables, if the layer looks up rows of a table.
  std::optional<size_t> table;

  bool sums() const { return layer == nullptr && !carries; }
  // Returns whether training changes parameters of the layer, which does not count rows of tables.
  bool trains() const { return layer != nullptr && !frozen && !layer->Parameters().empty(); }
};

// Owns the layers of a model in an order in which they can be computed, and the loss of the last value. The shapes of
// all layers fit their inputs, and residuals are split into their nodes. Knows devices only by index.
struct LayerChain {
  int64_t features = 0;
  size_t features_device = 0;
  // At least one node trains.
  std::vector<ChainNode> nodes;
  std::unique_ptr<Loss> loss;
  // In the order of v1.Model.tables; each belongs to one node.
  std::vector<TableUse> tables;
  // Text like "28x28x1 -> conv2d 32 3x3 -> relu".
  std::string layers;

  // Number of elements, and device index, of a value.
  int64_t ElementsOf(size_t value) const { return value == 0 ? features : nodes[value - 1].outputs; }
  size_t DeviceOf(size_t value) const { return value == 0 ? features_device : nodes[value - 1].device; }
};

// The parts of a job, besides its model, that determine the chain.
struct ChainInputs {
  // Names of the data's fields of ids; without any, the data must have features.
  std::vector<std::string> id_fields;
  // Names of the worker's devices, of which layers without a device use the first; empty for a single device without a
  // name.
  std::vector<std::string> devices;
  // Names of layers that do not train; a residual stands for all layers inside it.
  std::vector<std::string> freeze;
};

// INVALID_ARGUMENT names the layer, what it got and what it wants.
absl::StatusOr<LayerChain> BuildLayerChain(v1::Model model, int64_t features, const ChainInputs& inputs = {});

// Returns text like "784 -> dense 512 -> relu -> dense 10 -> softmax cross-entropy, 407,050 parameters".
std::string Describe(const LayerChain& chain);

}  // namespace ballast
