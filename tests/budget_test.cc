// SPDX-License-Identifier: Apache-2.0
// Server limits: connections, calls per connection, and tensors of the job.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "ballast/v1/parameter_service.grpc.pb.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "server/server.h"
#include "tests/testing/cluster.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

class BudgetTest : public ::testing::Test {
 protected:
  void Start(Server::Options options) {
    options.workers = 2;
    auto server = Server::Start(std::move(options));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  // Opens a new connection.
  std::unique_ptr<v1::ParameterService::Stub> Open() const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 100);
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
    return v1::ParameterService::NewStub(
        grpc::CreateCustomChannel(server_->address(), grpc::InsecureChannelCredentials(), arguments));
  }
  static grpc::StatusCode Ask(v1::ParameterService::Stub& stub, absl::Duration timeout = absl::Seconds(30),
                              bool wait_for_connection = false) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    context.set_wait_for_ready(wait_for_connection);
    v1::GetStatusResponse response;
    return stub.GetStatus(&context, {}, &response).error_code();
  }
  static grpc::Status Declare(v1::ParameterService::Stub& stub, int tensors) {
    v1::DeclareTensorsRequest request;
    request.set_job("cluster");
    request.set_workers(2);
    request.mutable_policy()->mutable_sync();
    for (int i = 0; i < tensors; ++i) *request.add_tensors()->mutable_spec() = Spec(i, absl::StrCat("w", i), 1);
    grpc::ClientContext context;
    v1::DeclareTensorsResponse response;
    return stub.DeclareTensors(&context, request, &response);
  }

  std::unique_ptr<Server> server_;
};

TEST_F(BudgetTest, OneConnectionTooManyIsRefusedAndTheOthersGoOn) {
  Server::Options options;
  options.max_connections = 2;
  Start(options);
  const auto first = Open(), third = Open();
  auto second = Open();
  ASSERT_EQ(Ask(*first), grpc::StatusCode::OK);
  ASSERT_EQ(Ask(*second), grpc::StatusCode::OK);
  EXPECT_EQ(Ask(*third), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Ask(*first), grpc::StatusCode::OK);
  EXPECT_EQ(Ask(*second), grpc::StatusCode::OK);
  second.reset();
  EXPECT_EQ(Ask(*third, absl::Seconds(30), /*wait_for_connection=*/true), grpc::StatusCode::OK);
}

TEST_F(BudgetTest, ACallMoreThanAConnectionMayHaveWaitsAndHoldsUpNoOther) {
  Server::Options options;
  options.max_streams = 1;
  Start(options);
  const auto busy = Open(), other = Open();
  ASSERT_TRUE(Declare(*busy, 1).ok());
  v1::PullRequest request;
  request.set_job("cluster");
  request.set_step(1);
  request.set_wait_ms(60'000);
  request.add_slices();
  grpc::ClientContext context;
  v1::PullResponse response;
  absl::Notification ended;
  busy->async()->Pull(&context, &request, &response, [&](const grpc::Status&) { ended.Notify(); });
  EXPECT_EQ(Ask(*busy, absl::Milliseconds(500)), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(Ask(*other), grpc::StatusCode::OK);
  context.TryCancel();
  EXPECT_TRUE(ended.WaitForNotificationWithTimeout(absl::Seconds(30)));
  EXPECT_EQ(Ask(*busy), grpc::StatusCode::OK);
}

// A thousand floats in a thousand tensors.
TEST_F(BudgetTest, ManySmallTensorsCountWithWhatIsKeptAboutThem) {
  Server::Options options;
  options.max_state_bytes = 1 << 20;
  Start(options);
  const auto stub = Open();
  const grpc::Status status = Declare(*stub, 1000);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("this shard would hold 1050624 bytes, at most 1048576 are allowed"));
  EXPECT_EQ(server_->shard().status().tensors, 0u);
  EXPECT_TRUE(Declare(*stub, 100).ok());
  EXPECT_EQ(server_->shard().status().state_bytes, 400u);
}

}  // namespace
}  // namespace ballast
