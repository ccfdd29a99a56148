// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/data_stream/stream_sender.h"
#include "google/protobuf/stubs/logging.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "tests/testing/cluster.h"
#include "tests/testing/raw_call.h"
#include "tests/testing/security_folder.h"

namespace ballast {

template <typename T>
T Parse(const std::string& text) {
  T message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message)) << text;
  return message;
}

// A live server with a running job, valid requests to start from, and an honest worker to show that the job goes on.
class HostileTest : public ::testing::Test {
 protected:
  // Worker rank and tensor id that no hostile message uses.
  static constexpr uint32_t kHonest = 77;

  void SetUp() override {
    // Protobuf logs a line for each string that is not UTF-8.
    google::protobuf::SetLogHandler(nullptr);
    Server::Options options;
    options.servers = 1;
    options.workers = workers_;
    options.max_state_bytes = 16 << 20;
    options.security = security_;
    server_ = StartServer(std::move(options));
    ASSERT_NE(server_, nullptr);
    channel_ = grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials());
    ASSERT_EQ(Call("ParameterService/DeclareTensors", declare_).error_message(), "");
    v1::DeclareTensorsRequest honest = declare_;
    honest.mutable_tensors(0)->mutable_spec()->set_id(kHonest);
    honest.mutable_tensors(0)->mutable_spec()->set_name("honest");
    ASSERT_EQ(Call("ParameterService/DeclareTensors", honest).error_message(), "");
  }

  grpc::Status Call(const std::string& method, const std::string& bytes,
                    absl::Duration timeout = absl::Seconds(60)) const {
    if (stream_ != nullptr && IsDirect(method)) return CallOnStream(*stream_, method, bytes, timeout);
    return RawCall(channel_, method, bytes, authorization(), timeout);
  }
  // From now on, calls that may be made on a data stream are made there.
  void OpenStream() {
    sender_ = std::make_unique<StreamSender>([this] { return channel_; }, "hostile", absl::Seconds(60));
    const absl::Time give_up = absl::Now() + absl::Seconds(60);
    while ((stream_ = sender_->caller()) == nullptr && absl::Now() < give_up) absl::SleepFor(absl::Milliseconds(1));
    ASSERT_NE(stream_, nullptr);
  }
  grpc::Status Call(const std::string& method, const google::protobuf::Message& request) const {
    return Call(method, request.SerializeAsString());
  }
  std::string authorization() const { return token_.empty() ? "" : "Bearer " + token_; }
  v1::GetStatusResponse GetStatus() const {
    return Ask<v1::ParameterService>(channel_, &v1::ParameterService::Stub::GetStatus, {}, authorization());
  }
  v1::GetProgressResponse GetProgress() const { return AskProgress(channel_, authorization()); }

  std::vector<float> Values(uint32_t tensor) const {
    v1::PullRequest request = pull_;
    request.mutable_slices(0)->set_tensor_id(tensor);
    const auto response =
        Ask<v1::ParameterService>(channel_, &v1::ParameterService::Stub::Pull, request, authorization());
    if (response.values_size() != 1) return {};
    std::vector<float> values(response.values(0).payload().size() / sizeof(float));
    std::memcpy(values.data(), response.values(0).payload().data(), sizeof(float) * values.size());
    return values;
  }

  // A valid push of ones to the honest tensor, by the honest worker.
  grpc::Status PushHonestly() const {
    v1::PushRequest request = push_;
    request.mutable_header()->set_worker(kHonest);
    request.mutable_gradients(0)->set_tensor_id(kHonest);
    return Call("ParameterService/Push", request);
  }

  SecurityOptions security_;
  // Token sent with each call, if not empty.
  std::string token_;
  uint32_t workers_ = 100;
  v1::DeclareTensorsRequest declare_ = Parse<v1::DeclareTensorsRequest>(R"pb(
    job: "hostile"
    workers: 100
    protocol_version: 1
    policy { async {} }
    tensors {
      spec {
        id: 1
        name: "w"
        shape: 3
        shape: 4
        seed: 9
        initializer { constant { value: 5 } }
        optimizer { sgd { learning_rate: 1 } }
      }
      slices { elements: 12 }
    })pb");
  const v1::PushRequest push_ = [] {
    auto push = Parse<v1::PushRequest>(R"pb(
      header { job: "hostile" worker: 3 incarnation: 1 sequence: 1 step: 0 examples: 8 }
      gradients { tensor_id: 1 encoding: ENCODING_FP32 })pb");
    const std::array<float, 12> ones = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    push.mutable_gradients(0)->set_payload(ones.data(), sizeof(ones));
    return push;
  }();
  // push_ as a PushPull.
  const v1::PushPullRequest push_pull_ = [this] {
    v1::PushPullRequest push_pull;
    *push_pull.mutable_header() = push_.header();
    *push_pull.mutable_gradients() = push_.gradients();
    push_pull.set_wait_ms(1);
    return push_pull;
  }();
  const v1::PullRequest pull_ = Parse<v1::PullRequest>(R"pb(job: "hostile"
                                                            slices { tensor_id: 1 }
                                                            wait_ms: 1)pb");
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<StreamSender> sender_;
  // Null: calls are made over gRPC.
  std::shared_ptr<StreamCaller> stream_;
};

}  // namespace ballast
