// SPDX-License-Identifier: Apache-2.0
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/model/layers/layer_table.h"

namespace ballast {
namespace {

// In training, zeroes random elements and scales the rest, so that the expectation stays; otherwise the identity.
class Dropout : public Layer {
 public:
  Dropout(float rate, const ImageShape& shape) : rate_(rate), shape_(shape) {}

  std::string Describe() const override { return absl::StrCat("dropout ", rate_); }
  ImageShape output() const override { return shape_; }
  LayerTraits traits() const override { return {.in_place = true}; }
  std::vector<Parameter> Parameters() const override { return {}; }
  std::vector<LayerMemory> Memory() const override { return {}; }

  void Forward(const Pass& pass, Matrix x, Matrix y) const override {
    pass.device.Dropout(pass.training ? rate_ : 0.0f, pass.dropout, x, y);
  }

  void Backward(const Pass& pass, Matrix, Matrix dy, const Matrix* dx) const override {
    // The same key gives the same mask as in Forward.
    if (dx != nullptr) pass.device.Dropout(rate_, pass.dropout, dy, *dx);
  }

 private:
  const float rate_;
  const ImageShape shape_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> MakeDropout(const LayerSite& site) {
  const float rate = site.config.dropout().rate();
  // The comparison in this form also rejects NaN.
  if (!(rate >= 0.0f && rate < 1.0f)) {
    return LayerError(site.name, "rate is ", rate, ", want at least 0 and less than 1");
  }
  return std::make_unique<Dropout>(rate, site.input);
}

}  // namespace ballast
