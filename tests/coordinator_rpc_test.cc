// SPDX-License-Identifier: Apache-2.0
// The calls between servers and the coordinator: a member's loop, and the service that answers it.
#include <memory>
#include <optional>
#include <string>

#include "absl/synchronization/mutex.h"
#include "client/testing/fake_coordinator_service.h"
#include "client/testing/fake_server.h"
#include "common/concurrency/clock.h"
#include "common/rpc/channel.h"
#include "common/rpc/grpc_status.h"
#include "common/status/error_reason.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/rpc/coordinator_member.h"
#include "server/rpc/coordinator_service.h"

namespace ballast {
namespace {

class CoordinatorMemberTest : public testing::Test {
 protected:
  CoordinatorMemberTest() {
    options_.coordinator = server_.address();
    options_.open_channel = [address = server_.address()] { return OpenChannel(address, {}); };
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
    events.return_time = [this] { return return_time_; };
    events.caused_waits = [] { return std::vector<v1::CausedWait>(); };
    events.on_state = [](v1::JobState) {};
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
  absl::Duration return_time_ = absl::ZeroDuration();
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
  options_.coordinator_timeout = absl::Seconds(10);
  service_.SetHeartbeat(grpc::Status::OK, v1::JOB_STATE_GATHERING, "waiting for worker 0 to join");
  Start();
  ASSERT_TRUE(service_.AwaitHeartbeats(1));
  server_.Stop();
  const absl::Status status = AwaitEnd();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()),
              testing::StartsWith("the job has not gathered within 2s, server 0 was lost: coordinator at "));
}

TEST_F(CoordinatorMemberTest, WaitsForALostCoordinatorAsLongAsTheJobWaitsForAServer) {
  options_.coordinator_timeout = absl::Seconds(1);
  service_.SetHeartbeat(grpc::Status::OK, v1::JOB_STATE_RUNNING, "");
  return_time_ = absl::Minutes(1);
  Start();
  ASSERT_TRUE(service_.AwaitHeartbeats(1));
  const std::string address = server_.address();
  server_.Stop();
  absl::SleepFor(absl::Seconds(3));
  EXPECT_EQ(end(), std::nullopt) << "waits for longer than coordinator_timeout";
  const FakeServer returned(&service_, nullptr, address);
  EXPECT_TRUE(service_.AwaitHeartbeats(2));
  EXPECT_EQ(end(), std::nullopt);
}

TEST_F(CoordinatorMemberTest, GivesALostCoordinatorUpInItsTimeIfTheJobWaitsForNoServer) {
  options_.coordinator_timeout = absl::Seconds(1);
  service_.SetHeartbeat(grpc::Status::OK, v1::JOB_STATE_RUNNING, "");
  Start();
  ASSERT_TRUE(service_.AwaitHeartbeats(1));
  server_.Stop();
  EXPECT_THAT(std::string(AwaitEnd().message()), testing::HasSubstr("coordinator at "));
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

// Saves nothing and returns the status that the test sets.
class ScriptedJournal : public CoordinatorJournal {
 public:
  absl::Status Save(absl::string_view, bool) override {
    absl::MutexLock lock(&mutex_);
    return status_;
  }
  void Settle() override {}
  void Answer(absl::Status status) {
    absl::MutexLock lock(&mutex_);
    status_ = std::move(status);
  }

 private:
  absl::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

class CoordinatorServiceTest : public testing::Test {
 protected:
  CoordinatorServiceTest() {
    server_id_ = *coordinator_.Join({MemberRole::kServer, 0, "127.0.0.1:1", "server process", {}, 0});
    v1::Job job;
    job.set_name("job");
    job.mutable_training()->set_epochs(1);
    job.mutable_training()->set_batch_size(10);
    job.mutable_durability()->set_mode(v1::Durability::WAL);
    worker_ = *coordinator_.Join({MemberRole::kWorker, 0, "", "worker process", job, 20});
  }

  absl::Status Heartbeat() {
    grpc::ClientContext context;
    v1::HeartbeatRequest request;
    *request.mutable_member() = ToProto(server_id_);
    v1::HeartbeatResponse response;
    return FromGrpcStatus(stub_->Heartbeat(&context, request, &response));
  }

  ManualClock clock_;
  ScriptedJournal journal_;
  Coordinator coordinator_{{.job = {.servers = 1, .workers = 1}, .journal = &journal_}, &clock_};
  AccessGuard access_{nullptr, [this] { return coordinator_.job_name(); }};
  CoordinatorServiceAdapter service_{&coordinator_, &access_};
  FakeServer server_{&service_};
  const std::unique_ptr<v1::CoordinatorService::Stub> stub_ =
      v1::CoordinatorService::NewStub(OpenChannel(server_.address(), {}));
  Membership::Id server_id_, worker_;
};

TEST_F(CoordinatorServiceTest, AHeartbeatThatCouldNotBeSavedMayComeAgain) {
  for (const absl::Status& failure : {absl::ResourceExhaustedError("disk full"), absl::InternalError("disk failed")}) {
    journal_.Answer(WithReason(v1::ERROR_REASON_STORAGE_FAILED, failure));
    ASSERT_TRUE(coordinator_.Leave(worker_, "its device failed", true).ok());
    const absl::Status status = Heartbeat();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(status.message(), failure.message());
    EXPECT_EQ(ReasonOf(status), v1::ERROR_REASON_STORAGE_FAILED);
  }
  journal_.Answer(absl::OkStatus());
  EXPECT_TRUE(Heartbeat().ok());
}

}  // namespace
}  // namespace ballast
