// SPDX-License-Identifier: Apache-2.0
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/model/layers/layer_table.h"

namespace ballast {
namespace {

// As v1.LayerNorm says.
class LayerNorm : public Layer {
 public:
  LayerNorm(const LayerSite& site, float epsilon) : name_(site.name), shape_(site.input), epsilon_(epsilon) {}

  std::string Describe() const override { return "layer_norm"; }
  ImageShape output() const override { return shape_; }
  LayerTraits traits() const override { return {}; }

  std::vector<Parameter> Parameters() const override {
    Parameter scale{name_ + "/scale", {shape_.channels}, {}, shape_.channels};
    scale.initializer.mutable_constant()->set_value(1.0f);
    Parameter offset{name_ + "/offset", {shape_.channels}, {}, shape_.channels};
    offset.initializer.mutable_zeros();
    return {scale, offset};
  }

  std::vector<LayerMemory> Memory() const override { return {}; }

  void Forward(const Pass& pass, Matrix x, Matrix y) const override {
    pass.device.LayerNorm(epsilon_, Pixels(x), {*pass.parameters[0].value, *pass.parameters[1].value}, Pixels(y));
  }

  void Backward(const Pass& pass, Matrix x, Matrix dy, const Matrix* dx) const override {
    const Affine affine{*pass.parameters[0].value, *pass.parameters[1].value};
    const AffineGradient gradient{*pass.parameters[0].gradient, *pass.parameters[1].gradient};
    const Matrix input_gradient = dx == nullptr ? Matrix() : Pixels(*dx);
    pass.device.LayerNormBackward(epsilon_, Pixels(x), Pixels(dy), affine, gradient,
                                  dx == nullptr ? nullptr : &input_gradient);
  }

 private:
  // [examples, elements] as [examples * pixels, channels].
  Matrix Pixels(const Matrix& m) const { return {m.buffer, m.rows * shape_.pixels(), shape_.channels}; }

  const std::string name_;
  const ImageShape shape_;
  const float epsilon_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> MakeLayerNorm(const LayerSite& site) {
  const float given = site.config.layer_norm().epsilon();
  const float epsilon = given == 0 ? 1e-5f : given;
  // In this form it refuses NaN, too.
  if (!(epsilon > 0 && epsilon <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("layer \"", site.name, "\": epsilon is ", epsilon, ", want above 0 and at most 1"));
  }
  return std::make_unique<LayerNorm>(site, epsilon);
}

}  // namespace ballast
