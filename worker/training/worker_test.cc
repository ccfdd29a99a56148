// SPDX-License-Identifier: Apache-2.0
#include "worker/training/worker.h"

#include <filesystem>
#include <fstream>

#include "client/testing/fake_coordinator_service.h"
#include "client/testing/fake_parameter_service.h"
#include "client/testing/fake_server.h"
#include "common/status/error_reason.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

// Declares worker 3 of 4 lost at its first AcquireLease, and only there; later has no data.
class ForgetfulCoordinator : public FakeCoordinatorService {
 public:
  explicit ForgetfulCoordinator(const std::string& shard) : FakeCoordinatorService({shard}) {}

  grpc::Status Join(grpc::ServerContext* context, const v1::JoinRequest* request, v1::JoinResponse* response) override {
    response->set_servers(1);
    response->set_workers(4);
    absl::MutexLock lock(&mutex_);
    ++joins_;
    return FakeCoordinatorService::Join(context, request, response);
  }
  grpc::Status AcquireLease(grpc::ServerContext*, const v1::AcquireLeaseRequest*,
                            v1::AcquireLeaseResponse* response) override {
    response->set_finished(true);
    absl::MutexLock lock(&mutex_);
    if (++leases_ > 1) return grpc::Status::OK;
    return ToGrpcStatus(WithReason(v1::ERROR_REASON_MEMBER_LOST,
                                   absl::FailedPreconditionError("worker 3 is no longer part of the job")));
  }
  int joins() {
    absl::MutexLock lock(&mutex_);
    return joins_;
  }

  // Number of AcquireLease calls.
  int leases() {
    absl::MutexLock lock(&mutex_);
    return leases_;
  }

 private:
  absl::Mutex mutex_;
  int leases_ ABSL_GUARDED_BY(mutex_) = 0;
  int joins_ ABSL_GUARDED_BY(mutex_) = 0;
};

// A worker of a small job.
absl::StatusOr<std::unique_ptr<Worker>> MakeWorker(const std::string& coordinator) {
  const std::string folder = testing::TempDir() + "/worker";
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/train.csv") << "1,2,0\n2,1,1\n";
  Worker::Options options;
  options.coordinator = coordinator;
  options.job_folder = folder;
  options.device = "cpu";
  v1::Job& job = options.job;
  job.set_name("job");
  job.mutable_data()->mutable_train()->mutable_csv()->set_path("train.csv");
  job.mutable_data()->mutable_train()->mutable_csv()->set_label_column(-1);
  job.mutable_model()->add_layers()->mutable_dense()->set_units(2);
  job.mutable_model()->mutable_loss()->mutable_softmax_cross_entropy();
  job.mutable_training()->set_epochs(1);
  job.mutable_training()->set_batch_size(1);
  job.mutable_optimizer()->mutable_sgd()->set_learning_rate(0.1f);
  job.mutable_policy()->mutable_async();
  return Worker::Create(std::move(options));
}

class WorkerTest : public testing::Test {
 protected:
  WorkerTest() {
    home_.SetHeartbeat(grpc::Status::OK, v1::JOB_STATE_RUNNING, "");
    home_.MoveShard(0, server_.address());
  }

  FakeParameterService shard_;
  ForgetfulCoordinator home_{"127.0.0.1:1"};
  FakeServer server_{&home_, &shard_};
};

TEST_F(WorkerTest, JoinsAgainWhoeverSaysFirstThatItWasLost) {
  const auto worker = MakeWorker(server_.address());
  ASSERT_TRUE(worker.ok()) << worker.status();
  const absl::Status status = (*worker)->Run();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(home_.joins(), 2);
}

TEST_F(WorkerTest, GoesOnAtTheControlPortThatTheShardMapNames) {
  ForgetfulCoordinator control("127.0.0.1:1");
  control.SetHeartbeat(grpc::Status::OK, v1::JOB_STATE_RUNNING, "");
  FakeServer control_server(&control);
  home_.MoveControl(0, control_server.address());
  const auto worker = MakeWorker(server_.address());
  ASSERT_TRUE(worker.ok()) << worker.status();
  const absl::Status status = (*worker)->Run();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(home_.leases(), 0);
  EXPECT_GT(control.leases(), 0);
}

}  // namespace
}  // namespace ballast
