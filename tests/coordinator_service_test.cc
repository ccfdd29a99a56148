// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/coordinator_service.h"

#include <string>

#include "absl/synchronization/mutex.h"
#include "client/testing/fake_server.h"
#include "common/concurrency/clock.h"
#include "common/rpc/channel.h"
#include "common/rpc/grpc_status.h"
#include "common/status/error_reason.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

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
  Coordinator coordinator_{{.servers = 1, .workers = 1, .journal = &journal_}, &clock_};
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
