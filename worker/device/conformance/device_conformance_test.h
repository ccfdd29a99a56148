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
