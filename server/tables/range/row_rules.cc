// SPDX-License-Identifier: Apache-2.0
#include "server/tables/range/row_rules.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace ballast {
namespace {

constexpr double kMostScore = 256;

// 2^-x for x >= 0, by additions and multiplications alone: a library's exp2 may differ from machine to machine. Its
// error is below 1e-12.
double HalfTo(double x) {
  if (x > 1000) return 0;
  const double whole = std::floor(x);
  // The Taylor series of e^y, y in (-ln 2, 0].
  const double y = (whole - x) * 0.693147180559945309417;
  double sum = 1;
  for (int term = 14; term > 0; --term) sum = 1 + sum * y / term;
  return std::ldexp(sum, -static_cast<int>(whole));
}

double Decode(uint16_t score) { return std::bit_cast<float>(uint32_t{score} << 16); }

uint16_t Encode(double score) {
  const uint32_t bits = std::bit_cast<uint32_t>(static_cast<float>(std::min(score, kMostScore)));
  // To nearest, ties to even.
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace

double ScoreAt(uint16_t score, int32_t age, float half_life) {
  return Decode(score) * HalfTo(std::max(age, 0) / static_cast<double>(half_life));
}

uint16_t ScoreAfter(uint16_t score, int32_t age, float half_life, uint32_t uses) {
  return Encode(ScoreAt(score, age, half_life) + uses);
}

}  // namespace ballast
