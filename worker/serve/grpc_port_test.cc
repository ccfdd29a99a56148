// SPDX-License-Identifier: Apache-2.0
#include "worker/serve/grpc_port.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "ballast/v1/prediction_service.grpc.pb.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(30);

// Answers at once, or once the test says so if the model's name is "wait".
class WaitingService : public v1::PredictionService::Service {
 public:
  absl::Notification release;
  std::atomic<int> waiting{0};

 private:
  grpc::Status Predict(grpc::ServerContext*, const v1::PredictRequest* request, v1::PredictResponse*) override {
    if (request->model() != "wait") return grpc::Status::OK;
    ++waiting;
    release.WaitForNotification();
    return grpc::Status::OK;
  }
};

class GrpcPortTest : public ::testing::Test {
 protected:
  GrpcPortTest() { options_.address = "127.0.0.1:0"; }

  void Start() {
    auto port = GrpcPort::Start(options_, &service_);
    ASSERT_TRUE(port.ok()) << port.status();
    port_ = *std::move(port);
  }

  // A connection that no other one shares.
  std::shared_ptr<grpc::Channel> Connection() const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(port_->address(), grpc::InsecureChannelCredentials(), arguments);
  }

  static grpc::StatusCode Ask(const std::shared_ptr<grpc::Channel>& channel, const std::string& model,
                              size_t bytes = 0) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kTimeout));
    v1::PredictRequest request;
    request.set_model(model);
    if (bytes > 0) request.mutable_examples()->set_features(std::string(bytes, 'x'));
    v1::PredictResponse response;
    return v1::PredictionService::NewStub(channel)->Predict(&context, request, &response).error_code();
  }

  GrpcPort::Options options_;
  WaitingService service_;
  std::unique_ptr<GrpcPort> port_;
};

TEST_F(GrpcPortTest, AnswersCallsOfItsService) {
  Start();
  const auto channel = Connection();
  EXPECT_EQ(Ask(channel, ""), grpc::StatusCode::OK);
  EXPECT_EQ(Ask(channel, "", 1 << 20), grpc::StatusCode::OK);
  EXPECT_EQ(Ask(channel, "", 5 << 20), grpc::StatusCode::RESOURCE_EXHAUSTED) << "larger than 4 MiB";
  EXPECT_EQ(Ask(channel, ""), grpc::StatusCode::OK);
}

TEST_F(GrpcPortTest, RefusesCallsBeyondTheLimitAndGoesOn) {
  options_.max_calls = 4;
  Start();
  constexpr int kCalls = 40;
  std::atomic<int> accepted{0}, refused{0};
  absl::BlockingCounter all_but_waiting(kCalls - options_.max_calls);
  std::vector<std::thread> threads;
  const auto channel = Connection();
  for (int i = 0; i < kCalls; ++i) {
    threads.emplace_back([&] {
      const grpc::StatusCode code = Ask(channel, "wait");
      if (code == grpc::StatusCode::OK) {
        ++accepted;
      } else {
        EXPECT_EQ(code, grpc::StatusCode::RESOURCE_EXHAUSTED);
        ++refused;
        all_but_waiting.DecrementCount();
      }
    });
  }
  all_but_waiting.Wait();
  service_.release.Notify();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(service_.waiting, options_.max_calls);
  EXPECT_EQ(accepted, options_.max_calls);
  EXPECT_EQ(refused, kCalls - options_.max_calls);
  EXPECT_EQ(Ask(channel, ""), grpc::StatusCode::OK);
}

TEST_F(GrpcPortTest, ClosesConnectionsBeyondTheLimitUntilOthersEnd) {
  options_.max_connections = 2;
  Start();
  auto first = Connection(), second = Connection();
  EXPECT_EQ(Ask(first, ""), grpc::StatusCode::OK);
  EXPECT_EQ(Ask(second, ""), grpc::StatusCode::OK);
  EXPECT_EQ(Ask(Connection(), ""), grpc::StatusCode::UNAVAILABLE);
  first = second = nullptr;
  const absl::Time deadline = absl::Now() + kTimeout;
  while (Ask(Connection(), "") != grpc::StatusCode::OK && absl::Now() < deadline) {
  }
  EXPECT_EQ(Ask(Connection(), ""), grpc::StatusCode::OK);
}

TEST_F(GrpcPortTest, RefusesAddressesThatItCannotUse) {
  Start();
  for (const char* bad : {"", "7801", ":7801", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536"}) {
    options_.address = bad;
    EXPECT_EQ(GrpcPort::Start(options_, &service_).status().message(),
              absl::StrCat("gRPC address: got \"", bad, "\", want HOST:PORT, such as 127.0.0.1:7801"));
  }
  options_.address = port_->address();
  const absl::Status used = GrpcPort::Start(options_, &service_).status();
  EXPECT_THAT(used.message(), HasSubstr(absl::StrCat("cannot listen on ", port_->address())));
}

TEST_F(GrpcPortTest, StopsWhileCallsWait) {
  Start();
  std::thread caller([this] { Ask(Connection(), "wait"); });
  const absl::Time deadline = absl::Now() + kTimeout;
  while (service_.waiting == 0 && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
  service_.release.Notify();
  port_->Stop(kTimeout);
  port_->Stop(absl::ZeroDuration());
  caller.join();
}

}  // namespace
}  // namespace ballast
