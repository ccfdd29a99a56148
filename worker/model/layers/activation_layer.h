// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "worker/model/layers/layer.h"

namespace ballast {

// A layer that applies one function to each element.
class ActivationLayer : public Layer {
 public:
  ActivationLayer(Activation function, std::string description, int64_t width)
      : function_(function), description_(std::move(description)), width_(width) {}

  std::string Describe() const override { return description_; }
  int64_t outputs() const override { return width_; }
  std::vector<Parameter> Parameters() const override { return {}; }

  void Forward(const Pass& pass, Matrix x, Matrix y) const override { pass.device.Activate(function_, x, y); }

  void Backward(const Pass& pass, Matrix x, Matrix dy, const Matrix* dx) const override {
    if (dx != nullptr) pass.device.ActivateBackward(function_, x, dy, *dx);
  }

 private:
  const Activation function_;
  const std::string description_;
  const int64_t width_;
};

}  // namespace ballast
