// SPDX-License-Identifier: Apache-2.0
// No input crashes a server: every method of a live server gets thousands of malformed and mutated messages.
#include <array>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <random>
#include <set>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "ballast/v1/coordinator_service.grpc.pb.h"
#include "ballast/v1/parameter_service.grpc.pb.h"
#include "gmock/gmock.h"
#include "google/protobuf/stubs/logging.h"
#include "google/protobuf/text_format.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"
#include "server/server.h"
#include "tests/fault/hostile/racing_writer.h"
#include "tests/testing/message_mutator.h"
#include "tests/testing/security_folder.h"

namespace ballast {
namespace {

using ::google::protobuf::Message;
using ::google::protobuf::TextFormat;
using ::testing::Each;
using ::testing::HasSubstr;
using Random = std::mt19937_64;

// Worker rank and tensor id that no hostile message uses.
constexpr uint32_t kHonest = 77;

template <typename T>
T Parse(const std::string& text) {
  T message;
  EXPECT_TRUE(TextFormat::ParseFromString(text, &message)) << text;
  return message;
}

constexpr uint64_t kMiB = uint64_t{1} << 20;

// Measures how much this process's peak memory grows after construction.
class PeakWatch {
 public:
  PeakWatch() {
    std::ofstream("/proc/self/clear_refs") << "5" << std::flush;
    before_ = PeakBytes();
  }

  void ExpectLess([[maybe_unused]] uint64_t bytes, [[maybe_unused]] absl::string_view what) const {
#ifndef __SANITIZE_ADDRESS__
    // A sanitizer keeps freed memory.
    EXPECT_LT(PeakBytes(), before_ + bytes) << what;
#endif
  }

 private:
  static uint64_t PeakBytes() {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
      uint64_t kilobytes = 0;
      absl::string_view text = line;
      if (!absl::ConsumePrefix(&text, "VmHWM:") || !absl::ConsumeSuffix(&text, "kB")) continue;
      EXPECT_TRUE(absl::SimpleAtoi(text, &kilobytes)) << line;
      return kilobytes << 10;
    }
    ADD_FAILURE() << "/proc/self/status has no VmHWM";
    return 0;
  }

  uint64_t before_ = 0;
};

class HostileInputTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // Protobuf logs a line for each string that is not UTF-8.
    google::protobuf::SetLogHandler(nullptr);
    Server::Options options;
    options.servers = 1;
    options.workers = workers_;
    options.max_state_bytes = 16 << 20;
    options.security = security_;
    auto server = Server::Start(std::move(options));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    channel_ = grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials());
    stub_ = std::make_unique<grpc::GenericStub>(channel_);
    PrepareJob();
  }

  void PrepareJob() {
    ASSERT_EQ(Call("ParameterService/DeclareTensors", declare_.SerializeAsString()).error_message(), "");
    v1::DeclareTensorsRequest honest = declare_;
    honest.mutable_tensors(0)->mutable_spec()->set_id(kHonest);
    honest.mutable_tensors(0)->mutable_spec()->set_name("honest");
    ASSERT_EQ(Call("ParameterService/DeclareTensors", honest.SerializeAsString()).error_message(), "");
  }

  // Sends arbitrary bytes to any method.
  grpc::Status Call(const std::string& method, const std::string& bytes,
                    absl::Duration timeout = absl::Seconds(60)) const {
    grpc::ClientContext context;
    if (!token_.empty()) context.AddMetadata("authorization", "Bearer " + token_);
    context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    const grpc::Slice slice(bytes);
    return Call(*stub_, context, method, grpc::ByteBuffer(&slice, 1));
  }
  static grpc::Status Call(grpc::GenericStub& stub, grpc::ClientContext& context, const std::string& method,
                           const grpc::ByteBuffer& request) {
    grpc::ByteBuffer response;
    grpc::Status status;
    absl::Notification done;
    const char* const package = absl::StartsWith(method, "StandbyService/") ? "/ballast.internal.v1." : "/ballast.v1.";
    stub.UnaryCall(&context, package + method, {}, &request, &response, [&](grpc::Status end) {
      status = std::move(end);
      done.Notify();
    });
    done.WaitForNotification();
    return status;
  }

  std::vector<float> Values(uint32_t tensor) {
    v1::PullRequest request = pull_;
    request.mutable_slices(0)->set_tensor_id(tensor);
    grpc::ClientContext context;
    if (!token_.empty()) context.AddMetadata("authorization", "Bearer " + token_);
    v1::PullResponse response;
    const grpc::Status status = v1::ParameterService::NewStub(channel_)->Pull(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    if (response.values_size() != 1) return {};
    std::vector<float> values(response.values(0).payload().size() / 4);
    memcpy(values.data(), response.values(0).payload().data(), 4 * values.size());
    return values;
  }

  // A valid push of ones to the honest tensor, by the honest worker.
  grpc::Status PushHonestly() {
    v1::PushRequest request = push_;
    request.mutable_header()->set_worker(kHonest);
    request.mutable_gradients(0)->set_tensor_id(kHonest);
    return Call("ParameterService/Push", request.SerializeAsString());
  }

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
    v1::PushPullRequest push_pull;
    *push_pull.mutable_header() = push_.header();
    *push_pull.mutable_gradients() = push_.gradients();
    push_pull.set_wait_ms(1);
    const v1::GetStatusRequest get_status;
    Attack({{"ParameterService/DeclareTensors", &declare_},
            {"ParameterService/Push", &push_},
            {"ParameterService/Pull", &pull_},
            {"ParameterService/PushPull", &push_pull},
            {"ParameterService/GetStatus", &get_status},
            {"ParameterService/NoSuchMethod", &push_}},
           5000);
  }

  SecurityOptions security_;
  // Token sent with each call, if not empty.
  std::string token_;
  // Methods that may make a call wait for something that never comes.
  std::set<std::string> waiting_;
  uint32_t workers_ = 100;
  int calls_ = 0;
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
  const v1::PullRequest pull_ = Parse<v1::PullRequest>(R"pb(job: "hostile"
                                                            slices { tensor_id: 1 }
                                                            wait_ms: 1)pb");
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<grpc::GenericStub> stub_;
};

TEST_F(HostileInputTest, ParameterServiceSurvivesAndStillAnswersCorrectly) {
  AttackParameterService();
  EXPECT_THAT(Values(kHonest), Each(5));
  EXPECT_EQ(PushHonestly().error_message(), "");
  EXPECT_THAT(Values(kHonest), Each(4));
}

// A client on the same machine changes its messages in shared memory while the server reads them.
class RacingHostileInputTest : public HostileInputTest {
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
    ASSERT_EQ(Call("ParameterService/DeclareTensors", declare.SerializeAsString()).error_message(), "");
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
        taken += writer_->Call("ParameterService/Push", push.request, first, change, random_).ok() ? 1 : 0;
      }
    }
    calls_ += kCalls;
    return taken;
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

TEST_F(RacingHostileInputTest, PayloadsThatChangeWhileTheyAreReadDoNoHarm) {
  EXPECT_GT(PushAll(3, RacingWriter::Change::kWords, /*whole_request=*/false), 0);
  ExpectFiniteWeights();
  EXPECT_EQ(PushHonestly().error_message(), "");
  EXPECT_THAT(Values(kHonest), Each(4));
}

TEST_F(RacingHostileInputTest, RequestsThatChangeWhileTheyAreReadDoNoHarm) {
  // Uses another worker, because altered pushes can consume that worker's sequence numbers.
  PushAll(4, RacingWriter::Change::kBits, /*whole_request=*/true);
  v1::PullRequest pull = pull_;
  pull.mutable_slices(0)->set_tensor_id(kRaced);
  for (int i = 0; i < kCalls; ++i) {
    writer_->Call("ParameterService/Pull", pull.SerializeAsString(), 0, RacingWriter::Change::kBits, random_).ok();
  }
  EXPECT_EQ(PushHonestly().error_message(), "");
  EXPECT_THAT(Values(kHonest), Each(4));
}

// A reader tries every method.
class ReaderHostileInputTest : public HostileInputTest {
 protected:
  void SetUp() override {
    std::string tokens;
    for (const char* role : {"admin", "worker", "reader"}) {
      absl::StrAppend(&tokens, role, " hostile ", SecurityFolder::Token(role, "hostile"), "\n");
    }
    security_.token_file = folder_.Write("tokens", tokens);
    declare_.mutable_policy()->mutable_sync();
    token_ = SecurityFolder::Token("worker", "hostile");
    HostileInputTest::SetUp();
    token_ = SecurityFolder::Token("reader", "hostile");
  }

  // All state that a reader could have changed.
  std::string State() {
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer " + token_);
    v1::GetStatusResponse status;
    EXPECT_TRUE(v1::ParameterService::NewStub(channel_)->GetStatus(&context, {}, &status).ok());
    waiting_now_ = status.waiting();
    bytes_in_flight_ = status.bytes_in_flight();
    bytes_in_flight_limit_ = status.bytes_in_flight_limit();
    grpc::ClientContext of_progress;
    of_progress.AddMetadata("authorization", "Bearer " + token_);
    v1::GetProgressResponse progress;
    EXPECT_TRUE(v1::CoordinatorService::NewStub(channel_)->GetProgress(&of_progress, {}, &progress).ok());
    return absl::StrCat(status.pushes(), " pushes, ", status.updates(), " updates, ", status.tensors(), " tensors, ",
                        status.shared_regions(), " regions, draining ", status.draining(), "; ",
                        v1::JobState_Name(progress.progress().state()), ", ", progress.members_size(), " members");
  }

  SecurityFolder folder_;
  uint64_t waiting_now_ = 0, bytes_in_flight_ = 0, bytes_in_flight_limit_ = 0;
};

TEST_F(ReaderHostileInputTest, TriesEveryMethodAndFieldAndChangesNothing) {
  const std::string before = State();
  // A valid message of each method, built from the service's descriptor.
  Random random(7);
  int calls = 0, denied = 0;
  for (const char* service : {"v1.ParameterService", "v1.CoordinatorService", "internal.v1.StandbyService"}) {
    const auto* const type =
        google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(absl::StrCat("ballast.", service));
    ASSERT_NE(type, nullptr) << service;
    for (int m = 0; m < type->method_count(); ++m) {
      const std::unique_ptr<Message> valid(
          google::protobuf::MessageFactory::generated_factory()->GetPrototype(type->method(m)->input_type())->New());
      const std::string method = absl::StrCat(type->name(), "/", type->method(m)->name());
      if (method == "ParameterService/Pull") valid->CopyFrom(pull_);
      if (method == "ParameterService/Push") valid->CopyFrom(push_);
      if (method == "ParameterService/DeclareTensors") valid->CopyFrom(declare_);
      for (int i = 0; i < 300; ++i, ++calls) {
        const grpc::Status status = Call(method, HostileBytes(*valid, random), absl::Milliseconds(50));
        denied += status.error_code() == grpc::StatusCode::PERMISSION_DENIED ? 1 : 0;
      }
    }
  }
  // A reader may call four methods.
  EXPECT_GT(denied, calls / 2);
  EXPECT_EQ(State(), before);
  EXPECT_THAT(Values(kHonest), Each(5));
  RecordProperty("calls", calls);
}

TEST_F(ReaderHostileInputTest, CannotPullAsAWorker) {
  v1::PullRequest pull = pull_;
  EXPECT_EQ(Call("ParameterService/Pull", pull.SerializeAsString()).error_message(), "");
  pull.set_worker(3);
  const grpc::Status status = Call("ParameterService/Pull", pull.SerializeAsString());
  EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED) << status.error_message();
  EXPECT_NE(status.error_message().find("a pull that names a worker"), std::string::npos) << status.error_message();
}

TEST_F(ReaderHostileInputTest, CallsThatNeverSendTheirMessageLeaveRoomForWorkers) {
  // The server reserves memory for a whole message per call; together the calls ask for far more than the limit.
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::GenericClientAsyncReaderWriter>> calls;
  grpc::CompletionQueue queue;
  intptr_t begun = 0;
  for (int i = 0; i < 6; ++i) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    channels.push_back(grpc::CreateCustomChannel(server_->address(), grpc::InsecureChannelCredentials(), arguments));
    grpc::GenericStub stub(channels.back());
    for (int call = 0; call < 60; ++call) {
      contexts.push_back(std::make_unique<grpc::ClientContext>());
      contexts.back()->AddMetadata("authorization", "Bearer " + token_);
      calls.push_back(stub.PrepareCall(contexts.back().get(), "/ballast.v1.ParameterService/Pull", &queue));
      calls.back()->StartCall(reinterpret_cast<void*>(++begun));
    }
  }
  void* tag = nullptr;
  bool ok = false;
  for (intptr_t i = 0; i < begun; ++i) ASSERT_TRUE(queue.Next(&tag, &ok));
  // All have arrived once the readers' share, a quarter of the memory that is not for waiting calls, is full.
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  do {
    State();
  } while (bytes_in_flight_ < bytes_in_flight_limit_ / 8 && absl::Now() < deadline);
  EXPECT_GE(bytes_in_flight_, bytes_in_flight_limit_ / 8);
  token_ = SecurityFolder::Token("worker", "hostile");
  EXPECT_EQ(PushHonestly().error_message(), "");
  // In sync mode an update needs every worker's gradient.
  EXPECT_THAT(Values(kHonest), Each(5));
  State();
  EXPECT_LE(bytes_in_flight_, bytes_in_flight_limit_ / 4);
  for (const auto& context : contexts) context->TryCancel();
  // A prepared call must be finished before it is destroyed.
  std::vector<grpc::Status> ends(calls.size());
  for (size_t i = 0; i < calls.size(); ++i) calls[i]->Finish(&ends[i], nullptr);
  for (size_t i = 0; i < calls.size(); ++i) ASSERT_TRUE(queue.Next(&tag, &ok));
  queue.Shutdown();
}

TEST_F(ReaderHostileInputTest, PullsThatWaitTakeNoMoreThanTheirMemoryAndGiveItBack) {
  // Many more pulls than there is memory for, on the maximum number of streams.
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  for (int i = 0; i < 32; ++i) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    channels.push_back(grpc::CreateCustomChannel(server_->address(), grpc::InsecureChannelCredentials(), arguments));
  }
  struct Waiting {
    grpc::ClientContext context;
    v1::PullRequest request;
    v1::PullResponse response;
  };
  std::vector<std::unique_ptr<Waiting>> calls;
  absl::Mutex mutex;
  int running = 0, refused = 0;
  const auto stub_of = [&](size_t i) { return v1::ParameterService::NewStub(channels[i % channels.size()]); };
  std::vector<std::unique_ptr<v1::ParameterService::Stub>> stubs;
  for (size_t i = 0; i < channels.size(); ++i) stubs.push_back(stub_of(i));
  for (int i = 0; i < 2000; ++i) {
    auto call = std::make_unique<Waiting>();
    call->context.AddMetadata("authorization", "Bearer " + token_);
    call->request = pull_;
    call->request.set_step(1000);
    call->request.set_wait_ms(600000);
    {
      absl::MutexLock lock(&mutex);
      ++running;
    }
    stubs[i % stubs.size()]->async()->Pull(&call->context, &call->request, &call->response, [&](grpc::Status status) {
      absl::MutexLock lock(&mutex);
      --running;
      refused += status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED ? 1 : 0;
    });
    calls.push_back(std::move(call));
  }
  // Waiting pulls fill the readers' share of the memory, a quarter of a quarter; all others are refused.
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  uint64_t settled = 0;
  do {
    State();
    absl::MutexLock lock(&mutex);
    settled = waiting_now_ + refused;
  } while (settled < calls.size() && absl::Now() < deadline);
  EXPECT_EQ(settled, calls.size());
  EXPECT_GT(waiting_now_, 0);
  EXPECT_LT(waiting_now_, calls.size());
  State();
  EXPECT_LE(bytes_in_flight_, bytes_in_flight_limit_ / 16);
  for (auto& call : calls) call->context.TryCancel();
  {
    absl::MutexLock lock(&mutex);
    const auto none = [&] { return running == 0; };
    mutex.Await(absl::Condition(&none));
  }
  const absl::Time give_up = absl::Now() + absl::Seconds(60);
  do {
    State();
  } while (waiting_now_ > 0 && absl::Now() < give_up);
  EXPECT_EQ(waiting_now_, 0);
}

// The server buffers gradients, and pulls wait, many of them for callers that have disconnected.
class SyncHostileInputTest : public HostileInputTest {
 protected:
  SyncHostileInputTest() {
    declare_.mutable_policy()->mutable_sync()->set_deterministic(true);
    waiting_ = {"ParameterService/Pull", "ParameterService/PushPull"};
  }
};

TEST_F(SyncHostileInputTest, ParameterServiceSurvivesAndStillAnswersCorrectly) {
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

  v1::JobState State() const {
    grpc::ClientContext context;
    v1::GetProgressResponse response;
    v1::CoordinatorService::NewStub(channel_)->GetProgress(&context, {}, &response);
    return response.progress().state();
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
  const v1::HeartbeatRequest heartbeat_ =
      Parse<v1::HeartbeatRequest>(R"pb(member { role: ROLE_WORKER incarnation: 1 })pb");
  const v1::LeaveRequest leave_ = Parse<v1::LeaveRequest>(R"pb(member { role: ROLE_WORKER incarnation: 1 })pb");
  const v1::AcquireLeaseRequest acquire_ =
      Parse<v1::AcquireLeaseRequest>(R"pb(member { role: ROLE_WORKER incarnation: 1 }
                                          wait_ms: 1)pb");
  const v1::CompleteLeaseRequest complete_ =
      Parse<v1::CompleteLeaseRequest>(R"pb(member { role: ROLE_WORKER incarnation: 1 }
                                           lease_id: 1)pb");
  const v1::ReportProgressRequest report_ = Parse<v1::ReportProgressRequest>(R"pb(
    member { role: ROLE_WORKER incarnation: 1 }
    progress { step: 1 examples: 8 loss_sum: 3 seconds: 1 }
    evaluation { epoch: 1 step: 1 loss: 0.5 accuracy: 0.5 })pb");
};

TEST_F(CoordinatorHostileInputTest, SurvivesAndTheJobGoesOn) {
  ASSERT_EQ(Call("CoordinatorService/Join", join_.SerializeAsString()).error_message(), "");
  v1::JoinRequest join = join_;
  join.set_description("hostile");
  const v1::GetProgressRequest nothing;
  Attack({{"CoordinatorService/Join", &join},
          {"CoordinatorService/Heartbeat", &heartbeat_},
          {"CoordinatorService/PlaceTensors", &place_},
          {"CoordinatorService/GetShardMap", &nothing},
          {"CoordinatorService/AcquireLease", &acquire_},
          {"CoordinatorService/CompleteLease", &complete_},
          {"CoordinatorService/ReportProgress", &report_},
          {"CoordinatorService/GetProgress", &nothing}},
         3000);
  EXPECT_EQ(Call("CoordinatorService/Heartbeat", heartbeat_.SerializeAsString()).error_message(), "");
  EXPECT_EQ(State(), v1::JOB_STATE_RUNNING);
  // From here on hostile workers may end the job.
  Attack({{"CoordinatorService/Leave", &leave_},
          {"CoordinatorService/Join", &join_},
          {"CoordinatorService/AcquireLease", &acquire_},
          {"CoordinatorService/GetProgress", &nothing}},
         1000);
  EXPECT_EQ(State(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(Call("ParameterService/GetStatus", "").error_message(), "");
}

// Each message has one error.
TEST_F(HostileInputTest, WhatIsRefusedChangesNothing) {
  const char* const headers[] = {
      "job: ''",        "job: 'other'", "worker: 100",    "worker: 4294967295",
      "incarnation: 0", "sequence: 0",  "job: 'Hostile'", "examples: 4294967295 job: 'hostile '",
  };
  for (const char* change : headers) {
    v1::PushRequest push = push_;
    push.mutable_header()->MergeFrom(Parse<v1::PushHeader>(change));
    if (std::string(change) == "job: ''") push.mutable_header()->clear_job();
    if (std::string(change) == "incarnation: 0") push.mutable_header()->clear_incarnation();
    if (std::string(change) == "sequence: 0") push.mutable_header()->clear_sequence();
    EXPECT_FALSE(Call("ParameterService/Push", push.SerializeAsString()).ok()) << change;
    v1::PushPullRequest push_pull;
    *push_pull.mutable_header() = push.header();
    *push_pull.mutable_gradients() = push.gradients();
    EXPECT_FALSE(Call("ParameterService/PushPull", push_pull.SerializeAsString()).ok()) << change;
  }
  const char* const gradients[] = {
      "tensor_id: 2", "tensor_id: 4294967295", "slice_index: 1", "slice_index: 4294967295",
      "encoding: 7",  "payload: ''",           "payload: 'abc'", "payload: 'abcd'",
  };
  for (const char* change : gradients) {
    v1::PushRequest push = push_;
    push.mutable_gradients(0)->MergeFrom(Parse<v1::SliceGradient>(change));
    if (std::string(change) == "payload: ''") push.mutable_gradients(0)->clear_payload();
    EXPECT_FALSE(Call("ParameterService/Push", push.SerializeAsString()).ok()) << change;
    // A valid gradient next to the bad one is not applied either.
    push.mutable_header()->set_sequence(2);
    *push.add_gradients() = push.gradients(0);
    *push.mutable_gradients(0) = push_.gradients(0);
    EXPECT_FALSE(Call("ParameterService/Push", push.SerializeAsString()).ok()) << change;
  }
  for (const float value : {NAN, INFINITY, -INFINITY}) {
    v1::PushRequest push = push_;
    push.mutable_gradients(0)->mutable_payload()->replace(44, 4, reinterpret_cast<const char*>(&value), 4);
    EXPECT_EQ(Call("ParameterService/Push", push.SerializeAsString()).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
  EXPECT_THAT(Values(1), Each(5));
  // The sequence number that all of them used is still unused.
  EXPECT_TRUE(Call("ParameterService/Push", push_.SerializeAsString()).ok());
  EXPECT_THAT(Values(1), Each(4));
}

TEST_F(HostileInputTest, RefusesACompressedMessageWithoutInflatingIt) {
  // The client holds this mebibyte once and sends its compressed form, a thousandth of the size, 128 times.
  const std::string zeros(kMiB, '\0');
  const std::vector<grpc::Slice> slices(128, grpc::Slice(zeros.data(), zeros.size(), grpc::Slice::STATIC_SLICE));
  for (const std::string& address : {server_->address(), server_->control_address()}) {
    grpc::GenericStub stub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
    for (const char* method : {"Push", "DeclareTensors", "GetStatus", "NoSuch"}) {
      for (const grpc_compression_algorithm algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
        grpc::ClientContext context;
        context.set_compression_algorithm(algorithm);
        context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(60)));
        const grpc::ByteBuffer request(slices.data(), slices.size());
        const PeakWatch watch;
        const grpc::Status status = Call(stub, context, absl::StrCat("ParameterService/", method), request);
        EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << method << ": " << status.error_message();
        watch.ExpectLess(32 * kMiB, method);
      }
    }
  }
  EXPECT_THAT(Values(kHonest), Each(5));
}

// A message with as many empty submessages as fit in four mebibytes.
TEST_F(HostileInputTest, RefusesTooManyMessagesWithinAMessageBeforeItParsesThem) {
  const std::pair<const char*, absl::string_view> methods[] = {
      {"ParameterService/DeclareTensors", absl::string_view("\x22\x00", 2)},
      {"ParameterService/ReportVersions", absl::string_view("\x22\x00", 2)},
      {"ParameterService/Pause", absl::string_view("\x73\x74", 2)},
      {"CoordinatorService/PlaceTensors", absl::string_view("\x12\x00", 2)},
      {"ParameterService/Pull", absl::string_view("\x1a\x00", 2)},
  };
  for (const auto& [method, empty] : methods) {
    std::string bytes;
    while (bytes.size() < 4 * kMiB) absl::StrAppend(&bytes, empty);
    const PeakWatch watch;
    const grpc::Status status = Call(method, bytes);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method << ": " << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr("bytes with more than ")) << method;
    watch.ExpectLess(32 * kMiB, method);
  }
}

TEST_F(HostileInputTest, AnswersThatNobodyReadsCountUntilTheyAreSent) {
  constexpr int kCalls = 8;
  grpc::ChannelArguments arguments;
  // The server may send five bytes of a response before the client reads.
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 5);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  grpc::GenericStub stub(grpc::CreateCustomChannel(server_->address(), grpc::InsecureChannelCredentials(), arguments));
  grpc::CompletionQueue queue;
  void* tag = nullptr;
  bool ok = false;
  const auto bytes_in_flight = [&] {
    grpc::ClientContext context;
    v1::GetStatusResponse status;
    EXPECT_TRUE(v1::ParameterService::NewStub(channel_)->GetStatus(&context, {}, &status).ok());
    return status.bytes_in_flight();
  };
  const auto await_bytes = [&](uint64_t bytes) {
    const absl::Time give_up = absl::Now() + absl::Seconds(20);
    while (bytes_in_flight() != bytes && absl::Now() < give_up) {
    }
    return bytes_in_flight();
  };
  for (const bool push : {false, true}) {
    std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
    std::vector<std::unique_ptr<grpc::GenericClientAsyncReaderWriter>> calls;
    for (int i = 0; i < kCalls; ++i) {
      v1::PushRequest request = push_;
      request.mutable_header()->set_sequence(i + 1);
      const grpc::Slice slice(push ? request.SerializeAsString() : pull_.SerializeAsString());
      contexts.push_back(std::make_unique<grpc::ClientContext>());
      calls.push_back(stub.PrepareCall(contexts.back().get(),
                                       push ? "/ballast.v1.ParameterService/Push" : "/ballast.v1.ParameterService/Pull",
                                       &queue));
      calls.back()->StartCall(nullptr);
      ASSERT_TRUE(queue.Next(&tag, &ok) && ok);
      calls.back()->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
      ASSERT_TRUE(queue.Next(&tag, &ok) && ok);
    }
    EXPECT_EQ(await_bytes(kCalls * ByteBudget::kCallBytes), kCalls * ByteBudget::kCallBytes) << push;
    for (const auto& context : contexts) context->TryCancel();
    // A prepared call must be finished before it is destroyed.
    std::vector<grpc::Status> ends(calls.size());
    for (size_t i = 0; i < calls.size(); ++i) calls[i]->Finish(&ends[i], nullptr);
    for (size_t i = 0; i < calls.size(); ++i) ASSERT_TRUE(queue.Next(&tag, &ok));
    EXPECT_EQ(await_bytes(0), 0u) << push;
  }
  queue.Shutdown();
}

TEST_F(HostileInputTest, TheControlPortParsesNoMessageOfAMethodThatItDoesNotHave) {
  grpc::GenericStub stub(grpc::CreateChannel(server_->control_address(), grpc::InsecureChannelCredentials()));
  std::string bytes;
  while (bytes.size() < 4 * kMiB) absl::StrAppend(&bytes, absl::string_view("\x12\x00", 2));
  const grpc::Slice slice(bytes);
  const auto* const type =
      google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(v1::ParameterService::service_full_name());
  for (int i = 0; i < type->method_count(); ++i) {
    const std::string method = absl::StrCat("ParameterService/", type->method(i)->name());
    if (method == "ParameterService/GetStatus") continue;
    grpc::ClientContext context;
    const PeakWatch watch;
    const grpc::Status status = Call(stub, context, method, grpc::ByteBuffer(&slice, 1));
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << method;
    EXPECT_THAT(status.error_message(), HasSubstr("this server has no such method")) << method;
    watch.ExpectLess(32 * kMiB, method);
  }
}

TEST_F(HostileInputTest, RefusesMoreThanItCanHoldBeforeItTakesTheMemory) {
  v1::DeclareTensorsRequest declare = declare_;
  declare.clear_tensors();
  // 20,000 tensors that would each fit alone: 320 GB together, and a list of their slices alone would take gigabytes.
  v1::TensorDeclaration tensor = declare_.tensors(0);
  tensor.clear_slices();
  tensor.mutable_spec()->clear_shape();
  tensor.mutable_spec()->add_shape(4 << 20);
  for (int i = 0; i < 20000; ++i) {
    tensor.mutable_spec()->set_id(1000 + i);
    tensor.mutable_spec()->set_name(absl::StrCat("t", i));
    *declare.add_tensors() = tensor;
  }
  EXPECT_EQ(Call("ParameterService/DeclareTensors", declare.SerializeAsString()).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(Values(1), Each(5));
}

TEST_F(HostileInputTest, RefusesAShardMapThatNoMessageCanCarry) {
  v1::PlaceTensorsRequest place;
  place.set_job("hostile");
  v1::TensorSpec spec = declare_.tensors(0).spec();
  spec.clear_shape();
  spec.add_shape(int64_t{1} << 40);
  // 2^60 elements in 2^40 slices, if the server had to list them.
  for (int i = 0; i < 20000; ++i) {
    spec.set_id(1000 + i);
    spec.set_name(absl::StrCat("t", i));
    *place.add_tensors() = spec;
  }
  const grpc::Status status = Call("CoordinatorService/PlaceTensors", place.SerializeAsString());
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
  place.clear_tensors();
  *place.add_tensors() = declare_.tensors(0).spec();
  EXPECT_EQ(Call("CoordinatorService/PlaceTensors", place.SerializeAsString()).error_message(), "");
}

}  // namespace
}  // namespace ballast
