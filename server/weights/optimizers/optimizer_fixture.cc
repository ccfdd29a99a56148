// SPDX-License-Identifier: Apache-2.0
#include "server/weights/optimizers/optimizer_fixture.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

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

}  // namespace

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

void PrintTo(const OptimizerCase& c, std::ostream* out) { *out << c.config; }

const std::vector<OptimizerCase>& OptimizerCases() {
  static const auto& cases = *new std::vector<OptimizerCase>{
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
  return cases;
}

v1::Optimizer OptimizerConfig(const std::string& text) {
  v1::Optimizer config;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &config)) << text;
  return config;
}

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

}  // namespace ballast
