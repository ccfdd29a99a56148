// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/shard_services.h"

#include <functional>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/concurrency/clock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "server/rpc/unary_reply.h"

namespace ballast {
namespace {

class ShardServicesTest : public testing::Test {
 protected:
  // Returns the codes of GetStatus and of Pause at a port with these services.
  static std::pair<grpc::StatusCode, grpc::StatusCode> Call(const std::function<void(grpc::ServerBuilder&)>& add) {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    add(builder);
    const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
    const auto stub = v1::ParameterService::NewStub(
        grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials()));
    grpc::ClientContext status_context, pause_context;
    v1::GetStatusResponse status;
    v1::PauseResponse pause;
    return {stub->GetStatus(&status_context, {}, &status).error_code(),
            stub->Pause(&pause_context, {}, &pause).error_code()};
  }

  ManualClock clock_;
  ParameterShard shard_{ParameterShard::Options{.max_state_bytes = 1 << 20}, &clock_};
  StandbyReceiver receiver_{0, &shard_, [] {}};
  const ServingGate serving_{true};
  UnknownMethods unknown_methods_;
  ShardServices services_{0, uint64_t{64} << 20, &shard_, &receiver_, &serving_, nullptr};
};

TEST_F(ShardServicesTest, ServesTheShardAtTheDataPort) {
  const auto [status, pause] = Call([this](grpc::ServerBuilder& data) { services_.AddTo(data); });
  EXPECT_EQ(status, grpc::StatusCode::OK);
  EXPECT_EQ(pause, grpc::StatusCode::FAILED_PRECONDITION) << "the shard has no job yet";
}

TEST_F(ShardServicesTest, ServesOnlyTheStatusAtTheControlPort) {
  const auto [status, pause] = Call([this](grpc::ServerBuilder& control) {
    services_.AddToControl(control);
    control.RegisterCallbackGenericService(&unknown_methods_);
  });
  EXPECT_EQ(status, grpc::StatusCode::OK);
  EXPECT_EQ(pause, grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(ShardServicesTest, RunsQueuedWorkBeforeItStops) {
  bool ran = false;
  ASSERT_TRUE(services_.work().Submit([&] { ran = true; }).ok());
  services_.Shutdown();
  EXPECT_TRUE(ran);
  EXPECT_EQ(services_.work().Submit([] {}).code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace ballast
