// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/restart_policy.h"

#include <signal.h>

#include "gtest/gtest.h"

namespace ballast {
namespace {

using Action = RestartPolicy::Action;
using enum RestartPolicy::Action;

constexpr ExitStatus kKilled = {true, SIGKILL};
constexpr ExitStatus kSuccess = {false, 0};
constexpr ExitStatus kFailure = {false, 1};
constexpr ExitStatus kLostDevice = {false, 3};
constexpr ExitStatus kInterrupted = {false, 130};

v1::Durability Mode(v1::Durability::Mode mode) {
  v1::Durability durability;
  durability.set_mode(mode);
  return durability;
}

RestartPolicy::Decision Decide(v1::Durability::Mode mode, const EndedProcess& process) {
  return RestartPolicy(Mode(mode), /*max_restarts=*/3).OnEnd(process, /*job_started=*/true);
}

TEST(RestartPolicyTest, DecidesByRoleDurabilityAndExit) {
  constexpr auto kNone = v1::Durability::NONE, kCheckpoint = v1::Durability::CHECKPOINT, kWal = v1::Durability::WAL,
                 kWalSync = v1::Durability::WAL_SYNC, kStandby = v1::Durability::STANDBY;
  const struct {
    const char* what;
    v1::Durability::Mode mode;
    EndedProcess process;
    Action action;
  } cases[] = {
      {"worker is done", kNone, {.end = kSuccess}, Action::kNone},
      {"worker was told to exit", kNone, {.end = kInterrupted, .asked = true}, Action::kNone},
      {"server was told to exit", kWal, {.server = true, .end = kKilled, .asked = true}, Action::kNone},
      {"server exits by itself", kWal, {.server = true, .end = kSuccess}, kFail},
      {"worker failed", kNone, {.rank = 1, .end = kFailure, .substitute = true}, kFail},
      {"worker found bad input", kNone, {.rank = 1, .end = {false, 2}, .substitute = true}, kFail},
      {"worker was killed", kNone, {.end = kKilled}, kRestart},
      {"worker lost its device", kNone, {.end = kLostDevice}, kRestart},
      {"worker was killed, checkpoint", kCheckpoint, {.end = kKilled}, kRestart},
      {"worker 1 died too often", kNone, {.rank = 1, .end = kKilled, .restarts = 3, .substitute = true}, kContinue},
      {"last worker died too often", kNone, {.rank = 1, .end = kKilled, .restarts = 3}, kFail},
      {"worker 0 died too often", kNone, {.end = kKilled, .restarts = 3, .substitute = true}, kFail},
      {"worker 1 was interrupted", kNone, {.rank = 1, .end = kInterrupted, .substitute = true}, kContinue},
      {"last worker was interrupted", kNone, {.rank = 1, .end = kInterrupted}, kFail},
      {"worker 0 was interrupted", kNone, {.end = kInterrupted, .substitute = true}, kFail},
      {"server exits with status 3", kWal, {.server = true, .rank = 1, .end = kLostDevice}, kFail},
      {"server exits with status 130", kWal, {.server = true, .rank = 1, .end = kInterrupted}, kFail},
      {"server was killed, none", kNone, {.server = true, .rank = 1, .end = kKilled}, kFail},
      {"server was killed, checkpoint", kCheckpoint, {.server = true, .rank = 1, .end = kKilled}, kRestartJob},
      {"server was killed, wal", kWal, {.server = true, .rank = 1, .end = kKilled}, kRestart},
      {"server was killed, wal_sync", kWalSync, {.server = true, .rank = 1, .end = kKilled}, kRestart},
      {"server died too often, wal", kWal, {.server = true, .rank = 1, .end = kKilled, .restarts = 3}, kFail},
      {"server 0 was killed", kStandby, {.server = true, .end = kKilled, .substitute = true}, kRestart},
      {"server 0 died too often", kStandby, {.server = true, .end = kKilled, .restarts = 3, .substitute = true}, kFail},
      {"server 1 died too often",
       kStandby,
       {.server = true, .rank = 1, .end = kKilled, .restarts = 3, .substitute = true},
       kContinue},
      {"standby 0 died too often",
       kStandby,
       {.server = true, .standby = true, .end = kKilled, .restarts = 3, .substitute = true},
       kContinue},
      {"both of a pair died too often",
       kStandby,
       {.server = true, .standby = true, .rank = 1, .end = kKilled, .restarts = 3},
       kFail},
  };
  for (const auto& [what, mode, process, action] : cases) EXPECT_EQ(Decide(mode, process).action, action) << what;
}

TEST(RestartPolicyTest, RestartsNothingBeforeTheJobHasStarted) {
  for (const auto mode : {v1::Durability::CHECKPOINT, v1::Durability::WAL}) {
    for (const bool server : {true, false}) {
      EXPECT_EQ(RestartPolicy(Mode(mode), 3).OnEnd({.server = server, .end = kKilled}, false).action, kFail);
    }
  }
}

TEST(RestartPolicyTest, DoublesThePauseUpToItsLimit) {
  const struct {
    int restarts;
    absl::Duration pause;
    const char* announcement;
  } cases[] = {
      {0, absl::Milliseconds(200), "restarting it in 200ms (restart 1 of 1000)"},
      {1, absl::Milliseconds(400), "restarting it in 400ms (restart 2 of 1000)"},
      {2, absl::Milliseconds(800), "restarting it in 800ms (restart 3 of 1000)"},
      {7, absl::Milliseconds(25600), "restarting it in 25.6s (restart 8 of 1000)"},
      {8, absl::Seconds(30), "restarting it in 30s (restart 9 of 1000)"},
      {999, absl::Seconds(30), "restarting it in 30s (restart 1000 of 1000)"},
  };
  for (const auto& [restarts, pause, announcement] : cases) {
    const auto decision = RestartPolicy({}, 1000).OnEnd({.end = kKilled, .restarts = restarts}, true);
    EXPECT_EQ(decision.action, kRestart) << restarts;
    EXPECT_EQ(decision.pause, pause) << restarts;
    EXPECT_EQ(decision.restarts, restarts + 1);
    EXPECT_EQ(decision.announcement, announcement);
  }
}

TEST(RestartPolicyTest, AKillByChaosDoesNotCount) {
  for (const int restarts : {0, 2, 3}) {
    const auto decision = Decide(v1::Durability::NONE, {.end = kKilled, .killed_by_chaos = true, .restarts = restarts});
    EXPECT_EQ(decision.action, kRestart);
    EXPECT_EQ(decision.pause, absl::Milliseconds(200));
    EXPECT_EQ(decision.restarts, restarts);
    EXPECT_EQ(decision.announcement, "restarting it in 200ms");
  }
}

TEST(RestartPolicyTest, LimitsTheRestartsOfTheWholeJob) {
  RestartPolicy policy(Mode(v1::Durability::CHECKPOINT), /*max_restarts=*/2);
  const EndedProcess servers[] = {{.server = true, .rank = 0, .end = kKilled},
                                  {.server = true, .rank = 1, .end = kKilled}};
  const EndedProcess chaos = {.server = true, .end = kKilled, .killed_by_chaos = true};
  for (const EndedProcess& server : servers) {
    EXPECT_EQ(policy.OnEnd(chaos, true).action, kRestartJob) << "does not count";
    const auto decision = policy.OnEnd(server, true);
    EXPECT_EQ(decision.action, kRestartJob);
    EXPECT_EQ(decision.announcement, "the job restarts from its newest checkpoint");
  }
  EXPECT_EQ(policy.OnEnd(chaos, true).action, kRestartJob);
  EXPECT_EQ(policy.OnEnd(servers[0], true).action, kFail);
}

TEST(RestartPolicyTest, AnnouncesThatTheJobContinues) {
  EXPECT_EQ(Decide(v1::Durability::NONE, {.rank = 1, .end = kInterrupted, .substitute = true}).announcement,
            "the job continues without it");
}

TEST(RestartPolicyTest, WaitsLongerForAWorkersRankUntilItsEndIsReported) {
  const absl::Time due = absl::UnixEpoch();
  EXPECT_EQ(RestartPolicy::StartTime(due, /*server=*/false, /*reported=*/true), due);
  EXPECT_EQ(RestartPolicy::StartTime(due, /*server=*/false, /*reported=*/false), due + absl::Seconds(3));
  EXPECT_EQ(RestartPolicy::StartTime(due, /*server=*/true, /*reported=*/false), due);
}

}  // namespace
}  // namespace ballast
