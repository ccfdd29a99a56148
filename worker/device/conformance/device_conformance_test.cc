// SPDX-License-Identifier: Apache-2.0
#include "worker/device/conformance/device_conformance_test.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "common/codecs/codec.h"

namespace ballast {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

struct Shape {
  int64_t rows;
  int64_t columns;
};

// Single, odd, aligned and large shapes.
constexpr Shape kShapes[] = {{1, 1}, {1, 10}, {7, 1}, {3, 5}, {17, 31}, {64, 256}, {129, 1001}};

// The value and the derivative of an activation at x.
std::pair<double, double> Reference(Activation f, double x) {
  switch (f) {
    case Activation::kRelu:
      return {std::max(x, 0.0), x > 0 ? 1 : 0};
    case Activation::kGelu: {
      const double phi = 0.5 * std::erfc(-x * std::sqrt(0.5));
      return {x * phi, phi + x * std::exp(-0.5 * x * x) / std::sqrt(2 * std::acos(-1.0))};
    }
    case Activation::kTanh:
      return {std::tanh(x), 1 / (std::cosh(x) * std::cosh(x))};
  }
  return {NAN, NAN};
}

struct ReferenceSoftmax {
  double loss_sum = 0;
  double correct = 0;
  std::vector<double> gradient;
};

ReferenceSoftmax Softmax(const std::vector<float>& x, const std::vector<float>& labels) {
  ReferenceSoftmax result;
  const size_t rows = labels.size();
  const size_t columns = x.size() / rows;
  for (size_t i = 0; i < rows; ++i) {
    const auto row = x.begin() + i * columns;
    const auto largest = std::max_element(row, row + columns);
    double sum = 0;
    for (size_t j = 0; j < columns; ++j) sum += std::exp(double{row[j]} - *largest);
    const size_t label = static_cast<size_t>(labels[i]);
    result.loss_sum += std::log(sum) + *largest - row[label];
    result.correct += static_cast<size_t>(largest - row) == label;
    for (size_t j = 0; j < columns; ++j) {
      const double p = std::exp(double{row[j]} - *largest) / sum;
      result.gradient.push_back((p - (j == label)) / rows);
    }
  }
  return result;
}

}  // namespace

void DeviceConformanceTest::SetUp() {
  absl::StatusOr<std::unique_ptr<Device>> device = GetParam().open();
  if (!device.ok()) GTEST_SKIP() << device.status();
  device_ = std::move(*device);
  const absl::StatusOr<Precision> precision = device_->SetPrecision(GetParam().precision);
  if (!precision.ok()) GTEST_SKIP() << precision.status();
}

std::vector<float> DeviceConformanceTest::RandomFloats(int64_t n, uint32_t seed, float spread) {
  std::mt19937 generator(seed);
  std::vector<float> values(n);
  // uniform_real_distribution takes a logarithm for each number.
  for (float& value : values) value = static_cast<float>((generator() * 0x1p-31 - 1) * spread);
  return values;
}

std::vector<float> DeviceConformanceTest::Random(int64_t n, uint32_t seed, float spread) const {
  return AsActivations(RandomFloats(n, seed, spread));
}

std::vector<float> DeviceConformanceTest::AsActivations(std::vector<float> values) const {
  if (device_->activation_type() == ElementType::kFp32) return values;
  const bool bf16 = device_->activation_type() == ElementType::kBf16;
  const Codec& codec = **FindCodec(bf16 ? v1::ENCODING_BF16 : v1::ENCODING_FP16);
  std::string halves(codec.EncodedBytes(values.size()), '\0');
  codec.Encode(values, 0, halves.data());
  const absl::string_view payload = halves;
  EXPECT_TRUE(codec.Decode({&payload, 1}, absl::MakeSpan(values)).ok());
  return values;
}

Matrix DeviceConformanceTest::Keep(absl::StatusOr<std::unique_ptr<Buffer>> buffer, int64_t rows, int64_t columns) {
  EXPECT_TRUE(buffer.ok()) << buffer.status();
  buffers_.push_back(*std::move(buffer));
  return {buffers_.back().get(), rows, columns};
}

Matrix DeviceConformanceTest::Filled(const Matrix& matrix, const std::vector<float>& values) {
  const absl::Status status = device_->Upload(values, *matrix.buffer, 0);
  EXPECT_TRUE(status.ok()) << status;
  return matrix;
}

Matrix DeviceConformanceTest::Zeros(int64_t rows, int64_t columns) {
  return Keep(device_->AllocateActivations(rows * columns), rows, columns);
}

Matrix DeviceConformanceTest::ZeroFloats(int64_t rows, int64_t columns) {
  return Keep(device_->Allocate(rows * columns), rows, columns);
}

Matrix DeviceConformanceTest::Put(int64_t rows, int64_t columns, const std::vector<float>& values) {
  return Filled(Zeros(rows, columns), values);
}

Matrix DeviceConformanceTest::PutFloats(int64_t rows, int64_t columns, const std::vector<float>& values) {
  return Filled(ZeroFloats(rows, columns), values);
}

std::vector<float> DeviceConformanceTest::Get(const Matrix& matrix) {
  std::vector<float> values(matrix.elements());
  const absl::Status status = device_->Download(*matrix.buffer, 0, absl::MakeSpan(values));
  EXPECT_TRUE(status.ok()) << status;
  return values;
}

void DeviceConformanceTest::ExpectNear(const std::vector<float>& got, const std::vector<double>& want,
                                       const std::vector<double>& scale) {
  ASSERT_EQ(got.size(), want.size());
  const double nearest = device_->activation_type() == ElementType::kFp16 ? 0x1p-25 : 0.0;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], GetParam().tolerance * scale[i] + nearest) << "element " << i;
  }
}

void DeviceConformanceTest::ExpectNear(const std::vector<float>& got, const std::vector<double>& want) {
  std::vector<double> scale;
  for (const double value : want) scale.push_back(std::max(1.0, std::abs(value)));
  ExpectNear(got, want, scale);
}

void DeviceConformanceTest::ExpectProduct(const ProductShape& shape, bool ta, bool tb, float alpha, float beta) {
  const auto [m, n, k] = shape;
  SCOPED_TRACE(testing::Message() << m << "x" << n << "x" << k << " " << ta << tb);
  const std::vector<float> a = Random(m * k, 1), b = Random(k * n, 2), c = Random(m * n, 3);
  std::vector<double> want(m * n), scale(m * n);
  // The second factor by rows.
  std::vector<float> rows_of_b(k * n);
  for (int64_t l = 0; l < k; ++l) {
    for (int64_t j = 0; j < n; ++j) rows_of_b[l * n + j] = b[tb ? j * k + l : l * n + j];
  }
  for (int64_t i = 0; i < m; ++i) {
    double *const sums = &want[i * n], *const magnitudes = &scale[i * n];
    for (int64_t l = 0; l < k; ++l) {
      const double factor = a[ta ? l * m + i : i * k + l];
      for (int64_t j = 0; j < n; ++j) {
        const double term = factor * rows_of_b[l * n + j];
        sums[j] += term;
        magnitudes[j] += std::abs(term);
      }
    }
    for (int64_t j = 0; j < n; ++j) {
      sums[j] = alpha * sums[j] + double{beta} * c[i * n + j];
      magnitudes[j] = std::abs(alpha) * magnitudes[j] + std::abs(double{beta} * c[i * n + j]);
    }
  }
  const Matrix first = ta ? Put(k, m, a) : Put(m, k, a);
  const int64_t rows = tb ? n : k, columns = tb ? k : n;
  const Matrix second = ta ? Put(rows, columns, b) : PutFloats(rows, columns, b);
  const Matrix result = ta ? PutFloats(m, n, c) : Put(m, n, c);
  device().Multiply({first, ta}, {second, tb}, alpha, beta, result);
  ExpectNear(Get(result), want, scale);
}

TEST_P(DeviceConformanceTest, NewMemoryIsZero) {
  EXPECT_THAT(Get(Zeros(3, 333)), Each(0.0f));
  EXPECT_THAT(Get(ZeroFloats(3, 333)), Each(0.0f));
}

TEST_P(DeviceConformanceTest, FloatsKeepTheirBitsAndActivationsTheNearestThatTheyCanBe) {
  const std::vector<float> values = RandomFloats(3000001, 1);
  const Matrix floats = PutFloats(1, 3000001, values), activations = Put(1, 3000001, values);
  EXPECT_EQ(Get(floats), values);
  EXPECT_EQ(Get(activations), AsActivations(values));
  EXPECT_EQ(floats.buffer->type(), ElementType::kFp32);
  EXPECT_EQ(activations.buffer->type(), device().activation_type());
}

TEST_P(DeviceConformanceTest, UploadAndDownloadReachTheElementsAtTheirOffset) {
  const Matrix m = Put(1, 5, {1, 2, 3, 4, 5});
  ASSERT_TRUE(device().Upload(std::vector<float>{30, 40}, *m.buffer, 2).ok());
  std::vector<float> part(3);
  ASSERT_TRUE(device().Download(*m.buffer, 1, absl::MakeSpan(part)).ok());
  EXPECT_THAT(part, ElementsAre(2, 30, 40));
}

TEST_P(DeviceConformanceTest, CopiesPastTheEndAreRefused) {
  const Matrix m = Zeros(1, 5);
  std::vector<float> two(2);
  EXPECT_EQ(device().Upload(two, *m.buffer, 4).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(device().Upload(two, *m.buffer, -1).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(device().Download(*m.buffer, 6, absl::MakeSpan(two)).code(), absl::StatusCode::kOutOfRange);
}

TEST_P(DeviceConformanceTest, MoreMemoryThanThereCanBeIsRefused) {
  EXPECT_EQ(device().Allocate(int64_t{1} << 61).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_P(DeviceConformanceTest, HostVisibleMemoryIsTheDevicesOwn) {
  const Matrix m = Put(1, 2, {1, 2});
  const absl::Span<float> host = m.buffer->host();
  if (host.empty()) GTEST_SKIP() << "this device's memory is not host-visible";
  ASSERT_EQ(host.size(), 2);
  host[1] = 7;
  EXPECT_THAT(Get(m), ElementsAre(1, 7));
}

TEST_P(DeviceConformanceTest, MultiplyAgreesWithTheSumsOfProducts) {
  for (const ProductShape& shape :
       {ProductShape{1, 1, 1}, {3, 5, 7}, {1, 33, 17}, {31, 1, 64}, {64, 10, 257}, {65, 129, 300}}) {
    for (const bool ta : {false, true}) {
      for (const bool tb : {false, true}) ExpectProduct(shape, ta, tb, 0.5f, -2.0f);
    }
  }
}

// The forward product, input gradient and weight gradient of a large layer at a small batch, for which devices have
// separate code.
TEST_P(DeviceConformanceTest, MultiplyOfLargeWeightsAtASmallBatchAgreesWithTheSumsOfProducts) {
  for (const int64_t batch : {1, 8, 65}) {
    ExpectProduct({batch, 1031, 1025}, false, true, 1.0f, 0.0f);
    ExpectProduct({batch, 1025, 1031}, false, false, 1.0f, 0.0f);
    ExpectProduct({1031, 1025, batch}, true, false, 1.0f, 0.0f);
  }
  ExpectProduct({64, 1024, 1024}, false, true, 1.0f, 0.0f);
  ExpectProduct({64, 1024, 1024}, false, false, 1.0f, 0.0f);
  ExpectProduct({1024, 1024, 64}, true, false, 1.0f, 0.0f);
  ExpectProduct({1024, 1024, 8}, true, true, 1.0f, 0.0f);
  ExpectProduct({8, 1024, 1024}, false, false, 0.5f, -2.0f);
}

TEST_P(DeviceConformanceTest, MultiplyWithBetaZeroDoesNotReadTheResult) {
  const Matrix c = Put(1, 1, {NAN});
  device().Multiply({Put(1, 2, {1, 2})}, {Put(2, 1, {3, 4})}, 1.0f, 0.0f, c);
  EXPECT_THAT(Get(c), ElementsAre(11));
}

TEST_P(DeviceConformanceTest, MultiplyOverNoTermsIsZero) {
  const Matrix c = Put(2, 2, {1, 2, 3, 4});
  Matrix none = Zeros(1, 2);
  none.rows = 0;
  device().Multiply({none, true}, {none}, 1.0f, 0.0f, c);
  EXPECT_THAT(Get(c), Each(0.0f));
}

TEST_P(DeviceConformanceTest, MultiplyBiasActivateIsTheThreeInOne) {
  const Matrix a = Put(3, 2, {1, 2, -3, 4, 5, -6}), b = PutFloats(2, 2, {1, 0, 2, -1});
  const Matrix bias = PutFloats(1, 2, {-20, 1});
  const Matrix c = Put(3, 2, {NAN, NAN, NAN, NAN, NAN, NAN});
  device().MultiplyBiasActivate({a}, {b, true}, *bias.buffer, std::nullopt, c);
  EXPECT_THAT(Get(c), ElementsAre(-19, 1, -23, -9, -15, 17));
  device().MultiplyBiasActivate({a}, {b, true}, *bias.buffer, Activation::kRelu, c);
  EXPECT_THAT(Get(c), ElementsAre(0, 1, 0, 0, 0, 17));
  device().MultiplyBiasActivate({a}, {b}, *PutFloats(1, 2, {-5, 1}).buffer, Activation::kTanh, c);
  EXPECT_NEAR(Get(c)[1], -0.76159416, GetParam().tolerance);
}

// A layer that has diverged must show in the loss. Libraries may define ReLU as max(x, 0), with max(NaN, 0) = 0.
TEST_P(DeviceConformanceTest, MultiplyBiasActivatePassesNanOn) {
  for (const auto f : {std::optional<Activation>(), std::optional(Activation::kRelu)}) {
    for (const int64_t units : {int64_t{2}, int64_t{256}}) {
      const std::vector<float> ones(64 * units, 1.0f), zeros(units);
      std::vector<float> bad = ones, bad_bias = zeros;
      bad[units] = bad_bias[1] = NAN;
      const Matrix x = Put(64, units, ones), bad_x = Put(64, units, bad), c = Zeros(64, units);
      const Matrix weight = PutFloats(units, units, std::vector<float>(units * units, 1.0f));
      const Matrix bias = PutFloats(1, units, zeros), bad_biases = PutFloats(1, units, bad_bias);
      SCOPED_TRACE(testing::Message() << units << " units, " << (f.has_value() ? "relu" : "linear"));
      device().MultiplyBiasActivate({bad_x}, {weight, true}, *bias.buffer, f, c);
      EXPECT_EQ(Get(c)[0], AsActivation(units));
      EXPECT_TRUE(std::isnan(Get(c)[units]));
      device().MultiplyBiasActivate({x}, {weight, true}, *bad_biases.buffer, f, c);
      EXPECT_EQ(Get(c)[0], AsActivation(units));
      EXPECT_TRUE(std::isnan(Get(c)[1]));
    }
  }
}

TEST_P(DeviceConformanceTest, AddBiasAddsItToEachRow) {
  for (const auto [rows, columns] : kShapes) {
    const std::vector<float> x = Random(rows * columns, 1), bias = Random(columns, 2);
    const Matrix y = Put(rows, columns, x);
    device().AddBias(*PutFloats(1, columns, bias).buffer, y);
    std::vector<double> want(x.begin(), x.end());
    for (size_t i = 0; i < want.size(); ++i) want[i] += bias[i % columns];
    ExpectNear(Get(y), want);
  }
}

TEST_P(DeviceConformanceTest, SumRowsSumsEachColumn) {
  for (const auto [rows, columns] : kShapes) {
    const std::vector<float> x = Random(rows * columns, 1);
    Sums want(columns);
    for (size_t i = 0; i < x.size(); ++i) want.Add(i % columns, x[i]);
    const Matrix sums = PutFloats(1, columns, std::vector<float>(columns, 9.0f));
    device().SumRows(Put(rows, columns, x), *sums.buffer);
    ExpectSums(Get(sums), want);
  }
}

TEST_P(DeviceConformanceTest, ActivationsAgreeWithTheirFormulas) {
  for (const Activation f : {Activation::kRelu, Activation::kGelu, Activation::kTanh}) {
    for (const auto [rows, columns] : kShapes) {
      const std::vector<float> x = Random(rows * columns, 1, 6.0f);
      std::vector<double> want, scale;
      for (const float value : x) {
        want.push_back(Reference(f, value).first);
        scale.push_back(std::abs(want.back()));
      }
      const Matrix y = Zeros(rows, columns);
      device().Activate(f, Put(rows, columns, x), y);
      SCOPED_TRACE(static_cast<int>(f));
      ExpectNear(Get(y), want, scale);
    }
  }
}

TEST_P(DeviceConformanceTest, ActivationsSurviveExtremesAndPassNanOn) {
  const float far = device().activation_type() == ElementType::kFp16 ? 6e4f : AsActivation(1e30f);
  const Matrix x = Put(1, 4, {-far, far, 0.0f, NAN});
  const Matrix dy = Put(1, 4, {1, 1, 1, 1});
  for (const Activation f : {Activation::kRelu, Activation::kGelu, Activation::kTanh}) {
    SCOPED_TRACE(static_cast<int>(f));
    const Matrix y = Zeros(1, 4), dx = Zeros(1, 4);
    device().Activate(f, x, y);
    device().ActivateBackward(f, x, dy, dx);
    const float top = f == Activation::kTanh ? 1.0f : far;
    const float bottom = f == Activation::kTanh ? -1.0f : 0.0f;
    EXPECT_THAT(Get(y), ElementsAre(bottom, top, 0.0f, testing::IsNan()));
    EXPECT_EQ(Get(dx)[0], 0.0f);
    EXPECT_EQ(Get(dx)[1], f == Activation::kTanh ? 0.0f : 1.0f);
  }
}

TEST_P(DeviceConformanceTest, ActivationGradientsAgreeWithTheirFormulasAlsoInPlace) {
  for (const Activation f : {Activation::kRelu, Activation::kGelu, Activation::kTanh}) {
    for (const auto [rows, columns] : kShapes) {
      const std::vector<float> x = Random(rows * columns, 1, 6.0f);
      const std::vector<float> dy = Random(rows * columns, 2);
      std::vector<double> want;
      for (size_t i = 0; i < x.size(); ++i) want.push_back(dy[i] * Reference(f, x[i]).second);
      const Matrix input = Put(rows, columns, x), in_place = Put(rows, columns, dy);
      const Matrix dx = Zeros(rows, columns);
      SCOPED_TRACE(static_cast<int>(f));
      device().ActivateBackward(f, input, in_place, dx);
      ExpectNear(Get(dx), want);
      device().ActivateBackward(f, input, in_place, in_place);
      ExpectNear(Get(in_place), want);
    }
  }
}

// A layer that keeps only its output relies on this.
TEST_P(DeviceConformanceTest, ReluInPlaceAndItsGradientByWhatItGaveAreTheSame) {
  const std::vector<float> x = Random(17 * 31, 1), dy = Random(17 * 31, 2);
  const Matrix input = Put(17, 31, x), in_place = Put(17, 31, x), gradient = Put(17, 31, dy);
  const Matrix y = Zeros(17, 31), want = Zeros(17, 31), got = Zeros(17, 31);
  device().Activate(Activation::kRelu, input, y);
  device().Activate(Activation::kRelu, in_place, in_place);
  EXPECT_EQ(Get(in_place), Get(y));
  device().ActivateBackward(Activation::kRelu, input, gradient, want);
  device().ActivateBackward(Activation::kRelu, in_place, gradient, got);
  EXPECT_EQ(Get(got), Get(want));
}

TEST_P(DeviceConformanceTest, DropoutScalesWhatItKeepsAndZeroesTheRest) {
  constexpr float kRate = 0.25f;
  constexpr int64_t kElements = 100003;
  const Matrix x = Put(1, kElements, std::vector<float>(kElements, 3.0f));
  device().Dropout(kRate, {7, 11, 2}, x, x);
  const std::vector<float> y = Get(x);
  const int64_t zeros = std::count(y.begin(), y.end(), 0.0f);
  EXPECT_EQ(std::count(y.begin(), y.end(), 4.0f), kElements - zeros);
  // Tolerance of five standard deviations; one is sqrt(0.25 * 0.75 * n) = 137.
  EXPECT_NEAR(zeros, 25001, 685);
}

// The generator is part of the contract: Philox4x32-10 with counter (draw, step) and key (seed, layer), four elements
// per draw. Words of the first draw are 6627e8d5 e169c58d bc57ac4c 9b00dbd8, see philox_test.cc.
TEST_P(DeviceConformanceTest, DropoutDrawsTheWordsOfPhilox) {
  const Matrix x = Put(1, 4, {1, 1, 1, 1});
  const Matrix y = Zeros(1, 4);
  device().Dropout(0.5f, {0, 0, 0}, x, y);
  EXPECT_THAT(Get(y), ElementsAre(0, 2, 2, 2));
  device().Dropout(0.75f, {0, 0, 0}, x, y);
  EXPECT_THAT(Get(y), ElementsAre(0, 4, 0, 0));
}

TEST_P(DeviceConformanceTest, DropoutRepeatsForTheSameKeyAndDiffersForAnyOther) {
  const Matrix x = Put(5, 67, std::vector<float>(5 * 67, 1.0f));
  const auto drop = [&](const DropoutKey& key) {
    const Matrix y = Zeros(5, 67);
    device().Dropout(0.5f, key, x, y);
    return Get(y);
  };
  const std::vector<float> first = drop({1, 2, 3});
  EXPECT_EQ(drop({1, 2, 3}), first);
  EXPECT_NE(drop({2, 2, 3}), first);
  EXPECT_NE(drop({1 + (uint64_t{1} << 32), 2, 3}), first);
  EXPECT_NE(drop({1, 3, 3}), first);
  EXPECT_NE(drop({1, 2 + (uint64_t{1} << 32), 3}), first);
  EXPECT_NE(drop({1, 2, 4}), first);
}

TEST_P(DeviceConformanceTest, DropoutAtRateZeroCopies) {
  const std::vector<float> x = Random(3 * 5, 1);
  const Matrix y = Zeros(3, 5);
  device().Dropout(0.0f, {1, 2, 3}, Put(3, 5, x), y);
  EXPECT_EQ(Get(y), x);
}

TEST_P(DeviceConformanceTest, SoftmaxCrossEntropyAgreesWithItsFormula) {
  for (const auto [rows, columns] : kShapes) {
    const std::vector<float> x = Random(rows * columns, 1, 8.0f);
    std::vector<float> labels(rows);
    for (int64_t i = 0; i < rows; ++i) labels[i] = static_cast<float>(i * 7 % columns);
    const ReferenceSoftmax want = Softmax(x, labels);
    std::vector<double> scaled;
    for (const double value : want.gradient) scaled.push_back(1024 * value);
    const Matrix outputs = Put(rows, columns, x), gradient = Zeros(rows, columns);
    const Matrix totals = ZeroFloats(1, kLossTotals);
    const Matrix label = PutFloats(1, rows, labels);
    SCOPED_TRACE(testing::Message() << rows << "x" << columns);
    const LossGradient wanted{gradient}, in_place{outputs, 1024.0f};
    device().Loss(LossFunction::kSoftmaxCrossEntropy, outputs, *label.buffer, *totals.buffer, &wanted);
    ExpectNear(Get(totals), {want.loss_sum, want.correct});
    ExpectNear(Get(gradient), want.gradient, std::vector<double>(want.gradient.size(), 1.0 / rows));

    device().Loss(LossFunction::kSoftmaxCrossEntropy, outputs, *label.buffer, *totals.buffer, nullptr);
    ExpectNear(Get(totals), {want.loss_sum, want.correct});
    EXPECT_EQ(Get(outputs), x);
    device().Loss(LossFunction::kSoftmaxCrossEntropy, outputs, *label.buffer, *totals.buffer, &in_place);
    ExpectNear(Get(outputs), scaled, std::vector<double>(scaled.size(), 1024.0 / rows));
  }
}

TEST_P(DeviceConformanceTest, SoftmaxCrossEntropyDoesNotOverflow) {
  const Matrix outputs = Put(2, 2, {1e4f, -1e4f, 1e4f, -1e4f});
  const Matrix labels = PutFloats(1, 2, {0, 1}), totals = ZeroFloats(1, kLossTotals);
  const Matrix gradient = Zeros(2, 2);
  const LossGradient wanted{gradient};
  device().Loss(LossFunction::kSoftmaxCrossEntropy, outputs, *labels.buffer, *totals.buffer, &wanted);
  EXPECT_THAT(Get(totals), ElementsAre(2 * AsActivation(1e4f), 1.0f));
  EXPECT_THAT(Get(gradient), ElementsAre(0.0f, 0.0f, 0.5f, -0.5f));
}

TEST_P(DeviceConformanceTest, SoftmaxCrossEntropyOfNanIsNan) {
  const Matrix labels = PutFloats(1, 1, {0}), totals = ZeroFloats(1, kLossTotals);
  device().Loss(LossFunction::kSoftmaxCrossEntropy, Put(1, 2, {NAN, 1}), *labels.buffer, *totals.buffer, nullptr);
  EXPECT_TRUE(std::isnan(Get(totals)[kLossSum]));
}

TEST_P(DeviceConformanceTest, EqualOutputsCountForTheFirst) {
  const Matrix labels = PutFloats(1, 2, {0, 1}), totals = ZeroFloats(1, kLossTotals);
  device().Loss(LossFunction::kSoftmaxCrossEntropy, Put(2, 2, {5, 5, 5, 5}), *labels.buffer, *totals.buffer, nullptr);
  EXPECT_EQ(Get(totals)[kCorrect], 1.0f);
}

TEST_P(DeviceConformanceTest, MeanSquaredErrorAgreesWithItsFormula) {
  for (const int64_t rows : {1, 7, 1000}) {
    const std::vector<float> x = Random(rows, 1), labels = Random(rows, 2);
    double loss_sum = 0;
    std::vector<double> want;
    for (int64_t i = 0; i < rows; ++i) {
      const double error = double{x[i]} - labels[i];
      loss_sum += error * error;
      want.push_back(0.5 * 2 * error / rows);
    }
    const Matrix totals = ZeroFloats(1, kLossTotals), gradient = Zeros(rows, 1);
    const LossGradient wanted{gradient, 0.5f};
    device().Loss(LossFunction::kMeanSquaredError, Put(rows, 1, x), *PutFloats(rows, 1, labels).buffer, *totals.buffer,
                  &wanted);
    ExpectNear(Get(totals), {loss_sum, 0.0});
    ExpectNear(Get(gradient), want);
  }
}

TEST_P(DeviceConformanceTest, SigmoidCrossEntropyAgreesWithItsFormula) {
  for (const int64_t rows : {1, 7, 1000}) {
    const std::vector<float> x = Random(rows, 1, 8.0f);
    std::vector<float> labels(rows);
    double loss_sum = 0, correct = 0;
    std::vector<double> want, scaled;
    for (int64_t i = 0; i < rows; ++i) {
      labels[i] = static_cast<float>(i * i % 3 % 2);
      loss_sum += std::log(1 + std::exp(double{x[i]})) - double{labels[i]} * x[i];
      correct += (x[i] > 0) == (labels[i] == 1) ? 1 : 0;
      want.push_back(0.5 * (1 / (1 + std::exp(-double{x[i]})) - labels[i]) / rows);
      scaled.push_back(2048 * want.back());
    }
    SCOPED_TRACE(testing::Message() << rows);
    const Matrix outputs = Put(rows, 1, x), label = PutFloats(rows, 1, labels), gradient = Zeros(rows, 1);
    const Matrix totals = ZeroFloats(1, kLossTotals);
    const LossGradient wanted{gradient, 0.5f}, in_place{outputs, 1024.0f};
    device().Loss(LossFunction::kSigmoidCrossEntropy, outputs, *label.buffer, *totals.buffer, &wanted);
    ExpectNear(Get(totals), {loss_sum, correct});
    ExpectNear(Get(gradient), want, std::vector<double>(rows, 0.5 / rows));

    device().Loss(LossFunction::kSigmoidCrossEntropy, outputs, *label.buffer, *totals.buffer, nullptr);
    ExpectNear(Get(totals), {loss_sum, correct});
    EXPECT_EQ(Get(outputs), x);
    device().Loss(LossFunction::kSigmoidCrossEntropy, outputs, *label.buffer, *totals.buffer, &in_place);
    ExpectNear(Get(outputs), scaled, std::vector<double>(rows, 1024.0 / rows));
  }
}

TEST_P(DeviceConformanceTest, SigmoidCrossEntropyDoesNotOverflow) {
  const Matrix outputs = Put(4, 1, {1e4f, 1e4f, -1e4f, -1e4f}), gradient = Zeros(4, 1);
  const Matrix labels = PutFloats(1, 4, {0, 1, 0, 1}), totals = ZeroFloats(1, kLossTotals);
  const LossGradient wanted{gradient};
  device().Loss(LossFunction::kSigmoidCrossEntropy, outputs, *labels.buffer, *totals.buffer, &wanted);
  EXPECT_THAT(Get(totals), ElementsAre(2 * AsActivation(1e4f), 2.0f));
  EXPECT_THAT(Get(gradient), ElementsAre(0.25f, 0.0f, 0.0f, -0.25f));
}

// 1 - sigmoid(x) would be 0 in floats.
TEST_P(DeviceConformanceTest, SigmoidCrossEntropyKeepsSmallLosses) {
  const Matrix outputs = Put(2, 1, {20, -20}), labels = PutFloats(1, 2, {1, 0}), totals = ZeroFloats(1, kLossTotals);
  device().Loss(LossFunction::kSigmoidCrossEntropy, outputs, *labels.buffer, *totals.buffer, nullptr);
  EXPECT_NEAR(Get(totals)[kLossSum], 2 * std::exp(-20.0), 1e-13);
}

TEST_P(DeviceConformanceTest, SigmoidCrossEntropyOfNanIsNan) {
  const Matrix labels = PutFloats(1, 1, {1}), totals = ZeroFloats(1, kLossTotals);
  device().Loss(LossFunction::kSigmoidCrossEntropy, Put(1, 1, {NAN}), *labels.buffer, *totals.buffer, nullptr);
  EXPECT_TRUE(std::isnan(Get(totals)[kLossSum]));
}

TEST_P(DeviceConformanceTest, ALogitOfZeroCountsForLabelZero) {
  const Matrix labels = PutFloats(1, 3, {0, 1, 0}), totals = ZeroFloats(1, kLossTotals);
  device().Loss(LossFunction::kSigmoidCrossEntropy, Put(3, 1, {0, 0, 0}), *labels.buffer, *totals.buffer, nullptr);
  EXPECT_EQ(Get(totals)[kCorrect], 2.0f);
}

TEST_P(DeviceConformanceTest, ALossOverNoRowsIsZero) {
  for (const LossFunction f :
       {LossFunction::kSoftmaxCrossEntropy, LossFunction::kMeanSquaredError, LossFunction::kSigmoidCrossEntropy}) {
    Matrix outputs = Zeros(1, 1);
    outputs.rows = 0;
    const Matrix totals = PutFloats(1, kLossTotals, {9, 9});
    const LossGradient in_place{outputs};
    device().Loss(f, outputs, *ZeroFloats(1, 1).buffer, *totals.buffer, &in_place);
    EXPECT_THAT(Get(totals), ElementsAre(0.0f, 0.0f));
  }
}

TEST_P(DeviceConformanceTest, TheSameOperationsGiveTheSameBits) {
  const Matrix a = Put(128, 784, Random(128 * 784, 1)), b = Put(512, 784, Random(512 * 784, 2));
  const Matrix first = Zeros(128, 512), second = Zeros(128, 512);
  device().Multiply({a}, {b, true}, 1.0f, 0.0f, first);
  device().Multiply({a}, {b, true}, 1.0f, 0.0f, second);
  EXPECT_EQ(Get(first), Get(second));
}

TEST_P(DeviceConformanceTest, SynchronizeSucceeds) { EXPECT_TRUE(device().Synchronize().ok()); }

}  // namespace ballast
