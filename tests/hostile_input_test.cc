// SPDX-License-Identifier: Apache-2.0
// No input crashes a server: every method of a live server gets thousands of malformed and mutated messages.
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <random>
#include <set>
#include <thread>

#include "absl/strings/numbers.h"
#include "gmock/gmock.h"
#include "tests/fault/hostile/racing_writer.h"
#include "tests/testing/hostile_test.h"
#include "tests/testing/message_mutator.h"

namespace ballast {
namespace {

using ::google::protobuf::Message;
using ::google::protobuf::TextFormat;
using ::testing::Each;
using Random = std::mt19937_64;

class HostileInputTest : public HostileTest {
 protected:
  // Several threads send `count` hostile messages to each method (times BALLAST_HOSTILE_TIMES). Only a waiting call
  // may respond late.
  void Attack(const std::vector<std::pair<std::string, const Message*>>& methods, int count) {
    if (const char* text = std::getenv("BALLAST_HOSTILE_TIMES")) {
      int times = 0;
      ASSERT_TRUE(absl::SimpleAtoi(text, &times) && times >= 1 && times <= 1000)
          << "BALLAST_HOSTILE_TIMES is \"" << text << "\", want 1 to 1000";
      count *= times;
    }
    std::atomic<int> accepted = 0, refused = 0;
    std::vector<std::thread> threads;
    for (int seed = 0; seed < 8; ++seed) {
      threads.emplace_back([&, seed] {
        Random random(seed);
        for (int i = 0; i < count / 8; ++i) {
          for (const auto& [method, valid] : methods) {
            const std::string bytes = HostileBytes(*valid, random);
            const bool may_wait = waiting_.count(method) > 0;
            const grpc::Status status = Call(method, bytes, may_wait ? absl::Milliseconds(100) : absl::Seconds(60));
            const grpc::StatusCode code = status.error_code();
            if (valid->ByteSizeLong() > 0) ++(status.ok() ? accepted : refused);
            // The client's own text; the server may well report that a pull's timeout of 1 ms expired.
            EXPECT_TRUE(may_wait || status.error_message() != "Deadline Exceeded") << method;
            // The server itself reports UNAVAILABLE while servers are missing, for memory that is not shared, and for
            // a push that another thread's call is applying. In all other cases the connection broke.
            const bool may_refuse = method == "CoordinatorService/PlaceTensors" ||
                                    status.error_message().find("shares no such memory") != std::string::npos ||
                                    status.error_message().find("is being applied; retry") != std::string::npos;
            EXPECT_TRUE(may_refuse || code != grpc::StatusCode::UNAVAILABLE)
                << method << ": " << status.error_message();
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    // Some messages must pass the first check for later checks to be reached.
    EXPECT_GT(accepted, 0);
    EXPECT_GT(refused, count);
    calls_ += count / 8 * 8 * static_cast<int>(methods.size());
    RecordProperty("calls", calls_);
  }

  void AttackParameterService() {
    const v1::GetStatusRequest get_status;
    Attack({{"ParameterService/DeclareTensors", &declare_},
            {"ParameterService/Push", &push_},
            {"ParameterService/Pull", &pull_},
            {"ParameterService/PushPull", &push_pull_},
            {"ParameterService/GetStatus", &get_status},
            {"ParameterService/NoSuchMethod", &push_}},
           1600);
  }

  // Methods that may make a call wait for something that never comes.
  std::set<std::string> waiting_;
  int calls_ = 0;
};

// Over gRPC, or on a data stream.
class TransportHostileInputTest : public HostileInputTest, public testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    HostileInputTest::SetUp();
    if (GetParam()) OpenStream();
  }
};

std::string TransportName(const testing::TestParamInfo<bool>& info) {
  return info.param ? "OnADataStream" : "OverGrpc";
}

INSTANTIATE_TEST_SUITE_P(Transports, TransportHostileInputTest, testing::Bool(), TransportName);

TEST_P(TransportHostileInputTest, ParameterServiceSurvivesAndStillAnswersCorrectly) {
  AttackParameterService();
  EXPECT_THAT(Values(kHonest), Each(5));
  EXPECT_EQ(PushHonestly().error_message(), "");
  EXPECT_THAT(Values(kHonest), Each(4));
}

// A client on the same machine changes its messages in shared memory while the server reads them.
// By the way in which it calls.
using RacingCall = decltype(&RacingWriter::Call);
class RacingHostileInputTest : public HostileInputTest, public testing::WithParamInterface<RacingCall> {
 protected:
  static constexpr uint32_t kRaced = 5;
  // Large enough for a push to take a while.
  static constexpr size_t kElements = 1 << 16;
  static constexpr int kCalls = 600;

  void SetUp() override {
    HostileInputTest::SetUp();
    v1::DeclareTensorsRequest declare = declare_;
    v1::TensorDeclaration& tensor = *declare.mutable_tensors(0);
    tensor.mutable_spec()->set_id(kRaced);
    tensor.mutable_spec()->set_name("raced");
    tensor.mutable_spec()->clear_shape();
    tensor.mutable_spec()->add_shape(kElements);
    tensor.clear_slices();
    ASSERT_EQ(Call("ParameterService/DeclareTensors", declare).error_message(), "");
    auto writer = RacingWriter::Open(channel_, "hostile");
    ASSERT_TRUE(writer.ok()) << writer.status();
    writer_ = *std::move(writer);
  }

  // Pushes ones in every encoding as `worker`; returns the number of accepted pushes.
  int PushAll(uint32_t worker, RacingWriter::Change change, bool whole_request) {
    int taken = 0;
    v1::PushHeader header = push_.header();
    header.set_worker(worker);
    for (const EncodedGradient& gradient : EncodedOnes(kElements)) {
      for (int i = 0; i < kCalls; ++i) {
        header.set_sequence(++sequence_);
        const RacedPush push = MakePush(header, kRaced, gradient);
        const size_t first = whole_request ? 0 : push.payload_offset;
        taken += CallRacing("ParameterService/Push", push.request, first, change).ok() ? 1 : 0;
      }
    }
    calls_ += kCalls;
    return taken;
  }

  grpc::Status CallRacing(const std::string& method, const std::string& request, size_t first,
                          RacingWriter::Change change) {
    return ((*writer_).*GetParam())(method, request, first, change, random_);
  }

  void ExpectFiniteWeights() {
    const std::vector<float> values = Values(kRaced);
    ASSERT_EQ(values.size(), kElements);
    for (const float value : values) ASSERT_TRUE(std::isfinite(value)) << value;
  }

  Random random_{1};
  uint64_t sequence_ = 0;
  std::unique_ptr<RacingWriter> writer_;
};

TEST_P(RacingHostileInputTest, PayloadsThatChangeWhileTheyAreReadDoNoHarm) {
  EXPECT_GT(PushAll(3, RacingWriter::Change::kWords, /*whole_request=*/false), 0);
  ExpectFiniteWeights();
  EXPECT_EQ(PushHonestly().error_message(), "");
  EXPECT_THAT(Values(kHonest), Each(4));
}

TEST_P(RacingHostileInputTest, RequestsThatChangeWhileTheyAreReadDoNoHarm) {
  // Uses another worker, because altered pushes can consume that worker's sequence numbers.
  PushAll(4, RacingWriter::Change::kBits, /*whole_request=*/true);
  v1::PullRequest pull = pull_;
  pull.mutable_slices(0)->set_tensor_id(kRaced);
  for (int i = 0; i < kCalls; ++i) {
    CallRacing("ParameterService/Pull", pull.SerializeAsString(), 0, RacingWriter::Change::kBits).ok();
  }
  EXPECT_EQ(PushHonestly().error_message(), "");
  EXPECT_THAT(Values(kHonest), Each(4));
}

INSTANTIATE_TEST_SUITE_P(Calls, RacingHostileInputTest, testing::Values(&RacingWriter::Call, &RacingWriter::CallThere),
                         [](const auto& info) {
                           return info.param == &RacingWriter::Call ? "OverAConnection" : "InSharedMemory";
                         });

// The server buffers gradients, and pulls wait, many of them for callers that have disconnected.
class SyncHostileInputTest : public TransportHostileInputTest {
 protected:
  SyncHostileInputTest() {
    declare_.mutable_policy()->mutable_sync()->set_deterministic(true);
    waiting_ = {"ParameterService/Pull", "ParameterService/PushPull"};
  }
};

INSTANTIATE_TEST_SUITE_P(Transports, SyncHostileInputTest, testing::Bool(), TransportName);

TEST_P(SyncHostileInputTest, ParameterServiceSurvivesAndStillAnswersCorrectly) {
  AttackParameterService();
  EXPECT_EQ(PushHonestly().error_message(), "");
  EXPECT_THAT(Values(kHonest), Each(5));
}

// A running job of one worker.
class CoordinatorHostileInputTest : public HostileInputTest {
 protected:
  CoordinatorHostileInputTest() {
    workers_ = 1;
    waiting_ = {"CoordinatorService/AcquireLease"};
    place_.set_job("hostile");
    *place_.add_tensors() = declare_.tensors(0).spec();
  }

  v1::JoinRequest join_ = Parse<v1::JoinRequest>(R"pb(
    protocol_version: 1
    version: "1"
    role: ROLE_WORKER
    rank: 0
    description: "honest"
    train_examples: 1000000
    job {
      name: "hostile"
      seed: 1
      data { train { csv { path: "a" } } }
      model {
        layers { dense { units: 3 } }
        loss { softmax_cross_entropy {} }
      }
      training { epochs: 1000 batch_size: 8 }
      optimizer { sgd { learning_rate: 1 } }
      policy { async {} }
    })pb");
  v1::PlaceTensorsRequest place_;
};

TEST_F(CoordinatorHostileInputTest, SurvivesAndTheJobGoesOn) {
  ASSERT_EQ(Call("CoordinatorService/Join", join_).error_message(), "");
  const std::string member = "member { role: ROLE_WORKER incarnation: 1 }";
  const auto heartbeat = Parse<v1::HeartbeatRequest>(member);
  const auto leave = Parse<v1::LeaveRequest>(member);
  const auto acquire = Parse<v1::AcquireLeaseRequest>(member + "wait_ms: 1");
  const auto complete = Parse<v1::CompleteLeaseRequest>(member + "lease_id: 1");
  const auto report = Parse<v1::ReportProgressRequest>(member + R"(
    progress { step: 1 work { examples: 8 loss_sum: 3 seconds: 1 } }
    evaluation { epoch: 1 step: 1 loss: 0.5 accuracy: 0.5 } completed_lease { lease_id: 1 steps: 1 batches: 1 })");
  v1::JoinRequest join = join_;
  join.set_description("hostile");
  const v1::GetProgressRequest nothing;
  const auto save = Parse<v1::SaveCheckpointRequest>("id: 1 stop: true");
  Attack({{"CoordinatorService/Join", &join},
          {"CoordinatorService/Heartbeat", &heartbeat},
          {"CoordinatorService/PlaceTensors", &place_},
          {"CoordinatorService/GetShardMap", &nothing},
          {"CoordinatorService/AcquireLease", &acquire},
          {"CoordinatorService/CompleteLease", &complete},
          {"CoordinatorService/ReportProgress", &report},
          {"CoordinatorService/GetProgress", &nothing},
          {"CoordinatorService/SaveCheckpoint", &save}},
         1000);
  EXPECT_EQ(Call("CoordinatorService/Heartbeat", heartbeat).error_message(), "");
  EXPECT_EQ(GetProgress().progress().state(), v1::JOB_STATE_RUNNING);
  // From here on hostile workers may end the job.
  Attack({{"CoordinatorService/Leave", &leave},
          {"CoordinatorService/Join", &join_},
          {"CoordinatorService/AcquireLease", &acquire},
          {"CoordinatorService/GetProgress", &nothing}},
         1000);
  EXPECT_EQ(GetProgress().progress().state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(Call("ParameterService/GetStatus", std::string()).error_message(), "");
}

// Each message has one error.
TEST_P(TransportHostileInputTest, WhatIsRefusedChangesNothing) {
  const char* const headers[] = {
      "job: ''",        "job: 'other'", "worker: 100",    "worker: 4294967295",
      "incarnation: 0", "sequence: 0",  "job: 'Hostile'", "examples: 4294967295 job: 'hostile '",
  };
  for (const char* change : headers) {
    v1::PushRequest push = push_;
    ASSERT_TRUE(TextFormat::MergeFromString(change, push.mutable_header())) << change;
    EXPECT_FALSE(Call("ParameterService/Push", push).ok()) << change;
    v1::PushPullRequest push_pull = push_pull_;
    *push_pull.mutable_header() = push.header();
    EXPECT_FALSE(Call("ParameterService/PushPull", push_pull).ok()) << change;
  }
  const char* const gradients[] = {
      "tensor_id: 2", "tensor_id: 4294967295", "slice_index: 1", "slice_index: 4294967295",
      "encoding: 7",  "payload: ''",           "payload: 'abc'", "payload: 'abcd'",
  };
  for (const char* change : gradients) {
    v1::PushRequest push = push_;
    ASSERT_TRUE(TextFormat::MergeFromString(change, push.mutable_gradients(0))) << change;
    EXPECT_FALSE(Call("ParameterService/Push", push).ok()) << change;
    // A valid gradient next to the bad one is not applied either.
    push.mutable_header()->set_sequence(2);
    *push.add_gradients() = push.gradients(0);
    *push.mutable_gradients(0) = push_.gradients(0);
    EXPECT_FALSE(Call("ParameterService/Push", push).ok()) << change;
  }
  for (const float value : {NAN, INFINITY, -INFINITY}) {
    v1::PushRequest push = push_;
    push.mutable_gradients(0)->mutable_payload()->replace(44, 4, reinterpret_cast<const char*>(&value), 4);
    EXPECT_EQ(Call("ParameterService/Push", push).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
  EXPECT_THAT(Values(1), Each(5));
  // The sequence number that all of them used is still unused.
  EXPECT_TRUE(Call("ParameterService/Push", push_).ok());
  EXPECT_THAT(Values(1), Each(4));
}

}  // namespace
}  // namespace ballast
