// SPDX-License-Identifier: Apache-2.0
#include "common/metrics/caused_wait_table.h"

#include <limits>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

using Waits = std::vector<std::pair<uint32_t, double>>;

class CausedWaitTableTest : public testing::Test {
 protected:
  absl::Status Report(uint32_t server, uint64_t incarnation, const Waits& waits) {
    google::protobuf::RepeatedPtrField<v1::CausedWait> report;
    for (const auto& [worker, seconds] : waits) {
      v1::CausedWait* const one = report.Add();
      one->set_worker(worker);
      one->set_seconds(seconds);
    }
    return table_.Report(server, incarnation, report);
  }

  Waits Longest() const {
    v1::JobProgress progress;
    table_.Fill(progress);
    Waits longest;
    for (const v1::CausedWait& one : progress.caused_waits()) longest.emplace_back(one.worker(), one.seconds());
    return longest;
  }

  CausedWaitTable table_{4};
};

TEST_F(CausedWaitTableTest, ShowsTheShardAtWhichAWorkerCausedMost) {
  EXPECT_TRUE(Report(0, 7, {{3, 1.0}}).ok());
  EXPECT_TRUE(Report(0, 7, {{2, 0.5}, {3, 1.5}}).ok());
  EXPECT_TRUE(Report(1, 8, {{3, 2.0}}).ok());
  EXPECT_THAT(Longest(), ElementsAre(Pair(2, 0.5), Pair(3, 2.0)));
}

TEST_F(CausedWaitTableTest, KeepsWhatALostProcessReported) {
  EXPECT_TRUE(Report(0, 7, {{3, 5.0}}).ok());
  EXPECT_TRUE(Report(0, 9, {}).ok());
  EXPECT_TRUE(Report(0, 9, {{3, 1.0}}).ok());
  EXPECT_THAT(Longest(), ElementsAre(Pair(3, 6.0)));
  // A late report of the lost process.
  EXPECT_TRUE(Report(0, 7, {{3, 100.0}}).ok());
  EXPECT_THAT(Longest(), ElementsAre(Pair(3, 6.0)));
}

TEST_F(CausedWaitTableTest, RefusesWhatNoServerCanHaveMeasured) {
  EXPECT_THAT(Report(1, 7, {{4, 1.0}}).message(), HasSubstr("got worker 4"));
  EXPECT_THAT(Report(1, 7, {{0, -1.0}}).message(), HasSubstr("caused_waits of server 1"));
  EXPECT_FALSE(Report(1, 7, {{0, std::numeric_limits<double>::quiet_NaN()}}).ok());
  EXPECT_THAT(Longest(), ElementsAre());
}

}  // namespace
}  // namespace ballast
