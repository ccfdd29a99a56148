// SPDX-License-Identifier: Apache-2.0
#include "common/tables/row_initializer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "common/simd/instruction_set.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

constexpr uint64_t kLastId = std::numeric_limits<uint64_t>::max();

absl::StatusOr<RowInitializer> TryMake(const std::string& text, uint64_t seed = 1, const std::string& table = "users") {
  v1::Initializer config;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &config)) << text;
  return RowInitializer::Make(config, seed, table);
}

RowInitializer Make(const std::string& text, uint64_t seed = 1, const std::string& table = "users") {
  auto initializer = TryMake(text, seed, table);
  EXPECT_TRUE(initializer.ok()) << initializer.status();
  return *initializer;
}

std::vector<float> Row(const RowInitializer& initializer, uint64_t id, size_t dim, size_t first = 0) {
  std::vector<float> row(dim, -7.0f);
  initializer.Fill(id, first, absl::MakeSpan(row));
  return row;
}

constexpr char kUniform[] = "uniform { low: -1 high: 1 }";
constexpr char kNormal[] = "normal { stddev: 1 }";

// The values of any job saved so far: they must not change. Computed by another program from the formulas in
// row_initializer.cc.
TEST(RowInitializerTest, UniformGivesTheseValues) {
  const RowInitializer uniform = Make(kUniform);
  EXPECT_EQ(Row(uniform, 0, 3), (std::vector<float>{-0x1.3d1614p-1f, 0x1.cd43d4p-2f, -0x1.7f730ap-1f}));
  EXPECT_EQ(Row(uniform, 1, 3), (std::vector<float>{-0x1.59b212p-1f, 0x1.0a4c2ep-2f, -0x1.9eef18p-7f}));
  EXPECT_EQ(Row(uniform, kLastId, 3), (std::vector<float>{-0x1.ec5e88p-1f, 0x1.83c3f8p-2f, 0x1.287a28p-6f}));
}

TEST(RowInitializerTest, NormalGivesTheseValues) {
  const RowInitializer normal = Make(kNormal);
  EXPECT_EQ(Row(normal, 0, 3), (std::vector<float>{0x1.6f76e6p+0f, 0x1.e73598p-3f, -0x1.04791ap+1f}));
  EXPECT_EQ(Row(normal, 1, 3), (std::vector<float>{0x1.db33a8p+0f, 0x1.e0e3p-1f, -0x1.4118ap-1f}));
  EXPECT_EQ(Row(normal, kLastId, 3), (std::vector<float>{0x1.d3135cp+0f, -0x1.803958p-1f, 0x1.19d876p+0f}));
}

TEST(RowInitializerTest, GivesTheSameBitsWithEachInstructionSetAndForEveryCut) {
  for (const char* config : {kUniform, kNormal}) {
    const RowInitializer initializer = Make(config);
    for (uint64_t id : {uint64_t{0}, uint64_t{12345}, kLastId}) {
      const std::vector<float> want = [&] {
        const ScopedInstructionSet portable(InstructionSet::kPortable);
        return Row(initializer, id, 4096);
      }();
      for (InstructionSet set : AvailableInstructionSets()) {
        const ScopedInstructionSet scoped(set);
        EXPECT_EQ(Row(initializer, id, 4096), want);
        EXPECT_EQ(Row(initializer, id, 19, 1000), std::vector<float>(want.begin() + 1000, want.begin() + 1019));
        EXPECT_EQ(Row(initializer, id, 1, 4095)[0], want[4095]);
      }
    }
  }
}

TEST(RowInitializerTest, DiffersBySeedTableAndId) {
  const std::vector<float> first = Row(Make(kUniform), 5, 8);
  EXPECT_NE(Row(Make(kUniform, 2), 5, 8), first);
  EXPECT_NE(Row(Make(kUniform, 1, "items"), 5, 8), first);
  EXPECT_NE(Row(Make(kUniform), 6, 8), first);
  EXPECT_EQ(Row(Make(kUniform), 5, 8), first);
}

TEST(RowInitializerTest, ConstantAndDefaultZero) {
  EXPECT_EQ(Row(Make(""), 1, 2), (std::vector<float>{0, 0}));
  EXPECT_EQ(Row(Make("zeros {}"), 1, 2), (std::vector<float>{0, 0}));
  EXPECT_EQ(Row(Make("constant { value: 1.5 }"), 1, 2), (std::vector<float>{1.5f, 1.5f}));
}

TEST(RowInitializerTest, UniformStaysWithinItsBounds) {
  const struct {
    const char* config;
    float low;
    float high;
  } cases[] = {{"uniform { low: 1 high: 1.0000002 }", 1, 1.0000002f},
               {"uniform { low: 1e-30 high: 1 }", 1e-30f, 1},
               {"uniform { low: -3e38 high: 3e38 }", -3e38f, 3e38f}};
  for (const auto& c : cases) {
    for (float value : Row(Make(c.config), 1, 100000)) {
      ASSERT_GE(value, c.low);
      ASSERT_LT(value, c.high);
    }
  }
  EXPECT_EQ(Row(Make("uniform { low: 2 high: 2 }"), 1, 2), (std::vector<float>{2, 2}));
}

TEST(RowInitializerTest, RefusesKindsThatNeedAShape) {
  EXPECT_EQ(
      TryMake("he_normal {}").status(),
      absl::InvalidArgumentError("initializer: got he_normal, want zeros, constant, uniform or normal; he_normal is "
                                 "for tensors only"));
  EXPECT_EQ(TryMake("normal { stddev: -1 }").status(),
            absl::InvalidArgumentError("initializer.normal.stddev: got -1, want a finite number of at least 0"));
}

// --- Statistics of a million values: 1000 rows of 1000 elements, ids from `id` on ---

constexpr size_t kSide = 1000;
constexpr double kCount = kSide * kSide;

std::vector<float> Block(const RowInitializer& initializer, uint64_t id) {
  std::vector<float> values(kSide * kSide);
  for (size_t row = 0; row < kSide; ++row) {
    initializer.Fill(id + row, absl::MakeSpan(values).subspan(row * kSide, kSide));
  }
  return values;
}

// The mean of f over the values.
template <typename F>
double Mean(const std::vector<float>& values, F f) {
  double sum = 0;
  for (float value : values) sum += f(value);
  return sum / static_cast<double>(values.size());
}

double Power(double x, int exponent) { return exponent == 0 ? 1 : x * Power(x, exponent - 1); }

// Five standard errors of the mean of a million values with this standard deviation.
double Tolerance(double stddev) { return 5 * stddev / std::sqrt(kCount); }

TEST(RowInitializerTest, UniformHasTheMomentsOfTheUniformDistribution) {
  const std::vector<float> values = Block(Make(kUniform), 0);
  EXPECT_NEAR(Mean(values, [](double x) { return x; }), 0, Tolerance(std::sqrt(1 / 3.0)));
  EXPECT_NEAR(Mean(values, [](double x) { return x * x; }), 1 / 3.0, Tolerance(std::sqrt(4 / 45.0)));
  for (int part = 0; part < 16; ++part) {
    const double low = -1 + part / 8.0;
    EXPECT_NEAR(Mean(values, [&](double x) { return x >= low && x < low + 1 / 8.0; }), 1 / 16.0, Tolerance(0.25));
  }
}

TEST(RowInitializerTest, NormalHasTheMomentsOfTheNormalDistribution) {
  const std::vector<float> values = Block(Make("normal { mean: 3 stddev: 0.5 }"), 0);
  const auto moment = [&](int k) { return Mean(values, [&](double x) { return Power((x - 3) / 0.5, k); }); };
  EXPECT_NEAR(moment(1), 0, Tolerance(1));
  EXPECT_NEAR(moment(2), 1, Tolerance(std::sqrt(2.0)));
  EXPECT_NEAR(moment(3), 0, Tolerance(std::sqrt(15.0)));
  EXPECT_NEAR(moment(4), 3, Tolerance(std::sqrt(96.0)));
  for (double z : {-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0}) {
    const double below = std::erfc(-z / std::sqrt(2.0)) / 2;
    EXPECT_NEAR(Mean(values, [&](double x) { return x < 3 + 0.5 * z; }), below,
                Tolerance(std::sqrt(below * (1 - below))));
  }
}

// The correlation of value i with value i + lag, and of their squares.
void ExpectNoCorrelation(const std::vector<float>& values, const std::vector<float>& others, size_t lag) {
  const size_t n = values.size() - lag;
  double product = 0, squares = 0;
  for (size_t i = 0; i < n; ++i) {
    product += static_cast<double>(values[i]) * others[i + lag];
    squares += (values[i] * values[i] - 1.0) * (others[i + lag] * others[i + lag] - 1.0);
  }
  EXPECT_NEAR(product / static_cast<double>(n), 0, Tolerance(1)) << lag;
  EXPECT_NEAR(squares / static_cast<double>(n), 0, Tolerance(2)) << lag;
}

TEST(RowInitializerTest, NeighboringIdsAndElementsAreNotCorrelated) {
  const std::vector<float> values = Block(Make(kNormal), 0);
  // The next elements, and the same and the next element of the next row.
  for (size_t lag : {size_t{1}, size_t{2}, size_t{16}, kSide, kSide + 1, kSide - 1}) {
    ExpectNoCorrelation(values, values, lag);
  }
}

TEST(RowInitializerTest, OtherSeedsTablesAndIdsAreNotCorrelated) {
  const std::vector<float> values = Block(Make(kNormal), 0);
  ExpectNoCorrelation(values, Block(Make(kNormal, 2), 0), 0);
  ExpectNoCorrelation(values, Block(Make(kNormal, 1, "items"), 0), 0);
  ExpectNoCorrelation(values, Block(Make(kNormal), uint64_t{1} << 32), 0);
  ExpectNoCorrelation(values, Block(Make(kNormal), uint64_t{1} << 63), 0);
}

}  // namespace
}  // namespace ballast
