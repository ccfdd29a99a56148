// SPDX-License-Identifier: Apache-2.0
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/model/layers/layer_fields.h"
#include "worker/model/layers/layer_table.h"

namespace ballast {
namespace {

constexpr int64_t kMaxFilters = 1048576;
constexpr int64_t kMaxWeights = int64_t{1} << 40;

// The layer that v1.Conv2d specifies.
class Conv2d : public Layer {
 public:
  Conv2d(const LayerSite& site, const ConvShape& shape)
      : config_(site.config.conv2d()), name_(site.name), shape_(shape) {}

  std::string Describe() const override {
    return absl::StrCat("conv2d ", shape_.filters, " ", KernelText(shape_.window));
  }

  ImageShape output() const override { return shape_.output(); }

  LayerTraits traits() const override { return {.convolution = shape_}; }

  std::vector<Parameter> Parameters() const override {
    const Window& window = shape_.window;
    return WeightAndBias(name_, {shape_.filters, window.height, window.width, shape_.input.channels},
                         config_.initializer(), !config_.no_bias());
  }

  std::vector<LayerMemory> Memory() const override { return {}; }

  void Forward(const Pass& pass, Matrix x, Matrix y) const override {
    const Buffer* const bias = config_.no_bias() ? nullptr : pass.parameters[1].value.get();
    pass.device.Convolve(shape_, x, *pass.parameters[0].value, bias, y);
  }

  void Backward(const Pass& pass, Matrix x, Matrix dy, const Matrix* dx) const override {
    Buffer* const dbias = config_.no_bias() ? nullptr : pass.parameters[1].gradient.get();
    pass.device.ConvolveBackwardFilters(shape_, x, dy, *pass.parameters[0].gradient, dbias);
    if (dx != nullptr) pass.device.ConvolveBackwardData(shape_, dy, *pass.parameters[0].value, *dx);
  }

 private:
  const v1::Conv2d config_;
  const std::string name_;
  const ConvShape shape_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> MakeConv2d(const LayerSite& site) {
  const v1::Conv2d& config = site.config.conv2d();
  if (config.filters() < 1 || config.filters() > kMaxFilters) {
    return LayerError(site.name, "filters is ", config.filters(), ", want 1 to ", kMaxFilters);
  }
  if (config.kernel().empty()) {
    return LayerError(site.name, "kernel is not set, want the size of the window");
  }
  const absl::StatusOr<Window> window =
      ReadWindow(site, {config.kernel(), config.stride(), config.padding()}, Window());
  if (!window.ok()) return window.status();
  const ConvShape shape{site.input, *window, config.filters()};
  // Divides, because the product may overflow an int64.
  const int64_t max_channels = kMaxWeights / (window->height * window->width) / config.filters();
  if (site.input.channels > max_channels) {
    return LayerError(site.name, config.filters(), " filters of ", KernelText(*window), "x", site.input.channels,
                      ", want at most ", kMaxWeights, " weights");
  }
  if (shape.output().pixels() > kMaxImageElements / config.filters()) {
    return LayerError(site.name, "gives ", ToString(shape.output()), ", want at most ", kMaxImageElements, " elements");
  }
  return std::make_unique<Conv2d>(site, shape);
}

}  // namespace ballast
