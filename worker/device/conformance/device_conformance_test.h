// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/device/device.h"

namespace ballast {

// A device under test: opens it, or says why this machine cannot; the tests are then skipped.
struct DeviceUnderTest {
  std::string name;
  std::function<absl::StatusOr<std::unique_ptr<Device>>()> open;
  // Allowed error, relative to the sum of the magnitudes that contribute to a result.
  double tolerance = 1e-5;
  // Precision that is set before each test.
  Precision precision = Precision::kFp32;
};

// Bound of a result's error in TF32, relative to the sum of the magnitudes of its terms. A TF32 has 10 bits of
// fraction. No library says how it rounds to it: to nearest, a factor changes by at most 2^-11 of itself; if it drops
// the other bits, by at most 2^-10. The larger one holds here, so a term with two factors changes by at most (1 +
// 2^-10)^2 - 1. Terms are exact in fp32 (11 + 11 bits). An addition that drops bits changes a sum by at most 2^-23 of
// the magnitudes, and no result of the suite has more than 2^13 terms.
inline constexpr double kTf32Tolerance = (0x1p-9 + 0x1p-20) + 0x1p13 * 0x1p-23;

// A product's result is rows x columns; each element is a sum of `depth` terms.
struct ProductShape {
  int64_t rows, columns, depth;
};

// Expected sums of terms; and the sums of the terms' magnitudes plus `least`.
struct Sums {
  explicit Sums(int64_t n, double least = 0) : want(n), scale(n, least) {}

  void Add(int64_t at, double term) {
    want[at] += term;
    scale[at] += std::abs(term);
  }

  std::vector<double> want, scale;
};

// Checks a device against float64 references of each operation's formula. A device's test declares
// INSTANTIATE_TEST_SUITE_P(Cpu, DeviceConformanceTest, ::testing::Values(...)).
class DeviceConformanceTest : public ::testing::TestWithParam<DeviceUnderTest> {
 protected:
  void SetUp() override;

  // Uniform in +-spread, the same for the same seed; Random rounds to values that activations can have.
  static std::vector<float> RandomFloats(int64_t n, uint32_t seed, float spread = 2.0f);
  std::vector<float> Random(int64_t n, uint32_t seed, float spread = 2.0f) const;
  // The nearest values that activations of the device can have.
  std::vector<float> AsActivations(std::vector<float> values) const;
  float AsActivation(float value) const { return AsActivations({value})[0]; }

  // A matrix of activations on the device, with the given values or zeros.
  Matrix Put(int64_t rows, int64_t columns, const std::vector<float>& values);
  Matrix Zeros(int64_t rows, int64_t columns);
  // A matrix of floats, like parameters.
  Matrix PutFloats(int64_t rows, int64_t columns, const std::vector<float>& values);
  Matrix ZeroFloats(int64_t rows, int64_t columns);
  std::vector<float> Get(const Matrix& matrix);
  // Expects each element within the tolerance times its scale, or, if activations are FP16, within FP16's resolution.
  void ExpectNear(const std::vector<float>& got, const std::vector<double>& want, const std::vector<double>& scale);
  // The same with the scale max(1, |want|).
  void ExpectNear(const std::vector<float>& got, const std::vector<double>& want);

  void ExpectSums(const std::vector<float>& got, const Sums& sums) { ExpectNear(got, sums.want, sums.scale); }

  // Multiplies random matrices, stored transposed or not, and compares. With a transposed first factor the result
  // holds floats, like a weight gradient; otherwise the second factor does, like weights.
  void ExpectProduct(const ProductShape& shape, bool a_transposed, bool b_transposed, float alpha, float beta);

  Device& device() { return *device_; }

 private:
  Matrix Keep(absl::StatusOr<std::unique_ptr<Buffer>> buffer, int64_t rows, int64_t columns);
  Matrix Filled(const Matrix& matrix, const std::vector<float>& values);

  std::unique_ptr<Device> device_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
};

}  // namespace ballast
