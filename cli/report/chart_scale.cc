// SPDX-License-Identifier: Apache-2.0
#include "cli/report/chart_scale.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ballast {
namespace {

constexpr int kTicks = 5;

// Returns the multiple (1, 2 or 5) of a power of ten that divides `span` into about kTicks pieces.
double NiceStep(double span, AxisFormat format) {
  const double rough = span / kTicks;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough * 0.999) {
      step = factor * power;
      break;
    }
  }
  return format == AxisFormat::kWhole ? std::max(step, 1.0) : step;
}

// A single value has no span, so center the chart on it.
void Widen(double& low, double& high) {
  if (high - low > std::max(std::abs(low), std::abs(high)) * 1e-9) return;
  const double margin = low == 0 ? 0.5 : std::abs(low) * 0.5;
  low -= margin;
  high += margin;
}

// Returns the number of decimals that distinguish multiples of `step`.
int Decimals(double step) {
  return step > 0 ? std::clamp(static_cast<int>(std::ceil(-std::log10(step) - 1e-9)), 0, 9) : 0;
}

}  // namespace

ChartScale ChartScale::Exact(double low, double high, AxisFormat format) {
  Widen(low, high);
  ChartScale scale(low, high, format);
  scale.step_ = NiceStep(high - low, format);
  const double first = std::ceil(low / scale.step_ - 1e-9);
  for (int i = 0; i <= 2 * kTicks; ++i) {
    const double tick = (first + i) * scale.step_;
    if (tick > high + scale.step_ * 1e-9) break;
    scale.ticks_.push_back(tick);
  }
  return scale;
}

ChartScale ChartScale::Rounded(double low, double high, AxisFormat format) {
  Widen(low, high);
  const double step = NiceStep(high - low, format);
  return Exact(std::floor(low / step + 1e-9) * step, std::ceil(high / step - 1e-9) * step, format);
}

ChartScale ChartScale::Logarithmic(double low, double high, AxisFormat format) {
  ChartScale scale(low * 0.9, high * 1.1, format);
  scale.logarithmic_ = true;
  const int first = static_cast<int>(std::floor(std::log10(low)));
  const int last = static_cast<int>(std::ceil(std::log10(high)));
  const int decades = std::max(1, last - first);
  const int every = std::max(1, decades / kTicks);
  for (int power = first; power <= last; power += every) {
    for (double factor : {1.0, 2.0, 5.0}) {
      if (factor > 1 && decades > 2) break;
      const double tick = factor * std::pow(10, power);
      if (tick >= scale.low_ && tick <= scale.high_) scale.ticks_.push_back(tick);
    }
  }
  return scale;
}

double ChartScale::Fraction(double value) const {
  if (!logarithmic_) return (value - low_) / (high_ - low_);
  if (value <= 0) return std::nan("");
  return std::log(value / low_) / std::log(high_ / low_);
}

std::string ChartScale::Label(double tick) const {
  if (std::abs(tick) < step_ * 1e-6) tick = 0;
  if (logarithmic_) return absl::StrFormat("%g", tick);
  const double largest = std::max(std::abs(low_), std::abs(high_));
  if (format_ == AxisFormat::kPercent && largest < 1e4) {
    return absl::StrFormat("%.*f%%", Decimals(step_ * 100), tick * 100);
  }
  // Use one letter per factor of 1000, or the general format if the letters or nine decimals do not suffice.
  if (largest >= 1e15 || (step_ > 0 && step_ < 1e-6)) return absl::StrFormat("%.4g", tick);
  double unit = 1;
  const char* letter = "";
  for (const char* next : {"k", "M", "G", "T"}) {
    if (largest < 10 * unit * 1000 && !(largest >= unit * 1000 && step_ >= unit * 100)) break;
    unit *= 1000;
    letter = next;
  }
  if (tick == 0) return "0";
  return absl::StrFormat("%.*f%s", Decimals(step_ / unit), tick / unit, letter);
}

}  // namespace ballast
