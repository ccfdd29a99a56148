// SPDX-License-Identifier: Apache-2.0
#include "common/clicks/click_model.h"

#include <cmath>
#include <map>
#include <set>
#include <vector>

#include "common/metrics/binary_scores.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

constexpr uint64_t kRows = 60'000;

std::vector<BinaryScore> Scores(const ClickModel& model, uint64_t rows) {
  std::vector<BinaryScore> scores;
  for (uint64_t number = 0; number < rows; ++number) {
    const ClickRow row = model.Row(number);
    scores.push_back({row.logit, row.clicked});
  }
  return scores;
}

// The field's ids in those rows, with the number of their uses.
std::map<uint32_t, int> Ids(const ClickModel& model, int field, uint64_t begin, uint64_t end) {
  std::map<uint32_t, int> ids;
  for (uint64_t number = begin; number < end; ++number) {
    const auto id = model.Row(number).categories[field];
    if (id.has_value()) ++ids[*id];
  }
  return ids;
}

// For a normal logit of that deviation; see SPARSE.md, "Proof".
TEST(ClickModelTest, TheDeviationSetsTheBestAucAndLogLoss) {
  const struct {
    double deviation, auc, log_loss;
  } cases[] = {{1.3, 0.791, 0.46}, {1.4, 0.805, 0.446}, {1.5, 0.818, 0.435}};
  for (const auto& c : cases) {
    const ClickModel model({.rows = kRows, .deviation = c.deviation});
    const std::vector<BinaryScore> scores = Scores(model, kRows);
    EXPECT_NEAR(AreaUnderCurve(scores), c.auc, 0.01) << c.deviation;
    EXPECT_NEAR(LogLoss(scores), c.log_loss, 0.01) << c.deviation;
    EXPECT_NEAR(Calibration(scores), 1, 0.02) << c.deviation;
  }
}

TEST(ClickModelTest, ClicksAreAsFrequentAsWanted) {
  for (double rate : {0.03, 0.256, 0.7}) {
    const ClickModel model({.rows = kRows, .click_rate = rate});
    double clicks = 0;
    for (const BinaryScore& score : Scores(model, kRows)) clicks += score.label ? 1 : 0;
    EXPECT_NEAR(clicks / kRows, rate, 0.01);
  }
}

TEST(ClickModelTest, ARowDependsOnItsNumberAndTheOptionsOnly) {
  const ClickModel model({.rows = kRows}), same({.rows = kRows}), other({.seed = 2, .rows = kRows});
  EXPECT_EQ(model.Row(777).logit, same.Row(777).logit);
  EXPECT_EQ(model.Row(777).categories, same.Row(777).categories);
  EXPECT_EQ(model.Row(777).numbers, same.Row(777).numbers);
  EXPECT_NE(model.Row(777).categories, model.Row(778).categories);
  EXPECT_NE(model.Row(777).categories, other.Row(777).categories);
}

TEST(ClickModelTest, FewIdsAreFrequentAndManyAreRare) {
  const ClickModel model({.rows = kRows, .drift = 0});
  constexpr int kLarge = 2;
  const std::map<uint32_t, int> ids = Ids(model, kLarge, 0, kRows);
  int most = 0, once = 0;
  for (const auto& [id, uses] : ids) {
    most = std::max(most, uses);
    once += uses == 1;
  }
  EXPECT_GT(most, static_cast<int>(kRows / 50));
  EXPECT_GT(once, static_cast<int>(ids.size() / 3));
}

TEST(ClickModelTest, NoFieldHasMoreIdsThanWanted) {
  const ClickModel model({.rows = kRows, .drift = 0, .most_ids = 100});
  for (int field : {0, 2, 8, 25}) {
    EXPECT_LE(Ids(model, field, 0, 5000).size(), 100u);
    EXPECT_EQ(Ids(model, field, 0, 5000).size() <= 3, field == 8) << "field 8 has 3 ids";
  }
}

TEST(ClickModelTest, IdsAreReplacedFromDayToDay) {
  const ClickModel still({.rows = kRows, .days = 3, .drift = 0}), moving({.rows = kRows, .days = 3, .drift = 0.5});
  // A field of 24 ids, all of which occur on each day.
  constexpr int kSmall = 5;
  const auto common = [&](const ClickModel& model) {
    std::set<uint32_t> first, both;
    for (const auto& [id, uses] : Ids(model, kSmall, 0, kRows / 3)) first.insert(id);
    for (const auto& [id, uses] : Ids(model, kSmall, kRows / 3, 2 * kRows / 3)) {
      if (first.contains(id)) both.insert(id);
    }
    return both.size();
  };
  EXPECT_EQ(common(still), 24u);
  EXPECT_GT(common(moving), 4u);
  EXPECT_LT(common(moving), 20u);
}

}  // namespace
}  // namespace ballast
