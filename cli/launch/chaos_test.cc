// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/chaos.h"

#include <string>
#include <utility>

#include "gtest/gtest.h"

namespace ballast {
namespace {

TEST(ChaosTest, ReadsIntervalsAndSeed) {
  const auto plan = ParseChaos("kill-server=20s,kill-worker=1m30s,seed=7");
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->kill_server, absl::Seconds(20));
  EXPECT_EQ(plan->kill_worker, absl::Seconds(90));
  EXPECT_EQ(plan->seed, 7);
  EXPECT_EQ(ParseChaos("kill-worker=2s")->kill_server, absl::InfiniteDuration());
}

TEST(ChaosTest, RefusesWhatItDoesNotKnow) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "got \"\", want kill-server=TIME, kill-worker=TIME or seed=NUMBER"},
      {"kill-disk=3s", "got \"kill-disk=3s\", want kill-server=TIME, kill-worker=TIME or seed=NUMBER"},
      {"kill-server=20", "got \"kill-server=20\", want a duration from 100ms to 24h, such as 20s or 1m30s"},
      {"kill-server=-1s", "got \"kill-server=-1s\", want a duration from 100ms to 24h, such as 20s or 1m30s"},
      {"kill-server=1s,kill-server=2s", "got \"kill-server=2s\", want kill-server once"},
      {"kill-server=1s,seed=x", "got \"seed=x\", want a 32-bit number"},
      {"seed=3", "got \"seed=3\", want kill-server=TIME or kill-worker=TIME"},
  };
  for (const auto& [text, message] : cases) EXPECT_EQ(ParseChaos(text).status().message(), message) << text;
}

TEST(ChaosTest, KillsAtItsIntervalsAndTheSameVictimsForTheSameSeed) {
  const absl::Time start = absl::UnixEpoch();
  ChaosPlan plan;
  plan.kill_worker = absl::Seconds(30);
  std::string victims[2];
  for (std::string& all : victims) {
    Chaos chaos(plan, start);
    EXPECT_EQ(chaos.next(), start + absl::Seconds(30));
    EXPECT_FALSE(chaos.Target(false, {1, 2, 3}, start + absl::Seconds(29)).has_value());
    EXPECT_FALSE(chaos.Target(true, {0}, start + absl::Hours(1)).has_value());
    for (int i = 1; i <= 20; ++i) {
      const auto target = chaos.Target(false, {1, 2, 3}, start + i * absl::Seconds(30));
      ASSERT_TRUE(target.has_value());
      all += std::to_string(*target);
    }
    EXPECT_FALSE(chaos.Target(false, {}, start + absl::Hours(1)).has_value()) << "nobody is there";
  }
  EXPECT_EQ(victims[0], victims[1]);
  EXPECT_NE(victims[0].find('1'), std::string::npos);
  EXPECT_NE(victims[0].find('3'), std::string::npos);
}

}  // namespace
}  // namespace ballast
