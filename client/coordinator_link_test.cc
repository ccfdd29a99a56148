// SPDX-License-Identifier: Apache-2.0
#include "client/coordinator_link.h"

#include "client/testing/fake_coordinator_service.h"
#include "client/testing/fake_server.h"
#include "common/rpc/grpc_status.h"
#include "common/status/error_reason.h"
#include "common/tensors/tensor_spec_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::StartsWith;

class CoordinatorLinkTest : public testing::Test {
 protected:
  CoordinatorLinkTest() {
    coordinator_.SetHeartbeat(grpc::Status::OK, v1::JOB_STATE_RUNNING, "");
    auto link = CoordinatorLink::Connect(server_.address(), absl::Seconds(60));
    EXPECT_TRUE(link.ok()) << link.status();
    link_ = *std::move(link);
    v1::JoinRequest join;
    join.set_role(v1::ROLE_WORKER);
    joined_ = link_->Join(join, absl::ZeroDuration());
  }

  // Starts heartbeats, then calls `cause`; returns the first condition in that state.
  JobCondition Await(v1::JobState state, const std::function<void()>& cause) {
    auto promise = std::make_shared<Promise<JobCondition>>();
    link_->StartHeartbeats([promise, state](const JobCondition& condition) {
      if (condition.state == state) promise->Set(condition);
    });
    cause();
    EXPECT_TRUE(promise->GetFuture().WaitFor(absl::Minutes(1)));
    return promise->GetFuture().Get().value();
  }

  // An error of the coordinator.
  std::string Named(const std::string& error) const { return "coordinator at " + server_.address() + error; }

  FakeCoordinatorService coordinator_;
  FakeServer server_{&coordinator_};
  std::unique_ptr<CoordinatorLink> link_;
  absl::StatusOr<v1::JoinResponse> joined_;
};

TEST_F(CoordinatorLinkTest, JoinSaysTheVersions) {
  ASSERT_TRUE(joined_.ok()) << joined_.status();
  EXPECT_EQ(joined_->member().rank(), 3);
  EXPECT_EQ(coordinator_.last_join().protocol_version(), 1);
  EXPECT_FALSE(coordinator_.last_join().version().empty());
}

TEST_F(CoordinatorLinkTest, FollowsTheSameControlPortAgainOnceItIsBackHome) {
  FakeCoordinatorService control;
  auto server = std::make_unique<FakeServer>(&control);
  const ShardMap moved({server_.address()}, {server->address()});
  link_->Follow(moved);
  server->Stop();
  // The call fails at the control port and is retried at the original address.
  ASSERT_TRUE(link_->GetProgress().ok());
  FakeServer again(&control, nullptr, server->address());
  link_->Follow(moved);
  ASSERT_TRUE(link_->ReportProgress({}, std::nullopt).ok());
  EXPECT_EQ(control.reports(), 1);
}

TEST_F(CoordinatorLinkTest, HeartbeatsBringTheJobsState) {
  Await(v1::JOB_STATE_RUNNING, [] {});
  EXPECT_EQ(link_->condition().state, v1::JOB_STATE_RUNNING);
}

TEST_F(CoordinatorLinkTest, FailureOfTheJobArrivesWithItsReason) {
  const JobCondition failed = Await(v1::JOB_STATE_FAILED, [&] {
    coordinator_.SetHeartbeat(grpc::Status::OK, v1::JOB_STATE_FAILED, "worker 1: killed by signal 9");
  });
  EXPECT_EQ(failed.reason, "worker 1: killed by signal 9");
}

TEST_F(CoordinatorLinkTest, VanishedCoordinatorFailsTheJobNamingItsAddress) {
  const JobCondition failed = Await(v1::JOB_STATE_FAILED, [&] { server_.Stop(); });
  EXPECT_THAT(failed.reason, StartsWith(Named(" has not responded for ")));
  EXPECT_EQ(link_->condition().state, v1::JOB_STATE_FAILED);
}

TEST_F(CoordinatorLinkTest, ABusyCoordinatorThatHoldsTheConnectionFailsNoJob) {
  Await(v1::JOB_STATE_RUNNING, [] {});
  coordinator_.SetBusy(true);
  // All but the last timed out after the member's time to live.
  ASSERT_TRUE(coordinator_.AwaitHeartbeats(3));
  EXPECT_EQ(link_->condition().state, v1::JOB_STATE_RUNNING);
  coordinator_.SetBusy(false);
  ASSERT_TRUE(coordinator_.AwaitHeartbeats(1));
  EXPECT_EQ(link_->condition().state, v1::JOB_STATE_RUNNING);
}

TEST_F(CoordinatorLinkTest, MemberThatWasGivenUpHasFailed) {
  const absl::Status lost =
      WithReason(v1::ERROR_REASON_MEMBER_LOST, absl::FailedPreconditionError("worker 3 was given up"));
  const JobCondition failed =
      Await(v1::JOB_STATE_FAILED, [&] { coordinator_.SetHeartbeat(ToGrpcStatus(lost), v1::JOB_STATE_RUNNING, ""); });
  EXPECT_EQ(failed.reason, Named(": heartbeat: worker 3 was given up"));
  EXPECT_TRUE(failed.lost);
}

TEST_F(CoordinatorLinkTest, LeaseIsWaitedForAndCompleted) {
  coordinator_.HandOutLeases();
  const auto answer = link_->AcquireLease(absl::Minutes(1));
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->lease().id(), 11);
  EXPECT_THAT(coordinator_.held_leases(), IsEmpty());
  ASSERT_TRUE(link_->AcquireLease(absl::Minutes(1)).ok());
  EXPECT_THAT(coordinator_.held_leases(), ElementsAre(11))
      << "held leases are named, so that a lost response is sent again";
  EXPECT_TRUE(link_->CompleteLease(11, 5, 5).ok());
  ASSERT_TRUE(link_->AcquireLease(absl::Minutes(1)).ok());
  EXPECT_THAT(coordinator_.held_leases(), IsEmpty());
  EXPECT_EQ(link_->CompleteLease(12, 6, 6), absl::NotFoundError(Named(": complete lease: no such lease")));
}

v1::ReportProgressRequest::CompletedLease Completed(uint64_t lease) {
  v1::ReportProgressRequest::CompletedLease completed;
  completed.set_lease_id(lease);
  completed.set_steps(5);
  completed.set_batches(6);
  return completed;
}

TEST_F(CoordinatorLinkTest, AReportCompletesALeaseInOneCall) {
  coordinator_.HandOutLeases();
  ASSERT_TRUE(link_->AcquireLease(absl::Minutes(1)).ok());
  coordinator_.CompleteWithReports();
  ASSERT_TRUE(link_->ReportProgress({}, std::nullopt, Completed(11)).ok());
  EXPECT_EQ(coordinator_.completions(), 0);
  EXPECT_EQ(coordinator_.last_report().completed_lease().steps(), 5);
  EXPECT_EQ(coordinator_.last_report().completed_lease().batches(), 6);
  ASSERT_TRUE(link_->AcquireLease(absl::Minutes(1)).ok());
  EXPECT_THAT(coordinator_.held_leases(), IsEmpty());
  ASSERT_TRUE(link_->ReportProgress({}, std::nullopt).ok());
  EXPECT_FALSE(coordinator_.last_report().has_completed_lease());
}

TEST_F(CoordinatorLinkTest, AnOlderCoordinatorCompletesTheLeaseInACallOfItsOwn) {
  coordinator_.HandOutLeases();
  ASSERT_TRUE(link_->AcquireLease(absl::Minutes(1)).ok());
  ASSERT_TRUE(link_->ReportProgress({}, std::nullopt, Completed(11)).ok());
  EXPECT_EQ(coordinator_.completions(), 1);
  ASSERT_TRUE(link_->AcquireLease(absl::Minutes(1)).ok());
  EXPECT_THAT(coordinator_.held_leases(), IsEmpty());
  EXPECT_EQ(link_->ReportProgress({}, std::nullopt, Completed(12)).status(),
            absl::NotFoundError(Named(": complete lease: no such lease")));
}

TEST_F(CoordinatorLinkTest, LeaseThatDoesNotComeNamesWhomItWaitsFor) {
  const absl::Status none = link_->AcquireLease(absl::Milliseconds(30)).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(none.message(), Named(": acquire lease: timed out after 30ms waiting for worker 1"));
}

TEST_F(CoordinatorLinkTest, CancelEndsTheWaitForALeaseAndLeaveStillWorks) {
  std::thread canceller([&] {
    EXPECT_TRUE(coordinator_.AwaitLeaseWait());
    link_->CancelCalls("interrupted");
  });
  EXPECT_EQ(link_->AcquireLease(absl::Minutes(1)).status(),
            absl::CancelledError(Named(": acquire lease: cancelled: interrupted")));
  canceller.join();
  EXPECT_TRUE(link_->Leave("interrupted").ok());
  ASSERT_EQ(coordinator_.leaves().size(), 1);
  EXPECT_EQ(coordinator_.leaves()[0].failure(), "interrupted");
  EXPECT_EQ(coordinator_.leaves()[0].member().incarnation(), 7);
  coordinator_.HandOutLeases();
}

TEST_F(CoordinatorLinkTest, ReportsAndReadsProgress) {
  v1::WorkerProgress progress;
  progress.set_step(12);
  v1::Evaluation evaluation;
  evaluation.set_loss(0.5);
  const auto answer = link_->ReportProgress(progress, evaluation);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->step(), 12);
  EXPECT_EQ(answer->last_evaluation().loss(), 0.5);
  EXPECT_EQ(link_->GetProgress()->servers(), 2);
}

TEST_F(CoordinatorLinkTest, NewerMapIsWaitedFor) {
  FakeCoordinatorService with_shards({"127.0.0.1:1", "127.0.0.1:2"});
  FakeServer server(&with_shards);
  auto link = CoordinatorLink::Connect(server.address(), absl::Seconds(60));
  ASSERT_TRUE(link.ok()) << link.status();
  const uint64_t epoch = (*link)->PlaceTensors("test", {SgdSpec(0, "w", 4)}, {}, absl::Seconds(60))->epoch();
  std::thread mover([&] {
    EXPECT_TRUE(with_shards.AwaitMapCalls(1));
    with_shards.MoveShard(1, "127.0.0.1:3");
  });
  const auto map = (*link)->AwaitShardMap(epoch, absl::Minutes(1));
  mover.join();
  ASSERT_TRUE(map.ok()) << map.status();
  EXPECT_GT(map->epoch(), epoch);
  EXPECT_THAT(map->shards(), ElementsAre("127.0.0.1:1", "127.0.0.1:3"));
  EXPECT_EQ((*link)->AwaitShardMap(map->epoch(), absl::Milliseconds(20))->epoch(), map->epoch());
}

TEST_F(CoordinatorLinkTest, WaitForAMapIsNotTriedAgain) {
  coordinator_.FailMaps(grpc::Status(grpc::StatusCode::UNAVAILABLE, "draining"));
  EXPECT_EQ(link_->AwaitShardMap(1, absl::Minutes(1)).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(coordinator_.AwaitMapCalls(1));
}

TEST_F(CoordinatorLinkTest, ConnectGivesUpNamingTheAddress) {
  server_.Stop();
  const absl::Status status = CoordinatorLink::Connect(server_.address(), absl::Milliseconds(200)).status();
  // DEADLINE_EXCEEDED if the timeout ends during an attempt.
  EXPECT_TRUE(absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()), StartsWith(Named(": connect: gave up after ")));
}

}  // namespace
}  // namespace ballast
