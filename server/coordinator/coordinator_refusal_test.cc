// SPDX-License-Identifier: Apache-2.0
// A refused call leaves the coordinator's exported state unchanged.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/testing/job_fixture.h"

namespace ballast {
namespace {

class RefusalTest : public testing::Test {
 protected:
  using Call = std::function<absl::Status()>;

  void Make(Coordinator::Options options) { coordinator_ = std::make_unique<Coordinator>(options, &clock_); }

  void ExpectRefused(const std::string& what, const Call& call) {
    const std::string before = coordinator_->Export().DebugString();
    EXPECT_FALSE(call().ok()) << what;
    EXPECT_EQ(coordinator_->Export().DebugString(), before) << what;
  }
  void ExpectJoinRefused(const std::string& what, const Newcomer& newcomer) {
    ExpectRefused(what, [&] { return coordinator_->Join(newcomer).status(); });
  }
  absl::Status Acquire(const Membership::Id& id) {
    absl::Status status;
    coordinator_->AcquireLease(id, {}, absl::Seconds(1), [&](auto grant) { status = grant.status(); });
    return status;
  }
  // Only a joined worker may make these calls.
  void ExpectNotAWorker(const std::string& what, const Membership::Id& id) {
    ExpectRefused(what + " acquires", [&] { return Acquire(id); });
    ExpectRefused(what + " completes", [&] { return coordinator_->CompleteLease(id, 1, 5, 5); });
    ExpectRefused(what + " reports", [&] {
      v1::WorkerProgress progress;
      progress.set_step(7);
      progress.mutable_work()->set_examples(8);
      v1::Evaluation evaluation;
      evaluation.set_step(7);
      return coordinator_->ReportProgress(id, progress, &evaluation).status();
    });
  }

  ManualClock clock_;
  std::unique_ptr<Coordinator> coordinator_;
};

TEST_F(RefusalTest, AWorkerThatMayNotJoinDoesNotFixTheJob) {
  Make({{.servers = 1, .workers = 2}});
  ExpectJoinRefused("rank out of range", WorkerOf(2));
  ExpectJoinRefused("no job name", WorkerOf(0, SyncJob(v1::Durability::NONE, "")));
  ExpectJoinRefused("no such durability", WorkerOf(0, SyncJob(v1::Durability::STANDBY)));
  ExpectJoinRefused("too many examples", WorkerOf(0, SyncJob(), uint64_t{1} << 60));
  ASSERT_TRUE(coordinator_->Join(WorkerOf(0, SyncJob(v1::Durability::NONE, "another"))).ok());
  EXPECT_EQ(coordinator_->job_name(), "another");
}

TEST_F(RefusalTest, AWorkerThatMayNotJoinAJobUnderWayChangesNothing) {
  Make({{.servers = 1, .workers = 2}});
  ASSERT_TRUE(coordinator_->Join(WorkerOf(0)).ok());
  ExpectJoinRefused("rank taken", WorkerOf(0, SyncJob(), 20, "another process"));
  ExpectJoinRefused("rank out of range", WorkerOf(7));
  ExpectJoinRefused("another job", WorkerOf(1, SyncJob(v1::Durability::NONE, "another")));
  ExpectJoinRefused("other examples", WorkerOf(1, SyncJob(), 21));
  ASSERT_TRUE(coordinator_->Join(WorkerOf(1)).ok());
  ExpectJoinRefused("ranks full", WorkerOf(std::nullopt, SyncJob(), 20, "another process"));
}

TEST_F(RefusalTest, AJobThatCannotResumeIsNotTheJob) {
  internal::v1::CheckpointManifest from;
  from.set_id(3);
  *from.mutable_job() = SyncJob();
  from.set_train_examples(20);
  Make({{.servers = 1, .workers = 1, .resume = from}});
  ExpectJoinRefused("another job's checkpoint", WorkerOf(0, SyncJob(v1::Durability::NONE, "another")));
  ExpectJoinRefused("another number of examples", WorkerOf(0, SyncJob(), 30));
  // Its leases have no positions.
  ExpectJoinRefused("not at rest", WorkerOf(0));
}

TEST_F(RefusalTest, AServerThatMayNotJoinChangesNothing) {
  Make({{.servers = 1, .workers = 1}});
  ExpectJoinRefused("rank out of range", ServerAt(1, "host:1", "process 1"));
  ExpectJoinRefused("one of a pair", ServerAt(0, "host:1", "process 1", true));
  ASSERT_TRUE(coordinator_->Join(ServerAt(0, "host:1", "process 1")).ok());
  ExpectJoinRefused("rank taken", ServerAt(0, "host:2", "process 2"));
  ExpectJoinRefused("ranks full", ServerAt(std::nullopt, "host:2", "process 2"));
}

TEST_F(RefusalTest, AServerOfAPairThatMayNotJoinChangesNothing) {
  Make({{.servers = 1, .workers = 1, .with_standby = true}});
  ExpectJoinRefused("no rank", ServerAt(std::nullopt, "host:1", "process 1", true));
  ExpectJoinRefused("rank out of range", ServerAt(1, "host:1", "process 1", true));
  ExpectJoinRefused("one of no pair", ServerAt(0, "host:1", "process 1", false));
  ASSERT_TRUE(coordinator_->Join(ServerAt(0, "host:1", "process 1", true)).ok());
  ASSERT_TRUE(coordinator_->Join(ServerAt(0, "host:2", "process 2", true)).ok());
  ExpectJoinRefused("both places taken", ServerAt(0, "host:3", "process 3", true));
}

// The newcomer proves that the previous server at its address has ended, which ends the job; the newcomer learns it.
TEST_F(RefusalTest, AServerWhoseAddressShowsThatTheJobIsLostIsLetIn) {
  Make({{.servers = 1, .workers = 1, .with_standby = true}});
  ASSERT_TRUE(coordinator_->Join(ServerAt(0, "host:1", "process 1", true)).ok());
  ASSERT_TRUE(coordinator_->PlaceTensors("job", {SgdSpec(1, "w", 4)}).ok());
  const auto again = coordinator_->Join(ServerAt(0, "host:1", "process 2", true));
  ASSERT_TRUE(again.ok()) << again.status();
  const auto reply = coordinator_->Heartbeat(*again);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->state, v1::JOB_STATE_FAILED);
  ExpectJoinRefused("the job has ended", ServerAt(0, "host:2", "process 3", true));
}

TEST_F(RefusalTest, PlacementsThatAreRefusedPlaceNothing) {
  Make({{.servers = 1, .workers = 1}});
  ExpectRefused("no server", [&] { return coordinator_->PlaceTensors("job", {SgdSpec(1, "w", 4)}).status(); });
  ASSERT_TRUE(coordinator_->Join(ServerAt(0, "host:1", "process 1")).ok());
  const std::vector<v1::TensorSpec> half_good = {SgdSpec(1, "w", 4), SgdSpec(2, "", 4)};
  ExpectRefused("the first map", [&] { return coordinator_->PlaceTensors("job", half_good).status(); });
  ASSERT_TRUE(coordinator_->Join(WorkerOf(0)).ok());
  ExpectRefused("another job", [&] { return coordinator_->PlaceTensors("b", {SgdSpec(1, "w", 4)}).status(); });
  ASSERT_TRUE(coordinator_->PlaceTensors("job", {SgdSpec(1, "w", 4)}).ok());
  ExpectRefused("a tensor that differs", [&] {
    return coordinator_->PlaceTensors("job", {SgdSpec(3, "v", 4), SgdSpec(1, "w", 5)}).status();
  });
  ExpectRefused("a name twice", [&] {
    return coordinator_->PlaceTensors("job", {SgdSpec(3, "v", 4), SgdSpec(4, "v", 5)}).status();
  });
}

TEST_F(RefusalTest, WhoDoesNotTakePartChangesNothing) {
  Make({{.servers = 1, .workers = 2}});
  const Membership::Id server = *coordinator_->Join(ServerAt(0, "host:1", "process 1"));
  const Membership::Id worker = *coordinator_->Join(WorkerOf(0));
  const Membership::Id gone = *coordinator_->Join(WorkerOf(1));
  ASSERT_TRUE(Acquire(gone).ok());
  ASSERT_TRUE(coordinator_->Leave(gone, "killed", /*worker_local=*/true).ok());
  ExpectNotAWorker("a server", server);
  ExpectNotAWorker("a worker that is gone", gone);
  ExpectNotAWorker("an old incarnation", {MemberRole::kWorker, 0, worker.incarnation + 1});
  ExpectNotAWorker("a rank that nobody has", {MemberRole::kWorker, 9, 1});
  for (const Membership::Id& id :
       {gone, Membership::Id{MemberRole::kWorker, 0, 9}, Membership::Id{MemberRole::kServer, 3, 1},
        Membership::Id{MemberRole::kStandby, 0, 1}}) {
    ExpectRefused("heartbeat", [&] { return coordinator_->Heartbeat(id).status(); });
  }
  ExpectRefused("leaves", [&] { return coordinator_->Leave({MemberRole::kWorker, 0, 9}, "made up"); });
  ExpectRefused("completes what was never given", [&] { return coordinator_->CompleteLease(worker, 99, 5, 5); });
  ASSERT_TRUE(Acquire(worker).ok());
  const Membership::Id again = *coordinator_->Join(WorkerOf(1));
  ExpectRefused("completes another's", [&] { return coordinator_->CompleteLease(again, 2, 5, 5); });
}

TEST_F(RefusalTest, AStandbyThatIsNotOneSaysNothingOfItsServer) {
  Make({{.servers = 1, .workers = 1, .with_standby = true}});
  const Membership::Id server = *coordinator_->Join(ServerAt(0, "host:1", "process 1", true));
  const Membership::Id standby = *coordinator_->Join(ServerAt(0, "host:2", "process 2", true));
  const Membership::Id worker = *coordinator_->Join(WorkerOf(0, SyncJob(v1::Durability::STANDBY)));
  // The job is done, so that losing a standby fails nothing.
  ASSERT_TRUE(Acquire(worker).ok());
  ASSERT_TRUE(coordinator_->CompleteLease(worker, 1).ok());
  ASSERT_TRUE(coordinator_->CompleteLease(worker, 2).ok() ||
              coordinator_->progress().state() == v1::JOB_STATE_FINISHED);
  ASSERT_EQ(coordinator_->progress().state(), v1::JOB_STATE_FINISHED);
  ASSERT_TRUE(coordinator_->Leave(standby, "").ok());
  clock_.Advance(absl::Seconds(2));
  ReplicationReport news;
  news.server_lost = true;
  ExpectRefused("a standby that has left", [&] { return coordinator_->Heartbeat(standby, {}, news).status(); });
  ExpectRefused("one that never was", [&] {
    return coordinator_->Heartbeat({MemberRole::kStandby, 0, 7}, {}, news).status();
  });
  ExpectRefused("an old server", [&] {
    return coordinator_->Heartbeat({MemberRole::kServer, 0, server.incarnation + 1}, {}, news).status();
  });
}

TEST_F(RefusalTest, NobodyJoinsAJobThatHasFailed) {
  Make({{.servers = 1, .workers = 2}});
  const Membership::Id server = *coordinator_->Join(ServerAt(0, "host:1", "process 1"));
  const Membership::Id worker = *coordinator_->Join(WorkerOf(0));
  ASSERT_TRUE(coordinator_->Join(WorkerOf(1)).ok());
  ASSERT_TRUE(coordinator_->Leave(server, "its disk broke").ok());
  ASSERT_EQ(coordinator_->progress().state(), v1::JOB_STATE_FAILED);
  ExpectJoinRefused("a worker", WorkerOf(1));
  ExpectJoinRefused("a server", ServerAt(0, "host:1", "process 2"));
  ExpectNotAWorker("a worker of a job that has failed", worker);
}

}  // namespace
}  // namespace ballast
