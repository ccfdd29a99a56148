// SPDX-License-Identifier: Apache-2.0
#include "bench/contestant.h"

#include <atomic>

#include "gtest/gtest.h"

namespace ballast {
namespace {

// Takes no time, and records its turns in `order`.
Contestant Named(const std::string& name, std::vector<Round> rounds, std::string* order) {
  size_t turn = 0;
  auto run = [=](absl::Duration) mutable -> absl::StatusOr<Round> {
    *order += name;
    return rounds[turn++ % rounds.size()];
  };
  return {name, run, {}, {}, 0};
}

TEST(ContestantTest, TakesTurnsAfterARoundThatDoesNotCount) {
  std::string order;
  std::vector<Contestant> all = {Named("a", {{1, 1, {}}}, &order), Named("b", {{1, 1, {}}}, &order)};
  ASSERT_TRUE(RunInTurn(absl::MakeSpan(all), 0.1).ok());
  EXPECT_EQ(order, "abababababababab");
  EXPECT_EQ(all[0].rounds.size(), 7);
  EXPECT_EQ(all[1].rounds.size(), 7);
}

TEST(ContestantTest, IsJudgedByItsMiddleRoundAndAllLatencies) {
  std::string order;
  // The first round is the warm-up.
  const auto round = [](double seconds, uint64_t giga, double latency) {
    return Round{seconds, giga * 1'000'000'000, {latency}};
  };
  const std::vector<Round> rounds = {round(1, 9, 9), round(1, 1, 3), round(1, 2, 1),  round(2, 6, 2),
                                     round(1, 4, 5), round(2, 1, 6), round(1, 50, 0), round(1, 100, 4)};
  std::vector<Contestant> all = {Named("a", rounds, &order)};
  ASSERT_TRUE(RunInTurn(absl::MakeSpan(all), 0.1).ok());
  EXPECT_DOUBLE_EQ(all[0].GbPerSecond(), 3);
  EXPECT_EQ(all[0].LatencySeconds(0.5), 3);
  EXPECT_EQ(all[0].LatencySeconds(0.99), 6);
}

TEST(ContestantTest, IsHeldAgainstAPeerRoundByRound) {
  Contestant ours, peer;
  // Both are slow in the third round.
  ours.rounds = {{1, 8, {}}, {1, 9, {}}, {1, 1, {}}};
  peer.rounds = {{1, 4, {}}, {1, 3, {}}, {1, 1, {}}};
  EXPECT_DOUBLE_EQ(RatioOfRates(ours, peer), 2);
}

TEST(ContestantTest, IsNamedWhereItFails) {
  auto fail = [](absl::Duration) -> absl::StatusOr<Round> { return absl::UnavailableError("gone"); };
  std::vector<Contestant> all = {{"push", fail, {}, {}, 0}};
  EXPECT_EQ(RunInTurn(absl::MakeSpan(all), 0.1), absl::UnavailableError("push: gone"));
}

TEST(RepeatTest, WorksOnceEvenWithoutTime) {
  int calls = 0;
  const absl::StatusOr<Round> round = Repeat(absl::ZeroDuration(), 10, [&] {
    ++calls;
    return absl::OkStatus();
  });
  ASSERT_TRUE(round.ok());
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(round->bytes, 10);
  EXPECT_EQ(round->latencies.size(), 1);
}

TEST(RepeatTest, AddsUpThreads) {
  std::atomic<int> seen = 0;
  const absl::StatusOr<Round> round = RepeatOnThreads(3, absl::ZeroDuration(), 10, [&](int thread) {
    seen += 1 << (8 * thread);
    return absl::OkStatus();
  });
  ASSERT_TRUE(round.ok());
  EXPECT_EQ(seen, 0x010101);
  EXPECT_EQ(round->bytes, 30);
  EXPECT_EQ(round->latencies.size(), 3);
}

TEST(RepeatTest, FailsWhereOneThreadDoes) {
  EXPECT_EQ(RepeatOnThreads(2, absl::ZeroDuration(), 10,
                            [](int thread) { return thread == 1 ? absl::AbortedError("no") : absl::OkStatus(); })
                .status(),
            absl::AbortedError("no"));
}

}  // namespace
}  // namespace ballast
