// SPDX-License-Identifier: Apache-2.0
#include "server/weights/optimizers/optimizer.h"

#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "common/codecs/codec.h"
#include "common/job/kind_names.h"
#include "common/job/limits.h"
#include "common/simd/instruction_set.h"
#include "gtest/gtest.h"
#include "server/weights/optimizers/optimizer_fixture.h"

namespace ballast {
namespace {

std::unique_ptr<Optimizer> Make(const std::string& text) {
  auto optimizer = MakeOptimizer(OptimizerConfig(text));
  EXPECT_TRUE(optimizer.ok()) << optimizer.status();
  return *std::move(optimizer);
}

// The state of a slice that an optimizer updates.
struct Trained {
  Trained(const Optimizer& optimizer, Floats initial)
      : weights(std::move(initial)), slots(weights.size() * optimizer.slots(), 0.0f) {}

  OptimizerState State(float* updated) {
    OptimizerState state{weights.data(), updated, {}};
    const size_t count = slots.size() / weights.size();
    for (size_t slot = 0; slot < count; ++slot) state.slots[slot] = slots.data() + slot * weights.size();
    return state;
  }

  void Update(const Optimizer& optimizer, uint64_t t, const Gradient& gradient, float scale = 1) {
    UpdateAtRate(optimizer, t, optimizer.LearningRate(t), gradient, scale);
  }

  void UpdateAtRate(const Optimizer& optimizer, uint64_t t, float rate, const Gradient& gradient, float scale = 1) {
    optimizer.Apply({t, rate, scale}, gradient, State(weights.data()));
  }

  void UpdateApart(const Optimizer& optimizer, uint64_t t, const Gradient& gradient) {
    Floats updated(weights.size(), 7.0f);
    const Floats before = weights;
    optimizer.Apply({t, optimizer.LearningRate(t), 1}, gradient, State(updated.data()));
    EXPECT_EQ(weights, before);
    weights = updated;
  }

  Floats weights;
  Floats slots;
};

// Separate pieces of memory that end anywhere, even within an element.
class Pieces {
 public:
  Pieces(const Floats& values, size_t piece_bytes) : elements_(values.size()) {
    const absl::string_view bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    for (size_t at = 0; at < bytes.size(); at += piece_bytes) memory_.emplace_back(bytes.substr(at, piece_bytes));
  }
  Gradient gradient() const {
    const std::vector<absl::string_view> pieces(memory_.begin(), memory_.end());
    return *Gradient::Open(**FindCodec(v1::ENCODING_FP32), pieces, elements_);
  }

 private:
  const size_t elements_;
  std::vector<std::string> memory_;
};

class OptimizerConformanceTest : public testing::TestWithParam<OptimizerCase> {};

TEST_P(OptimizerConformanceTest, FollowsTheReferenceOver200Updates) {
  const OptimizerCase& c = GetParam();
  for (InstructionSet set : AvailableInstructionSets()) {
    const ScopedInstructionSet scoped(set);
    const auto optimizer = Make(c.config);
    ASSERT_EQ(optimizer->slots(), c.slots);
    constexpr int kElements = 997;
    Trained trained(*optimizer, Normal(kElements, 1));
    Doubles want(trained.weights.begin(), trained.weights.end());
    std::vector<Doubles> want_slots(c.slots, Doubles(kElements, 0.0));
    for (int t = 1; t <= 200; ++t) {
      const Floats gradient = Normal(kElements, 1000 + t);
      trained.Update(*optimizer, t, Gradient(gradient));
      c.reference(t, Doubles(gradient.begin(), gradient.end()), want, want_slots);
    }
    const Doubles error = Difference(trained.weights, want);
    double largest = 0;
    for (double weight : want) largest = std::max(largest, std::abs(weight));
    EXPECT_LE(Norm(error), 1e-5 * Norm(want));
    for (int i = 0; i < kElements; ++i) ASSERT_LE(std::abs(error[i]), 1e-5 * largest) << i;
  }
}

// Learning rates that change with each update: each schedule's, and one with staleness.
const struct {
  std::string name;
  std::string schedule;
  // The divisor of update t's rate.
  std::function<float(int t)> staleness = [](int) { return 1.0f; };
} kChangingRates[] = {
    {"constant", "constant {}"},
    {"step", "step { every: 30 factor: 0.5 }"},
    {"exponential", "exponential { factor: 0.97 }"},
    {"polynomial", "polynomial { total: 150 }"},
    {"polynomial of power 2", "polynomial { total: 150 power: 2 }"},
    {"cosine", "cosine { total: 200 }"},
    {"cosine with a final share", "cosine { total: 150 min_rate_ratio: 0.25 }"},
    {"one cycle", "one_cycle { total: 200 }"},
    {"warm-up", "warmup: 40"},
    {"warm-up and cosine", "cosine { total: 200 } warmup: 40"},
    {"staleness", "constant {}", [](int t) { return 1.0f + static_cast<float>(t * 7 % 5); }},
    {"staleness and cosine", "cosine { total: 200 }", [](int t) { return 1.0f + static_cast<float>(t * 7 % 5); }},
};

// FtrlRule at a changing rate: sigma is the increase of (beta + sqrt(n)) / rate. Changes nothing at a rate of 0.
class ChangingFtrlRule {
 public:
  explicit ChangingFtrlRule(size_t elements) : z_(elements), n_(elements) {}

  void Update(double rate, const Floats& gradient, Doubles& w) {
    if (rate <= 0) return;
    for (size_t i = 0; i < w.size(); ++i) {
      const double g = gradient[i];
      const double before = previous_ > 0 ? (1 + std::sqrt(n_[i])) / previous_ : 0;
      n_[i] += g * g;
      const double proximal = (1 + std::sqrt(n_[i])) / rate;
      z_[i] += g - (previous_ > 0 ? (proximal - before) * w[i] : 0);
      w[i] = std::abs(z_[i]) <= 0.01 ? 0 : -(z_[i] - std::copysign(0.01, z_[i])) / (proximal + 0.02);
    }
    previous_ = rate;
  }

 private:
  Doubles z_;
  Doubles n_;
  double previous_ = 0;
};

TEST(OptimizerTest, FtrlFollowsTheReferenceAtRatesThatChange) {
  constexpr int kElements = 500;
  for (const auto& rates : kChangingRates) {
    const auto optimizer = Make("ftrl { learning_rate: 0.1 l1: 0.01 l2: 0.02 } schedule { " + rates.schedule + " }");
    Trained trained(*optimizer, Normal(kElements, 1));
    Doubles want(trained.weights.begin(), trained.weights.end());
    ChangingFtrlRule reference(kElements);
    for (int t = 1; t <= 200; ++t) {
      Floats gradient = Normal(kElements, 1000 + t);
      // Pulls each weight toward a target of its own.
      for (int i = 0; i < kElements; ++i) gradient[i] += trained.weights[i] - std::sin(static_cast<float>(i));
      const float rate = optimizer->LearningRate(t) / rates.staleness(t);
      trained.UpdateAtRate(*optimizer, t, rate, Gradient(gradient));
      reference.Update(rate, gradient, want);
    }
    EXPECT_GT(Norm(want), 1) << rates.name;
    EXPECT_LE(Norm(Difference(trained.weights, want)), 1e-5 * Norm(want)) << rates.name;
  }
}

TEST(OptimizerTest, LambFollowsTheReferenceAtRatesThatChange) {
  constexpr int kElements = 500;
  for (const auto& rates : kChangingRates) {
    const auto optimizer = Make("lamb { learning_rate: 0.01 } weight_decay: 0.1 schedule { " + rates.schedule + " }");
    Trained trained(*optimizer, Normal(kElements, 1));
    Doubles want(trained.weights.begin(), trained.weights.end());
    std::vector<Doubles> slots(2, Doubles(kElements, 0.0));
    for (int t = 1; t <= 200; ++t) {
      const Floats gradient = Normal(kElements, 1000 + t);
      const float rate = optimizer->LearningRate(t) / rates.staleness(t);
      trained.UpdateAtRate(*optimizer, t, rate, Gradient(gradient));
      // LambRule moves the weights at its rate of 0.01.
      Doubles moved = want;
      LambRule(t, Doubles(gradient.begin(), gradient.end()), moved, slots);
      for (int i = 0; i < kElements; ++i) want[i] += (moved[i] - want[i]) * rate / 0.01;
    }
    EXPECT_LE(Norm(Difference(trained.weights, want)), 1e-5 * Norm(want)) << rates.name;
  }
}

// Trains the weights of ten classes over two features and a bias, on points around ten places of a circle. Returns
// the mean loss over the last points.
double LogisticLoss(const Optimizer& optimizer, int updates) {
  constexpr int kClasses = 10;
  constexpr int kFeatures = 3;
  Trained trained(optimizer, Floats(kClasses * kFeatures, 0.0f));
  std::mt19937 random(3);
  std::normal_distribution<float> noise(0.0f, 0.05f);
  const int counted = updates / 10;
  double loss = 0;
  for (int t = 1; t <= updates; ++t) {
    const int label = static_cast<int>(random() % kClasses);
    const double angle = 2 * 3.14159265 * label / kClasses;
    const Floats x = {3 * (static_cast<float>(std::cos(angle)) + noise(random)),
                      3 * (static_cast<float>(std::sin(angle)) + noise(random)), 1};
    Doubles odds(kClasses);
    double sum = 0;
    for (int k = 0; k < kClasses; ++k) {
      double score = 0;
      for (int f = 0; f < kFeatures; ++f) score += trained.weights[k * kFeatures + f] * x[f];
      odds[k] = std::exp(score);
      sum += odds[k];
    }
    if (t > updates - counted) loss -= std::log(odds[label] / sum) / counted;
    Floats gradient(kClasses * kFeatures);
    for (int k = 0; k < kClasses; ++k) {
      const float error = static_cast<float>(odds[k] / sum) - (k == label ? 1.0f : 0.0f);
      for (int f = 0; f < kFeatures; ++f) gradient[k * kFeatures + f] = error * x[f];
    }
    trained.Update(optimizer, t, Gradient(gradient));
  }
  return loss;
}

TEST(OptimizerTest, LogisticRegressionWithFtrlLearnsUnderACosine) {
  const auto constant = Make("ftrl { learning_rate: 0.5 }");
  const auto cosine = Make("ftrl { learning_rate: 0.5 } schedule { cosine { total: 4000 } }");
  EXPECT_LT(LogisticLoss(*constant, 4000), 1.0);
  EXPECT_LT(LogisticLoss(*cosine, 4000), 1.0);
}

TEST(OptimizerTest, FtrlKeepsItsWeightsAtARateAsGoodAsZero) {
  const auto optimizer = Make("ftrl { learning_rate: 1 }");
  Trained trained(*optimizer, {0, 0});
  trained.UpdateAtRate(*optimizer, 1, 1, Gradient(Floats{2, -2}));
  const Floats before = trained.weights;
  for (float rate : {1e-38f, 1e-44f, 0.0f, 1e-10f}) {
    trained.UpdateAtRate(*optimizer, 2, rate, Gradient(Floats{1, 1}));
    EXPECT_FLOAT_EQ(trained.weights[0], before[0]) << rate;
    EXPECT_FLOAT_EQ(trained.weights[1], before[1]) << rate;
  }
}

// More than a block, and not a multiple of a vector.
constexpr int kLongElements = 5003;

// Applies three updates with `update`.
template <typename Update>
Trained Train(const std::string& config, Update update) {
  const auto optimizer = Make(config);
  Trained trained(*optimizer, Normal(kLongElements, 1));
  for (int t = 1; t <= 3; ++t) update(*optimizer, trained, t, Normal(kLongElements, 1 + t));
  return trained;
}

void UpdatePlainly(const Optimizer& optimizer, Trained& trained, int t, const Floats& gradient) {
  trained.Update(optimizer, t, Gradient(gradient));
}

// Expects `update` with each instruction set to give the bits of plain updates with the portable one.
template <typename Update>
void ExpectSameBits(const std::string& config, Update update) {
  const Trained want = [&] {
    const ScopedInstructionSet portable(InstructionSet::kPortable);
    return Train(config, UpdatePlainly);
  }();
  for (InstructionSet set : AvailableInstructionSets()) {
    const ScopedInstructionSet scoped(set);
    const Trained got = Train(config, update);
    EXPECT_EQ(got.weights, want.weights);
    EXPECT_EQ(got.slots, want.slots);
  }
}

TEST_P(OptimizerConformanceTest, GivesTheSameBitsForAnyCut) {
  for (size_t piece_bytes : {44u, 1001u, 4096u, 16387u}) {
    SCOPED_TRACE(piece_bytes);
    ExpectSameBits(GetParam().config, [&](const Optimizer& optimizer, Trained& trained, int t, const Floats& gradient) {
      trained.Update(optimizer, t, Pieces(gradient, piece_bytes).gradient());
    });
  }
}

TEST_P(OptimizerConformanceTest, GivesTheSameBitsInPlaceAndApart) {
  ExpectSameBits(GetParam().config, [](const Optimizer& optimizer, Trained& trained, int t, const Floats& gradient) {
    trained.UpdateApart(optimizer, t, Gradient(gradient));
  });
}

TEST_P(OptimizerConformanceTest, GivesTheSameBitsWithEachInstructionSet) {
  ExpectSameBits(GetParam().config, UpdatePlainly);
}

// A job file with every default written out trains the same model.
TEST_P(OptimizerConformanceTest, GivesTheSameBitsWithDefaultsThatAreWritten) {
  v1::Optimizer config = OptimizerConfig(GetParam().config);
  FillNumbers(config);
  const Trained got = Train(config.DebugString(), UpdatePlainly);
  const Trained want = Train(GetParam().config, UpdatePlainly);
  EXPECT_EQ(got.weights, want.weights);
  EXPECT_EQ(got.slots, want.slots);
}

TEST_P(OptimizerConformanceTest, ScalesTheGradientBeforeAllElse) {
  const auto optimizer = Make(GetParam().config);
  Floats gradient = Normal(100, 1);
  Trained want(*optimizer, Normal(100, 2));
  Trained got = want;
  want.Update(*optimizer, 1, Gradient(gradient));
  for (float& g : gradient) g *= 8;
  got.Update(*optimizer, 1, Gradient(gradient), 0.125f);
  EXPECT_EQ(got.weights, want.weights);
}

TEST_P(OptimizerConformanceTest, LeavesAWeightAloneThatNeverGetsAGradient) {
  v1::Optimizer config = OptimizerConfig(GetParam().config);
  config.clear_weight_decay();
  const auto optimizer = *MakeOptimizer(config);
  Trained trained(*optimizer, {0.0f, 0.0f, 0.0f});
  for (int t = 1; t <= 3; ++t) trained.Update(*optimizer, t, Gradient(Floats{0, 1, 0}));
  EXPECT_EQ(trained.weights[0], 0);
  EXPECT_LT(trained.weights[1], 0);
  EXPECT_EQ(trained.weights[2], 0);
}

TEST_P(OptimizerConformanceTest, ChangesNoWeightAtARateOfZero) {
  v1::Optimizer config = OptimizerConfig(GetParam().config);
  config.mutable_schedule()->mutable_polynomial()->set_total(2);
  const auto optimizer = *MakeOptimizer(config);
  Trained trained(*optimizer, {1, 2, 3});
  for (int t = 1; t <= 2; ++t) trained.Update(*optimizer, t, Gradient(Floats{1, -1, 1}));
  const Floats before = trained.weights;
  trained.Update(*optimizer, 3, Gradient(Floats{1, 1, 1}));
  EXPECT_EQ(trained.weights, before);
}

TEST_P(OptimizerConformanceTest, TakesItsRateFromTheSchedule) {
  v1::Optimizer config = OptimizerConfig(GetParam().config);
  const float rate = (*MakeOptimizer(config))->LearningRate(1);
  EXPECT_GT(rate, 0);
  config.mutable_schedule()->mutable_step()->set_every(10);
  config.mutable_schedule()->mutable_step()->set_factor(0.5f);
  const auto optimizer = *MakeOptimizer(config);
  EXPECT_EQ(optimizer->LearningRate(10), rate);
  EXPECT_EQ(optimizer->LearningRate(11), rate / 2);
}

TEST_P(OptimizerConformanceTest, LetsNaNShow) {
  const auto optimizer = Make(GetParam().config);
  Trained trained(*optimizer, Floats(20, 1.0f));
  Floats gradient(20, 1.0f);
  gradient[3] = std::numeric_limits<float>::quiet_NaN();
  trained.Update(*optimizer, 1, Gradient(gradient));
  EXPECT_TRUE(std::isnan(trained.weights[3]));
}

INSTANTIATE_TEST_SUITE_P(All, OptimizerConformanceTest, testing::ValuesIn(OptimizerCases()),
                         [](const testing::TestParamInfo<OptimizerCase>& info) { return info.param.name; });

TEST(OptimizerTest, EveryKindOfATensorHasACase) {
  for (const std::string& kind : KindNames(*v1::Optimizer::descriptor(), v1::PARAMETER_KIND_TENSOR)) {
    bool found = false;
    for (const OptimizerCase& c : OptimizerCases()) found = found || KindName(OptimizerConfig(c.config)) == kind;
    EXPECT_TRUE(found) << kind;
  }
}

TEST(OptimizerTest, RefusesAnImpossibleConfiguration) {
  EXPECT_EQ(MakeOptimizer(OptimizerConfig("")).status().message(),
            "optimizer: got nothing, want sgd, momentum, adam, nesterov, adagrad, rmsprop, adamw, lamb, ftrl or lion");
  EXPECT_EQ(MakeOptimizer(OptimizerConfig("adam { learning_rate: 0.1 beta2: 1 }")).status().message(),
            "optimizer.adam.beta2: got 1, want a number in [0, 1)");
  EXPECT_EQ(MakeOptimizer(OptimizerConfig("row_wise_adam { learning_rate: 0.1 }")).status().message(),
            "optimizer: got row_wise_adam, want sgd, momentum, adam, nesterov, adagrad, rmsprop, adamw, lamb, ftrl or "
            "lion; row_wise_adam is for tables only");
}

TEST(OptimizerTest, ClipsByValueThenByNormThenDecays) {
  const auto optimizer = Make("sgd { learning_rate: 1 } clip_value: 4 clip_norm: 2.5 weight_decay: 1");
  Trained trained(*optimizer, {0, 0, 1});
  // The gradient is clipped by value to 3, 4, 0, whose norm is 5; then halved; then 1 * w is added.
  trained.Update(*optimizer, 1, Gradient(Floats{3, 8, 0}));
  EXPECT_EQ(trained.weights, (Floats{-1.5f, -2, 0}));
}

TEST(OptimizerTest, LambTakesStepsOfTheRateFromZeroWeights) {
  const auto optimizer = Make("lamb { learning_rate: 0.5 }");
  Trained trained(*optimizer, {0, 0});
  trained.Update(*optimizer, 1, Gradient(Floats{2, -2}));
  EXPECT_NEAR(trained.weights[0], -0.5, 1e-6);
  EXPECT_NEAR(trained.weights[1], 0.5, 1e-6);
}

TEST(OptimizerTest, FtrlKeepsAWeightAtZeroThatL1Outweighs) {
  const auto optimizer = Make("ftrl { learning_rate: 1 l1: 1 beta: 0 }");
  Trained trained(*optimizer, {5, 5, 5});
  trained.Update(*optimizer, 1, Gradient(Floats{0.5f, 2, 0}));
  // z = 2, n = 4: -(2 - 1) / (2 / 1).
  EXPECT_EQ(trained.weights, (Floats{0, -0.5f, 0}));
}

}  // namespace
}  // namespace ballast
