// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace ballast {

// How an axis writes its numbers.
enum class AxisFormat { kNumber, kWhole, kPercent };

// Maps an axis's values to 0..1 and knows its ticks: at most a few, at 1, 2 or 5 times a power of ten.
// Thread safety: immutable.
class ChartScale {
 public:
  // Ends at the data's ends. low <= high, finite.
  static ChartScale Exact(double low, double high, AxisFormat format);
  // Ends at the ticks around the data.
  static ChartScale Rounded(double low, double high, AxisFormat format);
  // Logarithmic; 0 < low.
  static ChartScale Logarithmic(double low, double high, AxisFormat format);

  // 0 at low(), 1 at high(); outside of these beyond, NaN where a logarithm has no value.
  double Fraction(double value) const;
  double low() const { return low_; }
  double high() const { return high_; }
  bool logarithmic() const { return logarithmic_; }
  const std::vector<double>& ticks() const { return ticks_; }
  // 12000 -> "12k"; all ticks of a scale have equally many decimals.
  std::string Label(double tick) const;

 private:
  ChartScale(double low, double high, AxisFormat format) : low_(low), high_(high), format_(format) {}

  double low_;
  double high_;
  AxisFormat format_;
  bool logarithmic_ = false;
  // Between ticks; 0 where they are logarithmic.
  double step_ = 0;
  std::vector<double> ticks_;
};

}  // namespace ballast
