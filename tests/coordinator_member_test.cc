// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/coordinator_member.h"

#include <memory>
#include <optional>
#include <string>

#include "absl/synchronization/mutex.h"
#include "client/testing/fake_coordinator_service.h"
#include "client/testing/fake_server.h"
#include "common/rpc/channel.h"
#include "common/rpc/grpc_status.h"
#include "common/status/error_reason.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

class CoordinatorMemberTest : public testing::Test {
 protected:
  CoordinatorMemberTest() {
    options_.coordinator = server_.address();
    options_.channel = OpenChannel(server_.address(), {});
    options_.address = "127.0.0.1:1";
  }

  void Start() {
    CoordinatorMember::Events events;
    events.job = [] { return std::string(); };
    events.on_job_failed = [](absl::Status) {};
    events.on_absent = [](const auto&) {};
    events.on_capture = [](uint64_t, uint32_t) {};
    events.checkpoint_part = [] { return v1::CheckpointPart(); };
    events.on_part = [](const v1::Member&) {};
    events.pair_news = [] { return ReplicationReport(); };
    events.on_heard = [](const ReplicationReport&) {};
    events.on_standby = [](const v1::StandbyTarget&) {};
    events.on_displaced = [this](absl::Status status) { End(std::move(status)); };
    events.on_fatal = [this](absl::Status status) { End(std::move(status)); };
    member_ = std::make_unique<CoordinatorMember>(options_, std::move(events));
  }

  void End(absl::Status status) {
    absl::MutexLock lock(&mutex_);
    end_ = std::move(status);
  }
  // Status with which its membership ended; nothing while it is a member.
  std::optional<absl::Status> end() {
    absl::MutexLock lock(&mutex_);
    return end_;
  }
  absl::Status AwaitEnd() {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(&end_, &std::optional<absl::Status>::has_value), absl::Minutes(1));
    return end_.value_or(absl::OkStatus());
  }

  FakeCoordinatorService service_;
  FakeServer server_{&service_};
  CoordinatorMember::Options options_;
  absl::Mutex mutex_;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  // Declared last, because its thread uses the other fields.
  std::unique_ptr<CoordinatorMember> member_;
};

TEST_F(CoordinatorMemberTest, OutlivesACoordinatorWhoseDiskIsFullInPassing) {
  service_.SetHeartbeat(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "disk full"), v1::JOB_STATE_RUNNING, "");
  Start();
  ASSERT_TRUE(service_.AwaitHeartbeats(2));
  service_.SetHeartbeat(grpc::Status::OK, v1::JOB_STATE_RUNNING, "");
  service_.SetBusy(false);
  ASSERT_TRUE(service_.AwaitHeartbeats(2));
  EXPECT_EQ(end(), std::nullopt);
}

TEST_F(CoordinatorMemberTest, JoinsAgainAtACoordinatorThatWasStartedAnewBeforeAllHadJoined) {
  service_.SetHeartbeat(
      ToGrpcStatus(WithReason(v1::ERROR_REASON_MEMBER_LOST, absl::FailedPreconditionError("server 3 has not joined"))),
      v1::JOB_STATE_GATHERING, "");
  Start();
  EXPECT_TRUE(service_.AwaitJoins(2));
  EXPECT_EQ(end(), std::nullopt);
}

TEST_F(CoordinatorMemberTest, OneThatWasLostInARunningJobDoesNotJoinAgain) {
  service_.SetHeartbeat(grpc::Status::OK, v1::JOB_STATE_RUNNING, "");
  Start();
  ASSERT_TRUE(service_.AwaitHeartbeats(2));
  service_.SetHeartbeat(ToGrpcStatus(WithReason(v1::ERROR_REASON_MEMBER_LOST,
                                                absl::FailedPreconditionError("another has taken its place"))),
                        v1::JOB_STATE_RUNNING, "");
  EXPECT_EQ(ReasonOf(AwaitEnd()), v1::ERROR_REASON_MEMBER_LOST);
}

TEST_F(CoordinatorMemberTest, WaitsForALostCoordinatorAsLongAsForAllToJoin) {
  options_.gather_timeout = absl::Seconds(2);
  options_.patience = absl::Seconds(10);
  service_.SetHeartbeat(grpc::Status::OK, v1::JOB_STATE_GATHERING, "waiting for worker 0 to join");
  Start();
  ASSERT_TRUE(service_.AwaitHeartbeats(1));
  server_.Stop();
  const absl::Status status = AwaitEnd();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()),
              testing::StartsWith("the job has not gathered within 2s, server 0 was lost: coordinator at "));
}

TEST_F(CoordinatorMemberTest, EndsAtOnceThoughItsCoordinatorDoesNotAnswer) {
  service_.SetBusy(true);
  Start();
  ASSERT_TRUE(service_.AwaitHeartbeats(1));
  const absl::Time told = absl::Now();
  member_.reset();
  EXPECT_LT(absl::Now() - told, absl::Seconds(4)) << "a heartbeat may take 5 s";
  service_.SetBusy(false);
}

}  // namespace
}  // namespace ballast
