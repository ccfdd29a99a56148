// SPDX-License-Identifier: Apache-2.0
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/model/layers/layer_table.h"

namespace ballast {
namespace {

// As v1.BatchNorm says. Its memory: running mean and variance, then what forward saves for backward, then what stands
// in for the running ones when forward is computed again.
class BatchNorm : public Layer {
 public:
  BatchNorm(const LayerSite& site, const BatchNormRates& rates) : name_(site.name), shape_(site.input), rates_(rates) {}

  std::string Describe() const override { return "batch_norm"; }
  ImageShape output() const override { return shape_; }
  LayerTraits traits() const override { return {}; }

  std::vector<Parameter> Parameters() const override {
    Parameter scale{name_ + "/scale", {shape_.channels}, {}, shape_.channels};
    scale.initializer.mutable_constant()->set_value(1.0f);
    Parameter offset{name_ + "/offset", {shape_.channels}, {}, shape_.channels};
    offset.initializer.mutable_zeros();
    return {scale, offset};
  }

  std::vector<LayerMemory> Memory() const override {
    const int64_t channels = shape_.channels;
    return {{channels, 0.0f}, {channels, 1.0f}, {channels, 0.0f}, {channels, 0.0f}, {channels, 0.0f}, {channels, 0.0f}};
  }

  void Forward(const Pass& pass, Matrix x, Matrix y) const override {
    const Affine affine{*pass.parameters[0].value, *pass.parameters[1].value};
    const ColumnStatistics running{*pass.memory[pass.again ? 4 : 0], *pass.memory[pass.again ? 5 : 1]};
    if (pass.training) {
      pass.device.BatchNorm(rates_, Pixels(x), affine, {*pass.memory[2], *pass.memory[3]}, running, Pixels(y));
    } else {
      pass.device.BatchNormInference(rates_.epsilon, Pixels(x), affine, running, Pixels(y));
    }
  }

  void Backward(const Pass& pass, Matrix x, Matrix dy, const Matrix* dx) const override {
    const Affine affine{*pass.parameters[0].value, *pass.parameters[1].value};
    const AffineGradient gradient{*pass.parameters[0].gradient, *pass.parameters[1].gradient};
    const Matrix input_gradient = dx == nullptr ? Matrix() : Pixels(*dx);
    pass.device.BatchNormBackward(Pixels(x), Pixels(dy), affine, {*pass.memory[2], *pass.memory[3]}, gradient,
                                  dx == nullptr ? nullptr : &input_gradient);
  }

 private:
  // [examples, elements] as [examples * pixels, channels].
  Matrix Pixels(const Matrix& m) const { return {m.buffer, m.rows * shape_.pixels(), shape_.channels}; }

  const std::string name_;
  const ImageShape shape_;
  const BatchNormRates rates_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> MakeBatchNorm(const LayerSite& site) {
  const v1::BatchNorm& config = site.config.batch_norm();
  BatchNormRates rates;
  if (config.epsilon() != 0) rates.epsilon = config.epsilon();
  if (config.momentum() != 0) rates.momentum = config.momentum();
  // In this form they refuse NaN, too.
  if (!(rates.epsilon > 0 && rates.epsilon <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("layer \"", site.name, "\": epsilon is ", rates.epsilon, ", want above 0 and at most 1"));
  }
  if (!(rates.momentum > 0 && rates.momentum <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("layer \"", site.name, "\": momentum is ", rates.momentum, ", want above 0 and at most 1"));
  }
  return std::make_unique<BatchNorm>(site, rates);
}

}  // namespace ballast
