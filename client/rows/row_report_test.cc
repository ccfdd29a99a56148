// SPDX-License-Identifier: Apache-2.0
#include "client/rows/row_report.h"

#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;

v1::InspectRowsResponse Part(const char* text) {
  v1::InspectRowsResponse part;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &part));
  return part;
}

TEST(RowReportTest, AddsThePartsOfShards) {
  RowReport report(2);
  report.Add(
      Part("statistics { rows: 3 waiting: 1 updates: 7 rows_by_updates: [2, 0, 1] rows_by_age: [3] "
           "norm_sum: 2 norm_max: 1 } top { id: 1 updates: 3 } top { id: 2 updates: 2 }"));
  report.Add(
      Part("statistics { rows: 4 updates: 10 rows_by_updates: [0, 4] rows_by_age: [1, 3] waiting_by_uses: [5] "
           "norm_sum: 3 norm_max: 2 } top { id: 3 updates: 9 }"));
  EXPECT_EQ(report.statistics().rows(), 7u);
  EXPECT_EQ(report.statistics().waiting(), 1u);
  EXPECT_EQ(report.statistics().updates(), 17u);
  EXPECT_THAT(report.statistics().rows_by_updates(), ElementsAre(2, 4, 1));
  EXPECT_THAT(report.statistics().rows_by_age(), ElementsAre(4, 3));
  EXPECT_THAT(report.statistics().waiting_by_uses(), ElementsAre(5));
  EXPECT_EQ(report.statistics().norm_sum(), 5);
  EXPECT_EQ(report.statistics().norm_max(), 2);
  ASSERT_EQ(report.top().size(), 2u);
  EXPECT_EQ(report.top()[0].id(), 3u);
  EXPECT_EQ(report.top()[1].id(), 1u);
}

TEST(AdmissionForecastTest, CountsTheRowsAndUpdatesThatWouldBeLeft) {
  // Five rows with 1 update, two with 3, one with 16.
  const v1::RowStatistics statistics =
      Part(
          "statistics { rows: 8 updates: 27 rows_by_updates: [5, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1] "
          "updates_by_updates: [5, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16] }")
          .statistics();
  const AdmissionForecast two = Forecast(statistics, 2);
  EXPECT_EQ(two.rows_least, 3u);
  EXPECT_EQ(two.rows_most, 3u);
  // Each of the three loses its first update.
  EXPECT_EQ(two.updates_least, 19u);
  EXPECT_EQ(two.updates_most, 19u);
  EXPECT_EQ(Forecast(statistics, 1).updates_least, 27u);
  EXPECT_EQ(Forecast(statistics, 4).rows_least, 1u);
  EXPECT_EQ(Forecast(statistics, 4).updates_least, 13u);
  EXPECT_EQ(Forecast(statistics, 17).rows_most, 0u);
}

TEST(AdmissionForecastTest, GivesBoundsWithinAGroup) {
  // Two rows of 17 to 32 updates: 18 and 30.
  const v1::RowStatistics statistics =
      Part(
          "statistics { rows: 2 updates: 48 rows_by_updates: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2] "
          "updates_by_updates: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 48] }")
          .statistics();
  const AdmissionForecast twenty = Forecast(statistics, 20);
  EXPECT_EQ(twenty.rows_least, 0u);
  EXPECT_EQ(twenty.rows_most, 2u);
  EXPECT_LE(twenty.updates_least, 11u);
  EXPECT_GE(twenty.updates_most, 10u);
  EXPECT_EQ(Forecast(statistics, 17).rows_least, 2u);
  EXPECT_EQ(Forecast(statistics, 33).rows_most, 0u);
}

}  // namespace
}  // namespace ballast
