// SPDX-License-Identifier: Apache-2.0
#include "server/weights/initializer.h"

#include <cmath>
#include <numbers>

#include "common/tables/value_stream.h"

namespace ballast {
namespace {

// Uniform in [0, 1), 53 bits.
double Uniform(uint64_t bits) { return (bits >> 11) * 0x1p-53; }

// Box and Muller, 1958. Uses two draws per element.
double Normal(uint64_t stream, uint64_t index) {
  const double u = 1.0 - Uniform(SplitMix64(stream + 2 * index));
  const double v = Uniform(SplitMix64(stream + 2 * index + 1));
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
}

void FillNormal(uint64_t stream, uint64_t offset, double mean, double stddev, absl::Span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) out[i] = mean + stddev * Normal(stream, offset + i);
}

void FillUniform(uint64_t stream, uint64_t offset, double low, double high, absl::Span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) out[i] = low + (high - low) * Uniform(SplitMix64(stream + 2 * (offset + i)));
}

}  // namespace

void Initialize(const v1::TensorSpec& spec, uint64_t offset, absl::Span<float> out) {
  const uint64_t stream = StreamOf(spec.seed(), spec.name());
  // Each weight of a convolution filter is used with every pixel of its window.
  double between = 1;
  for (int i = 1; i + 1 < spec.shape_size(); ++i) between *= spec.shape(i);
  const double fan_in = between * spec.shape(spec.shape_size() - 1);
  const double fan_out = between * spec.shape(0);
  const v1::Initializer& initializer = spec.initializer();
  switch (initializer.kind_case()) {
    case v1::Initializer::kConstant:
      std::fill(out.begin(), out.end(), initializer.constant().value());
      return;
    case v1::Initializer::kUniform:
      return FillUniform(stream, offset, initializer.uniform().low(), initializer.uniform().high(), out);
    case v1::Initializer::kNormal:
      return FillNormal(stream, offset, initializer.normal().mean(), initializer.normal().stddev(), out);
    case v1::Initializer::kHeNormal:
      return FillNormal(stream, offset, 0.0, std::sqrt(2.0 / fan_in), out);
    case v1::Initializer::kGlorotUniform: {
      const double limit = std::sqrt(6.0 / (fan_in + fan_out));
      return FillUniform(stream, offset, -limit, limit, out);
    }
    // The first values of a provided tensor are never visible.
    case v1::Initializer::kProvided:
    case v1::Initializer::kZeros:
    case v1::Initializer::KIND_NOT_SET:
      std::fill(out.begin(), out.end(), 0.0f);
      return;
  }
}

}  // namespace ballast
