// SPDX-License-Identifier: Apache-2.0
#include "server/weights/optimizers/schedule.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <numbers>

#include "common/job/limits.h"

namespace ballast {
namespace {

// The value at `share` of half a cosine from `from` to `to`.
double AlongCosine(double from, double to, double share) {
  return to + (from - to) * (1 + std::cos(std::numbers::pi * share)) / 2;
}

double ShareDone(double t, uint64_t total) { return std::min(t / static_cast<double>(total), 1.0); }

// PyTorch's OneCycleLR with its defaults: div_factor 25, final_div_factor 10000, cosine, two phases. The peak is at
// warmup_fraction * total - 1, the end at total - 1. After that PyTorch fails; this keeps the last rate.
double OneCycleFactor(const v1::Schedule::OneCycle& config, double t) {
  constexpr double kStart = 1 / 25.0;
  constexpr double kEnd = kStart / 10000;
  const double last = static_cast<double>(config.total()) - 1;
  const double peak = DecimalOf(config.warmup_fraction()) * static_cast<double>(config.total()) - 1;
  const double at = std::min(t, last);
  return at < peak ? AlongCosine(kStart, 1, at / peak) : AlongCosine(1, kEnd, (at - peak) / (last - peak));
}

// Returns the schedule with its defaults.
v1::Schedule Complete(v1::Schedule config) {
  FillNumbers(config);
  return config;
}

}  // namespace

Schedule::Schedule(const v1::Schedule& config, double rate) : config_(Complete(config)), rate_(rate) {}

double Schedule::LearningRate(uint64_t t, std::optional<double> position) const {
  const double rate = rate_ * Factor(t, position);
  if (t >= config_.warmup()) return rate;
  return rate * (static_cast<double>(t) + 1) / (static_cast<double>(config_.warmup()) + 1);
}

double Schedule::Factor(uint64_t t, std::optional<double> position) const {
  // The position in a schedule that has a total.
  const auto at = [&](uint64_t total) {
    const bool follows = config_.total_from_job() && position.has_value();
    return follows ? *position * static_cast<double>(total) : static_cast<double>(t);
  };
  switch (config_.kind_case()) {
    case v1::Schedule::kStep:
      return IntegerPower(config_.step().factor(), t / config_.step().every());
    case v1::Schedule::kExponential:
      return IntegerPower(config_.exponential().factor(), t);
    case v1::Schedule::kPolynomial: {
      const auto& polynomial = config_.polynomial();
      const double left = 1 - ShareDone(at(polynomial.total()), polynomial.total());
      return std::pow(left, polynomial.power());
    }
    case v1::Schedule::kCosine:
      return AlongCosine(1, config_.cosine().min_rate_ratio(),
                         ShareDone(at(config_.cosine().total()), config_.cosine().total()));
    case v1::Schedule::kOneCycle:
      return OneCycleFactor(config_.one_cycle(), at(config_.one_cycle().total()));
    case v1::Schedule::kConstant:
    case v1::Schedule::KIND_NOT_SET:
      break;
  }
  return 1;
}

double DecimalOf(float constant) {
  // The shortest decimal that stands for this float.
  char text[32];
  const char* const end = std::to_chars(std::begin(text), std::end(text), constant).ptr;
  double decimal = 0;
  std::from_chars(text, end, decimal);
  return decimal;
}

}  // namespace ballast
