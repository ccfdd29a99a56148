// SPDX-License-Identifier: Apache-2.0
#include "common/job/kind_names.h"
#include "worker/model/layers/layer_table.h"

namespace ballast {
namespace {

// A layer that applies one function to each element.
class ActivationLayer : public Layer {
 public:
  ActivationLayer(Activation function, const LayerSite& site)
      : function_(function), kind_(KindName(site.config)), shape_(site.input) {}

  std::string Describe() const override { return kind_; }
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
  const std::string kind_;
  const ImageShape shape_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> MakeGelu(const LayerSite& site) {
  return std::make_unique<ActivationLayer>(Activation::kGelu, site);
}

absl::StatusOr<std::unique_ptr<Layer>> MakeRelu(const LayerSite& site) {
  return std::make_unique<ActivationLayer>(Activation::kRelu, site);
}

absl::StatusOr<std::unique_ptr<Layer>> MakeTanh(const LayerSite& site) {
  return std::make_unique<ActivationLayer>(Activation::kTanh, site);
}

}  // namespace ballast
