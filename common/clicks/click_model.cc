// SPDX-License-Identifier: Apache-2.0
#include "common/clicks/click_model.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "common/tables/row_hash.h"

namespace ballast {
namespace {

// Ids of the fields of Criteo's Kaggle data.
constexpr uint64_t kIds[ClickRow::kCategories] = {1460,  583,  10131227, 2202608, 305, 24,     12517,   633,   3,
                                                  93145, 5683, 8351593,  3194,    27,  14992,  5461306, 10,    5652,
                                                  2173,  4,    7046547,  18,      15,  286181, 105,     142572};
// Ranks k of a field follow a power law, the integral of (x + kShift)^-kExponent from k to k + 1.
constexpr double kExponent = 1.1, kShift = 1.5;
// Rare fields are missing in some rows, and so are some numbers.
constexpr uint64_t kManyIds = 100'000;
constexpr double kMissingCategories = 0.034, kMissingNumbers = 0.2;
constexpr int kNumbersPerMissing = 3;
// Parts of the logit's variance, before it is measured.
constexpr double kOfIds = 0.5, kOfPairs = 0.35, kOfNumbers = 0.15;
// Rows by which the logit is measured.
constexpr uint64_t kMeasured = 20'000;

// Use of a random number; each use has hashes of its own.
enum Stream : uint32_t { kRankOf = 1, kMissing, kNumber, kLabel, kReplaced, kId, kWeights, kNumberWeight };

uint64_t Hash(Stream stream, uint64_t seed, uint64_t a, uint64_t b) {
  return RowHash(RowHash(RowHash(seed, stream) ^ a, 1) ^ b, 2);
}

// In (0, 1).
double Uniform(uint64_t hash) { return (static_cast<double>(hash >> 12) + 0.5) * 0x1p-52; }

// Two independent standard normal numbers, by Box and Muller's transform.
struct Normals {
  double first, second;
};
Normals NormalsOf(uint64_t hash) {
  const double radius = std::sqrt(-2 * std::log(Uniform(hash)));
  const double angle = 2 * std::numbers::pi * Uniform(RowHash(hash, 3));
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

// The antiderivative of (x + kShift)^-kExponent, without its constant factor.
double PowerBelow(double x) { return std::pow(x + kShift, 1 - kExponent); }

double Sigmoid(double logit) { return 1 / (1 + std::exp(-logit)); }

}  // namespace

ClickModel::ClickModel(const ClickModelOptions& options) : options_(options) {
  for (int field = 0; field < ClickRow::kCategories; ++field) {
    rank_integrals_[field] = PowerBelow(1 + static_cast<double>(IdsOf(field))) - PowerBelow(1);
  }
  for (int j = 0; j < ClickRow::kNumbers; ++j) {
    number_weights_[j] =
        NormalsOf(Hash(kNumberWeight, options.seed, j, 0)).first * std::sqrt(kOfNumbers / ClickRow::kNumbers);
  }
  std::vector<double> sums;
  const uint64_t step = std::max(options.rows / kMeasured, uint64_t{1});
  for (uint64_t number = 0; number < options.rows; number += step) sums.push_back(Draw(number).logit);
  double mean = 0, square = 0;
  for (double sum : sums) mean += sum / static_cast<double>(sums.size());
  for (double sum : sums) square += (sum - mean) * (sum - mean) / static_cast<double>(sums.size());
  scale_ = square > 0 ? options.deviation / std::sqrt(square) : 0;
  // The click rate rises with the offset.
  double low = -100, high = 100;
  for (int i = 0; i < 60; ++i) {
    offset_ = (low + high) / 2;
    double rate = 0;
    for (double sum : sums) rate += Sigmoid(offset_ + scale_ * sum) / static_cast<double>(sums.size());
    (rate < options.click_rate ? low : high) = offset_;
  }
}

uint64_t ClickModel::IdsOf(int field) const { return std::min(kIds[field], options_.most_ids); }

ClickRow ClickModel::Row(uint64_t number) const {
  ClickRow row = Draw(number);
  row.logit = offset_ + scale_ * row.logit;
  row.clicked = Uniform(Hash(kLabel, options_.seed, number, 0)) < Sigmoid(row.logit);
  return row;
}

ClickRow ClickModel::Draw(uint64_t number) const {
  const uint64_t seed = options_.seed;
  const int day = static_cast<int>(number * options_.days / options_.rows);
  ClickRow row;
  for (int j = 0; j < ClickRow::kNumbers; ++j) {
    const bool may_miss = j % kNumbersPerMissing == 0;
    if (may_miss && Uniform(Hash(kMissing, seed, number, j)) < kMissingNumbers) continue;
    // Counts with a long tail, larger in some fields than in others.
    const double count = std::exp(1 + 0.3 * j + NormalsOf(Hash(kNumber, seed, number, j)).first);
    row.numbers[j] = static_cast<int32_t>(std::min(count, 1e9));
    row.logit += number_weights_[j] * std::log1p(*row.numbers[j]);
  }
  // The sum over pairs is (|sum of u|^2 - sum of |u|^2) / 2.
  double ids = 0, squares = 0, factors[kFactors] = {};
  for (int field = 0; field < ClickRow::kCategories; ++field) {
    const bool may_miss = IdsOf(field) >= kManyIds;
    const uint64_t missing = ClickRow::kNumbers + field;
    if (may_miss && Uniform(Hash(kMissing, seed, number, missing)) < kMissingCategories) continue;
    const uint32_t id = IdAt(field, DrawRank(field, Uniform(Hash(kRankOf, seed, number, field))), day);
    row.categories[field] = id;
    const uint64_t weights = Hash(kWeights, seed, field, id);
    ids += NormalsOf(weights).first;
    for (int i = 0; i < kFactors; i += 2) {
      const Normals pair = NormalsOf(RowHash(weights, 10 + i));
      factors[i] += pair.first;
      factors[i + 1] += pair.second;
      squares += pair.first * pair.first + pair.second * pair.second;
    }
  }
  double pairs = -squares;
  for (double factor : factors) pairs += factor * factor;
  constexpr double kFields = ClickRow::kCategories;
  row.logit += ids * std::sqrt(kOfIds / kFields);
  row.logit += pairs / 2 * std::sqrt(kOfPairs / (kFactors * kFields * (kFields - 1) / 2));
  return row;
}

uint64_t ClickModel::DrawRank(int field, double uniform) const {
  static const double first = PowerBelow(1);
  const double x = std::pow(first + uniform * rank_integrals_[field], 1 / (1 - kExponent)) - kShift;
  return static_cast<uint64_t>(std::clamp(x, 1.0, static_cast<double>(IdsOf(field)))) - 1;
}

uint32_t ClickModel::IdAt(int field, uint64_t rank, int day) const {
  uint64_t generation = 0;
  for (int i = 1; i <= day; ++i) {
    const uint64_t of_day = static_cast<uint64_t>(field) << 32 | static_cast<uint32_t>(i);
    generation += Uniform(Hash(kReplaced, options_.seed, of_day, rank)) < options_.drift ? 1 : 0;
  }
  const uint64_t of_field = static_cast<uint64_t>(field) << 32 | generation;
  return static_cast<uint32_t>(Hash(kId, options_.seed, of_field, rank) >> 32);
}

}  // namespace ballast
