// SPDX-License-Identifier: Apache-2.0
#include "common/tables/row_initializer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>

#include "absl/base/attributes.h"
#include "common/job/job_config.h"
#include "common/simd/instruction_set.h"
#include "common/tables/value_stream.h"

namespace ballast {
namespace {

// The random number of element e is SplitMix64(row + e), with row = SplitMix64(stream ^ id). Its high half is the first
// draw, its low half the second. Both are taken as signed, because vectors convert signed numbers.
uint64_t RowStream(uint64_t stream, uint64_t id) { return SplitMix64(stream ^ id); }
ABSL_ATTRIBUTE_ALWAYS_INLINE inline double High(uint64_t bits) { return static_cast<int32_t>(bits >> 32); }
ABSL_ATTRIBUTE_ALWAYS_INLINE inline double Low(uint64_t bits) { return static_cast<int32_t>(bits); }

// Uniform over [low, high): low + k * (high - low) / 2^32, with k = first draw + 2^31.
struct UniformLoop {
  uint64_t row;
  size_t n;
  double low;
  double scale;
  // The largest float below high.
  float most;
  float* values;

  ABSL_ATTRIBUTE_ALWAYS_INLINE void operator()() const {
    BALLAST_INDEPENDENT_ITERATIONS
    for (size_t i = 0; i < n; ++i) {
      const float value = static_cast<float>(low + (High(SplitMix64(row + i)) + 0x1p31) * scale);
      values[i] = value < most ? value : most;
    }
  }
};

// ln x for x in (0, 1), to 1e-15: with x = m * 2^e, m in [sqrt(1/2), sqrt(2)) and s = (m - 1) / (m + 1), it is
// e * ln 2 + 2 * (s + s^3 / 3 + s^5 / 5 + ...).
ABSL_ATTRIBUTE_ALWAYS_INLINE inline double Log(double x) {
  constexpr uint64_t kRootHalf = std::bit_cast<uint64_t>(std::numbers::sqrt2 / 2);
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  const int32_t e = static_cast<int32_t>((bits - kRootHalf) >> 32) >> 20;
  const double m = std::bit_cast<double>(bits - (static_cast<uint64_t>(e) << 52));
  const double s = (m - 1) / (m + 1);
  const double square = s * s;
  double sum = 0;
  for (int k = 17; k >= 1; k -= 2) sum = sum * square + 1.0 / k;
  return e * std::numbers::ln2 + 2 * s * sum;
}

// sin(pi * x) for x in [-1/2, 1/2], to 1e-13, by its Taylor series.
ABSL_ATTRIBUTE_ALWAYS_INLINE inline double SinPi(double x) {
  const double y = std::numbers::pi * x;
  const double square = y * y;
  double sum = 1;
  for (int k = 18; k >= 2; k -= 2) sum = 1 - sum * square / (k * (k + 1));
  return y * sum;
}

// Box and Muller, 1958: sqrt(-2 ln u) * sin(pi * v), with u = (first draw + 2^31 + 1/2) / 2^32 and
// v = second draw / 2^32. Uses no function of the C library whose last bit may differ between machines.
struct NormalLoop {
  uint64_t row;
  size_t n;
  double mean;
  double stddev;
  float* values;

  ABSL_ATTRIBUTE_ALWAYS_INLINE void operator()() const {
    BALLAST_INDEPENDENT_ITERATIONS
    for (size_t i = 0; i < n; ++i) {
      const uint64_t bits = SplitMix64(row + i);
      const double u = (High(bits) + (0x1p31 + 0.5)) * 0x1p-32;
      const double normal = std::sqrt(-2 * Log(u)) * SinPi(Low(bits) * 0x1p-32);
      values[i] = static_cast<float>(mean + stddev * normal);
    }
  }
};

}  // namespace

absl::StatusOr<RowInitializer> RowInitializer::Make(const v1::Initializer& config, uint64_t seed,
                                                    absl::string_view table) {
  if (absl::Status status = ValidateInitializer(config, v1::PARAMETER_KIND_TABLE); !status.ok()) return status;
  return RowInitializer(config, StreamOf(seed, table));
}

void RowInitializer::Fill(uint64_t id, size_t first, absl::Span<float> values) const {
  const uint64_t row = RowStream(stream_, id) + first;
  switch (config_.kind_case()) {
    case v1::Initializer::kUniform: {
      const float low = config_.uniform().low(), high = config_.uniform().high();
      return RunLoop(UniformLoop{row, values.size(), low, (static_cast<double>(high) - low) * 0x1p-32,
                                 std::nextafter(high, low), values.data()});
    }
    case v1::Initializer::kNormal:
      return RunLoop(NormalLoop{row, values.size(), config_.normal().mean(), config_.normal().stddev(), values.data()});
    case v1::Initializer::kConstant:
      std::fill(values.begin(), values.end(), config_.constant().value());
      return;
    default:
      std::fill(values.begin(), values.end(), 0.0f);
      return;
  }
}

}  // namespace ballast
