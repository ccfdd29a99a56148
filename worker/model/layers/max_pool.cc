// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "worker/model/layers/layer_fields.h"
#include "worker/model/layers/layer_table.h"

namespace ballast {
namespace {

// The maximum over each window; see v1.Pool. Its memory holds the positions of the maxima, which forward keeps for
// backward.
class MaxPool : public Layer {
 public:
  explicit MaxPool(const PoolShape& shape) : shape_(shape) {}

  std::string Describe() const override { return absl::StrCat("max_pool ", KernelText(shape_.window)); }
  ImageShape output() const override { return shape_.output(); }
  LayerTraits traits() const override { return {}; }
  std::vector<Parameter> Parameters() const override { return {}; }
  std::vector<LayerMemory> Memory() const override {
    return {{.elements = shape_.position_floats(), .per_example = true}};
  }

  void Forward(const Pass& pass, Matrix x, Matrix y) const override {
    pass.device.MaxPool(shape_, x, pass.training ? pass.memory[0].get() : nullptr, y);
  }

  void Backward(const Pass& pass, Matrix, Matrix dy, const Matrix* dx) const override {
    if (dx != nullptr) pass.device.MaxPoolBackward(shape_, *pass.memory[0], dy, *dx);
  }

 private:
  const PoolShape shape_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> MakeMaxPool(const LayerSite& site) {
  const v1::Pool& config = site.config.max_pool();
  const absl::StatusOr<Window> window = ReadWindow(site, {config.kernel(), config.stride(), config.padding()},
                                                   {site.input.height, site.input.width, 0, 0});
  if (!window.ok()) return window.status();
  return std::make_unique<MaxPool>(PoolShape{site.input, *window});
}

}  // namespace ballast
