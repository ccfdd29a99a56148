// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cpu/gemm/small_batch_gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "worker/device/cpu/gemm/tile_fixture.h"

namespace ballast {
namespace {

struct Shape {
  int64_t rows, columns, depth;
};

std::ostream& operator<<(std::ostream& out, const Shape& shape) {
  return out << shape.rows << "x" << shape.columns << "x" << shape.depth;
}

struct Form {
  const char* name;
  bool a_transposed, b_transposed;
};

constexpr Form kForms[] = {
    {"forward", false, true}, {"input gradient", false, false}, {"weight gradient", true, false}};

// Sizes around one, a tile and a panel, then beyond the blocks of depth (64, 512, 1024) and of columns (480, 512), and
// with rows that are whole pages apart.
std::vector<Shape> Shapes() {
  std::vector<Shape> shapes;
  for (const int64_t rows : {1, 7, 63, 64, 65}) {
    for (const int64_t columns : {1, 15, 17, 64, 129}) {
      for (const int64_t depth : {1, 16, 63, 65}) shapes.push_back({rows, columns, depth});
    }
  }
  for (const Shape& large : {Shape{65, 1031, 515}, Shape{64, 528, 2049}, Shape{64, 528, 2048}, Shape{193, 33, 1024},
                             Shape{7, 9, 1025}, Shape{515, 1025, 64}}) {
    shapes.push_back(large);
  }
  return shapes;
}

std::vector<float> Random(int64_t n, uint32_t seed) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> uniform(-2.0f, 2.0f);
  std::vector<float> values(n);
  for (float& value : values) value = uniform(generator);
  return values;
}

// The factors of one product, each in memory of its exact size.
class Factors {
 public:
  Factors(const Shape& shape, const Form& form)
      : shape_(shape),
        form_(form),
        a_(Random(shape.rows * shape.depth, 1)),
        b_(Random(shape.depth * shape.columns, 2)) {}

  Product To(float* c) const {
    return {a_.data(), form_.a_transposed, b_.data(), form_.b_transposed, c, shape_.rows, shape_.columns, shape_.depth};
  }

  std::vector<float> Multiply(const TileKernel& kernel, int threads) const {
    std::vector<float> c(shape_.rows * shape_.columns, NAN);
    SmallBatchGemm(kernel, threads).Multiply(To(c.data()));
    return c;
  }

  float a(int64_t i, int64_t p) const { return a_[form_.a_transposed ? p * shape_.rows + i : i * shape_.depth + p]; }
  float b(int64_t p, int64_t j) const { return b_[form_.b_transposed ? j * shape_.depth + p : p * shape_.columns + j]; }

 private:
  const Shape shape_;
  const Form form_;
  const std::vector<float> a_, b_;
};

struct Kernel {
  const char* name;
  const TileKernel* kernel;
  // The instructions that it needs.
  InstructionSet set;
};

class SmallBatchGemmTest : public ::testing::TestWithParam<Kernel> {
 protected:
  void SetUp() override {
    const std::vector<InstructionSet> sets = AvailableInstructionSets();
    if (std::find(sets.begin(), sets.end(), GetParam().set) == sets.end()) {
      GTEST_SKIP() << "this processor has no " << NameOf(GetParam().set);
    }
  }

  const TileKernel& kernel() const { return *GetParam().kernel; }
};

INSTANTIATE_TEST_SUITE_P(, SmallBatchGemmTest,
                         ::testing::Values(Kernel{"Avx512", TileKernelOf(InstructionSet::kAvx512),
                                                  InstructionSet::kAvx512},
                                           Kernel{"Avx512TilesOnAvx2", Avx512TilesOnAvx2(), InstructionSet::kAvx2},
                                           Kernel{"Avx2", TileKernelOf(InstructionSet::kAvx2), InstructionSet::kAvx2}),
                         [](const auto& info) { return info.param.name; });

TEST_P(SmallBatchGemmTest, AgreesWithTheSumsOfProductsAndDoesNotReadTheResult) {
  for (const Form& form : kForms) {
    for (const Shape& shape : Shapes()) {
      SCOPED_TRACE(testing::Message() << form.name << " " << shape);
      const Factors factors(shape, form);
      const std::vector<float> c = factors.Multiply(kernel(), 1);
      for (int64_t i = 0; i < shape.rows; ++i) {
        for (int64_t j = 0; j < shape.columns; ++j) {
          double sum = 0, magnitude = 0;
          for (int64_t p = 0; p < shape.depth; ++p) {
            const double term = double{factors.a(i, p)} * factors.b(p, j);
            sum += term;
            magnitude += std::abs(term);
          }
          ASSERT_NEAR(c[i * shape.columns + j], sum, 1e-6 * magnitude) << i << ", " << j;
        }
      }
    }
  }
}

TEST_P(SmallBatchGemmTest, GivesTheSameBitsForAnyNumberOfThreads) {
  for (const Form& form : kForms) {
    for (const Shape& shape : {Shape{65, 1031, 515}, Shape{515, 1024, 64}, Shape{7, 9, 3}}) {
      SCOPED_TRACE(testing::Message() << form.name << " " << shape);
      const Factors factors(shape, form);
      const std::vector<float> one = factors.Multiply(kernel(), 1);
      EXPECT_EQ(factors.Multiply(kernel(), 2), one);
      EXPECT_EQ(factors.Multiply(kernel(), 5), one);
    }
  }
}

TEST_P(SmallBatchGemmTest, ComputesRowsOfTheWeightGradientOnDemand) {
  constexpr Shape kShape{515, 1031, 64};
  const Factors factors(kShape, kForms[2]);
  const std::vector<float> whole = factors.Multiply(kernel(), 1);
  for (const int threads : {1, 3}) {
    SCOPED_TRACE(threads);
    std::vector<float> c(whole.size(), NAN);
    const auto rows = [&](int64_t begin, int64_t end) {
      return std::vector<float>(c.begin() + begin * kShape.columns, c.begin() + end * kShape.columns);
    };
    SmallBatchGemm gemm(kernel(), threads);
    const std::unique_ptr<SmallBatchGemm::WeightGradient> gradient = gemm.BeginWeightGradient(factors.To(c.data()));
    EXPECT_TRUE(std::isnan(c[0]));
    const auto expect_rows = [&](int64_t begin, int64_t end) {
      gemm.ComputeRows(*gradient, begin, end);
      const std::vector<float> want(whole.begin() + begin * kShape.columns, whole.begin() + end * kShape.columns);
      EXPECT_EQ(rows(begin, end), want) << begin << ", " << end;
    };
    expect_rows(100, 101);
    EXPECT_TRUE(std::isnan(c[0]));
    EXPECT_TRUE(std::isnan(c.back()));
    expect_rows(0, 7);
    // A row that is there already is not written again.
    c[0] = -1;
    gemm.ComputeRows(*gradient, 0, 1);
    EXPECT_EQ(c[0], -1);
    c[0] = whole[0];
    expect_rows(90, 300);
    expect_rows(514, 515);
    expect_rows(0, kShape.rows);
  }
}

TEST_P(SmallBatchGemmTest, ComputesTheOutputAsRowsOfTheWeightsCome) {
  constexpr Shape kShape{65, 1031, 1100};
  const Factors factors(kShape, kForms[0]);
  const std::vector<float> whole = factors.Multiply(kernel(), 1);
  for (const int threads : {1, 3}) {
    SCOPED_TRACE(threads);
    std::vector<float> weights(factors.To(nullptr).b, factors.To(nullptr).b + kShape.columns * kShape.depth);
    const std::vector<float> there = weights;
    std::fill(weights.begin(), weights.end(), NAN);
    std::vector<float> c(whole.size(), NAN);
    Product product = factors.To(c.data());
    product.b = weights.data();
    SmallBatchGemm gemm(kernel(), threads);
    gemm.BeginForward(product);
    const auto come = [&](int64_t begin, int64_t end) {
      std::copy(there.begin() + begin * kShape.depth, there.begin() + end * kShape.depth,
                weights.begin() + begin * kShape.depth);
      gemm.ForwardInside(begin, end);
    };
    // Not in order, and with ends inside a tile.
    come(500, 777);
    EXPECT_EQ(c[600], whole[600]);
    EXPECT_TRUE(std::isnan(c[400]));
    come(1000, kShape.columns);
    EXPECT_EQ(c[kShape.columns - 1], whole[kShape.columns - 1]);
    come(0, 1);
    come(2, 500);
    come(777, 1000);
    // Only the one row that has not come, and its neighbors, are missing.
    come(1, 2);
    gemm.EndForward();
    EXPECT_EQ(c, whole);
  }
}

// Each element is one chain of fused multiply-adds.
TEST_P(SmallBatchGemmTest, GivesTheBitsOfAFusedMultiplyAddAfterTheOther) {
  const Shape shape{9, 513, 1100};
  for (const Form& form : kForms) {
    SCOPED_TRACE(form.name);
    const Factors factors(shape, form);
    const std::vector<float> c = factors.Multiply(kernel(), 1);
    for (int64_t i = 0; i < shape.rows; ++i) {
      for (int64_t j = 0; j < shape.columns; ++j) {
        float sum = 0;
        for (int64_t p = 0; p < shape.depth; ++p) sum = std::fma(factors.a(i, p), factors.b(p, j), sum);
        ASSERT_EQ(c[i * shape.columns + j], sum) << i << ", " << j;
      }
    }
  }
}

TEST_P(SmallBatchGemmTest, StreamsAResultThatTheCachesDoNotHold) {
  // Rows are whole cache lines, from the start of one.
  constexpr int64_t kRows = 2051, kColumns = 2064, kDepth = 2;
  const Factors factors({kRows, kColumns, kDepth}, kForms[2]);
  std::vector<float> memory(kRows * kColumns + 32, -1.0f);
  float* c = memory.data();
  while (reinterpret_cast<uintptr_t>(c) % 64 != 0) ++c;
  SmallBatchGemm(kernel(), 2).Multiply(factors.To(c));
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t j = 0; j < kColumns; ++j) {
      ASSERT_EQ(c[i * kColumns + j], std::fma(factors.a(i, 1), factors.b(1, j), factors.a(i, 0) * factors.b(0, j)));
    }
  }
  EXPECT_EQ(c[kRows * kColumns], -1.0f);
}

TEST_P(SmallBatchGemmTest, PassesNanOn) {
  std::vector<float> a(8 * 3, 0.0f), b(3 * 5, NAN), c(8 * 5, 0.0f);
  SmallBatchGemm(kernel(), 1).Multiply({a.data(), false, b.data(), false, c.data(), 8, 5, 3});
  for (const float value : c) EXPECT_TRUE(std::isnan(value));
}

TEST_P(SmallBatchGemmTest, SuitsSmallBatchesOfLargeWeightsOnly) {
  const SmallBatchGemm gemm(kernel(), 1);
  const auto suits = [&](const Form& form, int64_t rows, int64_t columns, int64_t depth) {
    return gemm.Suits({nullptr, form.a_transposed, nullptr, form.b_transposed, nullptr, rows, columns, depth});
  };
  EXPECT_TRUE(suits(kForms[0], 64, 4096, 784));
  EXPECT_TRUE(suits(kForms[1], 64, 784, 4096));
  EXPECT_TRUE(suits(kForms[2], 4096, 784, 64));
  EXPECT_FALSE(suits(kForms[0], 64, 255, 256)) << "few weights";
  EXPECT_FALSE(suits(kForms[2], 10, 409600, 64)) << "a narrow layer";
  EXPECT_FALSE(suits(kForms[0], 7, 4096, 4096)) << "hardly a batch";
  EXPECT_FALSE(suits(kForms[0], 513, 4096, 4096)) << "a large batch";
  EXPECT_FALSE(suits({"both", true, true}, 4096, 4096, 64));
}

}  // namespace
}  // namespace ballast
