// SPDX-License-Identifier: Apache-2.0
// Shards with a standby, with the real programs: the server or its standby dies, the other continues without a loss.
#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "tests/testing/job_test.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

class ReplicaTest : public JobTest {
 protected:
  // Finds a server's process by the name that the launch gave it, such as "standby-1".
  Grandchild Find(const ChildProcess& launch, const std::string& name) {
    for (Grandchild& child : Grandchild::Of(launch.pid())) {
      if (child.HasWord(absl::StrCat(Path("run"), "/logs/", name, ".address"))) return std::move(child);
    }
    ADD_FAILURE() << "found no process of " << name << "; output of the launch:\n" << launch.output();
    return Grandchild(launch.pid());
  }

  // Kills `one`, waits until `other` has taken over, and then until `one` is back as a standby that could take over.
  void KillAndAwaitTheOther(ChildProcess& launch, const std::string& one, const std::string& other) {
    const pid_t taker = Find(launch, other).pid();
    Find(launch, one).Signal(SIGKILL);
    ASSERT_TRUE(launch.AwaitOutput(absl::StrCat("process ", taker, ") takes over at "))) << launch.output();
    AwaitEpochs(launch);
    AwaitInStep(one.substr(one.size() - 1));
  }

  // Waits until the coordinator reports that the shard's standby could take over.
  void AwaitInStep(const std::string& rank) {
    std::string address;
    std::getline(std::ifstream(Path("run/logs/server-0.address")), address);
    const std::string in_step =
        absl::StrCat(R"("role":"standby","rank":)", rank, R"(,"state":"joined","in_step":true)");
    const absl::Time deadline = absl::Now() + kTestTimeout;
    std::string said;
    while (absl::Now() < deadline && !absl::StrContains(said, in_step)) {
      ChildProcess status({Binary("cli/ballast"), "status", address, "--run", Path("run"), "--json"});
      status.Wait();
      said = status.output();
    }
    ASSERT_THAT(said, HasSubstr(in_step));
  }

  // Waits until worker 0 has evaluated three more epochs.
  void AwaitEpochs(ChildProcess& launch) {
    const size_t end = launch.output().rfind(": test loss");
    const size_t begin = launch.output().rfind("epoch ", end);
    const int epoch = end == std::string::npos ? 0 : std::atoi(launch.output().c_str() + begin + 6);
    ASSERT_TRUE(launch.AwaitOutput(absl::StrCat("epoch ", epoch + 3, ": test loss"))) << launch.output();
  }
};

class KilledInPairTest : public ReplicaTest, public ::testing::WithParamInterface<const char*> {};

// Kills first the server, then the standby that took over: for the coordinator's shard and for the other.
TEST_P(KilledInPairTest, TheOtherTakesOverAndItReturnsAsStandby) {
  const std::string rank = GetParam();
  WriteEndlessJob();
  ChildProcess launch = Launch({"--servers", "2", "--workers", "2", "--verbose", "--json", "--durability", "replica"});
  AwaitEpochs(launch);
  AwaitInStep(rank);
  std::string server = "server-" + rank, standby = "standby-" + rank;
  // The process that joined first is the server.
  if (absl::StrContains(Read(absl::StrCat("run/logs/", standby, ".log")), "this is server "))
    std::swap(server, standby);
  KillAndAwaitTheOther(launch, server, standby);
  KillAndAwaitTheOther(launch, standby, server);
  launch.Signal(SIGINT);
  EXPECT_EQ(launch.Wait().ToString(), "ended with status 130") << launch.output();
  const Summary summary = Printed();
  EXPECT_EQ(summary.restarts, 2);
  EXPECT_EQ(summary.workers_lost, 0) << launch.output();
  EXPECT_EQ(summary.examples_repeated, 0);
  EXPECT_GE(summary.test_accuracy.value_or(0), 0.9);
}

INSTANTIATE_TEST_SUITE_P(Ranks, KilledInPairTest, ::testing::Values("0", "1"),
                         [](const auto& rank) { return absl::StrCat("Rank", rank.param); });

TEST_F(ReplicaTest, AStandbyThatDiesIsMissedByNobody) {
  WriteEndlessJob();
  ChildProcess launch = Launch({"--workers", "2", "--verbose", "--json", "--durability", "replica"});
  AwaitEpochs(launch);
  AwaitInStep("0");
  Find(launch, "standby-0").Signal(SIGKILL);
  ASSERT_TRUE(launch.AwaitOutput("server 0 continues without a standby until another joins")) << launch.output();
  AwaitEpochs(launch);
  AwaitInStep("0");
  launch.Signal(SIGINT);
  EXPECT_EQ(launch.Wait().ToString(), "ended with status 130") << launch.output();
}

TEST_F(ReplicaTest, ChaosKillsServersAndNothingAcknowledgedIsMissing) {
  WriteJob({{"epochs: 3", "epochs: 400"}});
  ChildProcess launch = Launch({"--servers", "2", "--workers", "2", "--json", "--max-restarts", "0", "--durability",
                                "replica", "--chaos", "kill-server=1s"});
  const Summary summary = Finish(launch);
  EXPECT_GE(summary.restarts, 1);
  EXPECT_EQ(summary.examples, 400 * 157) << "each example once";
  EXPECT_EQ(summary.pushes_lost, 0);
  EXPECT_EQ(summary.pushes_duplicated, 0);
  EXPECT_GE(summary.test_accuracy.value_or(0), 0.9);
}

TEST_F(ReplicaTest, IsRefusedByServersThatAreNotInPairs) {
  WriteJob();
  ChildProcess server = StartServer({});
  ChildProcess worker = StartWorker({"--durability", "replica"});
  EXPECT_EQ(worker.Wait().ToString(), "ended with status 1") << worker.output();
  EXPECT_THAT(worker.last_line(),
              HasSubstr("which needs a standby for each server: start two servers per rank, each with --with_standby"));
}

}  // namespace
}  // namespace ballast
