// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/base/attributes.h"
#include "server/weights/optimizers/schedule.h"

namespace ballast {

// A function of the update number that becomes exactly 1 at some number. Rows have update numbers of their own, so a
// table of it saves each row's update the powers. Thread safety: immutable after Tabulate.
template <typename T>
class UpdateFunction {
 public:
  // Tabulates f for updates below `settled`, from which on it is 1, or for the first kMaxEntries.
  template <typename F>
  void Tabulate(double settled, F f) {
    settled_ = settled < 1e18 ? static_cast<uint64_t>(settled) : settled_;
    values_.resize(std::min(settled_, kMaxEntries));
    for (uint64_t t = 1; t < values_.size(); ++t) values_[t] = f(t);
  }

  // Returns f(t).
  template <typename F>
  T At(uint64_t t, F f) const {
    if (t < values_.size()) return values_[t];
    return t >= settled_ ? T{1} : f(t);
  }

 private:
  // Enough for a beta of 0.9999.
  static constexpr uint64_t kMaxEntries = uint64_t{1} << 18;

  uint64_t settled_ = std::numeric_limits<uint64_t>::max();
  std::vector<T> values_;
};

// The running moments of a gradient, and the update direction they give (Kingma and Ba, "Adam: A Method for Stochastic
// Optimization", 2015, algorithm 1):
//   m = beta1 * m + (1 - beta1) * g;  v = beta2 * v + (1 - beta2) * g^2
//   direction = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon)
class AdamMoments {
 public:
  // Config is v1::Optimizer::Adam or a message with the same fields.
  template <typename Config>
  explicit AdamMoments(const Config& config)
      : beta1_(DecimalOf(config.beta1())), beta2_(DecimalOf(config.beta2())), epsilon_(DecimalOf(config.epsilon())) {}

  struct Element {
    float beta1;
    float rest1;
    float beta2;
    float rest2;
    // Factors of the direction and of the root of v.
    float scale;
    float root_scale;
    float epsilon;

    ABSL_ATTRIBUTE_ALWAYS_INLINE void Take(float g, float& m, float& v) const {
      TakeFirst(g, m);
      TakeSecond(g * g, v);
    }
    ABSL_ATTRIBUTE_ALWAYS_INLINE void TakeFirst(float g, float& m) const { m = beta1 * m + rest1 * g; }
    ABSL_ATTRIBUTE_ALWAYS_INLINE void TakeSecond(float square, float& v) const { v = beta2 * v + rest2 * square; }
    // Includes the factor `scale` of For.
    ABSL_ATTRIBUTE_ALWAYS_INLINE float Direction(float m, float v) const {
      return scale * m / (std::sqrt(v) * root_scale + epsilon);
    }
  };

  // Returns the values for update t, from 1; directions are multiplied by `scale`.
  Element For(uint64_t t, double scale) const {
    return {static_cast<float>(beta1_),
            static_cast<float>(1 - beta1_),
            static_cast<float>(beta2_),
            static_cast<float>(1 - beta2_),
            static_cast<float>(scale / rests1_.At(t, [this](uint64_t t) { return Rest1(t); })),
            root_scales_.At(t, [this](uint64_t t) { return RootScale(t); }),
            static_cast<float>(epsilon_)};
  }

  // Makes For take a few nanoseconds for any t, with the same result. Takes up to some 20 ms and 3 MiB; with the
  // default betas, 1 ms and 80 KiB.
  void Tabulate() {
    // Below 2^-54 a power does not change 1; below 2^-24 it does not change the float that RootScale returns.
    rests1_.Tabulate(std::ceil(std::log(0x1p-56) / std::log(beta1_)) + 1, [this](uint64_t t) { return Rest1(t); });
    root_scales_.Tabulate(std::ceil(std::log(0x1p-26) / std::log(beta2_)) + 1,
                          [this](uint64_t t) { return RootScale(t); });
  }

 private:
  double Rest1(uint64_t t) const { return 1 - IntegerPower(beta1_, t); }
  float RootScale(uint64_t t) const { return static_cast<float>(1 / std::sqrt(1 - IntegerPower(beta2_, t))); }

  double beta1_;
  double beta2_;
  double epsilon_;
  UpdateFunction<double> rests1_;
  UpdateFunction<float> root_scales_;
};

}  // namespace ballast
