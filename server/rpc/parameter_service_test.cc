// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/parameter_service.h"

#include <functional>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "server/rpc/watch/row_watch_calls.h"

namespace ballast {
namespace {

// A service whose executors are blocked until released.
class ParameterServiceTest : public ::testing::Test {
 protected:
  ParameterServiceTest() {
    for (Executor* executor : {&declarations_, &changes_}) {
      EXPECT_TRUE(executor->Submit([this] { let_go_.WaitForNotification(); }).ok());
    }
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service_);
    builder.RegisterCallbackGenericService(&data_plane_);
    server_ = builder.BuildAndStart();
    stub_ = v1::ParameterService::NewStub(
        grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials()));
  }
  ~ParameterServiceTest() override { server_->Shutdown(); }

  // A waiting call counts as at least `bytes` until its response.
  void ExpectCounted(uint64_t bytes, const std::function<void(std::function<void(grpc::Status)>)>& start) {
    EXPECT_EQ(data_plane_.traffic().bytes_in_flight, 0u);
    absl::Notification answered;
    start([&](const grpc::Status&) { answered.Notify(); });
    const absl::Time give_up = absl::Now() + absl::Seconds(20);
    while (data_plane_.traffic().bytes_in_flight < bytes && absl::Now() < give_up) {
    }
    EXPECT_GE(data_plane_.traffic().bytes_in_flight, bytes);
    let_go_.Notify();
    answered.WaitForNotification();
    changes_.Shutdown();
    declarations_.Shutdown();
    EXPECT_EQ(data_plane_.traffic().bytes_in_flight, 0u);
  }

  absl::Notification let_go_;
  ManualClock clock_;
  ParameterShard shard_{ParameterShard::Options{.max_state_bytes = 1 << 20}, &clock_};
  const AccessGuard access_{nullptr, [] { return std::string(); }};
  const ServingGate serving_{true};
  Executor declarations_{1, 100}, changes_{1, 100};
  DataPlane data_plane_{0, &shard_, &access_, &serving_, &changes_, uint64_t{64} << 20};
  RowWatchCalls watches_{&shard_, {.serving = [] { return absl::OkStatus(); }, .executor = &changes_}};
  ParameterServiceAdapter service_{
      0, &shard_, &data_plane_, &access_, &serving_, &watches_, {&declarations_, &changes_}};
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::ParameterService::Stub> stub_;
  grpc::ClientContext context_;
};

TEST_F(ParameterServiceTest, CountsADeclarationThatWaitsWithTheMemoryThatItTakes) {
  v1::DeclareTensorsRequest request;
  for (int i = 0; i < 10000; ++i) request.add_tensors()->mutable_spec()->mutable_optimizer();
  v1::DeclareTensorsResponse response;
  ExpectCounted(request.SpaceUsedLong(), [&](std::function<void(grpc::Status)> end) {
    stub_->async()->DeclareTensors(&context_, &request, &response, std::move(end));
  });
}

TEST_F(ParameterServiceTest, CountsAReportThatWaits) {
  v1::ReportVersionsRequest request;
  for (int i = 0; i < 10000; ++i) request.add_slices();
  v1::ReportVersionsResponse response;
  ExpectCounted(request.SpaceUsedLong(), [&](std::function<void(grpc::Status)> end) {
    stub_->async()->ReportVersions(&context_, &request, &response, std::move(end));
  });
}

TEST_F(ParameterServiceTest, CountsAPauseThatWaitsAsACallAtLeast) {
  const v1::PauseRequest request;
  v1::PauseResponse response;
  ExpectCounted(ByteBudget::kCallBytes, [&](std::function<void(grpc::Status)> end) {
    stub_->async()->Pause(&context_, &request, &response, std::move(end));
  });
}

}  // namespace
}  // namespace ballast
