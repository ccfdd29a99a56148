// SPDX-License-Identifier: Apache-2.0
// Checks fills, copies, sums and row operations of every device.
#include <gmock/gmock.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "common/codecs/codec.h"
#include "worker/device/conformance/device_conformance_test.h"

namespace ballast {

using ::testing::ElementsAre;

TEST_P(DeviceConformanceTest, FillSetsTheMatrixAndNothingBehindIt) {
  const Matrix y = Put(1, 5, {1, 2, 3, 4, 5});
  device().Fill(7.5f, {y.buffer, 2, 2});
  EXPECT_THAT(Get(y), ElementsAre(7.5f, 7.5f, 7.5f, 7.5f, 5));
}

TEST_P(DeviceConformanceTest, CopyKeepsTheBits) {
  for (const int64_t n : {0, 1, 7, 1001, 100003}) {
    std::vector<float> x = Random(n, 1);
    if (n > 1) x[1] = -0.0f;
    const Matrix y = Zeros(1, n);
    device().Copy(Put(1, n, x), y);
    EXPECT_EQ(Get(y), x);
  }
}

namespace {

// All kinds of values except NaN: zeros, subnormal halves, ties, values too large for a half, infinities; then `any`.
std::vector<float> ToRound(int64_t n, const std::vector<float>& any) {
  const float kinds[] = {0.0f,     -0.0f,     1.0f,       -2.5f,      0x1p-24f,  0x1p-25f,  0x1.8p-25f,
                         0x1p-14f, -0x1p-15f, 0x1.004p0f, 0x1.00cp0f, 0x1.01p0f, 0x1.03p0f, 65504.0f,
                         65519.0f, 65520.0f,  -70000.0f,  3e38f,      INFINITY,  -INFINITY, 0x1p-130f};
  std::vector<float> values = any;
  for (int64_t i = 0; i < n && i < static_cast<int64_t>(std::size(kinds)); ++i) values[i] = kinds[i];
  return values;
}

}  // namespace

// The wire's encoding is the reference, bit for bit, in both directions.
TEST_P(DeviceConformanceTest, NarrowAndWidenGiveTheBitsOfTheWiresEncodings) {
  for (const auto& [type, encoding] :
       {std::pair(HalfType::kBf16, v1::ENCODING_BF16), std::pair(HalfType::kFp16, v1::ENCODING_FP16)}) {
    const Codec& codec = **FindCodec(encoding);
    for (const int64_t n : {0, 1, 7, 1001, 100003}) {
      const std::vector<float> x = ToRound(n, RandomFloats(n, 1));
      std::string want(codec.EncodedBytes(n), '\0');
      codec.Encode(x, 0, want.data());
      std::vector<float> widened(n);
      const absl::string_view payload = want;
      ASSERT_TRUE(codec.Decode({&payload, 1}, absl::MakeSpan(widened)).ok());

      const Matrix halves = ZeroFloats(1, (n + 1) / 2), y = ZeroFloats(1, n);
      device().Narrow(type, PutFloats(1, n, x), *halves.buffer);
      std::string got(want.size(), '\0');
      const std::vector<float> places = Get(halves);
      if (n > 0) std::memcpy(got.data(), places.data(), got.size());
      EXPECT_EQ(got, want);
      device().Widen(type, *halves.buffer, y);
      EXPECT_EQ(Get(y), widened);
    }
  }
}

TEST_P(DeviceConformanceTest, NarrowedNanStaysNan) {
  for (const HalfType type : {HalfType::kBf16, HalfType::kFp16}) {
    const Matrix halves = ZeroFloats(1, 1), y = ZeroFloats(1, 2);
    device().Narrow(type, PutFloats(1, 2, {NAN, 1}), *halves.buffer);
    device().Widen(type, *halves.buffer, y);
    EXPECT_TRUE(std::isnan(Get(y)[0]));
    EXPECT_EQ(Get(y)[1], 1);
  }
}

TEST_P(DeviceConformanceTest, ScaleAxpyAndAddAgreeWithTheirFormulas) {
  for (const int64_t n : {0, 1, 7, 1001, 100003}) {
    const std::vector<float> a = Random(n, 1), b = Random(n, 2);
    std::vector<double> scaled, axpy, sum, twice;
    for (int64_t i = 0; i < n; ++i) {
      scaled.push_back(-0.5 * a[i]);
      axpy.push_back(b[i] - 0.5 * a[i]);
      sum.push_back(double{a[i]} + b[i]);
      twice.push_back(2.0 * b[i]);
    }
    const Matrix first = Put(1, n, a), second = Put(1, n, b), y = Put(1, n, a);
    device().Scale(-0.5f, y);
    ExpectNear(Get(y), scaled);
    device().Copy(second, y);
    device().Axpy(-0.5f, first, y);
    ExpectNear(Get(y), axpy);
    device().Add(first, second, y);
    ExpectNear(Get(y), sum);
    device().Add(first, second, first);
    ExpectNear(Get(first), sum);
    device().Add(second, second, second);
    ExpectNear(Get(second), twice);
  }
}

TEST_P(DeviceConformanceTest, ScaleAndCheckScalesAndLeavesTheFlagWhereAllIsFinite) {
  for (const int64_t n : {0, 1, 7, 1001, 100003}) {
    const std::vector<float> x = RandomFloats(n, 1);
    std::vector<double> want(x.begin(), x.end());
    for (double& value : want) value *= 0.25;
    const Matrix y = PutFloats(1, n, x), clear = PutFloats(1, 2, {0, 5}), set = PutFloats(1, 1, {1});
    device().ScaleAndCheck(0.5f, y, *clear.buffer);
    device().ScaleAndCheck(0.5f, y, *set.buffer);
    ExpectNear(Get(y), want);
    EXPECT_THAT(Get(clear), ElementsAre(0, 5));
    EXPECT_THAT(Get(set), ElementsAre(1));
  }
}

// Finds it at any position; the largest floats and a product that overflows count as finite.
TEST_P(DeviceConformanceTest, ScaleAndCheckTellsOfWhatIsNotFinite) {
  constexpr int64_t kElements = 100003;
  const Matrix flag = ZeroFloats(1, 1);
  device().ScaleAndCheck(2.0f, PutFloats(1, 3, {3.4e38f, -3.4e38f, 1e-45f}), *flag.buffer);
  EXPECT_THAT(Get(flag), ElementsAre(0));
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    for (const int64_t at : {int64_t{0}, kElements / 2, kElements - 1}) {
      std::vector<float> x(kElements, 1.0f);
      x[at] = bad;
      device().Fill(0, flag);
      device().ScaleAndCheck(0.5f, PutFloats(1, kElements, x), *flag.buffer);
      EXPECT_THAT(Get(flag), ElementsAre(1)) << bad << " at " << at;
    }
  }
}

TEST_P(DeviceConformanceTest, ScaleAndCheckLooksAtNothingBehindTheMatrix) {
  const Matrix x = PutFloats(1, 3, {1, 2, INFINITY}), flag = ZeroFloats(1, 1);
  device().ScaleAndCheck(2.0f, {x.buffer, 1, 2}, *flag.buffer);
  EXPECT_THAT(Get(x), ElementsAre(2, 4, INFINITY));
  EXPECT_THAT(Get(flag), ElementsAre(0));
}

TEST_P(DeviceConformanceTest, GatherRowsCopiesRowsByIndex) {
  const Matrix table = PutFloats(3, 2, {1, 2, 3, 4, 5, 6}), y = Zeros(4, 2);
  device().GatherRows(table, {2, 0, 2, 1}, y);
  EXPECT_THAT(Get(y), ElementsAre(5, 6, 1, 2, 5, 6, 3, 4));
}

TEST_P(DeviceConformanceTest, ScatterAddRowsAddsToRowsByIndex) {
  const Matrix table = PutFloats(3, 2, {1, 2, 3, 4, 5, 6});
  device().ScatterAddRows(Put(4, 2, {10, 20, 30, 40, 50, 60, 70, 80}), {2, 0, 2, 2}, table);
  EXPECT_THAT(Get(table), ElementsAre(31, 42, 3, 4, 135, 166));
}

TEST_P(DeviceConformanceTest, GatherAndScatterOfManyRowsAgreeWithTheirDefinition) {
  constexpr int64_t kTable = 97, kRows = 5003, kWidth = 33;
  const std::vector<float> values = Random(kTable * kWidth, 1), dy = Random(kRows * kWidth, 2);
  std::vector<int64_t> rows;
  std::vector<float> gathered;
  Sums added(values.size());
  for (size_t i = 0; i < values.size(); ++i) added.Add(i, values[i]);
  for (int64_t i = 0; i < kRows; ++i) {
    rows.push_back(i * i % kTable);
    for (int64_t j = 0; j < kWidth; ++j) {
      const int64_t at = rows[i] * kWidth + j;
      gathered.push_back(values[at]);
      added.Add(at, dy[i * kWidth + j]);
    }
  }
  const Matrix table = PutFloats(kTable, kWidth, values), y = Zeros(kRows, kWidth);
  device().GatherRows(table, rows, y);
  EXPECT_EQ(Get(y), gathered);
  device().ScatterAddRows(Put(kRows, kWidth, dy), rows, table);
  ExpectSums(Get(table), added);
}

// In the order of the rows, 2^15 + 2^-10 - 2^15 + 2^-10 is 2^-10 in floats; in another order it is 0 or 2^-9.
TEST_P(DeviceConformanceTest, ScatterAddRowsAddsInTheOrderOfTheRows) {
  const Matrix table = ZeroFloats(2, 1);
  device().ScatterAddRows(Put(4, 1, {0x1p15f, 0x1p-10f, -0x1p15f, 0x1p-10f}), {1, 1, 1, 1}, table);
  EXPECT_THAT(Get(table), ElementsAre(0, 0x1p-10f));
}

TEST_P(DeviceConformanceTest, NoRowsAreGatheredAndScattered) {
  const Matrix table = PutFloats(1, 2, {1, 2});
  device().GatherRows(table, {}, Zeros(0, 2));
  device().ScatterAddRows(Zeros(0, 2), {}, table);
  EXPECT_THAT(Get(table), ElementsAre(1, 2));
}

}  // namespace ballast
