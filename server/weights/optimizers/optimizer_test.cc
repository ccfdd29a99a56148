// SPDX-License-Identifier: Apache-2.0
#include "server/weights/optimizers/optimizer.h"

#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "common/codecs/codec.h"
#include "common/job/limits.h"
#include "common/simd/instruction_set.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

v1::Optimizer Config(const std::string& text) {
  v1::Optimizer config;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &config)) << text;
  return config;
}

std::unique_ptr<Optimizer> Make(const std::string& text) {
  auto optimizer = MakeOptimizer(Config(text));
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

Floats Normal(size_t n, int seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Floats values(n);
  for (float& value : values) value = normal(random);
  return values;
}

double Norm(const Doubles& values) {
  double sum = 0;
  for (double value : values) sum += value * value;
  return std::sqrt(sum);
}

Doubles Difference(const Floats& got, const Doubles& want) {
  Doubles error(want.size());
  for (size_t i = 0; i < want.size(); ++i) error[i] = got[i] - want[i];
  return error;
}

// A float64 rule for a whole slice: takes update number, gradient, weights and one vector per slot.
using Reference = std::function<void(int t, const Doubles& g, Doubles& w, std::vector<Doubles>& slots)>;

// Turns a rule for one element into one for a slice.
template <typename Rule>
Reference EachElement(Rule rule) {
  return [rule](int t, const Doubles& g, Doubles& w, std::vector<Doubles>& slots) {
    for (size_t i = 0; i < g.size(); ++i) {
      double none = 0;
      rule(t, g[i], w[i], slots.size() > 0 ? slots[0][i] : none, slots.size() > 1 ? slots[1][i] : none);
    }
  };
}

double AdamDirection(int t, double g, double& m, double& v, double epsilon) {
  m = 0.9 * m + 0.1 * g;
  v = 0.999 * v + 0.001 * g * g;
  return m / (1 - std::pow(0.9, t)) / (std::sqrt(v / (1 - std::pow(0.999, t))) + epsilon);
}

// The clipping that precedes every rule.
Doubles Clipped(Doubles g, double most, double most_norm) {
  for (double& x : g) x = std::min(std::max(x, -most), most);
  const double norm = Norm(g);
  for (double& x : g) x *= std::min(1.0, most_norm / norm);
  return g;
}

struct Case {
  std::string name;
  std::string config;
  int slots;
  Reference reference;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.config; }

void SgdRule(int, double g, double& w, double&, double&) { w -= 0.1 * g; }

void MomentumRule(int, double g, double& w, double& v, double&) {
  v = 0.9 * v + g;
  w -= 0.01 * v;
}

void NesterovRule(int, double g, double& w, double& v, double&) {
  v = 0.9 * v + g;
  w -= 0.01 * (g + 0.9 * v);
}

void AdagradRule(int, double g, double& w, double& s, double&) {
  s += g * g;
  w -= 0.1 * g / (std::sqrt(s) + 1e-10);
}

void RmsPropRule(int, double g, double& w, double& s, double&) {
  s = 0.99 * s + 0.01 * g * g;
  w -= 0.01 * g / (std::sqrt(s) + 1e-8);
}

void AdamRule(int t, double g, double& w, double& m, double& v) { w -= 0.01 * AdamDirection(t, g, m, v, 1e-8); }

// PyTorch's form: the decay is multiplied by the rate.
void AdamWRule(int t, double g, double& w, double& m, double& v) {
  w -= 0.01 * 0.1 * w;
  AdamRule(t, g, w, m, v);
}

// You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", ICLR 2020, algorithm 2, phi
// the identity: x -= lr * |x| / |r + lambda x| * (r + lambda x), r = m^ / (sqrt(v^) + epsilon).
void LambRule(int t, const Doubles& g, Doubles& w, std::vector<Doubles>& slots) {
  Doubles d(g.size());
  for (size_t i = 0; i < g.size(); ++i) d[i] = AdamDirection(t, g[i], slots[0][i], slots[1][i], 1e-6) + 0.1 * w[i];
  const double ratio = Norm(w) / Norm(d);
  for (size_t i = 0; i < g.size(); ++i) w[i] -= 0.01 * ratio * d[i];
}

// McMahan et al., "Ad Click Prediction: a View from the Trenches", KDD 2013, algorithm 1, with alpha 0.1, beta 1,
// lambda1 0.5, lambda2 0.25: w is computed from z and n before each round, so the initial one does not count.
void FtrlRule(int t, double g, double& w, double& z, double& n) {
  if (t == 1) w = 0;
  const double sigma = (std::sqrt(n + g * g) - std::sqrt(n)) / 0.1;
  z += g - sigma * w;
  n += g * g;
  w = std::abs(z) <= 0.5 ? 0 : -(z - std::copysign(0.5, z)) / ((1 + std::sqrt(n)) / 0.1 + 0.25);
}

// Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023, algorithm 2. The sign is that of a float: it is
// taken of a number that may be almost 0.
void LionRule(int, double g, double& w, double& m, double&) {
  const float c = 0.9f * static_cast<float>(m) + static_cast<float>(1 - 0.9) * static_cast<float>(g);
  w -= 0.01 * ((c > 0) - (c < 0)) + 0.01 * 0.1 * w;
  m = static_cast<float>(0.99f * static_cast<float>(m)) + static_cast<float>(static_cast<float>(1 - 0.99) * g);
}

Reference WithDecay(double decay, Reference rule) {
  return [=](int t, Doubles g, Doubles& w, std::vector<Doubles>& slots) {
    for (size_t i = 0; i < g.size(); ++i) g[i] += decay * w[i];
    rule(t, g, w, slots);
  };
}

Reference WithClipping(double most, double most_norm, Reference rule) {
  return [=](int t, const Doubles& g, Doubles& w, std::vector<Doubles>& slots) {
    rule(t, Clipped(g, most, most_norm), w, slots);
  };
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

const Case kCases[] = {
    {"Sgd", "sgd { learning_rate: 0.1 }", 0, EachElement(SgdRule)},
    {"Momentum", "momentum { learning_rate: 0.01 momentum: 0.9 }", 1, EachElement(MomentumRule)},
    {"Nesterov", "nesterov { learning_rate: 0.01 momentum: 0.9 }", 1, EachElement(NesterovRule)},
    {"Adagrad", "adagrad { learning_rate: 0.1 }", 1, EachElement(AdagradRule)},
    {"RmsProp", "rmsprop { learning_rate: 0.01 }", 1, EachElement(RmsPropRule)},
    {"Adam", "adam { learning_rate: 0.01 }", 2, EachElement(AdamRule)},
    {"AdamW", "adamw { learning_rate: 0.01 } weight_decay: 0.1", 2, EachElement(AdamWRule)},
    {"Lamb", "lamb { learning_rate: 0.01 } weight_decay: 0.1", 2, LambRule},
    {"Ftrl", "ftrl { learning_rate: 0.1 l1: 0.5 l2: 0.25 }", 2, EachElement(FtrlRule)},
    {"Lion", "lion { learning_rate: 0.01 } weight_decay: 0.1", 1, EachElement(LionRule)},
    {"SgdWithWeightDecay", "sgd { learning_rate: 0.1 } weight_decay: 0.05", 0, WithDecay(0.05, EachElement(SgdRule))},
    {"AdamWithWeightDecay", "adam { learning_rate: 0.01 } weight_decay: 0.05", 2,
     WithDecay(0.05, EachElement(AdamRule))},
    {"SgdClippedByValue", "sgd { learning_rate: 0.1 } clip_value: 0.5", 0,
     WithClipping(0.5, kInfinity, EachElement(SgdRule))},
    {"MomentumClippedByNorm", "momentum { learning_rate: 0.01 momentum: 0.9 } clip_norm: 20", 1,
     WithClipping(kInfinity, 20, EachElement(MomentumRule))},
    {"LambClippedByNorm", "lamb { learning_rate: 0.01 } weight_decay: 0.1 clip_norm: 20", 2,
     WithClipping(kInfinity, 20, LambRule)},
    {"FtrlWithAllBeforeIt",
     "ftrl { learning_rate: 0.1 l1: 0.5 l2: 0.25 } clip_value: 1 clip_norm: 20 weight_decay: 0.05", 2,
     WithClipping(1, 20, WithDecay(0.05, EachElement(FtrlRule)))},
};

class OptimizerConformanceTest : public testing::TestWithParam<Case> {};

TEST_P(OptimizerConformanceTest, FollowsTheReferenceOver200Updates) {
  const Case& c = GetParam();
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
  v1::Optimizer config = Config(GetParam().config);
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
  v1::Optimizer config = Config(GetParam().config);
  config.clear_weight_decay();
  const auto optimizer = *MakeOptimizer(config);
  Trained trained(*optimizer, {0.0f, 0.0f, 0.0f});
  for (int t = 1; t <= 3; ++t) trained.Update(*optimizer, t, Gradient(Floats{0, 1, 0}));
  EXPECT_EQ(trained.weights[0], 0);
  EXPECT_LT(trained.weights[1], 0);
  EXPECT_EQ(trained.weights[2], 0);
}

TEST_P(OptimizerConformanceTest, ChangesNoWeightAtARateOfZero) {
  v1::Optimizer config = Config(GetParam().config);
  config.mutable_schedule()->mutable_polynomial()->set_total(2);
  const auto optimizer = *MakeOptimizer(config);
  Trained trained(*optimizer, {1, 2, 3});
  for (int t = 1; t <= 2; ++t) trained.Update(*optimizer, t, Gradient(Floats{1, -1, 1}));
  const Floats before = trained.weights;
  trained.Update(*optimizer, 3, Gradient(Floats{1, 1, 1}));
  EXPECT_EQ(trained.weights, before);
}

TEST_P(OptimizerConformanceTest, TakesItsRateFromTheSchedule) {
  v1::Optimizer config = Config(GetParam().config);
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

INSTANTIATE_TEST_SUITE_P(All, OptimizerConformanceTest, testing::ValuesIn(kCases),
                         [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

TEST(OptimizerTest, EveryKindOfTheApiHasACase) {
  const google::protobuf::OneofDescriptor& kinds = *v1::Optimizer::descriptor()->FindOneofByName("kind");
  for (int i = 0; i < kinds.field_count(); ++i) {
    bool found = false;
    for (const Case& c : kCases) found = found || Config(c.config).kind_case() == kinds.field(i)->number();
    EXPECT_TRUE(found) << kinds.field(i)->name();
  }
}

TEST(OptimizerTest, RefusesAnImpossibleConfiguration) {
  EXPECT_EQ(MakeOptimizer(Config("")).status().message(),
            "optimizer: got nothing, want sgd, momentum, adam, nesterov, adagrad, rmsprop, adamw, lamb, ftrl or lion");
  EXPECT_EQ(MakeOptimizer(Config("adam { learning_rate: 0.1 beta2: 1 }")).status().message(),
            "optimizer.adam.beta2: got 1, want a number in [0, 1)");
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
