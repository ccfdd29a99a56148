// SPDX-License-Identifier: Apache-2.0
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/model/layers/layer_fields.h"
#include "worker/model/layers/layer_table.h"

namespace ballast {
namespace {

constexpr int64_t kMaxUnits = 1048576;
constexpr int64_t kMaxWeights = int64_t{1} << 40;

// y = x W^T + b. W is [units, inputs].
class Dense : public Layer {
 public:
  explicit Dense(const LayerSite& site)
      : config_(site.config.dense()), name_(site.name), inputs_(site.input.elements()) {}

  std::string Describe() const override { return absl::StrCat("dense ", config_.units()); }

  ImageShape output() const override { return {1, 1, config_.units()}; }

  LayerTraits traits() const override { return {.fuses_activation = !config_.no_bias(), .takes_arriving_rows = true}; }

  std::vector<Parameter> Parameters() const override {
    return WeightAndBias(name_, {units(), inputs_}, config_.initializer(), !config_.no_bias());
  }

  std::vector<LayerMemory> Memory() const override { return {}; }

  void Forward(const Pass& pass, Matrix x, Matrix y) const override {
    const Factor weight{Weight(pass.parameters[0].value), true};
    if (pass.arriving != nullptr) {
      if (pass.device.MultiplyAsRowsCome({x}, weight, *pass.arriving, y)) {
        if (!config_.no_bias()) pass.device.AddBias(*pass.parameters[1].value, y);
        if (pass.activation.has_value()) pass.device.Activate(*pass.activation, y, y);
        return;
      }
      while (pass.arriving->Next().has_value()) {
      }
    }
    if (config_.no_bias()) {
      pass.device.Multiply({x}, weight, 1.0f, 0.0f, y);
    } else {
      pass.device.MultiplyBiasActivate({x}, weight, *pass.parameters[1].value, pass.activation, y);
    }
  }

  void Backward(const Pass& pass, Matrix x, Matrix dy, const Matrix* dx) const override {
    const Matrix gradient = Weight(pass.parameters[0].gradient);
    if (pass.later == nullptr) pass.device.Multiply({dy, true}, {x}, 1.0f, 0.0f, gradient);
    if (!config_.no_bias()) pass.device.SumRows(dy, *pass.parameters[1].gradient);
    if (dx != nullptr) {
      pass.device.Multiply({dy}, {Weight(pass.parameters[0].value)}, 1.0f, 0.0f, *dx);
    }
    if (pass.later == nullptr) return;
    *pass.later = pass.device.MultiplyByRows({dy, true}, {x}, gradient);
    if (*pass.later == nullptr) pass.device.Multiply({dy, true}, {x}, 1.0f, 0.0f, gradient);
  }

 private:
  Matrix Weight(const std::unique_ptr<Buffer>& buffer) const { return {buffer.get(), units(), inputs_}; }
  int64_t units() const { return config_.units(); }

  const v1::Dense config_;
  const std::string name_;
  const int64_t inputs_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> MakeDense(const LayerSite& site) {
  const v1::Dense& config = site.config.dense();
  const int64_t inputs = site.input.elements();
  if (config.units() < 1 || config.units() > kMaxUnits) {
    return LayerError(site.name, "units is ", config.units(), ", want 1 to ", kMaxUnits);
  }
  if (config.inputs() != 0 && config.inputs() != inputs) {
    return LayerError(site.name, "gets ", inputs, " inputs, want ", config.inputs(), " (its field `inputs`)");
  }
  if (inputs > kMaxWeights / config.units()) {
    return LayerError(site.name, config.units(), " units of ", inputs, " inputs each, want at most ", kMaxWeights,
                      " weights");
  }
  return std::make_unique<Dense>(site);
}

}  // namespace ballast
