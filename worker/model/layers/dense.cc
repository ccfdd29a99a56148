// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/model/layers/layer_table.h"

namespace ballast {
namespace {

constexpr int64_t kMaxUnits = 1048576;
constexpr int64_t kMaxWeights = int64_t{1} << 40;

// y = x W^T + b. W is [units, inputs].
class Dense : public Layer {
 public:
  explicit Dense(const LayerSite& site) : config_(site.config.dense()), name_(site.name), inputs_(site.inputs) {}

  std::string Describe() const override { return absl::StrCat("dense ", config_.units()); }

  int64_t outputs() const override { return config_.units(); }

  std::vector<Parameter> Parameters() const override {
    Parameter weight{name_ + "/weight", {outputs(), inputs_}, config_.initializer(), outputs() * inputs_};
    if (weight.initializer.kind_case() == v1::Initializer::KIND_NOT_SET) {
      weight.initializer.mutable_he_normal();
    }
    std::vector<Parameter> parameters = {std::move(weight)};
    if (!config_.no_bias()) {
      Parameter bias{name_ + "/bias", {outputs()}, {}, outputs()};
      bias.initializer.mutable_zeros();
      parameters.push_back(std::move(bias));
    }
    return parameters;
  }

  void Forward(const Pass& pass, Matrix x, Matrix y) const override {
    pass.device.Multiply({x}, {Weight(pass.parameters[0].value), true}, 1.0f, 0.0f, y);
    if (!config_.no_bias()) pass.device.AddBias(*pass.parameters[1].value, y);
  }

  void Backward(const Pass& pass, Matrix x, Matrix dy, const Matrix* dx) const override {
    pass.device.Multiply({dy, true}, {x}, 1.0f, 0.0f, Weight(pass.parameters[0].gradient));
    if (!config_.no_bias()) pass.device.SumRows(dy, *pass.parameters[1].gradient);
    if (dx != nullptr) {
      pass.device.Multiply({dy}, {Weight(pass.parameters[0].value)}, 1.0f, 0.0f, *dx);
    }
  }

 private:
  Matrix Weight(const std::unique_ptr<Buffer>& buffer) const { return {buffer.get(), outputs(), inputs_}; }

  const v1::Dense config_;
  const std::string name_;
  const int64_t inputs_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> MakeDense(const LayerSite& site) {
  const v1::Dense& config = site.config.dense();
  if (config.units() < 1 || config.units() > kMaxUnits) {
    return absl::InvalidArgumentError(
        absl::StrCat("layer \"", site.name, "\": units is ", config.units(), ", want 1 to ", kMaxUnits));
  }
  if (config.inputs() != 0 && config.inputs() != site.inputs) {
    return absl::InvalidArgumentError(absl::StrCat("layer \"", site.name, "\": gets ", site.inputs, " inputs, want ",
                                                   config.inputs(), " (its field `inputs`)"));
  }
  if (site.inputs > kMaxWeights / config.units()) {
    return absl::InvalidArgumentError(absl::StrCat("layer \"", site.name, "\": ", config.units(), " units of ",
                                                   site.inputs, " inputs each, want at most ", kMaxWeights,
                                                   " weights"));
  }
  return std::make_unique<Dense>(site);
}

}  // namespace ballast
