// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/shard_services.h"

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/concurrency/clock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "server/rpc/unary_reply.h"

namespace ballast {
namespace {

class ShardServicesTest : public testing::Test {
 protected:
  // A server on a free port, and a client of it.
  struct Port {
    std::unique_ptr<grpc::Server> server;
    std::unique_ptr<v1::ParameterService::Stub> stub;
  };
  // Opens a port with these services.
  static Port Open(const std::function<void(grpc::ServerBuilder&)>& add) {
    int number = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &number);
    add(builder);
    std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
    return {std::move(server), v1::ParameterService::NewStub(grpc::CreateChannel(absl::StrCat("127.0.0.1:", number),
                                                                                 grpc::InsecureChannelCredentials()))};
  }

  // Returns the codes of GetStatus and of Pause at a port with these services.
  static std::pair<grpc::StatusCode, grpc::StatusCode> Call(const std::function<void(grpc::ServerBuilder&)>& add) {
    const Port port = Open(add);
    grpc::ClientContext status_context, pause_context;
    v1::GetStatusResponse status;
    v1::PauseResponse pause;
    return {port.stub->GetStatus(&status_context, {}, &status).error_code(),
            port.stub->Pause(&pause_context, {}, &pause).error_code()};
  }

  ManualClock clock_;
  ParameterShard shard_{ParameterShard::Options{.max_state_bytes = 1 << 20}, &clock_};
  StandbyReceiver receiver_{0, &shard_, [] {}};
  const ServingGate serving_{true};
  UnknownMethods unknown_methods_;
  CallTimeline calls_;
  std::vector<std::string> log_;
  CallTracing tracing_{&calls_, [this](const std::string& line) { log_.push_back(line); }};
  ShardServices services_{0, uint64_t{64} << 20, &shard_, &receiver_, &serving_, nullptr, &tracing_};
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

TEST_F(ShardServicesTest, RecordsSampledCallsAndLogsTracedOnesThatFail) {
  const Port port = Open([this](grpc::ServerBuilder& data) { services_.AddTo(data); });
  v1::PushRequest request;
  request.mutable_header()->set_worker(3);
  request.mutable_header()->set_step(8);
  const auto push = [&](const char* traceparent) {
    grpc::ClientContext context;
    if (traceparent != nullptr) context.AddMetadata("traceparent", traceparent);
    v1::PushResponse response;
    EXPECT_EQ(port.stub->Push(&context, request, &response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  };
  push(nullptr);
  push("00-damaged");
  EXPECT_TRUE(log_.empty());
  push("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00");
  push("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
  port.server->Shutdown();
  port.server->Wait();
  // The second one may follow within the pause between two lines.
  ASSERT_FALSE(log_.empty());
  EXPECT_EQ(log_[0].find("ParameterService/Push from ipv4:127.0.0.1:"), 0u) << log_[0];
  EXPECT_NE(log_[0].find("; trace 4bf92f3577b34da6a3ce929d0e0e4736, span "), std::string::npos) << log_[0];
  EXPECT_NE(log_[0].find(", of span 00f067aa0ba902b7"), std::string::npos) << log_[0];
  const CallTimeline::Recording recording = calls_.Copy();
  ASSERT_EQ(recording.calls.size(), 1u) << "only the sampled one";
  const CallSpan& call = recording.calls[0];
  EXPECT_EQ(call.method, "/ballast.v1.ParameterService/Push");
  EXPECT_EQ(call.code, absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(call.parent, 0x00f067aa0ba902b7u);
  EXPECT_EQ(call.peer, 3u);
  EXPECT_EQ(call.step, 9u);
  EXPECT_EQ(call.request_bytes, request.ByteSizeLong());
  ASSERT_GE(call.parts.size(), 2u);
  EXPECT_EQ(call.parts[0].name, "queue");
  EXPECT_EQ(call.parts[1].name, "apply");
  EXPECT_LE(call.begin, call.parts[0].begin);
  EXPECT_LE(call.parts.back().end, call.end);
}

TEST_F(ShardServicesTest, DescribesCallsByPhaseAndPayloadsByCodec) {
  JobConfig job{"job", {}, 1, {}};
  job.policy.mutable_async();
  std::vector<OwnedTensor> tensors(1);
  tensors[0].spec.set_id(1);
  tensors[0].spec.set_name("w");
  tensors[0].spec.add_shape(3);
  tensors[0].spec.mutable_optimizer()->mutable_momentum()->set_learning_rate(1);
  const auto declared = shard_.Declare(job, tensors);
  ASSERT_TRUE(declared.ok()) << declared.status();
  const Port port = Open([this](grpc::ServerBuilder& data) { services_.AddTo(data); });
  v1::PushPullRequest request;
  request.mutable_header()->set_job("job");
  request.mutable_header()->set_incarnation(1);
  request.mutable_header()->set_sequence(1);
  request.mutable_header()->set_examples(1);
  request.set_encoding(v1::ENCODING_FP32);
  v1::SliceGradient* gradient = request.add_gradients();
  gradient->set_tensor_id(1);
  gradient->set_encoding(v1::ENCODING_FP16);
  gradient->set_payload(std::string(6, '\0'));
  v1::PushPullResponse response;
  grpc::ClientContext context;
  const grpc::Status status = port.stub->PushPull(&context, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  // A call ends shortly after its client has the response.
  const absl::Time give_up = absl::Now() + absl::Seconds(20);
  while (services_.Describe().call_phases_size() == 0 && absl::Now() < give_up) std::this_thread::yield();
  const v1::GetStatusResponse described = services_.Describe();
  ASSERT_EQ(described.call_phases_size(), 1) << "methods that nobody called are left out";
  const v1::GetStatusResponse::CallPhases& phases = described.call_phases(0);
  EXPECT_EQ(phases.method(), "push_pull");
  for (const v1::Histogram* phase : {&phases.queue(), &phases.apply(), &phases.wait(), &phases.send()}) {
    EXPECT_EQ(phase->count(), 1u);
  }
  EXPECT_GT(phases.queue().sum() + phases.apply().sum() + phases.wait().sum() + phases.send().sum(), 0);
  ASSERT_EQ(described.payloads_size(), 2);
  EXPECT_EQ(described.payloads(0).ShortDebugString(),
            "direction: \"push\" codec: \"fp16\" encoded_bytes: 6 plain_bytes: 12");
  EXPECT_EQ(described.payloads(1).ShortDebugString(),
            "direction: \"pull\" codec: \"fp32\" encoded_bytes: 12 plain_bytes: 12");
  EXPECT_EQ(described.memory().weights(), 12u);
  EXPECT_EQ(described.memory().slots(), 12u);
  EXPECT_EQ(described.memory().state_limit(), 1u << 20);
  EXPECT_EQ(described.applied_bytes(), 12u);
  EXPECT_FALSE(described.has_log());
  port.server->Shutdown();
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
