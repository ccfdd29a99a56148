// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "worker/device/device.h"
#include "worker/model/layers/parameter.h"

namespace ballast {

// What a layer computes one batch with.
struct Pass {
  Device& device;
  // The layer's own, in the order of its Parameters().
  absl::Span<const ParameterMemory> parameters;
  // The layer's own, in the order of its Memory().
  absl::Span<const std::unique_ptr<Buffer>> memory;
  bool training = false;
  // Forward is for the same batch once more: what lasts beyond the batch is not to change again.
  bool again = false;
  DropoutKey dropout;
  // What is to be applied to y, too; only given where traits().fuses_activation.
  std::optional<Activation> activation;
};

// Memory of the device that a layer keeps from batch to batch, or from forward to backward.
struct LayerMemory {
  int64_t elements = 0;
  // Of each element when the model is made.
  float initial = 0;
  // As a tensor of the model that is saved, for it was learnt; empty: not to be saved.
  std::string name = {};
};

// What a model may make use of when it joins layers.
struct LayerTraits {
  // Forward may write y over x. Backward then gets y for x, and dx may be dy.
  bool in_place = false;
  // Forward takes Pass::activation.
  bool fuses_activation = false;
  // The layer is this function of each element and nothing else.
  std::optional<Activation> activation;
};

// The arithmetic of one layer, from a batch [examples, inputs] to [examples, output().elements()]. It owns no device
// memory and knows neither its neighbours nor the loss. Thread safety: immutable.
class Layer {
 public:
  virtual ~Layer() = default;

  // For people: "dense 512".
  virtual std::string Describe() const = 0;
  // Flat outputs are the channels of one pixel.
  virtual ImageShape output() const = 0;
  virtual LayerTraits traits() const = 0;
  virtual std::vector<Parameter> Parameters() const = 0;
  virtual std::vector<LayerMemory> Memory() const = 0;
  virtual void Forward(const Pass& pass, Matrix x, Matrix y) const = 0;
  // Writes the parameters' gradients and, where dx is not null, the input's, from the output's. x is what the same pass
  // took forward. dx does not overlap dy unless traits().in_place.
  virtual void Backward(const Pass& pass, Matrix x, Matrix dy, const Matrix* dx) const = 0;
};

}  // namespace ballast
