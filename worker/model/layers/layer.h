// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "worker/device/device.h"
#include "worker/model/parameter.h"

namespace ballast {

// What a layer computes one batch with.
struct Pass {
  Device& device;
  // The layer's own, in the order of its Parameters().
  absl::Span<const ParameterMemory> parameters;
  bool training = false;
  DropoutKey dropout;
};

// The arithmetic of one layer, from a batch [examples, inputs] to [examples, outputs]. It owns no device memory and
// knows neither its neighbours nor the loss. Thread safety: immutable.
class Layer {
 public:
  virtual ~Layer() = default;

  // For people: "dense 512".
  virtual std::string Describe() const = 0;
  virtual int64_t outputs() const = 0;
  virtual std::vector<Parameter> Parameters() const = 0;
  virtual void Forward(const Pass& pass, Matrix x, Matrix y) const = 0;
  // Writes the parameters' gradients and, where dx is not null, the input's, from the output's. x is what the same pass
  // took forward. dx does not overlap dy.
  virtual void Backward(const Pass& pass, Matrix x, Matrix dy, const Matrix* dx) const = 0;
};

}  // namespace ballast
