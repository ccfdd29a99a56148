// SPDX-License-Identifier: Apache-2.0
#include "absl/status/status.h"
#include "worker/model/layers/layer_fields.h"
#include "worker/model/layers/layer_table.h"

namespace ballast {
namespace {

// The layer that v1.LayerNorm specifies.
class LayerNorm : public Layer {
 public:
  LayerNorm(const LayerSite& site, float epsilon) : name_(site.name), shape_(site.input), epsilon_(epsilon) {}

  std::string Describe() const override { return "layer_norm"; }
  ImageShape output() const override { return shape_; }
  LayerTraits traits() const override { return {}; }

  std::vector<Parameter> Parameters() const override { return AffineParameters(name_, shape_.channels); }

  std::vector<LayerMemory> Memory() const override { return {}; }

  void Forward(const Pass& pass, Matrix x, Matrix y) const override {
    pass.device.LayerNorm(epsilon_, PixelRows(x, shape_), {*pass.parameters[0].value, *pass.parameters[1].value},
                          PixelRows(y, shape_));
  }

  void Backward(const Pass& pass, Matrix x, Matrix dy, const Matrix* dx) const override {
    const Affine affine{*pass.parameters[0].value, *pass.parameters[1].value};
    const AffineGradient gradient{*pass.parameters[0].gradient, *pass.parameters[1].gradient};
    const Matrix input_gradient = dx == nullptr ? Matrix() : PixelRows(*dx, shape_);
    pass.device.LayerNormBackward(epsilon_, PixelRows(x, shape_), PixelRows(dy, shape_), affine, gradient,
                                  dx == nullptr ? nullptr : &input_gradient);
  }

 private:
  const std::string name_;
  const ImageShape shape_;
  const float epsilon_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> MakeLayerNorm(const LayerSite& site) {
  const float given = site.config.layer_norm().epsilon();
  const float epsilon = given == 0 ? 1e-5f : given;
  if (absl::Status status = CheckEpsilon(site.name, epsilon); !status.ok()) return status;
  return std::make_unique<LayerNorm>(site, epsilon);
}

}  // namespace ballast
