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
  if (const char* seed = std::getenv(kSeedVariable)) {
    PolicySimulation simulation(std::strtoull(seed, nullptr, 10), true);
    const std::string fault = simulation.Run();
    EXPECT_EQ(fault, "") << simulation.description() << "\n" << simulation.log();
    return;
  }
  PolicySimulation::Tally all;
  for (uint64_t seed = 1; seed <= kSchedules; ++seed) {
    PolicySimulation simulation(seed, false);
    const std::string fault = simulation.Run();
    ASSERT_EQ(fault, "") << simulation.description()
                         << "\nto run this schedule alone, with all events: --test_env=" << kSeedVariable << "="
                         << seed;
    const PolicySimulation::Tally tally = simulation.tally();
    all.waits += tally.waits;
    all.losses += tally.losses;
    all.returns += tally.returns;
    all.slices.applied += tally.slices.applied;
    all.slices.dropped += tally.slices.dropped;
    all.slices.closed_by_pause += tally.slices.closed_by_pause;
    all.slices.closed_below_quorum += tally.slices.closed_below_quorum;
    all.slices.lifted += tally.slices.lifted;
  }
  // The test proves nothing unless these events happened.
  EXPECT_GT(all.slices.applied, 100 * kSchedules / 10);
  EXPECT_GT(all.waits, kSchedules);
  EXPECT_GT(all.losses, kSchedules / 10);
  EXPECT_GT(all.returns, kSchedules);
  EXPECT_GT(all.slices.dropped, kSchedules);
  EXPECT_GT(all.slices.closed_by_pause, kSchedules / 10);
  EXPECT_GT(all.slices.closed_below_quorum, kSchedules / 10);
  EXPECT_GT(all.slices.lifted, kSchedules / 10);
  RecordProperty("applied", std::to_string(all.slices.applied));
  RecordProperty("waits", std::to_string(all.waits));
}

TEST(PolicySimulationTest, ASeedGivesTheSameScheduleAgain) {
  PolicySimulation first(17, true), second(17, true), other(18, true);
  first.Run();
  second.Run();
  other.Run();
  EXPECT_EQ(first.log(), second.log());
  EXPECT_NE(first.log(), other.log());
}

}  // namespace
}  // namespace ballast
