// SPDX-License-Identifier: Apache-2.0
#include "cli/report/epoch_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ballast {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Metrics TwoEpochs() {
  Metrics metrics;
  metrics.train = {{.epoch = 1, .step = 10, .seconds = 1, .loss = 2, .samples_per_second = 100},
                   {.epoch = 1, .step = 20, .seconds = 2, .loss = 1, .samples_per_second = 300},
                   {.epoch = 2, .step = 30, .seconds = 4, .loss = 0.5, .samples_per_second = 250}};
  metrics.test = {{.epoch = 1, .step = 20, .seconds = 2.5, .loss = 1.25, .accuracy = 0.875},
                  {.epoch = 2, .step = 30, .seconds = 4.5, .loss = 0.75, .accuracy = 0.5}};
  return metrics;
}

TEST(EpochTableTest, RowHoldsTheMeansOfItsEpochAndItsOwnTime) {
  const std::vector<EpochRow> rows = EpochRows(TwoEpochs());
  ASSERT_EQ(rows.size(), 2);
  EXPECT_EQ(rows[0].epoch, 1);
  EXPECT_EQ(rows[0].step, 20);
  EXPECT_EQ(rows[0].train_loss, 1.5);
  EXPECT_EQ(rows[0].samples_per_second, 200);
  EXPECT_EQ(rows[0].test_accuracy, 0.875);
  EXPECT_EQ(rows[0].seconds, 2.5);
  EXPECT_EQ(rows[1].seconds, 2);
}

TEST(EpochTableTest, EpochWithoutTrainingLinesHasNoMeans) {
  Metrics metrics;
  metrics.test = {{.epoch = 3, .step = 5, .loss = 0.5}};
  const std::vector<EpochRow> rows = EpochRows(metrics);
  ASSERT_EQ(rows.size(), 1);
  EXPECT_FALSE(rows[0].train_loss.has_value());
  EXPECT_THAT(RenderEpochTable(rows), HasSubstr("<td>–</td>"));
}

TEST(EpochTableTest, MarksTheBestAccuracy) {
  const std::string html = RenderEpochTable(EpochRows(TwoEpochs()));
  EXPECT_THAT(html, HasSubstr("<tr class=\"best\"><td>1</td><td>20</td><td>1.5</td><td>1.25</td>"
                              "<td><span class=\"star\" title=\"best\">★</span>87.50%</td><td>200</td>"));
  EXPECT_THAT(html, HasSubstr("<tr><td>2</td><td>30</td><td>0.5</td><td>0.75</td><td>50.00%</td>"));
}

TEST(EpochTableTest, WithoutATestSetThereAreNoTestColumns) {
  Metrics metrics = TwoEpochs();
  metrics.test.clear();
  const std::string html = RenderEpochTable(EpochRows(metrics));
  EXPECT_THAT(html, Not(HasSubstr("Test loss")));
  EXPECT_THAT(html, Not(HasSubstr("Test accuracy")));
  EXPECT_THAT(html, HasSubstr("Train loss"));
}

TEST(EpochTableTest, WithoutRowsThereIsNoTable) { EXPECT_EQ(RenderEpochTable({}), ""); }

}  // namespace
}  // namespace ballast
