// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>

namespace ballast {

// Properties of planted click data.
struct ClickModelOptions {
  uint64_t seed = 1;
  // Rows over time; a day is an equal part of them.
  uint64_t rows = 0;
  int days = 7;
  // Share of a field's ids that are replaced by new ones at the beginning of each day but the first, 0 to 1.
  double drift = 0.02;
  // Limit on the ids of a field at a time.
  uint64_t most_ids = 10'131'227;
  // Share of clicks, between 0 and 1.
  double click_rate = 0.256;
  // Standard deviation of the true logit. It sets how much can be learned: the AUC of the true logits is about 0.79 at
  // 1.3, 0.805 at 1.4 and 0.818 at 1.5.
  double deviation = 1.4;
};

// One row: a label and what it depends on.
struct ClickRow {
  static constexpr int kNumbers = 13;
  static constexpr int kCategories = 26;

  bool clicked = false;
  // The logit of the probability of a click.
  double logit = 0;
  // Empty: missing.
  std::array<std::optional<int32_t>, kNumbers> numbers;
  std::array<std::optional<uint32_t>, kCategories> categories;
};

// The truth behind planted click data with the shape of Criteo's: numbers of counts, and categories with few frequent
// and many rare ids. The logit of a click is
//   b + s (sum over f of a_f(id_f) + sum over f < g of <u_f(id_f), u_g(id_g)> + sum over j of w_j log(1 + x_j)),
// with Gaussian a, u and w from hashes of seed, field and id; b and s give the click rate and the deviation. A missing
// value adds nothing. Nothing is stored, so the number of ids costs no memory. Thread safety: immutable.
class ClickModel {
 public:
  explicit ClickModel(const ClickModelOptions& options);

  // A row by its number, below `rows`. Depends on nothing else.
  ClickRow Row(uint64_t number) const;

  // Number of ids of a field at a time.
  uint64_t IdsOf(int field) const;

 private:
  // Elements of u.
  static constexpr int kFactors = 4;

  // The row with the sum of the logit, before b and s.
  ClickRow Draw(uint64_t number) const;
  uint64_t DrawRank(int field, double uniform) const;
  // The id that has this rank on that day.
  uint32_t IdAt(int field, uint64_t rank, int day) const;

  const ClickModelOptions options_;
  std::array<double, ClickRow::kNumbers> number_weights_;
  // The integral of the power law over all ranks of each field.
  std::array<double, ClickRow::kCategories> rank_integrals_;
  double offset_ = 0, scale_ = 1;
};

}  // namespace ballast
