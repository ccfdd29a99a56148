// SPDX-License-Identifier: Apache-2.0
#include "server/testing/policy_simulation.h"

#include <cstdlib>
#include <string>

#include "gtest/gtest.h"

namespace ballast {
namespace {

constexpr uint64_t kSchedules = 20000;
constexpr char kSeedVariable[] = "BALLAST_SIMULATION_SEED";

// PolicyOracle defines the promises of each schedule.
TEST(PolicySimulationTest, EveryPolicyKeepsItsPromisesInEverySchedule) {
  PolicyOracle::Tally all;
  if (const char* seed = std::getenv(kSeedVariable)) {
    PolicySimulation simulation(std::strtoull(seed, nullptr, 10), true, &all);
    const std::string fault = simulation.Run();
    EXPECT_EQ(fault, "") << simulation.description() << "\n" << simulation.log();
    return;
  }
  for (uint64_t seed = 1; seed <= kSchedules; ++seed) {
    PolicySimulation simulation(seed, false, &all);
    const std::string fault = simulation.Run();
    ASSERT_EQ(fault, "") << simulation.description()
                         << "\nto run this schedule alone, with all events: --test_env=" << kSeedVariable << "="
                         << seed;
  }
  // The test proves nothing unless these events happened.
  EXPECT_GT(all.applied, 100 * kSchedules / 10);
  EXPECT_GT(all.waits, kSchedules);
  EXPECT_GT(all.losses, kSchedules / 10);
  EXPECT_GT(all.returns, kSchedules);
  EXPECT_GT(all.dropped, kSchedules);
  EXPECT_GT(all.closed_by_pause, kSchedules / 10);
  EXPECT_GT(all.closed_below_quorum, kSchedules / 10);
  EXPECT_GT(all.lifted, kSchedules / 10);
  RecordProperty("applied", std::to_string(all.applied));
  RecordProperty("waits", std::to_string(all.waits));
}

TEST(PolicySimulationTest, ASeedGivesTheSameScheduleAgain) {
  PolicyOracle::Tally tally;
  PolicySimulation first(17, true, &tally), second(17, true, &tally), other(18, true, &tally);
  for (PolicySimulation* one : {&first, &second, &other}) one->Run();
  EXPECT_EQ(first.log(), second.log());
  EXPECT_NE(first.log(), other.log());
}

}  // namespace
}  // namespace ballast
