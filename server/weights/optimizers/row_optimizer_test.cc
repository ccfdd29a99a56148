// SPDX-License-Identifier: Apache-2.0
#include "server/weights/optimizers/row_optimizer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "common/job/kind_names.h"
#include "common/simd/instruction_set.h"
#include "gtest/gtest.h"
#include "server/weights/optimizers/optimizer.h"
#include "server/weights/optimizers/optimizer_fixture.h"

namespace ballast {
namespace {

std::unique_ptr<RowOptimizer> Make(const std::string& config) {
  auto optimizer = MakeRowOptimizer(OptimizerConfig(config));
  EXPECT_TRUE(optimizer.ok()) << optimizer.status();
  return *std::move(optimizer);
}

// A rate for update t: it changes, and is 0 once.
float ChangingRate(int t) { return t == 20 ? 0.0f : 0.01f * static_cast<float>(1 + t * 7 % 5); }

// Initial weights, then slots of 0.
Floats NewRow(const RowOptimizer& optimizer, int dim) {
  Floats row = Normal(dim, dim);
  row.resize(dim + optimizer.SlotFloats(dim), 0.0f);
  return row;
}

Floats GradientOf(int dim, int t) { return Normal(dim, 1000 * dim + t); }

void Update(const RowOptimizer& optimizer, uint32_t t, float rate, const Floats& gradient, Floats& row) {
  optimizer.Apply(static_cast<int>(gradient.size()), 1, {RowUpdate{row.data(), gradient.data(), t, rate}});
}

// The row after 50 updates at changing rates.
Floats Trained(const RowOptimizer& optimizer, int dim) {
  Floats row = NewRow(optimizer, dim);
  for (int t = 1; t <= 50; ++t) Update(optimizer, t, ChangingRate(t), GradientOf(dim, t), row);
  return row;
}

// The bits, so that NaN and the sign of 0 count.
std::vector<uint32_t> Bits(const Floats& values) {
  std::vector<uint32_t> bits(values.size());
  std::transform(values.begin(), values.end(), bits.begin(), [](float x) { return std::bit_cast<uint32_t>(x); });
  return bits;
}

constexpr int kDims[] = {1, 3, 8, 16, 17, 64, 300};

// --- Kinds that tensors have too ---

// A tensor of one slice, its weights followed by its slots as in a row.
void UpdateTensor(const Optimizer& optimizer, uint64_t t, float rate, float scale, const Floats& gradient,
                  Floats& tensor) {
  OptimizerState state{tensor.data(), tensor.data(), {}};
  for (int slot = 0; slot < optimizer.slots(); ++slot) {
    state.slots[slot] = tensor.data() + (slot + 1) * gradient.size();
  }
  optimizer.Apply({t, rate, scale}, Gradient(gradient), state);
}

void ExpectBitsOfATensor(const std::string& config, int dim) {
  const auto rows = Make(config);
  const auto tensors = *MakeOptimizer(OptimizerConfig(config));
  ASSERT_EQ(rows->SlotFloats(dim), tensors->slots() * dim);
  Floats row = NewRow(*rows, dim);
  Floats tensor = row;
  for (int t = 1; t <= 50; ++t) {
    const Floats gradient = GradientOf(dim, t);
    rows->Apply(dim, 0.75f, {RowUpdate{row.data(), gradient.data(), static_cast<uint32_t>(t), ChangingRate(t)}});
    UpdateTensor(*tensors, t, ChangingRate(t), 0.75f, gradient, tensor);
    ASSERT_EQ(Bits(row), Bits(tensor)) << "dim " << dim << ", update " << t;
  }
}

class TensorKindTest : public testing::TestWithParam<OptimizerCase> {};

TEST_P(TensorKindTest, ARowEqualsATensorOfItsLengthBitForBit) {
  for (InstructionSet set : AvailableInstructionSets()) {
    const ScopedInstructionSet scoped(set);
    for (int dim : kDims) ExpectBitsOfATensor(GetParam().config, dim);
  }
}

TEST_P(TensorKindTest, ARowIsClippedByItsOwnNormLikeATensor) {
  v1::Optimizer config = OptimizerConfig(GetParam().config);
  config.set_clip_norm(0.5f);
  for (InstructionSet set : AvailableInstructionSets()) {
    const ScopedInstructionSet scoped(set);
    for (int dim : kDims) ExpectBitsOfATensor(config.DebugString(), dim);
  }
}

// Constants that depend on the update number are tabulated up to some number.
TEST_P(TensorKindTest, ARowEqualsATensorAtAnyUpdateNumber) {
  const auto rows = Make(GetParam().config);
  const auto tensors = *MakeOptimizer(OptimizerConfig(GetParam().config));
  Floats row = NewRow(*rows, 16);
  Floats tensor = row;
  for (uint32_t t : {1u, 2u, 100u, 361u, 362u, 1000u, 12000u, 14000u, 18020u, 18021u, 40000u, 1u << 20, ~0u}) {
    const Floats gradient = GradientOf(16, 1);
    Update(*rows, t, 0.01f, gradient, row);
    UpdateTensor(*tensors, t, 0.01f, 1, gradient, tensor);
    ASSERT_EQ(Bits(row), Bits(tensor)) << "update " << t;
  }
}

TEST_P(TensorKindTest, ARowHasTheRateOfATensor) {
  v1::Optimizer config = OptimizerConfig(GetParam().config);
  config.mutable_schedule()->mutable_cosine()->set_total(100);
  const auto rows = *MakeRowOptimizer(config);
  const auto tensors = *MakeOptimizer(config);
  for (uint64_t t : {1u, 50u, 101u}) {
    EXPECT_EQ(rows->LearningRate(t, std::nullopt), tensors->LearningRate(t, std::nullopt));
  }
}

INSTANTIATE_TEST_SUITE_P(All, TensorKindTest, testing::ValuesIn(OptimizerCases()),
                         [](const testing::TestParamInfo<OptimizerCase>& info) { return info.param.name; });

TEST(RowOptimizerTest, AdamWithSlowMomentsEqualsATensorAtAnyUpdateNumber) {
  const std::string config = "adam { learning_rate: 0.01 beta1: 0.999 beta2: 0.999999 }";
  const auto rows = Make(config);
  const auto tensors = *MakeOptimizer(OptimizerConfig(config));
  Floats row = NewRow(*rows, 8);
  Floats tensor = row;
  for (uint32_t t : {1u, 37000u, 38800u, (1u << 18) - 1, 1u << 18, 20000000u}) {
    Update(*rows, t, 0.01f, GradientOf(8, 1), row);
    UpdateTensor(*tensors, t, 0.01f, 1, GradientOf(8, 1), tensor);
    ASSERT_EQ(Bits(row), Bits(tensor)) << "update " << t;
  }
}

// --- Kinds that only tables have ---

double MeanSquare(const Doubles& g) { return Norm(g) * Norm(g) / g.size(); }

void RowWiseAdagradRule(int, const Doubles& g, Doubles& w, std::vector<Doubles>& slots) {
  double& s = slots[0][0];
  s += MeanSquare(g);
  for (size_t i = 0; i < g.size(); ++i) w[i] -= 0.1 * g[i] / (std::sqrt(s) + 1e-10);
}

void RowWiseAdamRule(int t, const Doubles& g, Doubles& w, std::vector<Doubles>& slots) {
  double& v = slots[1][0];
  v = 0.999 * v + 0.001 * MeanSquare(g);
  for (size_t i = 0; i < g.size(); ++i) {
    double& m = slots[0][i];
    m = 0.9 * m + 0.1 * g[i];
    w[i] -= 0.01 * m / (1 - std::pow(0.9, t)) / (std::sqrt(v / (1 - std::pow(0.999, t))) + 1e-8);
  }
}

// The formula of tensor.proto, with sigma as in FTRL's paper: alpha 0.1, beta 1, l1 0.5, l2 0.25, group lasso 1.
void GroupFtrlRule(int t, const Doubles& g, Doubles& w, std::vector<Doubles>& slots) {
  Doubles u(g.size());
  for (size_t i = 0; i < g.size(); ++i) {
    double& z = slots[0][i];
    double& n = slots[1][i];
    const double sigma = (std::sqrt(n + g[i] * g[i]) - std::sqrt(n)) / 0.1;
    z += g[i] - (t == 1 ? 0 : sigma * w[i]);
    n += g[i] * g[i];
    u[i] = std::abs(z) <= 0.5 ? 0 : z - std::copysign(0.5, z);
  }
  const double most = 1 * std::sqrt(static_cast<double>(g.size()));
  const double kept = Norm(u) <= most ? 0 : 1 - most / Norm(u);
  for (size_t i = 0; i < g.size(); ++i) w[i] = -kept * u[i] / ((1 + std::sqrt(slots[1][i])) / 0.1 + 0.25);
}

const std::vector<OptimizerCase>& TableCases() {
  static const auto& cases = *new std::vector<OptimizerCase>{
      {"RowWiseAdagrad", "row_wise_adagrad { learning_rate: 0.1 }", 1, RowWiseAdagradRule},
      {"RowWiseAdam", "row_wise_adam { learning_rate: 0.01 }", 2, RowWiseAdamRule},
      {"GroupFtrl", "group_ftrl { learning_rate: 0.1 l1: 0.5 l2: 0.25 group_lasso: 1 }", 2, GroupFtrlRule},
  };
  return cases;
}

class TableKindTest : public testing::TestWithParam<OptimizerCase> {};

TEST_P(TableKindTest, FollowsTheReferenceOver200Updates) {
  const OptimizerCase& c = GetParam();
  for (int dim : kDims) {
    const auto optimizer = Make(c.config);
    Floats row = NewRow(*optimizer, dim);
    Doubles want(row.begin(), row.begin() + dim);
    std::vector<Doubles> slots(c.slots, Doubles(dim, 0.0));
    double largest = 0;
    for (int t = 1; t <= 200; ++t) {
      const Floats gradient = GradientOf(dim, t);
      Update(*optimizer, t, optimizer->LearningRate(t, std::nullopt), gradient, row);
      c.reference(t, Doubles(gradient.begin(), gradient.end()), want, slots);
      for (double w : want) largest = std::max(largest, std::abs(w));
    }
    for (int i = 0; i < dim; ++i) EXPECT_NEAR(row[i], want[i], 1e-5 * largest) << dim;
  }
}

TEST_P(TableKindTest, GivesTheSameBitsWithEachInstructionSet) {
  v1::Optimizer config = OptimizerConfig(GetParam().config);
  for (float clip_norm : {0.0f, 0.5f}) {
    config.set_clip_norm(clip_norm);
    const auto optimizer = *MakeRowOptimizer(config);
    for (int dim : kDims) {
      const Floats want = [&] {
        const ScopedInstructionSet portable(InstructionSet::kPortable);
        return Trained(*optimizer, dim);
      }();
      for (InstructionSet set : AvailableInstructionSets()) {
        const ScopedInstructionSet scoped(set);
        EXPECT_EQ(Bits(Trained(*optimizer, dim)), Bits(want)) << dim;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, TableKindTest, testing::ValuesIn(TableCases()),
                         [](const testing::TestParamInfo<OptimizerCase>& info) { return info.param.name; });

// --- All kinds ---

std::vector<OptimizerCase> AllCases() {
  std::vector<OptimizerCase> cases = OptimizerCases();
  cases.insert(cases.end(), TableCases().begin(), TableCases().end());
  return cases;
}

class RowOptimizerConformanceTest : public testing::TestWithParam<OptimizerCase> {};

// More rows than one batch has, each with an update number and a rate of its own.
TEST_P(RowOptimizerConformanceTest, UpdatesEachRowOfACallAsIfItWereAlone) {
  constexpr int kRows = 37;
  constexpr int kDim = 17;
  const auto optimizer = Make(GetParam().config);
  std::vector<Floats> rows(kRows, NewRow(*optimizer, kDim)), want = rows, gradients;
  std::vector<RowUpdate> updates;
  for (int i = 0; i < kRows; ++i) {
    gradients.push_back(GradientOf(kDim, i));
    updates.push_back({rows[i].data(), nullptr, static_cast<uint32_t>(1 + i % 5), ChangingRate(i)});
    Update(*optimizer, updates[i].update, ChangingRate(i), gradients[i], want[i]);
  }
  for (int i = 0; i < kRows; ++i) updates[i].gradient = gradients[i].data();
  optimizer->Apply(kDim, 1, updates);
  for (int i = 0; i < kRows; ++i) EXPECT_EQ(Bits(rows[i]), Bits(want[i])) << i;
}

TEST_P(RowOptimizerConformanceTest, WritesNothingAfterTheSlots) {
  const auto optimizer = Make(GetParam().config);
  for (int dim : kDims) {
    Floats row = NewRow(*optimizer, dim);
    row.resize(row.size() + 3, 7.0f);
    Update(*optimizer, 1, 0.1f, GradientOf(dim, 1), row);
    EXPECT_EQ(Floats(row.end() - 3, row.end()), (Floats{7, 7, 7})) << dim;
  }
}

TEST_P(RowOptimizerConformanceTest, ScalesTheGradientBeforeAllElse) {
  const auto optimizer = Make(GetParam().config);
  Floats got = NewRow(*optimizer, 16), want = got, gradient = GradientOf(16, 1);
  Update(*optimizer, 1, 0.1f, gradient, want);
  for (float& g : gradient) g *= 8;
  optimizer->Apply(16, 0.125f, {RowUpdate{got.data(), gradient.data(), 1, 0.1f}});
  EXPECT_EQ(Bits(got), Bits(want));
}

TEST_P(RowOptimizerConformanceTest, ChangesNoWeightAtARateOfZero) {
  const auto optimizer = Make(GetParam().config);
  Floats row = NewRow(*optimizer, 16);
  Update(*optimizer, 1, 0.1f, GradientOf(16, 1), row);
  const Floats before(row.begin(), row.begin() + 16);
  Update(*optimizer, 2, 0.0f, GradientOf(16, 2), row);
  EXPECT_EQ(Floats(row.begin(), row.begin() + 16), before);
}

TEST_P(RowOptimizerConformanceTest, LetsNaNShow) {
  const auto optimizer = Make(GetParam().config);
  Floats row = NewRow(*optimizer, 16), gradient(16, 1.0f);
  gradient[3] = std::numeric_limits<float>::quiet_NaN();
  Update(*optimizer, 1, 0.1f, gradient, row);
  EXPECT_TRUE(std::isnan(row[3]));
}

INSTANTIATE_TEST_SUITE_P(All, RowOptimizerConformanceTest, testing::ValuesIn(AllCases()),
                         [](const testing::TestParamInfo<OptimizerCase>& info) { return info.param.name; });

TEST(RowOptimizerTest, EveryKindOfATableHasACase) {
  for (const std::string& kind : KindNames(*v1::Optimizer::descriptor(), v1::PARAMETER_KIND_TABLE)) {
    bool found = false;
    for (const OptimizerCase& c : AllCases()) found = found || KindName(OptimizerConfig(c.config)) == kind;
    EXPECT_TRUE(found) << kind;
  }
}

TEST(RowOptimizerTest, RefusesAnImpossibleConfiguration) {
  EXPECT_EQ(MakeRowOptimizer(OptimizerConfig("")).status().message(),
            "optimizer: got nothing, want sgd, momentum, adam, nesterov, adagrad, rmsprop, adamw, lamb, ftrl, lion, "
            "row_wise_adagrad, row_wise_adam or group_ftrl");
  EXPECT_EQ(MakeRowOptimizer(OptimizerConfig("group_ftrl { learning_rate: 1 l1: -1 }")).status().message(),
            "optimizer.group_ftrl.l1: got -1, want a finite number of at least 0");
}

TEST(RowOptimizerTest, RowWiseKindsKeepOneFloatForARow) {
  EXPECT_EQ(Make("row_wise_adagrad { learning_rate: 1 }")->SlotFloats(16), 1);
  EXPECT_EQ(Make("row_wise_adam { learning_rate: 1 }")->SlotFloats(16), 17);
  EXPECT_EQ(Make("group_ftrl { learning_rate: 1 }")->SlotFloats(16), 32);
}

TEST(RowOptimizerTest, RowWiseAdagradDividesByTheRootOfTheMeanSquare) {
  const auto optimizer = Make("row_wise_adagrad { learning_rate: 1 }");
  // The mean of 1 and 49 is 25. With an earlier sum of 144, the root is 13.
  Floats row = {0, 10, 144};
  Update(*optimizer, 1, 26, {1, 7}, row);
  EXPECT_EQ(row, (Floats{-2, -4, 169}));
}

// Expects rows of `dim` to have the same weights under two kinds, whose slots are equal or hold the same floats.
void ExpectSameRows(const std::string& config, const std::string& other, int dim) {
  EXPECT_EQ(Trained(*Make(config), dim), Trained(*Make(other), dim));
}

TEST(RowOptimizerTest, ARowOfOneElementNeedsNoRowWiseKind) {
  ExpectSameRows("row_wise_adagrad { learning_rate: 1 }", "adagrad { learning_rate: 1 }", 1);
  ExpectSameRows("row_wise_adam { learning_rate: 1 }", "adam { learning_rate: 1 }", 1);
}

TEST(RowOptimizerTest, GroupFtrlWithoutAGroupLassoIsFtrl) {
  ExpectSameRows("group_ftrl { learning_rate: 1 l1: 0.5 l2: 0.1 }", "ftrl { learning_rate: 1 l1: 0.5 l2: 0.1 }", 17);
}

TEST(RowOptimizerTest, GroupFtrlKeepsARowAtZeroWhoseNormTheGroupLassoOutweighs) {
  const auto optimizer = Make("group_ftrl { learning_rate: 1 beta: 0 group_lasso: 2.5 }");
  // The norm is 5, the limit 2.5 * sqrt(4).
  Floats row = {9, 9, 9, 9, 0, 0, 0, 0, 0, 0, 0, 0};
  Update(*optimizer, 1, 1, {3, 4, 0, 0}, row);
  EXPECT_EQ(row, (Floats{0, 0, 0, 0, 3, 4, 0, 0, 9, 16, 0, 0}));
  // z = (6, 8, 0, 0) has the norm 10: half of z goes to w = -z / 2 / sqrt(n).
  row[8] = 27, row[9] = 48;
  Update(*optimizer, 2, 1, {3, 4, 0, 0}, row);
  EXPECT_EQ(row, (Floats{-0.5f, -0.5f, 0, 0, 6, 8, 0, 0, 36, 64, 0, 0}));
}

// Rows whose gradients stay small never leave 0, so they can be evicted.
TEST(RowOptimizerTest, GroupFtrlFreesARowAgain) {
  const auto optimizer = Make("group_ftrl { learning_rate: 1 group_lasso: 1 }");
  Floats row(3 * 4, 0.0f);
  Update(*optimizer, 1, 1, {5, -5, 5, -5}, row);
  EXPECT_NE(row[0], 0);
  EXPECT_NE(row[1], 0);
  for (int t = 2; t <= 40; ++t)
    Update(*optimizer, t, 1, {-0.5f * row[4], -0.5f * row[5], -0.5f * row[6], -0.5f * row[7]}, row);
  EXPECT_EQ(Floats(row.begin(), row.begin() + 4), (Floats{0, 0, 0, 0}));
}

}  // namespace
}  // namespace ballast
