// SPDX-License-Identifier: Apache-2.0
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/model/layers/layer_table.h"

namespace ballast {
namespace {

// The first vector of the input, and the dot products of all pairs of its vectors.
class DotInteraction : public Layer {
 public:
  DotInteraction(int64_t dim, int64_t inputs) : dim_(dim), vectors_(inputs / dim) {}

  std::string Describe() const override { return absl::StrCat("dot interaction of ", vectors_, " x ", dim_); }
  ImageShape output() const override { return {1, 1, dim_ + vectors_ * (vectors_ - 1) / 2}; }
  LayerTraits traits() const override { return {}; }
  std::vector<Parameter> Parameters() const override { return {}; }
  std::vector<LayerMemory> Memory() const override { return {}; }

  void Forward(const Pass& pass, Matrix x, Matrix y) const override { pass.device.DotInteraction(dim_, x, y); }

  void Backward(const Pass& pass, Matrix x, Matrix dy, const Matrix* dx) const override {
    if (dx != nullptr) pass.device.DotInteractionBackward(dim_, x, dy, *dx);
  }

 private:
  const int64_t dim_;
  const int64_t vectors_;
};

constexpr int64_t kMaxVectors = 1 << 15;

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> MakeDotInteraction(const LayerSite& site) {
  const int64_t dim = site.config.dot_interaction().dim();
  const int64_t inputs = site.input.elements();
  if (dim < 1 || dim > 4096) return LayerError(site.name, "dim is ", dim, ", want 1 to 4096");
  if (inputs == 0 || inputs % dim != 0) {
    return LayerError(site.name, "gets ", inputs, " inputs, want a multiple of its dim, ", dim,
                      ": vectors of that length");
  }
  if (inputs / dim > kMaxVectors) {
    return LayerError(site.name, "gets ", inputs / dim, " vectors, want at most ", kMaxVectors);
  }
  return std::make_unique<DotInteraction>(dim, inputs);
}

}  // namespace ballast
