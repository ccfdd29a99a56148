// SPDX-License-Identifier: Apache-2.0
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/model/layers/layer_fields.h"
#include "worker/model/layers/layer_table.h"

namespace ballast {
namespace {

// The layer that v1.BatchNorm specifies. Its memory: running mean and variance, then those of the batch, which forward
// saves for backward, then a substitute for the running ones when forward is recomputed.
class BatchNorm : public Layer {
 public:
  BatchNorm(const LayerSite& site, const BatchNormRates& rates) : name_(site.name), shape_(site.input), rates_(rates) {}

  std::string Describe() const override { return "batch_norm"; }
  ImageShape output() const override { return shape_; }
  LayerTraits traits() const override { return {}; }

  std::vector<Parameter> Parameters() const override { return AffineParameters(name_, shape_.channels); }

  std::vector<LayerMemory> Memory() const override {
    const int64_t channels = shape_.channels;
    return {{.elements = channels, .name = name_ + "/running_mean"},
            {.elements = channels, .initial = 1.0f, .name = name_ + "/running_variance"},
            {.elements = channels},
            {.elements = channels},
            {.elements = channels},
            {.elements = channels}};
  }

  void Forward(const Pass& pass, Matrix x, Matrix y) const override {
    const Affine affine{*pass.parameters[0].value, *pass.parameters[1].value};
    const ColumnStatistics running{*pass.memory[pass.again ? 4 : 0], *pass.memory[pass.again ? 5 : 1]};
    if (pass.training) {
      pass.device.BatchNorm(rates_, PixelRows(x, shape_), affine, {*pass.memory[2], *pass.memory[3]}, running,
                            PixelRows(y, shape_));
    } else {
      pass.device.BatchNormInference(rates_.epsilon, PixelRows(x, shape_), affine, running, PixelRows(y, shape_));
    }
  }

  void Backward(const Pass& pass, Matrix x, Matrix dy, const Matrix* dx) const override {
    const Affine affine{*pass.parameters[0].value, *pass.parameters[1].value};
    const AffineGradient gradient{*pass.parameters[0].gradient, *pass.parameters[1].gradient};
    const Matrix input_gradient = dx == nullptr ? Matrix() : PixelRows(*dx, shape_);
    pass.device.BatchNormBackward(PixelRows(x, shape_), PixelRows(dy, shape_), affine,
                                  {*pass.memory[2], *pass.memory[3]}, gradient,
                                  dx == nullptr ? nullptr : &input_gradient);
  }

 private:
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
  if (absl::Status status = CheckEpsilon(site.name, rates.epsilon); !status.ok()) return status;
  // The comparison in this form also rejects NaN.
  if (!(rates.momentum > 0 && rates.momentum <= 1)) {
    return LayerError(site.name, "momentum is ", rates.momentum, ", want above 0 and at most 1");
  }
  return std::make_unique<BatchNorm>(site, rates);
}

}  // namespace ballast
