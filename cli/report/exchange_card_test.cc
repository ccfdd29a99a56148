// SPDX-License-Identifier: Apache-2.0
#include "cli/report/exchange_card.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ballast {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Summary Example() {
  return {.codec = "int8",
          .value_codec = "fp32",
          .max_staleness = 5,
          .mean_staleness = 1.5,
          .staleness = {{2, 4, 1, 1}, 1.5, 5},
          .dropped = 7,
          .wait_share = 0.125,
          .wait_microseconds = {{30, 0, 0, 0, 0, 6, 2, 2}, 11, 100},
          .bytes_sent = 3 << 20,
          .bytes_received = 12 << 20,
          .bytes_sent_per_step = 1536,
          .bytes_received_per_step = 6144};
}

TEST(ExchangeCardTest, TellsBytesWaitsAndStaleness) {
  const std::string html = RenderExchangeCard(Example());
  EXPECT_THAT(html, HasSubstr("<td>Gradients</td><td>3.0 MiB as int8</td>"));
  EXPECT_THAT(html, HasSubstr("<td>Values</td><td>12.0 MiB as fp32</td>"));
  EXPECT_THAT(html, HasSubstr("<td>Worker 0 received</td><td>6.0 KiB per step</td>"));
  EXPECT_THAT(html, HasSubstr("<td>Worker 0 waited</td><td>12.50%</td>"));
  EXPECT_THAT(html, HasSubstr("<td>Staleness</td><td>mean 1.5, maximum 5</td>"));
  EXPECT_THAT(html, HasSubstr("<td>Late gradients dropped</td><td>7</td>"));
}

TEST(ExchangeCardTest, TellsOfSkippedBatchesWhereTheLossIsScaled) {
  Summary summary = Example();
  EXPECT_THAT(RenderExchangeCard(summary), Not(HasSubstr("loss scale")));
  summary.skipped_steps = 3;
  summary.loss_scale = 8192;
  EXPECT_THAT(RenderExchangeCard(summary),
              HasSubstr("<td>Worker 0 skipped</td><td>3 batches that overflowed; loss scale 8,192</td>"));
}

TEST(ExchangeCardTest, ABarsLengthIsItsShareOfTheLongest) {
  const std::string html = RenderExchangeCard(Example());
  EXPECT_THAT(html, HasSubstr("<th>0</th><td><i style=\"width:50.0%\"></i></td><td>25.00%</td>"));
  EXPECT_THAT(html, HasSubstr("<th>1</th><td><i style=\"width:100.0%\"></i></td><td>50.00%</td>"));
  EXPECT_THAT(html, HasSubstr("<th>2–3</th><td><i style=\"width:25.0%\"></i></td><td>12.50%</td>"));
  EXPECT_THAT(html, HasSubstr("<th>4–7</th>"));
}

TEST(ExchangeCardTest, WaitsBeginWithTheFirstThatThereWas) {
  const std::string html = RenderExchangeCard(Example());
  EXPECT_THAT(html, HasSubstr("<th>none</th><td><i style=\"width:100.0%\"></i></td><td>75.00%</td>"));
  EXPECT_THAT(html, Not(HasSubstr("under 16 µs")));
  EXPECT_THAT(html, HasSubstr("<th>under 64 µs</th><td><i style=\"width:26.7%\"></i></td><td>20.00%</td>"));
  EXPECT_THAT(html, HasSubstr("<th>under 256 µs</th>"));
  EXPECT_THAT(html, HasSubstr("mean 11 µs, maximum 100 µs"));
}

TEST(ExchangeCardTest, SyncRunHasNoBarsOfStaleness) {
  Summary summary = Example();
  summary.staleness = {{8}, 0, 0};
  EXPECT_THAT(RenderExchangeCard(summary), Not(HasSubstr("<th>0</th>")));
}

TEST(ExchangeCardTest, IsEmptyWhereTheServersSaidNothing) { EXPECT_EQ(RenderExchangeCard(Summary()), ""); }

}  // namespace
}  // namespace ballast
