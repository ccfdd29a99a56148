// SPDX-License-Identifier: Apache-2.0
// A layer outside Ballast's tree: SiLU with a slope, y = x * s(beta x) with s(z) = 1 / (1 + exp(-z)) (Ramachandran,
// Zoph and Le, 2017). In the job file: layers { custom { type: "silu" numbers { key: "beta" value: 1.5 } } }
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "worker/model/layers/custom_layer.h"

namespace {

using ballast::Matrix;
using ballast::Pass;

float Sigmoid(float z) { return 1.0f / (1.0f + std::exp(-z)); }

class Silu : public ballast::Layer {
 public:
  Silu(float beta, const ballast::ImageShape& shape) : beta_(beta), shape_(shape) {}

  std::string Describe() const override { return absl::StrCat("silu ", beta_); }
  ballast::ImageShape output() const override { return shape_; }
  // Its loops below read and write host memory. A layer that only calls operations of pass.device runs on GPUs too.
  ballast::LayerTraits traits() const override { return {.on_host = true}; }
  std::vector<ballast::Parameter> Parameters() const override { return {}; }
  std::vector<ballast::LayerMemory> Memory() const override { return {}; }

  void Forward(const Pass&, Matrix x, Matrix y) const override {
    const absl::Span<const float> in = x.buffer->host();
    const absl::Span<float> out = y.buffer->host();
    for (int64_t i = 0; i < x.elements(); ++i) out[i] = in[i] * Sigmoid(beta_ * in[i]);
  }

  // The derivative of x s(beta x) is s + beta x s (1 - s).
  void Backward(const Pass&, Matrix x, Matrix dy, const Matrix* dx) const override {
    if (dx == nullptr) return;
    const absl::Span<const float> in = x.buffer->host(), gradient = dy.buffer->host();
    const absl::Span<float> out = dx->buffer->host();
    for (int64_t i = 0; i < x.elements(); ++i) {
      const float s = Sigmoid(beta_ * in[i]);
      out[i] = gradient[i] * (s + beta_ * in[i] * s * (1 - s));
    }
  }

 private:
  const float beta_;
  const ballast::ImageShape shape_;
};

absl::StatusOr<std::unique_ptr<ballast::Layer>> MakeSilu(const ballast::LayerSite& site,
                                                         ballast::CustomNumbers& numbers) {
  const double beta = numbers.Read("beta").value_or(1);
  if (std::abs(beta) > 100) return ballast::LayerError(site.name, "beta is ", beta, ", want -100 to 100");
  return std::make_unique<Silu>(static_cast<float>(beta), site.input);
}

const ballast::CustomLayerType kSilu("silu", MakeSilu);

}  // namespace
