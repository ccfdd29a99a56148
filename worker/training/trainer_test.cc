// SPDX-License-Identifier: Apache-2.0
#include "worker/training/trainer.h"

#include <filesystem>
#include <fstream>
#include <memory>

#include "absl/synchronization/mutex.h"
#include "client/testing/fake_coordinator_service.h"
#include "client/testing/fake_parameter_service.h"
#include "client/testing/fake_server.h"
#include "common/error_reason.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

// Loses worker 3 of 4 before it grants it a lease, and says so to AcquireLease alone; has no data for the next one.
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
    if (joins() > 1) return grpc::Status::OK;
    return ToGrpcStatus(WithReason(v1::ERROR_REASON_MEMBER_LOST,
                                   absl::FailedPreconditionError("worker 3 is no longer part of the job")));
  }
  int joins() {
    absl::MutexLock lock(&mutex_);
    return joins_;
  }

 private:
  absl::Mutex mutex_;
  int joins_ ABSL_GUARDED_BY(mutex_) = 0;
};

TEST(TrainerTest, JoinsAgainWhoeverSaysFirstThatItWasLost) {
  FakeParameterService shard;
  FakeServer shard_server(&shard);
  ForgetfulCoordinator coordinator(shard_server.address());
  coordinator.SetHeartbeat(grpc::Status::OK, v1::JOB_STATE_RUNNING, "");
  FakeServer coordinator_server(&coordinator);
  const std::string folder = testing::TempDir() + "/trainer";
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/train.csv") << "1,2,0\n2,1,1\n";
  Trainer::Options options;
  options.coordinator = coordinator_server.address();
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
  const auto trainer = Trainer::Create(std::move(options));
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  const absl::Status status = (*trainer)->Run();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(coordinator.joins(), 2);
}

}  // namespace
}  // namespace ballast
