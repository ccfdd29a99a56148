// SPDX-License-Identifier: Apache-2.0
// Servers with standbys, as the coordinator sees them.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status/job_failure.h"
#include "gmock/gmock.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/testing/job_fixture.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;
using ::testing::Optional;

class PairsTest : public testing::Test {
 protected:
  static Coordinator::Options Options() { return {{.servers = 1, .workers = 1, .with_standby = true}}; }

  absl::StatusOr<Membership::Id> JoinServer(const std::string& address, const std::string& process) {
    return coordinator_->Join(ServerAt(0, address, process, true));
  }
  absl::StatusOr<Membership::Id> JoinWorker(const v1::Job& job = SyncJob(v1::Durability::STANDBY)) {
    return coordinator_->Join(WorkerOf(0, job));
  }

  // Joins a server, its standby in step, and a worker; places a tensor.
  void Begin() {
    server_ = *JoinServer("host:1", "process 1");
    standby_ = *JoinServer("host:2", "process 2");
    worker_ = *JoinWorker();
    ASSERT_TRUE(coordinator_->PlaceTensors("job", {SgdSpec(1, "w", 4)}).ok());
    ASSERT_TRUE(Say(server_, standby_.incarnation, v1::StandbyReport::STAGE_IN_STEP).ok());
  }
  absl::StatusOr<Coordinator::HeartbeatReply> Say(const Membership::Id& server, uint64_t standby,
                                                  v1::StandbyReport::Stage stage) {
    ReplicationReport news;
    news.standby.set_incarnation(standby);
    news.standby.set_stage(stage);
    return coordinator_->Heartbeat(server, {}, news);
  }
  absl::StatusOr<Coordinator::HeartbeatReply> SayServerLost() {
    ReplicationReport news;
    news.server_lost = true;
    return coordinator_->Heartbeat(standby_, {}, news);
  }
  v1::JobState State() { return coordinator_->progress().state(); }
  std::string LastNotice() {
    const v1::JobProgress progress = coordinator_->progress();
    return progress.notices().empty() ? "" : progress.notices(progress.notices_size() - 1);
  }
  // Advances the clock in small steps, in which these members send heartbeats.
  void Pass(absl::Duration time, const std::vector<Membership::Id>& heard) {
    for (; time > absl::ZeroDuration(); time -= absl::Milliseconds(200)) {
      clock_.Advance(absl::Milliseconds(200));
      for (const Membership::Id& id : heard) ASSERT_TRUE(coordinator_->Heartbeat(id).ok());
    }
  }

  ManualClock clock_;
  std::unique_ptr<Coordinator> coordinator_ = std::make_unique<Coordinator>(Options(), &clock_);
  Membership::Id server_, standby_, worker_;
};

TEST_F(PairsTest, TheSecondOfARankIsItsStandbyAndTheJobWaitsForIt) {
  const auto first = JoinServer("host:1", "process 1");
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(first->role, MemberRole::kServer);
  ASSERT_TRUE(JoinWorker().ok());
  EXPECT_EQ(State(), v1::JOB_STATE_GATHERING);
  EXPECT_THAT(coordinator_->progress().reason(), HasSubstr("standby 0"));
  const auto second = JoinServer("host:2", "process 2");
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->role, MemberRole::kStandby);
  EXPECT_EQ(State(), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(JoinServer("host:3", "process 3").status().code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(PairsTest, AServerHearsWhomToFeed) {
  const Membership::Id server = *JoinServer("host:1", "process 1");
  EXPECT_FALSE(coordinator_->Heartbeat(server)->standby.has_value());
  const Membership::Id standby = *JoinServer("host:2", "process 2");
  const auto reply = coordinator_->Heartbeat(server);
  ASSERT_TRUE(reply.ok() && reply->standby.has_value());
  EXPECT_EQ(reply->standby->address, "host:2");
  EXPECT_EQ(reply->standby->id.incarnation, standby.incarnation);
}

TEST_F(PairsTest, ADeadServersStandbyTakesOverAtOnce) {
  Begin();
  const uint64_t epoch = coordinator_->shard_map().epoch();
  ASSERT_TRUE(coordinator_->Leave(server_, "killed by signal 9", /*worker_local=*/true).ok());
  EXPECT_EQ(State(), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(coordinator_->shard_map().shards(), std::vector<std::string>{"host:2"});
  EXPECT_GT(coordinator_->shard_map().epoch(), epoch);
  // Repeated, because a response may be lost.
  for (int i = 0; i < 2; ++i) {
    const auto reply = coordinator_->Heartbeat(standby_);
    ASSERT_TRUE(reply.ok() && reply->promoted.has_value());
    EXPECT_EQ(reply->promoted->role, MemberRole::kServer);
    EXPECT_EQ(reply->promoted->incarnation, 2);
    EXPECT_TRUE(coordinator_->Heartbeat(*reply->promoted).ok());
  }
  EXPECT_THAT(LastNotice(), HasSubstr("its standby (process 2) takes over at host:2"));
  EXPECT_EQ(coordinator_->progress().servers_lost(), 1);
  EXPECT_EQ(coordinator_->Heartbeat(server_).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(PairsTest, AServerThatLeavesAFinishedJobDoesNotLeaveEarly) {
  Begin();
  coordinator_->AcquireLease(worker_, {}, absl::Seconds(1), [](const auto&) {});
  ASSERT_TRUE(coordinator_->CompleteLease(worker_, 1, 2, 2).ok());
  EXPECT_EQ(State(), v1::JOB_STATE_FINISHED);
  ASSERT_TRUE(coordinator_->Leave(server_, "", /*worker_local=*/false).ok());
  EXPECT_EQ(LastNotice(), "server 0 left; its standby (process 2) takes over at host:2");
}

TEST_F(PairsTest, AServerThatNobodyHearsIsReplacedAndHearsOfIt) {
  Begin();
  Pass(absl::Seconds(3), {standby_});
  EXPECT_EQ(coordinator_->shard_map().shards(), std::vector<std::string>{"host:2"});
  EXPECT_EQ(Say(server_, standby_.incarnation, v1::StandbyReport::STAGE_LOST).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(PairsTest, AServerThatItsStandbyMissesTooIsReplacedWithinASecond) {
  Begin();
  Pass(absl::Milliseconds(800), {});
  ASSERT_TRUE(Say(server_, standby_.incarnation, v1::StandbyReport::STAGE_IN_STEP).ok());
  // The server's heartbeat has just arrived.
  EXPECT_FALSE(SayServerLost()->promoted.has_value());
  Pass(absl::Seconds(1), {});
  EXPECT_THAT(SayServerLost()->promoted, Optional(testing::_));
}

TEST_F(PairsTest, AServerThatItsStandbyHearsIsGivenTime) {
  Begin();
  Pass(absl::Milliseconds(2800), {standby_});
  EXPECT_EQ(coordinator_->shard_map().shards(), std::vector<std::string>{"host:1"});
}

TEST_F(PairsTest, WithoutAStandbyInStepADeadServerFailsTheJob) {
  Begin();
  ASSERT_TRUE(Say(server_, standby_.incarnation, v1::StandbyReport::STAGE_LOST).ok());
  EXPECT_EQ(coordinator_->Heartbeat(standby_).status().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(coordinator_->Leave(server_, "killed by signal 9", true).ok());
  EXPECT_EQ(State(), v1::JOB_STATE_FAILED);
  EXPECT_THAT(coordinator_->progress().reason(), HasSubstr("no standby was in step with it"));
}

TEST_F(PairsTest, ASilentServerWithoutAStandbyMayComeBack) {
  Begin();
  ASSERT_TRUE(Say(server_, standby_.incarnation, v1::StandbyReport::STAGE_LOST).ok());
  Pass(absl::Seconds(5), {worker_});
  EXPECT_EQ(State(), v1::JOB_STATE_RUNNING);
  EXPECT_TRUE(coordinator_->Heartbeat(server_).ok());
  EXPECT_EQ(coordinator_->shard_map().shards(), std::vector<std::string>{"host:1"});
}

TEST_F(PairsTest, WhereBothAreSilentTheStandbyIsNotForgotten) {
  Begin();
  Pass(absl::Seconds(5), {worker_});
  EXPECT_EQ(State(), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(coordinator_->shard_map().shards(), std::vector<std::string>{"host:1"});
  EXPECT_THAT(coordinator_->Heartbeat(standby_)->state, v1::JOB_STATE_RUNNING);
  EXPECT_THAT(coordinator_->Heartbeat(standby_)->promoted, Optional(testing::_));
  EXPECT_EQ(coordinator_->shard_map().shards(), std::vector<std::string>{"host:2"});
}

// The server died while the coordinator's process was stopped.
TEST_F(PairsTest, AStandbyIsNotForgottenForBeingHeardOfALittleEarlierThanItsServer) {
  Begin();
  ASSERT_TRUE(coordinator_->Heartbeat(standby_).ok());
  clock_.Advance(absl::Milliseconds(200));
  ASSERT_TRUE(coordinator_->Heartbeat(server_).ok());
  clock_.Advance(absl::Milliseconds(2900));
  ASSERT_TRUE(coordinator_->Leave(worker_, "killed by signal 9", true).ok());
  ASSERT_TRUE(coordinator_->Leave(server_, "killed by signal 9", true).ok());
  EXPECT_EQ(State(), v1::JOB_STATE_RUNNING);
  EXPECT_THAT(coordinator_->Heartbeat(standby_)->promoted, Optional(testing::_));
}

TEST_F(PairsTest, ADeadServersProcessComesBackAsTheStandby) {
  Begin();
  // The end of process 1 has not been reported yet.
  const auto again = JoinServer("host:1", "process 3");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->role, MemberRole::kStandby);
  EXPECT_EQ(coordinator_->shard_map().shards(), std::vector<std::string>{"host:2"});
  const auto promoted = coordinator_->Heartbeat(standby_);
  ASSERT_TRUE(promoted.ok() && promoted->promoted.has_value());
  const auto reply = coordinator_->Heartbeat(*promoted->promoted);
  ASSERT_TRUE(reply.ok() && reply->standby.has_value());
  EXPECT_EQ(reply->standby->address, "host:1");
  ASSERT_TRUE(Say(*promoted->promoted, again->incarnation, v1::StandbyReport::STAGE_IN_STEP).ok());
  ASSERT_TRUE(coordinator_->Leave(*promoted->promoted, "killed by signal 9", true).ok());
  EXPECT_EQ(coordinator_->shard_map().shards(), std::vector<std::string>{"host:1"});
}

// Two pods are replaced within a second. Each new one has the address of the one before it, and no state.
TEST_F(PairsTest, ReplacementsOfAServerAndItsStandbyDoNotPassForThem) {
  const std::pair<const char*, const char*> orders[] = {{"host:1", "host:2"}, {"host:2", "host:1"}};
  for (const auto& [first, second] : orders) {
    coordinator_ = std::make_unique<Coordinator>(Options(), &clock_);
    Begin();
    ASSERT_TRUE(JoinServer(first, "process 3").ok());
    EXPECT_EQ(State(), v1::JOB_STATE_RUNNING) << "the other one may still hold the shard";
    ASSERT_TRUE(JoinServer(second, "process 4").ok());
    EXPECT_EQ(State(), v1::JOB_STATE_FAILED);
    EXPECT_THAT(coordinator_->progress().reason(), HasSubstr("its shard is lost")) << first;
    const auto reply = coordinator_->Heartbeat(worker_);
    ASSERT_TRUE(reply.ok());
    EXPECT_TRUE(IsLossOfServer(JobFailedError(reply->reason, reply->failure)));
  }
}

TEST_F(PairsTest, ALostStandbyIsReplacedAndTheServerHearsIt) {
  Begin();
  ASSERT_TRUE(coordinator_->Leave(standby_, "killed by signal 9", true).ok());
  EXPECT_EQ(State(), v1::JOB_STATE_RUNNING);
  EXPECT_FALSE(coordinator_->Heartbeat(server_)->standby.has_value());
  EXPECT_THAT(LastNotice(), HasSubstr("server 0 continues without a standby until another joins"));
  const Membership::Id next = *JoinServer("host:2", "process 3");
  EXPECT_EQ(next.role, MemberRole::kStandby);
  EXPECT_EQ(coordinator_->Heartbeat(server_)->standby->id.incarnation, next.incarnation);
}

TEST_F(PairsTest, ACoordinatorThatComesBackKnowsWhoMayTakeOver) {
  Begin();
  const internal::v1::CoordinatorState state = coordinator_->Export();
  coordinator_ = std::make_unique<Coordinator>(Options(), &clock_);
  ASSERT_TRUE(coordinator_->Restore(state).ok());
  // It died together with the server in its process, which is started again.
  const auto again = JoinServer("host:1", "process 3");
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->role, MemberRole::kStandby);
  EXPECT_THAT(coordinator_->Heartbeat(standby_)->promoted, Optional(testing::_));
  EXPECT_EQ(coordinator_->shard_map().shards(), std::vector<std::string>{"host:2"});
}

TEST_F(PairsTest, NobodyHearsOfAStandbyInStepThatWouldBeForgotten) {
  MemoryJournal journal;
  Coordinator::Options options = Options();
  options.journal = &journal;
  coordinator_ = std::make_unique<Coordinator>(options, &clock_);
  const auto in_step = [this] {
    const v1::GetProgressResponse described = coordinator_->Describe();
    int count = 0;
    for (const auto& member : described.members()) count += member.in_step();
    return count;
  };
  server_ = *JoinServer("host:1", "process 1");
  standby_ = *JoinServer("host:2", "process 2");
  journal.full = true;
  const auto reply = Say(server_, standby_.incarnation, v1::StandbyReport::STAGE_IN_STEP);
  ASSERT_TRUE(reply.ok());
  absl::Status saved;
  coordinator_->AwaitSaved(reply->change, [&](const absl::Status& status) { saved = status; });
  EXPECT_EQ(saved.code(), absl::StatusCode::kResourceExhausted) << "the server gets no OK for its heartbeat";
  EXPECT_EQ(in_step(), 0);
  journal.full = false;
  EXPECT_EQ(in_step(), 1);
  internal::v1::CoordinatorState state;
  ASSERT_TRUE(state.ParseFromString(journal.saved));
  EXPECT_TRUE(state.standbys(0).in_step());
}

TEST_F(PairsTest, AWaitForANewerMapEndsWithTheTakeover) {
  Begin();
  std::optional<ShardMap> map;
  const uint64_t epoch = coordinator_->shard_map().epoch();
  coordinator_->AwaitShardMap(epoch, absl::Seconds(30), "peer", [&](absl::StatusOr<ShardMap> now) { map = *now; });
  EXPECT_FALSE(map.has_value());
  ASSERT_TRUE(coordinator_->Leave(server_, "killed by signal 9", true).ok());
  ASSERT_TRUE(map.has_value());
  EXPECT_EQ(map->shards(), std::vector<std::string>{"host:2"});
}

TEST_F(PairsTest, JobAndServersMustAgreeOnPairs) {
  ASSERT_TRUE(JoinServer("host:1", "process 1").ok());
  EXPECT_THAT(JoinWorker(SyncJob(v1::Durability::WAL)).status().message(),
              HasSubstr("started with --with_standby, which needs durability STANDBY"));
  EXPECT_THAT(coordinator_->Join(ServerAt(0, "host:9", "process 9")).status().message(),
              HasSubstr("process 9 was started without --with_standby, server 0 with it: want the same"));
  Coordinator single({{.servers = 1, .workers = 1}}, &clock_);
  EXPECT_THAT(single.Join(WorkerOf(0, SyncJob(v1::Durability::STANDBY))).status().message(),
              HasSubstr("has durability STANDBY, which needs a standby for each server"));
}

}  // namespace
}  // namespace ballast
