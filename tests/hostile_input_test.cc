// SPDX-License-Identifier: Apache-2.0
// No input makes a server crash: thousands of malformed and mutated messages on every method of a live one.
#include <array>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>
#include <set>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
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

namespace ballast {
namespace {

using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::Message;
using ::google::protobuf::Reflection;
using ::google::protobuf::TextFormat;
using ::testing::Each;
using Random = std::mt19937_64;

// The rank that no hostile message uses, and the tensor.
constexpr uint32_t kHonest = 77;

template <typename T>
T Pick(Random& random, std::initializer_list<T> values) {
  return values.begin()[random() % values.size()];
}

std::string RandomBytes(Random& random, size_t size) {
  std::string bytes(size, 0);
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

// Values at the edges of every type and of what the service allows.
uint64_t EdgeInteger(Random& random) {
  return Pick<uint64_t>(random, {0,
                                 1,
                                 2,
                                 3,
                                 99,
                                 100,
                                 1023,
                                 1024,
                                 4095,
                                 4096,
                                 4097,
                                 1 << 20,
                                 (1 << 20) + 1,
                                 600000,
                                 600001,
                                 0x7fffffff,
                                 0x80000000,
                                 0xffffffff,
                                 uint64_t{1} << 40,
                                 (uint64_t{1} << 40) + 1,
                                 uint64_t{1} << 62,
                                 std::numeric_limits<int64_t>::max(),
                                 uint64_t{1} << 63,
                                 std::numeric_limits<uint64_t>::max()});
}

double EdgeNumber(Random& random) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return Pick<double>(random, {0, -0.0, 1, -1, 0.5, 1e-45, 1e-38, 3e38, -3e38, 1e300, NAN, kInfinity, -kInfinity});
}

std::string EdgeText(Random& random) {
  switch (random() % 6) {
    case 0:
      return "";
    case 1:
      return std::string(random() % 70000, 'x');
    case 2:
      return RandomBytes(random, random() % 64);
    case 3:
      return std::string(1 + random() % 300, '\0');
    case 4:
      return "hostile";
    default:
      return "w/../%s%n\xff";
  }
}

void Mutate(Message& message, Random& random);

void SetEdge(Message& message, const FieldDescriptor* field, Random& random) {
  const Reflection& reflection = *message.GetReflection();
  const bool add = field->is_repeated();
  const auto set = [&](auto adder, auto setter, auto value) {
    add ? (reflection.*adder)(&message, field, value) : (reflection.*setter)(&message, field, value);
  };
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return set(&Reflection::AddInt32, &Reflection::SetInt32, static_cast<int32_t>(EdgeInteger(random)));
    case FieldDescriptor::CPPTYPE_INT64:
      return set(&Reflection::AddInt64, &Reflection::SetInt64, static_cast<int64_t>(EdgeInteger(random)));
    case FieldDescriptor::CPPTYPE_UINT32:
      return set(&Reflection::AddUInt32, &Reflection::SetUInt32, static_cast<uint32_t>(EdgeInteger(random)));
    case FieldDescriptor::CPPTYPE_UINT64:
      return set(&Reflection::AddUInt64, &Reflection::SetUInt64, EdgeInteger(random));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return set(&Reflection::AddFloat, &Reflection::SetFloat, static_cast<float>(EdgeNumber(random)));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return set(&Reflection::AddDouble, &Reflection::SetDouble, EdgeNumber(random));
    case FieldDescriptor::CPPTYPE_BOOL:
      return set(&Reflection::AddBool, &Reflection::SetBool, random() % 2 == 0);
    case FieldDescriptor::CPPTYPE_ENUM:
      return set(&Reflection::AddEnumValue, &Reflection::SetEnumValue, static_cast<int>(EdgeInteger(random)));
    case FieldDescriptor::CPPTYPE_STRING:
      return set(static_cast<void (Reflection::*)(Message*, const FieldDescriptor*, std::string) const>(
                     &Reflection::AddString),
                 static_cast<void (Reflection::*)(Message*, const FieldDescriptor*, std::string) const>(
                     &Reflection::SetString),
                 EdgeText(random));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return Mutate(add ? *reflection.AddMessage(&message, field) : *reflection.MutableMessage(&message, field),
                    random);
  }
}

void MutateRepeated(Message& message, const FieldDescriptor* field, Random& random) {
  const Reflection& reflection = *message.GetReflection();
  const int size = reflection.FieldSize(message, field);
  const bool messages = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
  switch (random() % 4) {
    case 0:
      return reflection.ClearField(&message, field);
    case 1:
      if (size == 0 || !messages) return SetEdge(message, field, random);
      return Mutate(*reflection.MutableRepeatedMessage(&message, field, random() % size), random);
    case 2: {
      // The same again, up to 500 times.
      if (size == 0 || !messages) return SetEdge(message, field, random);
      const std::unique_ptr<Message> first(reflection.GetRepeatedMessage(message, field, 0).New());
      first->CopyFrom(reflection.GetRepeatedMessage(message, field, 0));
      for (uint64_t count = random() % 500; count > 0; --count) {
        reflection.AddMessage(&message, field)->CopyFrom(*first);
      }
      return;
    }
    default:
      return SetEdge(message, field, random);
  }
}

// Changes one field, here or deeper.
void Mutate(Message& message, Random& random) {
  const auto* type = message.GetDescriptor();
  if (type->field_count() == 0) return;
  const FieldDescriptor* field = type->field(random() % type->field_count());
  if (field->is_repeated()) return MutateRepeated(message, field, random);
  if (random() % 5 == 0) return message.GetReflection()->ClearField(&message, field);
  SetEdge(message, field, random);
}

// What arrives: a mutated message, perhaps with damaged bytes, or nothing but noise.
std::string HostileBytes(const Message& valid, Random& random) {
  if (random() % 8 == 0) return RandomBytes(random, random() % 300);
  const std::unique_ptr<Message> message(valid.New());
  message->CopyFrom(valid);
  for (uint64_t count = 1 + random() % 3; count > 0; --count) Mutate(*message, random);
  std::string bytes = message->SerializePartialAsString();
  if (random() % 4 != 0 || bytes.empty()) return bytes;
  switch (random() % 3) {
    case 0:
      bytes.resize(random() % bytes.size());
      break;
    case 1:
      bytes[random() % bytes.size()] ^= 1 << random() % 8;
      break;
    default:
      bytes += RandomBytes(random, random() % 50);
  }
  return bytes;
}

template <typename T>
T Parse(const std::string& text) {
  T message;
  EXPECT_TRUE(TextFormat::ParseFromString(text, &message)) << text;
  return message;
}

class HostileInputTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // It has a line for each string that is not UTF-8.
    google::protobuf::SetLogHandler(nullptr);
    Server::Options options;
    options.servers = 1;
    options.workers = workers_;
    options.max_state_bytes = 16 << 20;
    auto server = Server::Start(std::move(options));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    channel_ = grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials());
    stub_ = std::make_unique<grpc::GenericStub>(channel_);
    ASSERT_EQ(Call("ParameterService/DeclareTensors", declare_.SerializeAsString()).error_message(), "");
    v1::DeclareTensorsRequest honest = declare_;
    honest.mutable_tensors(0)->mutable_spec()->set_id(kHonest);
    honest.mutable_tensors(0)->mutable_spec()->set_name("honest");
    ASSERT_EQ(Call("ParameterService/DeclareTensors", honest.SerializeAsString()).error_message(), "");
  }

  // Any bytes to any method.
  grpc::Status Call(const std::string& method, const std::string& bytes,
                    absl::Duration timeout = absl::Seconds(60)) const {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    const grpc::Slice slice(bytes);
    const grpc::ByteBuffer request(&slice, 1);
    grpc::ByteBuffer response;
    grpc::Status status;
    absl::Notification done;
    stub_->UnaryCall(&context, "/ballast.v1." + method, {}, &request, &response, [&](grpc::Status end) {
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
    v1::PullResponse response;
    const grpc::Status status = v1::ParameterService::NewStub(channel_)->Pull(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    if (response.values_size() != 1) return {};
    std::vector<float> values(response.values(0).payload().size() / 4);
    memcpy(values.data(), response.values(0).payload().data(), 4 * values.size());
    return values;
  }

  // A correct push of ones to the honest tensor, by the honest worker.
  grpc::Status PushHonestly() {
    v1::PushRequest request = push_;
    request.mutable_header()->set_worker(kHonest);
    request.mutable_gradients(0)->set_tensor_id(kHonest);
    return Call("ParameterService/Push", request.SerializeAsString());
  }

  // `count` hostile messages to each method, or BALLAST_HOSTILE_TIMES as many, by a few threads; no answer but to a
  // wait may be late.
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
            // The client's own words; a pull may well be told by the server that its wait of 1 ms ran out.
            EXPECT_TRUE(may_wait || status.error_message() != "Deadline Exceeded") << method;
            // It says so itself while servers are missing, of memory that it does not share, and of a push that another
            // thread's is just being applied as; else the connection broke.
            const bool may_refuse = method == "CoordinatorService/PlaceTensors" ||
                                    status.error_message().find("shares no such memory") != std::string::npos ||
                                    status.error_message().find("is being applied; ask again") != std::string::npos;
            EXPECT_TRUE(may_refuse || code != grpc::StatusCode::UNAVAILABLE)
                << method << ": " << status.error_message();
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    // Some have to get past the first check for the others to be reached.
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

  // Methods that may make a call wait for what does not come.
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

// Gradients are kept and pulls wait, many of them for callers that have gone.
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

// A job of one worker, which is under way.
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

// Each message is right but for one thing.
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
    // A good gradient beside the bad one is not applied either.
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
  // The sequence number that all of them had is still free.
  EXPECT_TRUE(Call("ParameterService/Push", push_.SerializeAsString()).ok());
  EXPECT_THAT(Values(1), Each(4));
}

TEST_F(HostileInputTest, RefusesMoreThanItCanHoldBeforeItTakesTheMemory) {
  v1::DeclareTensorsRequest declare = declare_;
  declare.clear_tensors();
  // 20,000 tensors that would each fit alone: 320 GB, and a list of their slices alone would take gigabytes.
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
  // 2^60 elements in 2^40 slices, had it to list them.
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
