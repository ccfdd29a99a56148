// SPDX-License-Identifier: Apache-2.0
// Processes die while a job runs, with the real programs: the others continue, lost ones rejoin, nothing is missing.
#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "common/storage/record_log.h"
#include "common/storage/shard_log.h"
#include "gmock/gmock.h"
#include "tests/testing/job_test.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

class ReturnTest : public JobTest {
 protected:
  // Waits until the job is running; then returns the process of that rank. On a busy machine worker 0 may evaluate a
  // later epoch than the first.
  static Grandchild Victim(ChildProcess& launch, absl::string_view program, const std::string& rank,
                           absl::string_view running = ": test loss") {
    EXPECT_TRUE(launch.AwaitOutput(running)) << launch.output();
    return Child(launch, program, rank);
  }

  static void KillWorker(ChildProcess& launch, const std::string& rank) {
    const Grandchild victim = Victim(launch, "ballast_worker", rank);
    victim.Signal(SIGKILL);
    ASSERT_TRUE(victim.AwaitEnd());
  }

  // Returns the last epoch that worker 0 has evaluated.
  static int LastEpoch(const ChildProcess& worker) {
    const size_t at = worker.output().rfind("epoch ");
    return at == std::string::npos ? 0 : std::atoi(worker.output().c_str() + at + 6);
  }
};

struct Loss {
  std::string mode;
  std::string rank;
  std::string durability = "wal";
};

class WorkerReturnTest : public ReturnTest, public ::testing::WithParamInterface<Loss> {};

TEST_P(WorkerReturnTest, AKilledWorkerIsStartedAgainAndTheRunEndsAsWell) {
  WriteJob({{"epochs: 3", "epochs: 150"}});
  std::vector<std::string> flags = {"--servers", "2",      "--workers", "2",
                                    "--verbose", "--json", "--mode",    GetParam().mode};
  if (GetParam().mode == "bounded") flags.insert(flags.end(), {"--steps_ahead", "2"});
  if (GetParam().mode == "local_sgd") flags.insert(flags.end(), {"--local-steps", "2"});
  ChildProcess launch = Launch(flags);
  KillWorker(launch, GetParam().rank);
  EXPECT_EQ(launch.Wait().ToString(), "ended with status 0") << launch.output();
  EXPECT_THAT(launch.output(), HasSubstr("was killed by signal 9 (SIGKILL); restarting it in 200ms (restart 1 of 3)"));
  const Summary summary = Printed();
  EXPECT_EQ(summary.restarts, 1);
  EXPECT_EQ(summary.workers_lost, 1);
  EXPECT_EQ(summary.epochs, 150);
  // Examples in flight when the worker died were not reported, or were trained again.
  EXPECT_LE(summary.examples, 150 * 157 + summary.examples_repeated);
  EXPECT_GE(summary.examples, 150 * 157 - 2 * 157);
  EXPECT_GE(summary.test_accuracy.value_or(0), 0.9);
  EXPECT_EQ(Read("run/summary.json"), Read("out"));
}

INSTANTIATE_TEST_SUITE_P(Modes, WorkerReturnTest,
                         ::testing::Values(Loss{"sync", "1"}, Loss{"sync", "0"}, Loss{"async", "1"},
                                           Loss{"bounded", "0"}, Loss{"local_sgd", "1"}),
                         [](const auto& loss) { return absl::StrCat(loss.param.mode, "Worker", loss.param.rank); });

class ServerReturnTest : public ReturnTest, public ::testing::WithParamInterface<Loss> {};

TEST_P(ServerReturnTest, AKilledServerIsStartedAgainAndNothingAcknowledgedIsMissing) {
  WriteJob({{"epochs: 3", "epochs: 150"}});
  ChildProcess launch = Launch({"--servers", "2", "--workers", "2", "--verbose", "--json", "--durability",
                                GetParam().durability, "--mode", GetParam().mode});
  Victim(launch, "ballast_server", GetParam().rank).Signal(SIGKILL);
  const Summary summary = Finish(launch);
  EXPECT_EQ(summary.restarts, 1);
  EXPECT_EQ(summary.workers_lost, 0) << launch.output();
  EXPECT_EQ(summary.examples, 150 * 157) << "each example once";
  EXPECT_EQ(summary.examples_repeated, 0);
  EXPECT_EQ(summary.pushes_lost, 0);
  EXPECT_EQ(summary.pushes_duplicated, 0);
  EXPECT_GE(summary.test_accuracy.value_or(0), 0.9);
}

INSTANTIATE_TEST_SUITE_P(Servers, ServerReturnTest,
                         ::testing::Values(Loss{"sync", "1", "wal_sync"}, Loss{"sync", "0"}, Loss{"async", "0"}),
                         [](const auto& loss) { return absl::StrCat(loss.param.mode, "Server", loss.param.rank); });

// Removes the last `count` records of a file, like the loss of unsynced records when the machine dies. Returns false
// if no record would be left.
bool LoseRecords(const std::string& path, uint64_t first, size_t count) {
  const auto reader = RecordReader::Open(path, first);
  if (!reader.ok()) return false;
  std::vector<uint64_t> offsets;
  while (true) {
    const auto record = (*reader)->Next();
    if (!record.ok() || !record->has_value()) break;
    offsets.push_back((*record)->offset);
  }
  if (offsets.size() <= count) return false;
  return PosixFileSystem()->Truncate(path, offsets[offsets.size() - count]).ok();
}

class LostMachineTest : public ReturnTest, public ::testing::WithParamInterface<Loss> {
 protected:
  // Applies LoseRecords to the shard's newest log and to the coordinator's, if it exists.
  bool LoseLastSecond(const std::string& rank) {
    const std::string state = absl::StrCat(Path("run"), "/state/shard-", rank);
    const auto logs = ListLogs(*PosixFileSystem(), state);
    if (!logs.ok() || logs->empty()) return false;
    const bool lost = LoseRecords(LogPath(state, logs->back()), logs->back(), 40);
    const auto names = PosixFileSystem()->List(state + "/coordinator");
    if (!names.ok()) return false;
    for (const std::string& name : *names) {
      uint64_t first = 0;
      if (!absl::SimpleAtoi(absl::StripPrefix(name, "states-"), &first)) continue;
      LoseRecords(absl::StrCat(state, "/coordinator/", name), first, 3);
    }
    return lost;
  }
};

TEST_P(LostMachineTest, TheJobGoesOnFromTheOlderStateAndCountsWhatIsLost) {
  WriteJob({{"epochs: 3", "epochs: 150"}});
  std::vector<std::string> flags = {
      "--servers", "2", "--workers", "2", "--verbose", "--json", "--mode", GetParam().mode, "--durability", "wal"};
  if (GetParam().mode == "bounded") flags.insert(flags.end(), {"--steps_ahead", "2"});
  ChildProcess launch = Launch(flags);
  const Grandchild victim = Victim(launch, "ballast_server", GetParam().rank, "epoch 10: test loss");
  // While stopped, the launch cannot restart the victim, which it would do after 200 ms.
  launch.Signal(SIGSTOP);
  victim.Signal(SIGKILL);
  const bool lost = victim.AwaitEnd() && LoseLastSecond(GetParam().rank);
  launch.Signal(SIGCONT);
  ASSERT_TRUE(lost);
  const Summary summary = Finish(launch);
  EXPECT_EQ(summary.restarts, 1);
  EXPECT_EQ(summary.workers_lost, 0) << launch.output();
  EXPECT_GT(summary.pushes_lost.value_or(0), 0);
  EXPECT_LE(summary.pushes_lost.value_or(100), 40);
  EXPECT_EQ(summary.pushes_duplicated, 0);
  EXPECT_THAT(launch.output(), HasSubstr(absl::StrCat("shard ", GetParam().rank, " lost ")));
  EXPECT_GE(summary.test_accuracy.value_or(0), 0.9);
}

INSTANTIATE_TEST_SUITE_P(Servers, LostMachineTest,
                         ::testing::Values(Loss{"sync", "1"}, Loss{"sync", "0"}, Loss{"async", "1"},
                                           Loss{"bounded", "1"}),
                         [](const auto& loss) { return absl::StrCat(loss.param.mode, "Server", loss.param.rank); });

TEST_F(ReturnTest, ChaosKillsServersAndWorkersAndNothingAcknowledgedIsMissing) {
  WriteJob({{"epochs: 3", "epochs: 600"}});
  ChildProcess launch = Launch({"--servers", "3", "--workers", "2", "--json", "--max-restarts", "0", "--durability",
                                "wal", "--chaos", "kill-server=2s,kill-worker=3s"});
  const Summary summary = Finish(launch);
  EXPECT_GE(summary.restarts, 1);
  EXPECT_EQ(summary.pushes_lost, 0);
  EXPECT_EQ(summary.pushes_duplicated, 0);
  EXPECT_GE(summary.test_accuracy.value_or(0), 0.9);
}

TEST_F(ReturnTest, WithoutRestartsTheOthersGoOnToTheEnd) {
  WriteJob({{"epochs: 3", "epochs: 150"}});
  ChildProcess launch = Launch({"--workers", "3", "--verbose", "--json", "--max-restarts", "0"});
  KillWorker(launch, "2");
  EXPECT_EQ(launch.Wait().ToString(), "ended with status 0") << launch.output();
  EXPECT_THAT(launch.output(), HasSubstr("was killed by signal 9 (SIGKILL); the job continues without it"));
  const Summary summary = Printed();
  EXPECT_EQ(summary.restarts, 0);
  EXPECT_EQ(summary.workers_lost, 1);
  EXPECT_GE(summary.test_accuracy.value_or(0), 0.9);
}

TEST_F(ReturnTest, ChaosKillsWorkersAndTheRunEndsAsWell) {
  WriteJob({{"epochs: 3", "epochs: 400"}});
  ChildProcess launch =
      Launch({"--workers", "2", "--mode", "async", "--json", "--max-restarts", "0", "--chaos", "kill-worker=1s"});
  const Summary summary = Finish(launch);
  EXPECT_GE(summary.restarts, 1) << "kills by --chaos do not count toward --max-restarts";
  EXPECT_EQ(summary.epochs, 400);
  EXPECT_GE(summary.test_accuracy.value_or(0), 0.9);
}

// --- by hand ---

class ByHandReturnTest : public ReturnTest {
 protected:
  ChildProcess Worker(const std::string& rank, std::vector<std::string> flags = {}) const {
    flags.insert(flags.begin(), {"--rank", rank});
    return StartWorker(flags);
  }
};

TEST_F(ByHandReturnTest, InSyncTheOthersGoOnWithinSecondsAndAWorkerMayJoinAgain) {
  WriteEndlessJob();
  ChildProcess server = StartServer({"--workers", "2"});
  ChildProcess survivor = Worker("0");
  ChildProcess victim = Worker("1");
  ASSERT_TRUE(survivor.AwaitOutput(kUnderWay)) << survivor.output();
  const absl::Time killed = absl::Now();
  victim.Signal(SIGKILL);
  ASSERT_TRUE(server.AwaitOutput("sent no heartbeat for 3s; the others continue")) << server.output();
  // The step completes: three more epochs than those that may still be in the pipe.
  survivor.AwaitOutput(absl::StrCat("epoch ", LastEpoch(survivor) + 1, ":"));
  const int epoch = LastEpoch(survivor);
  ASSERT_TRUE(survivor.AwaitOutput(absl::StrCat("epoch ", epoch + 3, ":"))) << survivor.output();
  EXPECT_LT(absl::Now() - killed, absl::Seconds(20)) << "takes 5 s on an idle machine";
  ChildProcess returned = Worker("1");
  ASSERT_TRUE(server.AwaitOutput("worker 1 has rejoined")) << server.output();
  ASSERT_TRUE(returned.AwaitOutput("memory ")) << returned.output();
  ASSERT_TRUE(survivor.AwaitOutput(absl::StrCat("epoch ", LastEpoch(survivor) + 30, ":"))) << survivor.output();
  returned.Signal(SIGTERM);
  EXPECT_EQ(returned.Wait().ToString(), "ended with status 130") << returned.output();
  ASSERT_TRUE(server.AwaitOutput("worker 1 left before the job was done; the others continue")) << server.output();
  ASSERT_TRUE(survivor.AwaitOutput(absl::StrCat("epoch ", LastEpoch(survivor) + 30, ":"))) << survivor.output();
  survivor.Signal(SIGINT);
  EXPECT_EQ(survivor.Wait().ToString(), "ended with status 130") << survivor.output();
}

TEST_F(ByHandReturnTest, AWorkerThatWasGivenUpThoughItLivesJoinsAgain) {
  WriteEndlessJob();
  ChildProcess server = StartServer({"--workers", "2"});
  ChildProcess first = Worker("0");
  ChildProcess second = Worker("1");
  ASSERT_TRUE(first.AwaitOutput(kUnderWay)) << first.output();
  second.Signal(SIGSTOP);
  ASSERT_TRUE(server.AwaitOutput("sent no heartbeat for 3s; the others continue")) << server.output();
  second.Signal(SIGCONT);
  ASSERT_TRUE(second.AwaitOutput("lost the membership in the job, joining again")) << second.output();
  ASSERT_TRUE(server.AwaitOutput("worker 1 has rejoined")) << server.output();
  ASSERT_TRUE(first.AwaitOutput(absl::StrCat("epoch ", LastEpoch(first) + 30, ":"))) << first.output();
}

TEST_F(ByHandReturnTest, AWorkerThatJoinsAgainWaitsForALostServerAsLongAsTheJobDoes) {
  WriteJob({{"epochs: 3", "epochs: 1000000"}, {"policy {", "durability { mode: WAL return_seconds: 5 }\npolicy {"}});
  ChildProcess server = StartServer({"--servers", "2", "--state_dir", Path("state0")});
  const std::string coordinator = address_;
  ChildProcess lost = StartServer({"--rank", "1", "--coordinator", coordinator, "--state_dir", Path("state1")});
  address_ = coordinator;
  ChildProcess worker = Worker("0", {"--gather_timeout", "3"});
  ASSERT_TRUE(worker.AwaitOutput(kUnderWay)) << worker.output();
  // The worker is lost after the time to gather has passed.
  worker.Signal(SIGSTOP);
  lost.Signal(SIGKILL);
  ASSERT_TRUE(server.AwaitOutput("no worker is left, and the job fails unless one returns within 5s"))
      << server.output();
  worker.Signal(SIGCONT);
  ASSERT_TRUE(worker.AwaitOutput("lost the membership in the job, joining again")) << worker.output();
  EXPECT_EQ(worker.Wait().ToString(), "ended with status 1") << worker.output();
  EXPECT_THAT(worker.last_line(), HasSubstr("did not return within 5s"));
}

TEST_F(ByHandReturnTest, WithoutAnyWorkerTheJobFailsInItsTime) {
  WriteJob({{"epochs: 3", "epochs: 1000000"}, {"policy {", "durability { return_seconds: 2 }\npolicy {"}});
  ChildProcess server = StartServer({});
  ChildProcess worker = Worker("0");
  ASSERT_TRUE(worker.AwaitOutput(kUnderWay)) << worker.output();
  worker.Signal(SIGKILL);
  ASSERT_TRUE(server.AwaitOutput("no worker is left, and the job fails unless one returns within 2s"))
      << server.output();
  ASSERT_TRUE(server.AwaitOutput("the job has failed: no worker was left, and none returned within 2s"))
      << server.output();
  ChildProcess late = Worker("0");
  EXPECT_EQ(late.Wait().ToString(), "ended with status 1");
  EXPECT_THAT(late.last_line(), HasSubstr("the job has ended (no worker was left"));
}

}  // namespace
}  // namespace ballast
