// SPDX-License-Identifier: Apache-2.0
// Every method of both services fails in each documented way, with the documented code and reason.
#include "common/status/error_reason.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "ballast/internal/v1/standby_service.grpc.pb.h"
#include "ballast/v1/coordinator_service.grpc.pb.h"
#include "ballast/v1/error.pb.h"
#include "ballast/v1/parameter_service.grpc.pb.h"
#include "common/rpc/grpc_status.h"
#include "common/shared_memory/shared_region.h"
#include "google/protobuf/dynamic_message.h"
#include "google/protobuf/text_format.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"
#include "server/server.h"

namespace ballast {
namespace {

using Code = absl::StatusCode;
using google::protobuf::MethodDescriptor;

const MethodDescriptor* FindMethod(const std::string& method) {
  const size_t slash = method.find('/');
  return google::protobuf::DescriptorPool::generated_pool()
      ->FindServiceByName("ballast.v1." + method.substr(0, slash))
      ->FindMethodByName(method.substr(slash + 1));
}

std::string Encode(const std::string& method, const std::string& text) {
  std::unique_ptr<google::protobuf::Message> message(
      google::protobuf::MessageFactory::generated_factory()->GetPrototype(FindMethod(method)->input_type())->New());
  // If a field appears twice, the last value counts.
  EXPECT_TRUE(google::protobuf::TextFormat::MergeFromString(text, message.get())) << method << ": " << text;
  return message->SerializeAsString();
}

constexpr char kJob[] = R"(job {
  name: "reasons" seed: 1
  data { train { csv { path: "a" } } }
  model { layers { dense { units: 3 } } loss { softmax_cross_entropy {} } }
  training { epochs: 1000 batch_size: 8 }
  optimizer { sgd { learning_rate: 1 } }
  policy { sync {} }
})";

// A server that is its own coordinator, for a job of two workers.
class ErrorReasonTest : public ::testing::Test {
 protected:
  ErrorReasonTest() { Start({.workers = 2}); }

  void Start(Server::Options options) {
    options.listen = "127.0.0.1:0";
    server_ = Server::Start(std::move(options)).value();
    channel_ = grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials());
    stub_ = std::make_unique<grpc::GenericStub>(channel_);
  }

  grpc::Status Send(const std::string& method, const std::string& bytes) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(60)));
    const grpc::Slice slice(bytes);
    const grpc::ByteBuffer request(&slice, 1);
    grpc::ByteBuffer response;
    grpc::Status status;
    absl::Notification done;
    const char* const package = absl::StartsWith(method, "StandbyService/") ? "/ballast.internal.v1." : "/ballast.v1.";
    stub_->UnaryCall(&context, package + method, {}, &request, &response, [&](grpc::Status end) {
      status = std::move(end);
      done.Notify();
    });
    done.WaitForNotification();
    return status;
  }

  absl::Status Call(const std::string& method, const std::string& text) {
    return FromGrpcStatus(Send(method, Encode(method, text)));
  }

  void Succeed(const std::string& method, const std::string& text) {
    const absl::Status status = Call(method, text);
    EXPECT_TRUE(status.ok()) << method << " " << text << ": " << status;
  }

  // The reason must be in the response itself, not implied by its code.
  absl::Status Fail(const std::string& method, const std::string& text, Code code, v1::ErrorReason reason) {
    const grpc::Status answer = Send(method, Encode(method, text));
    EXPECT_FALSE(answer.error_details().empty()) << method << " " << text;
    const absl::Status status = FromGrpcStatus(answer);
    EXPECT_EQ(status.code(), code) << method << " " << text << ": " << status;
    EXPECT_EQ(v1::ErrorReason_Name(ReasonOf(status)), v1::ErrorReason_Name(reason))
        << method << " " << text << ": " << status;
    return status;
  }

  void Refuse(const std::string& method, const std::string& text, Code code, v1::ErrorReason reason) {
    Fail(method, text, code, reason).IgnoreError();
  }

  static std::string Declaration(absl::string_view job, absl::string_view rest = "") {
    return absl::StrCat("job: '", job, "' workers: 2 protocol_version: 1 policy { sync {} } ",
                        "tensors { spec { id: 1 name: 'w' shape: 4 seed: 1 initializer { constant { value: 5 } } ",
                        "optimizer { sgd { learning_rate: 1 } } } slices { elements: 2 } } ", rest);
  }
  static std::string Header(absl::string_view rest) {
    return absl::StrCat("header { job: 'reasons' incarnation: 2 sequence: 1 examples: 1 ", rest, " } ");
  }
  static constexpr char kGradient[] = "gradients { tensor_id: 1 payload: '\\000\\000\\000\\000\\000\\000\\000\\000' }";
  static std::string Join(absl::string_view rest) {
    return absl::StrCat("protocol_version: 1 role: ROLE_WORKER train_examples: 100 ", kJob, " ", rest);
  }

  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<grpc::GenericStub> stub_;
};

TEST_F(ErrorReasonTest, EveryMethodSaysWhatIsNoMessageOfIts) {
  for (const char* name : {v1::ParameterService::service_full_name(), v1::CoordinatorService::service_full_name(),
                           internal::v1::StandbyService::service_full_name()}) {
    const auto* service = google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(name);
    ASSERT_NE(service, nullptr);
    for (int i = 0; i < service->method_count(); ++i) {
      const MethodDescriptor& method = *service->method(i);
      const grpc::Status answer = Send(absl::StrCat(service->name(), "/", method.name()), "\x07 no message");
      const absl::Status status = FromGrpcStatus(answer);
      EXPECT_EQ(status.code(), Code::kInvalidArgument) << method.full_name() << ": " << status;
      EXPECT_EQ(ReasonOf(status), v1::ERROR_REASON_MALFORMED_MESSAGE) << method.full_name();
      EXPECT_EQ(SubjectOf(status, "message"), method.input_type()->full_name());
      EXPECT_EQ(SubjectOf(status, "offset"), "0") << method.full_name();
    }
  }
}

TEST_F(ErrorReasonTest, MethodsThatDoNotExistSaySo) {
  for (const char* method : {"ParameterService/NoSuchMethod", "NoSuchService/Push"}) {
    const grpc::Status answer = Send(method, "");
    EXPECT_FALSE(answer.error_details().empty()) << method;
    EXPECT_EQ(FromGrpcStatus(answer).code(), Code::kUnimplemented) << method;
    EXPECT_EQ(ReasonOf(FromGrpcStatus(answer)), v1::ERROR_REASON_UNKNOWN_METHOD) << method;
  }
}

TEST_F(ErrorReasonTest, CallsOfAShardWithoutAJob) {
  Refuse("ParameterService/Push", Header("") + kGradient, Code::kFailedPrecondition, v1::ERROR_REASON_NO_JOB);
  Refuse("ParameterService/PushPull", Header("") + kGradient, Code::kFailedPrecondition, v1::ERROR_REASON_NO_JOB);
  Refuse("ParameterService/Pull", "job: 'reasons'", Code::kFailedPrecondition, v1::ERROR_REASON_NO_JOB);
  Refuse("ParameterService/Pause", "job: 'reasons' incarnation: 1", Code::kFailedPrecondition, v1::ERROR_REASON_NO_JOB);
  Refuse("ParameterService/ShareMemory", "job: 'reasons'", Code::kFailedPrecondition, v1::ERROR_REASON_NO_JOB);
}

TEST_F(ErrorReasonTest, Declarations) {
  const char* const declare = "ParameterService/DeclareTensors";
  Refuse(declare, Declaration("No Name"), Code::kInvalidArgument, v1::ERROR_REASON_INVALID_REQUEST);
  Refuse(declare, "job: 'reasons' workers: 2 policy { sync {} } protocol_version: 9", Code::kFailedPrecondition,
         v1::ERROR_REASON_PROTOCOL_VERSION);
  Refuse(declare, Declaration("reasons", "durability { mode: WAL }"), Code::kFailedPrecondition,
         v1::ERROR_REASON_NO_STORAGE);
  Refuse(declare, Declaration("reasons", "durability { mode: CHECKPOINT }"), Code::kFailedPrecondition,
         v1::ERROR_REASON_NO_STORAGE);
  Succeed(declare, Declaration("reasons"));
  const absl::Status wrong = Fail(declare, Declaration("other"), Code::kFailedPrecondition, v1::ERROR_REASON_WRONG_JOB);
  EXPECT_EQ(SubjectOf(wrong, "job"), "reasons");
  Refuse(declare, Declaration("reasons", "policy { async {} }"), Code::kFailedPrecondition,
         v1::ERROR_REASON_JOB_DIFFERS);
  Refuse(declare, Declaration("reasons") + " tensors { spec { id: 2 } }", Code::kInvalidArgument,
         v1::ERROR_REASON_INVALID_REQUEST);
  const absl::Status other =
      Fail(declare,
           "job: 'reasons' workers: 2 policy { sync {} } tensors { spec { id: 1 name: 'w' shape: 5 initializer { "
           "constant {} } optimizer { sgd { learning_rate: 1 } } } }",
           Code::kFailedPrecondition, v1::ERROR_REASON_TENSOR_DIFFERS);
  EXPECT_EQ(SubjectOf(other, "tensor"), "w");
  const absl::Status large =
      Fail(declare,
           "job: 'reasons' workers: 2 policy { sync {} } tensors { spec { id: 3 name: 'x' shape: 1000000000000 "
           "initializer { constant {} } optimizer { sgd { learning_rate: 1 } } } }",
           Code::kFailedPrecondition, v1::ERROR_REASON_MEMORY_LIMIT);
  EXPECT_EQ(SubjectOf(large, "tensor"), "x");
}

TEST_F(ErrorReasonTest, Pushes) {
  Succeed("ParameterService/DeclareTensors", Declaration("reasons"));
  for (const char* method : {"ParameterService/Push", "ParameterService/PushPull"}) {
    Refuse(method, "header { job: 'reasons' }", Code::kInvalidArgument, v1::ERROR_REASON_INVALID_REQUEST);
    Refuse(method, "header { job: 'other' incarnation: 1 sequence: 1 }", Code::kFailedPrecondition,
           v1::ERROR_REASON_WRONG_JOB);
    const absl::Status unknown =
        Fail(method, Header("") + "gradients { tensor_id: 9 }", Code::kNotFound, v1::ERROR_REASON_UNKNOWN_TENSOR);
    EXPECT_EQ(SubjectOf(unknown, "tensor"), "9");
    const absl::Status elsewhere = Fail(method, Header("map_epoch: 7") + "gradients { tensor_id: 1 slice_index: 1 }",
                                        Code::kFailedPrecondition, v1::ERROR_REASON_NOT_OWNER);
    EXPECT_EQ(SubjectOf(elsewhere, "tensor"), "w");
    EXPECT_EQ(SubjectOf(elsewhere, "slice"), "1");
    EXPECT_EQ(SubjectOf(elsewhere, "epoch"), "7");
    const absl::Status early =
        Fail(method, Header("step: 3") + kGradient, Code::kFailedPrecondition, v1::ERROR_REASON_STEP_TOO_EARLY);
    EXPECT_EQ(SubjectOf(early, "step"), "3");
    EXPECT_EQ(SubjectOf(early, "worker"), "0");
    EXPECT_EQ(SubjectOf(early, "tensor"), "w");
  }
  Succeed("ParameterService/Push", Header("sequence: 2000") + kGradient);
  for (const char* method : {"ParameterService/Push", "ParameterService/PushPull"}) {
    const absl::Status forgotten =
        Fail(method, Header("") + kGradient, Code::kFailedPrecondition, v1::ERROR_REASON_SEQUENCE_FORGOTTEN);
    EXPECT_EQ(SubjectOf(forgotten, "sequence"), "1");
    const absl::Status stale = Fail(method, Header("incarnation: 1") + kGradient, Code::kFailedPrecondition,
                                    v1::ERROR_REASON_STALE_INCARNATION);
    EXPECT_EQ(SubjectOf(stale, "incarnation"), "2");
  }
  const absl::Status late = Fail("ParameterService/PushPull", Header("sequence: 2001") + kGradient + " wait_ms: 1",
                                 Code::kDeadlineExceeded, v1::ERROR_REASON_WAIT_TIMEOUT);
  EXPECT_EQ(SubjectOf(late, "workers"), "1");
  EXPECT_EQ(SubjectOf(late, "step"), "1");
  EXPECT_EQ(SubjectOf(late, "tensor"), "w");
}

TEST_F(ErrorReasonTest, PullsPausesAndSharedMemory) {
  Succeed("ParameterService/DeclareTensors", Declaration("reasons"));
  const std::string slice = "job: 'reasons' slices { tensor_id: 1 } ";
  Refuse("ParameterService/Pull", slice + "wait_ms: 600001", Code::kInvalidArgument, v1::ERROR_REASON_INVALID_REQUEST);
  Refuse("ParameterService/Pull", "job: 'other'", Code::kFailedPrecondition, v1::ERROR_REASON_WRONG_JOB);
  Refuse("ParameterService/Pull", "job: 'reasons' slices { tensor_id: 9 }", Code::kNotFound,
         v1::ERROR_REASON_UNKNOWN_TENSOR);
  const absl::Status elsewhere =
      Fail("ParameterService/Pull", "job: 'reasons' map_epoch: 3 slices { tensor_id: 1 slice_index: 4 }",
           Code::kFailedPrecondition, v1::ERROR_REASON_NOT_OWNER);
  EXPECT_EQ(SubjectOf(elsewhere, "epoch"), "3");
  const absl::Status late = Fail("ParameterService/Pull", slice + "step: 1 wait_ms: 1", Code::kDeadlineExceeded,
                                 v1::ERROR_REASON_WAIT_TIMEOUT);
  EXPECT_EQ(SubjectOf(late, "workers"), "0,1");
  Refuse("ParameterService/Pull", "in_shared_memory { region: 1 }", Code::kUnavailable,
         v1::ERROR_REASON_SHARED_MEMORY_UNAVAILABLE);
  Refuse("ParameterService/ShareMemory", "job: 'reasons' machine: 'another'", Code::kFailedPrecondition,
         v1::ERROR_REASON_SHARED_MEMORY_UNAVAILABLE);
  Refuse("ParameterService/ShareMemory", "job: 'other'", Code::kFailedPrecondition, v1::ERROR_REASON_WRONG_JOB);
  Refuse("ParameterService/Pause", "job: 'other'", Code::kFailedPrecondition, v1::ERROR_REASON_WRONG_JOB);
  Refuse("ParameterService/Pause", "job: 'reasons' worker: 9", Code::kInvalidArgument,
         v1::ERROR_REASON_INVALID_REQUEST);
  Succeed("ParameterService/Push", Header("") + kGradient);
  Refuse("ParameterService/Pause", "job: 'reasons' incarnation: 1", Code::kFailedPrecondition,
         v1::ERROR_REASON_STALE_INCARNATION);
}

TEST_F(ErrorReasonTest, JoiningAndWhatMembersMayDo) {
  const std::string nobody = "member { role: ROLE_WORKER incarnation: 1 } ";
  for (const char* method : {"Heartbeat", "AcquireLease", "CompleteLease", "ReportProgress"}) {
    const absl::Status lost = Fail(absl::StrCat("CoordinatorService/", method), nobody, Code::kFailedPrecondition,
                                   v1::ERROR_REASON_MEMBER_LOST);
    EXPECT_EQ(SubjectOf(lost, "role"), "worker");
    EXPECT_EQ(SubjectOf(lost, "rank"), "0");
    Refuse(absl::StrCat("CoordinatorService/", method), "member {}", Code::kInvalidArgument,
           v1::ERROR_REASON_INVALID_REQUEST);
  }
  Refuse("CoordinatorService/Leave", nobody, Code::kFailedPrecondition, v1::ERROR_REASON_MEMBER_LOST);
  const char* const join = "CoordinatorService/Join";
  Refuse(join, "protocol_version: 9 role: ROLE_WORKER", Code::kFailedPrecondition, v1::ERROR_REASON_PROTOCOL_VERSION);
  Refuse(join, Join("rank: 2"), Code::kInvalidArgument, v1::ERROR_REASON_INVALID_REQUEST);
  Refuse(join, Join("job { durability { mode: STANDBY } }"), Code::kFailedPrecondition, v1::ERROR_REASON_NO_STORAGE);
  Refuse(join, "protocol_version: 1 role: ROLE_SERVER rank: 0 with_standby: true", Code::kFailedPrecondition,
         v1::ERROR_REASON_SERVERS_DIFFER);
  Succeed(join, Join("rank: 0 description: 'one' process: 11"));
  const absl::Status taken =
      Fail(join, Join("rank: 0 description: 'two'"), Code::kAlreadyExists, v1::ERROR_REASON_RANK_TAKEN);
  EXPECT_EQ(SubjectOf(taken, "role"), "worker");
  EXPECT_EQ(SubjectOf(taken, "rank"), "0");
  Refuse(join, Join("rank: 1 job { seed: 9 }"), Code::kFailedPrecondition, v1::ERROR_REASON_JOB_DIFFERS);
  Succeed(join, Join("rank: 1 description: 'two' process: 22"));
  Refuse(join, Join("description: 'three'"), Code::kFailedPrecondition, v1::ERROR_REASON_RANKS_FULL);
  const std::string own = "member { role: ROLE_WORKER incarnation: 1 } ";
  Refuse("CoordinatorService/CompleteLease", own + "lease_id: 77", Code::kFailedPrecondition,
         v1::ERROR_REASON_UNKNOWN_LEASE);
  Refuse("CoordinatorService/AcquireLease", own + "wait_ms: 600001", Code::kInvalidArgument,
         v1::ERROR_REASON_INVALID_REQUEST);
  Refuse("CoordinatorService/GetShardMap", "wait_ms: 600001", Code::kInvalidArgument, v1::ERROR_REASON_INVALID_REQUEST);
  // One worker fails; the others get an error that names it.
  Succeed("CoordinatorService/Leave", "member { role: ROLE_WORKER rank: 1 incarnation: 1 } failure: 'no data'");
  for (const char* method : {"AcquireLease", "CompleteLease", "ReportProgress"}) {
    const absl::Status failed =
        Fail(absl::StrCat("CoordinatorService/", method), own, Code::kAborted, v1::ERROR_REASON_JOB_FAILED);
    EXPECT_EQ(SubjectOf(failed, "role"), "worker");
    EXPECT_EQ(SubjectOf(failed, "rank"), "1");
    EXPECT_EQ(SubjectOf(failed, "process"), "22");
  }
  Refuse(join, Join("rank: 1 description: 'four'"), Code::kFailedPrecondition, v1::ERROR_REASON_JOB_FAILED);
}

TEST_F(ErrorReasonTest, Placements) {
  const std::string tensor =
      "tensors { id: 1 name: 'w' shape: 4 initializer { constant {} } optimizer { sgd { learning_rate: 1 } } } ";
  const char* const place = "CoordinatorService/PlaceTensors";
  Succeed("CoordinatorService/Join", Join("rank: 0 description: 'one'"));
  Refuse(place, "job: 'other' " + tensor, Code::kFailedPrecondition, v1::ERROR_REASON_WRONG_JOB);
  Succeed(place, "job: 'reasons' " + tensor);
  Refuse(place,
         "job: 'reasons' tensors { id: 1 name: 'w' shape: 5 initializer { constant {} } optimizer { sgd { "
         "learning_rate: 1 } } }",
         Code::kFailedPrecondition, v1::ERROR_REASON_TENSOR_DIFFERS);
  Refuse(place, "job: 'reasons' tensors { id: 2 }", Code::kInvalidArgument, v1::ERROR_REASON_INVALID_REQUEST);
}

TEST_F(ErrorReasonTest, TensorsAreNotPlacedBeforeAllServersAreThere) {
  Start({.servers = 2});
  const absl::Status missing =
      Fail("CoordinatorService/PlaceTensors", "job: 'reasons'", Code::kUnavailable, v1::ERROR_REASON_SERVERS_MISSING);
  EXPECT_NE(SubjectOf(missing, "members").find("server 1"), std::string::npos);
}

TEST_F(ErrorReasonTest, AServerOfAPairServesOnlyOnceItKnowsThatItIsTheOne) {
  Server::Options options;
  options.with_standby = true;
  options.rank = 1;
  // Nothing responds there.
  options.coordinator = server_->address();
  options.servers = 2;
  Start(options);
  for (const char* method : {"Push", "PushPull", "Pull", "Pause", "ShareMemory", "DeclareTensors"}) {
    Refuse(absl::StrCat("ParameterService/", method), "", Code::kUnavailable, v1::ERROR_REASON_NOT_SERVING);
  }
}

TEST_F(ErrorReasonTest, MoreBytesThanTheServerLetsIn) {
  Server::Options options;
  options.max_bytes_in_flight = 8 << 20;
  Start(options);
  Succeed("ParameterService/DeclareTensors",
          "job: 'reasons' workers: 2 policy { sync {} } tensors { spec { id: 1 name: 'w' shape: 4 seed: 1 "
          "initializer { constant {} } optimizer { sgd { learning_rate: 1 } } } }");
  // A region of shared memory is larger than the whole limit.
  Refuse("ParameterService/ShareMemory", absl::StrCat("job: 'reasons' machine: '", MachineId(), "'"),
         Code::kResourceExhausted, v1::ERROR_REASON_BYTES_IN_FLIGHT);
}

}  // namespace
}  // namespace ballast
