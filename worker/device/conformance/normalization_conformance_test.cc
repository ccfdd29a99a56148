// SPDX-License-Identifier: Apache-2.0
// Checks the normalizations of every device against their formulas.
#include <gmock/gmock.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "worker/device/conformance/device_conformance_test.h"

namespace ballast {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

using Values = std::vector<double>;

struct Size {
  int64_t rows;
  int64_t columns;
};

// Single, odd, aligned and large sizes.
constexpr Size kSizes[] = {{2, 1}, {7, 1}, {3, 5}, {17, 31}, {65, 64}, {20011, 3}, {129, 1001}};

constexpr float kEpsilon = 1e-3f;

// A batch or layer norm in float64: over the columns of each row if `of_rows`, otherwise over the rows of each
// column.
struct Normalization {
  Normalization(Size size, bool of_rows, const std::vector<float>& x) : size(size), of_rows(of_rows) {
    const int64_t groups = of_rows ? size.rows : size.columns;
    const double members = of_rows ? size.columns : size.rows;
    mean.resize(groups);
    variance.resize(groups);
    for (size_t i = 0; i < x.size(); ++i) mean[Group(i)] += x[i] / members;
    for (size_t i = 0; i < x.size(); ++i) variance[Group(i)] += std::pow(x[i] - mean[Group(i)], 2) / members;
    for (size_t i = 0; i < x.size(); ++i) {
      normalized.push_back((x[i] - mean[Group(i)]) / std::sqrt(variance[Group(i)] + kEpsilon));
    }
  }

  int64_t Group(int64_t i) const { return of_rows ? i / size.columns : i % size.columns; }

  Values Output(const std::vector<float>& scale, const std::vector<float>& offset) const {
    Values y;
    for (size_t i = 0; i < normalized.size(); ++i) {
      y.push_back(normalized[i] * scale[i % size.columns] + offset[i % size.columns]);
    }
    return y;
  }

  // Applies the chain rule through mean and variance.
  Values InputGradient(const std::vector<float>& dy, const std::vector<float>& scale) const {
    const double members = of_rows ? size.columns : size.rows;
    Values sum(mean.size()), product(mean.size()), dx;
    for (size_t i = 0; i < dy.size(); ++i) {
      const double g = double{dy[i]} * scale[i % size.columns];
      sum[Group(i)] += g / members;
      product[Group(i)] += g * normalized[i] / members;
    }
    for (size_t i = 0; i < dy.size(); ++i) {
      const double g = double{dy[i]} * scale[i % size.columns];
      dx.push_back((g - sum[Group(i)] - normalized[i] * product[Group(i)]) / std::sqrt(variance[Group(i)] + kEpsilon));
    }
    return dx;
  }

  Size size;
  bool of_rows;
  Values mean, variance, normalized;
};

// Values around 3, so that a mean that loses digits shows.
std::vector<float> Shifted(std::vector<float> x) {
  for (float& value : x) value += 3;
  return x;
}

// Includes the rounding of x before the mean is subtracted, which matters even if the difference is small.
Values Scale(const Normalization& want, const std::vector<float>& scale) {
  Values result;
  for (size_t i = 0; i < want.normalized.size(); ++i) {
    const double spread = std::sqrt(want.variance[want.Group(i)] + kEpsilon);
    result.push_back(1 + std::abs(scale[i % want.size.columns]) * (5 / spread + std::abs(want.normalized[i])));
  }
  return result;
}

}  // namespace

TEST_P(DeviceConformanceTest, BatchNormsAndTheirGradientsAgreeWithTheFormula) {
  for (const Size size : kSizes) {
    const auto [rows, columns] = size;
    SCOPED_TRACE(testing::Message() << rows << "x" << columns);
    const std::vector<float> x = AsActivations(Shifted(Random(rows * columns, 1))), dy = Random(rows * columns, 2);
    const std::vector<float> scale = Random(columns, 3), offset = Random(columns, 4);
    const Normalization want(size, false, x);

    const Matrix input = Put(rows, columns, x), gradient = Put(rows, columns, dy);
    const Matrix gamma = PutFloats(1, columns, scale), beta = PutFloats(1, columns, offset);
    const Matrix mean = ZeroFloats(1, columns), inverse = ZeroFloats(1, columns);
    const Matrix running_mean = PutFloats(1, columns, std::vector<float>(columns, 10));
    const Matrix running_variance = PutFloats(1, columns, std::vector<float>(columns, 20));
    const Matrix y = Zeros(rows, columns), dx = Zeros(rows, columns);
    const Matrix dgamma = PutFloats(1, columns, scale), dbeta = PutFloats(1, columns, scale);
    const Affine affine{*gamma.buffer, *beta.buffer};
    const SavedStatistics saved{*mean.buffer, *inverse.buffer};
    device().BatchNorm({kEpsilon, 0.25f}, input, affine, saved, {*running_mean.buffer, *running_variance.buffer}, y);
    ExpectNear(Get(y), want.Output(scale, offset), Scale(want, scale));
    Values moved_mean, moved_variance;
    for (int64_t j = 0; j < columns; ++j) {
      moved_mean.push_back(0.75 * 10 + 0.25 * want.mean[j]);
      moved_variance.push_back(0.75 * 20 + 0.25 * want.variance[j] * rows / (rows - 1));
    }
    ExpectNear(Get(running_mean), moved_mean);
    ExpectNear(Get(running_variance), moved_variance);

    device().BatchNormBackward(input, gradient, affine, saved, {*dgamma.buffer, *dbeta.buffer}, &dx);
    ExpectNear(Get(dx), want.InputGradient(dy, scale), Scale(want, scale));
    Sums dscale(columns, 1), doffset(columns, 1);
    for (size_t i = 0; i < dy.size(); ++i) {
      dscale.Add(i % columns, dy[i] * want.normalized[i]);
      doffset.Add(i % columns, dy[i]);
    }
    ExpectSums(Get(dgamma), dscale);
    ExpectSums(Get(dbeta), doffset);
    device().Fill(9, dgamma);
    device().BatchNormBackward(input, gradient, affine, saved, {*dgamma.buffer, *dbeta.buffer}, nullptr);
    ExpectSums(Get(dgamma), dscale);
  }
}

TEST_P(DeviceConformanceTest, BatchNormInferenceUsesTheRunningStatistics) {
  const Matrix y = Zeros(2, 2);
  const Matrix scale = PutFloats(1, 2, {2, 1}), offset = PutFloats(1, 2, {0, 5});
  device().BatchNormInference(1.0f, Put(2, 2, {4, 1, 10, -1}), {*scale.buffer, *offset.buffer},
                              {*PutFloats(1, 2, {1, 0}).buffer, *PutFloats(1, 2, {8, 0}).buffer}, y);
  ExpectNear(Get(y), {2, 6, 6, 4});
}

// The variance of one row is 0: the output is the offset, and no gradient flows back.
TEST_P(DeviceConformanceTest, BatchNormOfOneRowIsFinite) {
  const Matrix x = Put(1, 2, {4, -1}), dy = Put(1, 2, {1, 1}), y = Zeros(1, 2), dx = Put(1, 2, {9, 9});
  const Matrix scale = PutFloats(1, 2, {2, 1}), offset = PutFloats(1, 2, {3, 5}), dscale = ZeroFloats(1, 2),
               doffset = ZeroFloats(1, 2);
  const Matrix mean = ZeroFloats(1, 2), inverse = ZeroFloats(1, 2), running_mean = ZeroFloats(1, 2),
               running_variance = ZeroFloats(1, 2);
  const Affine affine{*scale.buffer, *offset.buffer};
  const SavedStatistics saved{*mean.buffer, *inverse.buffer};
  device().BatchNorm({kEpsilon, 0.5f}, x, affine, saved, {*running_mean.buffer, *running_variance.buffer}, y);
  EXPECT_THAT(Get(y), ElementsAre(3, 5));
  EXPECT_THAT(Get(running_mean), ElementsAre(2, -0.5f));
  EXPECT_THAT(Get(running_variance), Each(0.0f));
  device().BatchNormBackward(x, dy, affine, saved, {*dscale.buffer, *doffset.buffer}, &dx);
  EXPECT_THAT(Get(dx), Each(0.0f));
  EXPECT_THAT(Get(doffset), ElementsAre(1, 1));
}

TEST_P(DeviceConformanceTest, BatchNormWithoutRowsLeavesTheRunningStatistics) {
  const Matrix none = Zeros(0, 2), scale = PutFloats(1, 2, {2, 1}), offset = PutFloats(1, 2, {3, 5});
  const Matrix mean = PutFloats(1, 2, {9, 9}), inverse = PutFloats(1, 2, {9, 9});
  const Matrix running_mean = PutFloats(1, 2, {1, 2}), running_variance = PutFloats(1, 2, {3, 4});
  const Matrix dscale = PutFloats(1, 2, {9, 9}), doffset = PutFloats(1, 2, {9, 9});
  const Affine affine{*scale.buffer, *offset.buffer};
  const SavedStatistics saved{*mean.buffer, *inverse.buffer};
  device().BatchNorm({kEpsilon, 0.5f}, none, affine, saved, {*running_mean.buffer, *running_variance.buffer}, none);
  EXPECT_THAT(Get(running_mean), ElementsAre(1, 2));
  EXPECT_THAT(Get(running_variance), ElementsAre(3, 4));
  EXPECT_THAT(Get(mean), Each(0.0f));
  EXPECT_THAT(Get(inverse), Each(0.0f));
  device().BatchNormBackward(none, none, affine, saved, {*dscale.buffer, *doffset.buffer}, &none);
  EXPECT_THAT(Get(dscale), Each(0.0f));
  EXPECT_THAT(Get(doffset), Each(0.0f));
}

TEST_P(DeviceConformanceTest, LayerNormsAndTheirGradientsAgreeWithTheFormula) {
  for (const auto [columns, rows] : kSizes) {
    SCOPED_TRACE(testing::Message() << rows << "x" << columns);
    const std::vector<float> x = AsActivations(Shifted(Random(rows * columns, 1))), dy = Random(rows * columns, 2);
    const std::vector<float> scale = Random(columns, 3), offset = Random(columns, 4);
    const Normalization want({rows, columns}, true, x);

    const Matrix input = Put(rows, columns, x), gradient = Put(rows, columns, dy);
    const Matrix gamma = PutFloats(1, columns, scale), beta = PutFloats(1, columns, offset);
    const Matrix y = Zeros(rows, columns), dx = Zeros(rows, columns);
    const Matrix dgamma = PutFloats(1, columns, scale), dbeta = PutFloats(1, columns, scale);
    const Affine affine{*gamma.buffer, *beta.buffer};
    device().LayerNorm(kEpsilon, input, affine, y);
    ExpectNear(Get(y), want.Output(scale, offset), Scale(want, scale));
    device().LayerNormBackward(kEpsilon, input, gradient, affine, {*dgamma.buffer, *dbeta.buffer}, &dx);
    ExpectNear(Get(dx), want.InputGradient(dy, scale), Scale(want, scale));
    Sums dscale(columns, 1), doffset(columns, 1);
    for (size_t i = 0; i < dy.size(); ++i) {
      // Its error is that of the normalized x.
      dscale.Add(i % columns, dy[i] * want.normalized[i]);
      dscale.scale[i % columns] += std::abs(dy[i]) * 5 / std::sqrt(want.variance[want.Group(i)] + kEpsilon);
      doffset.Add(i % columns, dy[i]);
    }
    ExpectSums(Get(dgamma), dscale);
    ExpectSums(Get(dbeta), doffset);
    device().Fill(9, dgamma);
    device().LayerNormBackward(kEpsilon, input, gradient, affine, {*dgamma.buffer, *dbeta.buffer}, nullptr);
    ExpectSums(Get(dgamma), dscale);
  }
}

TEST_P(DeviceConformanceTest, LayerNormWithoutRowsHasGradientsOfZero) {
  const Matrix none = Zeros(0, 2), ones = PutFloats(1, 2, {1, 1}), dscale = PutFloats(1, 2, {9, 9}),
               doffset = PutFloats(1, 2, {9, 9});
  const Affine affine{*ones.buffer, *ones.buffer};
  device().LayerNorm(kEpsilon, none, affine, none);
  device().LayerNormBackward(kEpsilon, none, none, affine, {*dscale.buffer, *doffset.buffer}, &none);
  EXPECT_THAT(Get(dscale), Each(0.0f));
  EXPECT_THAT(Get(doffset), Each(0.0f));
}

}  // namespace ballast
