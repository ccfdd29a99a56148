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
  ActivationLayer(Activation function, std::string description, const ImageShape& shape)
      : function_(function), description_(std::move(description)), shape_(shape) {}

  std::string Describe() const override { return description_; }
  ImageShape output() const override { return shape_; }
  // Only ReLU has the same derivative as a function of its output as of its input.
  LayerTraits traits() const override { return {.in_place = function_ == Activation::kRelu, .activation = function_}; }
  std::vector<Parameter> Parameters() const override { return {}; }
  std::vector<LayerMemory> Memory() const override { return {}; }

  void Forward(const Pass& pass, Matrix x, Matrix y) const override { pass.device.Activate(function_, x, y); }

  void Backward(const Pass& pass, Matrix x, Matrix dy, const Matrix* dx) const override {
    if (dx != nullptr) pass.device.ActivateBackward(function_, x, dy, *dx);
  }

 private:
  const Activation function_;
  const std::string description_;
  const ImageShape shape_;
};

}  // namespace ballast
