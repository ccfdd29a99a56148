// SPDX-License-Identifier: Apache-2.0
#include "worker/training/worker.h"

#include <atomic>
#include <filesystem>
#include <fstream>

#include "client/testing/fake_coordinator_service.h"
#include "client/testing/fake_parameter_service.h"
#include "client/testing/fake_server.h"
#include "common/status/error_reason.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

// The coordinator of a job of one server and four workers.
class JobCoordinator : public FakeCoordinatorService {
 public:
  using FakeCoordinatorService::FakeCoordinatorService;

  grpc::Status Join(grpc::ServerContext* context, const v1::JoinRequest* request, v1::JoinResponse* response) override {
    response->set_servers(1);
    response->set_workers(4);
    return FakeCoordinatorService::Join(context, request, response);
  }
};

// Declares worker 3 of 4 lost at its first AcquireLease, and only there; later has no data.
class ForgetfulCoordinator : public JobCoordinator {
 public:
  explicit ForgetfulCoordinator(const std::string& shard) : JobCoordinator({shard}) {}

  grpc::Status Join(grpc::ServerContext* context, const v1::JoinRequest* request, v1::JoinResponse* response) override {
    absl::MutexLock lock(&mutex_);
    ++joins_;
    return JobCoordinator::Join(context, request, response);
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

// Hands out leases of a few steps each, and counts those, and the reports, before whose response another step is
// pushed.
class LeasingCoordinator : public JobCoordinator {
 public:
  LeasingCoordinator(int leases, uint32_t steps, FakeParameterService* shard)
      : JobCoordinator({"127.0.0.1:1"}), leases_(leases), steps_(steps), shard_(*shard) {}

  grpc::Status AcquireLease(grpc::ServerContext*, const v1::AcquireLeaseRequest*,
                            v1::AcquireLeaseResponse* response) override {
    absl::MutexLock lock(&mutex_);
    response->set_finished(given_ == leases_);
    if (response->finished()) return grpc::Status::OK;
    response->mutable_lease()->set_id(++given_);
    response->mutable_lease()->set_end(steps_);
    response->mutable_lease()->set_steps(steps_);
    return grpc::Status::OK;
  }
  grpc::Status ReportProgress(grpc::ServerContext* context, const v1::ReportProgressRequest* request,
                              v1::ReportProgressResponse* response) override {
    {
      absl::MutexLock lock(&mutex_);
      examples_ += request->progress().work().examples();
    }
    // As below. A lease's end awaits its last report, so only the others wait for as long as a busy machine may take.
    const uint64_t step = request->progress().step();
    const absl::Time deadline = absl::Now() + (step % steps_ == 0 ? absl::Milliseconds(100) : absl::Seconds(5));
    bool later = false;
    do {
      later = shard_.sequences().size() > step;
    } while (!later && absl::Now() < deadline);
    if (later) ++reports_overlapped_;
    return FakeCoordinatorService::ReportProgress(context, request, response);
  }
  grpc::Status CompleteLease(grpc::ServerContext*, const v1::CompleteLeaseRequest* request,
                             v1::CompleteLeaseResponse*) override {
    // A worker that waits for this response pushes nothing meanwhile, however long that takes.
    const absl::Time deadline = absl::Now() + absl::Milliseconds(100);
    size_t pushes = 0;
    do {
      pushes = shard_.sequences().size();
    } while (pushes <= request->lease_id() && absl::Now() < deadline);
    absl::MutexLock lock(&mutex_);
    if (pushes > request->lease_id()) ++overlapped_;
    in_order_ = in_order_ && request->lease_id() == ++completed_ && request->steps() == completed_ &&
                request->batches() == completed_ && examples_ == completed_;
    return grpc::Status::OK;
  }

  uint64_t completed() {
    absl::MutexLock lock(&mutex_);
    return completed_;
  }
  // True if each lease was completed after the ones before and after its examples were reported, but not later ones.
  bool in_order() {
    absl::MutexLock lock(&mutex_);
    return in_order_;
  }
  int overlapped() {
    absl::MutexLock lock(&mutex_);
    return overlapped_;
  }

  int reports_overlapped() const { return reports_overlapped_; }

 private:
  const uint64_t leases_;
  const uint32_t steps_;
  FakeParameterService& shard_;
  std::atomic<int> reports_overlapped_{0};
  absl::Mutex mutex_;
  uint64_t given_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t examples_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t completed_ ABSL_GUARDED_BY(mutex_) = 0;
  bool in_order_ ABSL_GUARDED_BY(mutex_) = true;
  int overlapped_ ABSL_GUARDED_BY(mutex_) = 0;
};

// A worker of a small job.
absl::StatusOr<std::unique_ptr<Worker>> MakeWorker(const std::string& coordinator, uint32_t report_every_steps = 0) {
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
  job.mutable_training()->set_report_every_steps(report_every_steps);
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

TEST(WorkerLeasesTest, TrainsWhileALeaseEnds) {
  constexpr int kLeases = 20;
  FakeParameterService shard;
  LeasingCoordinator coordinator(kLeases, /*steps=*/1, &shard);
  coordinator.SetHeartbeat(grpc::Status::OK, v1::JOB_STATE_RUNNING, "");
  FakeServer server(&coordinator, &shard);
  coordinator.MoveShard(0, server.address());
  const auto worker = MakeWorker(server.address());
  ASSERT_TRUE(worker.ok()) << worker.status();
  const absl::Status status = (*worker)->Run();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(coordinator.completed(), kLeases);
  EXPECT_TRUE(coordinator.in_order());
  // Not all: a lease whose next batch is not there yet is completed first.
  EXPECT_GT(coordinator.overlapped(), 0);
}

TEST(WorkerLeasesTest, TrainsWhileItReports) {
  constexpr int kLeases = 10;
  FakeParameterService shard;
  LeasingCoordinator coordinator(kLeases, /*steps=*/2, &shard);
  coordinator.SetHeartbeat(grpc::Status::OK, v1::JOB_STATE_RUNNING, "");
  FakeServer server(&coordinator, &shard);
  coordinator.MoveShard(0, server.address());
  const auto worker = MakeWorker(server.address(), /*report_every_steps=*/1);
  ASSERT_TRUE(worker.ok()) << worker.status();
  const absl::Status status = (*worker)->Run();
  EXPECT_TRUE(status.ok()) << status;
  // Those of each lease's first step; its end awaits the last one.
  EXPECT_GE(coordinator.reports_overlapped(), kLeases);
}

}  // namespace
}  // namespace ballast
