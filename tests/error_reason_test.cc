// SPDX-License-Identifier: Apache-2.0
// Every method of both services fails in each documented way, with the documented code and reason.
#include "common/status/error_reason.h"

#include <optional>

#include "absl/strings/string_view.h"
#include "ballast/internal/v1/standby_service.grpc.pb.h"
#include "ballast/v1/error.pb.h"
#include "common/rpc/grpc_status.h"
#include "common/shared_memory/shared_region.h"
#include "google/protobuf/text_format.h"
#include "server/server.h"
#include "tests/testing/raw_call.h"

namespace ballast {
namespace {

using Code = absl::StatusCode;
using Subjects = std::vector<std::pair<std::string, std::string>>;

std::string Encode(const std::string& method, const std::string& text) {
  for (const auto& [name, descriptor] : AllMethods()) {
    if (name != method) continue;
    const std::unique_ptr<google::protobuf::Message> message = NewRequest(*descriptor);
    // If a field appears twice, the last value counts.
    EXPECT_TRUE(google::protobuf::TextFormat::MergeFromString(text, message.get())) << method << ": " << text;
    return message->SerializeAsString();
  }
  ADD_FAILURE() << "there is no " << method;
  return "";
}

// The documented code of each reason.
Code CodeOf(v1::ErrorReason reason) {
  switch (reason) {
    case v1::ERROR_REASON_INVALID_REQUEST:
    case v1::ERROR_REASON_MALFORMED_MESSAGE:
      return Code::kInvalidArgument;
    case v1::ERROR_REASON_UNKNOWN_TENSOR:
      return Code::kNotFound;
    case v1::ERROR_REASON_RANK_TAKEN:
      return Code::kAlreadyExists;
    case v1::ERROR_REASON_WAIT_TIMEOUT:
      return Code::kDeadlineExceeded;
    case v1::ERROR_REASON_SERVERS_MISSING:
    case v1::ERROR_REASON_NOT_SERVING:
      return Code::kUnavailable;
    case v1::ERROR_REASON_BYTES_IN_FLIGHT:
      return Code::kResourceExhausted;
    case v1::ERROR_REASON_UNKNOWN_METHOD:
      return Code::kUnimplemented;
    default:
      return Code::kFailedPrecondition;
  }
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
    return RawCall(*stub_, context, method, AsBuffer(bytes));
  }

  void Succeed(const std::string& method, const std::string& text) {
    const absl::Status status = FromGrpcStatus(Send(method, Encode(method, text)));
    EXPECT_TRUE(status.ok()) << method << " " << text << ": " << status;
  }

  // Expects the reason and subjects in the response itself, not implied by its code; by default the reason's code.
  static absl::Status Expect(const grpc::Status& answer, v1::ErrorReason reason, const Subjects& subjects = {},
                             std::optional<Code> code = std::nullopt) {
    EXPECT_FALSE(answer.error_details().empty());
    const absl::Status status = FromGrpcStatus(answer);
    EXPECT_EQ(status.code(), code.value_or(CodeOf(reason))) << status;
    EXPECT_EQ(v1::ErrorReason_Name(ReasonOf(status)), v1::ErrorReason_Name(reason)) << status;
    for (const auto& [subject, value] : subjects) EXPECT_EQ(SubjectOf(status, subject), value) << subject;
    return status;
  }
  void Refuse(const std::string& method, const std::string& text, v1::ErrorReason reason, const Subjects& subjects = {},
              std::optional<Code> code = std::nullopt) {
    SCOPED_TRACE(absl::StrCat(method, " ", text));
    Expect(Send(method, Encode(method, text)), reason, subjects, code).IgnoreError();
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
  for (const auto& [name, method] : AllMethods()) {
    SCOPED_TRACE(name);
    Expect(Send(name, "\x07 no message"), v1::ERROR_REASON_MALFORMED_MESSAGE,
           {{"message", method->input_type()->full_name()}, {"offset", "0"}})
        .IgnoreError();
  }
}

TEST_F(ErrorReasonTest, MethodsThatDoNotExistSaySo) {
  for (const char* method : {"ParameterService/NoSuchMethod", "NoSuchService/Push"}) {
    SCOPED_TRACE(method);
    Expect(Send(method, ""), v1::ERROR_REASON_UNKNOWN_METHOD).IgnoreError();
  }
}

TEST_F(ErrorReasonTest, CallsOfAShardWithoutAJob) {
  Refuse("ParameterService/Push", Header("") + kGradient, v1::ERROR_REASON_NO_JOB);
  Refuse("ParameterService/PushPull", Header("") + kGradient, v1::ERROR_REASON_NO_JOB);
  Refuse("ParameterService/Pull", "job: 'reasons'", v1::ERROR_REASON_NO_JOB);
  Refuse("ParameterService/Pause", "job: 'reasons' incarnation: 1", v1::ERROR_REASON_NO_JOB);
  Refuse("ParameterService/ShareMemory", "job: 'reasons'", v1::ERROR_REASON_NO_JOB);
  Refuse("ParameterService/OpenDataStream", "job: 'reasons'", v1::ERROR_REASON_NO_JOB);
}

TEST_F(ErrorReasonTest, Declarations) {
  const char* const declare = "ParameterService/DeclareTensors";
  Refuse(declare, Declaration("No Name"), v1::ERROR_REASON_INVALID_REQUEST);
  Refuse(declare, "job: 'reasons' workers: 2 policy { sync {} } protocol_version: 9",
         v1::ERROR_REASON_PROTOCOL_VERSION);
  Refuse(declare, Declaration("reasons", "durability { mode: WAL }"), v1::ERROR_REASON_NO_STORAGE);
  Refuse(declare, Declaration("reasons", "durability { mode: CHECKPOINT }"), v1::ERROR_REASON_NO_STORAGE);
  Succeed(declare, Declaration("reasons"));
  Refuse(declare, Declaration("other"), v1::ERROR_REASON_WRONG_JOB, {{"job", "reasons"}});
  Refuse(declare, Declaration("reasons", "policy { async {} }"), v1::ERROR_REASON_JOB_DIFFERS);
  Refuse(declare, Declaration("reasons") + " tensors { spec { id: 2 } }", v1::ERROR_REASON_INVALID_REQUEST);
  Refuse(declare,
         "job: 'reasons' workers: 2 policy { sync {} } tensors { spec { id: 1 name: 'w' shape: 5 initializer { "
         "constant {} } optimizer { sgd { learning_rate: 1 } } } }",
         v1::ERROR_REASON_TENSOR_DIFFERS, {{"tensor", "w"}});
  Refuse(declare,
         "job: 'reasons' workers: 2 policy { sync {} } tensors { spec { id: 3 name: 'x' shape: 1000000000000 "
         "initializer { constant {} } optimizer { sgd { learning_rate: 1 } } } }",
         v1::ERROR_REASON_MEMORY_LIMIT, {{"tensor", "x"}});
}

TEST_F(ErrorReasonTest, Pushes) {
  Succeed("ParameterService/DeclareTensors", Declaration("reasons"));
  for (const char* method : {"ParameterService/Push", "ParameterService/PushPull"}) {
    Refuse(method, "header { job: 'reasons' }", v1::ERROR_REASON_INVALID_REQUEST);
    Refuse(method, "header { job: 'other' incarnation: 1 sequence: 1 }", v1::ERROR_REASON_WRONG_JOB);
    Refuse(method, Header("") + "gradients { tensor_id: 9 }", v1::ERROR_REASON_UNKNOWN_TENSOR, {{"tensor", "9"}});
    Refuse(method, Header("map_epoch: 7") + "gradients { tensor_id: 1 slice_index: 1 }", v1::ERROR_REASON_NOT_OWNER,
           {{"tensor", "w"}, {"slice", "1"}, {"epoch", "7"}});
    Refuse(method, Header("step: 3") + kGradient, v1::ERROR_REASON_STEP_TOO_EARLY,
           {{"step", "3"}, {"worker", "0"}, {"tensor", "w"}});
  }
  Succeed("ParameterService/Push", Header("sequence: 2000") + kGradient);
  for (const char* method : {"ParameterService/Push", "ParameterService/PushPull"}) {
    Refuse(method, Header("") + kGradient, v1::ERROR_REASON_SEQUENCE_FORGOTTEN, {{"sequence", "1"}});
    Refuse(method, Header("incarnation: 1") + kGradient, v1::ERROR_REASON_STALE_INCARNATION, {{"incarnation", "2"}});
  }
  Refuse("ParameterService/PushPull", Header("sequence: 2001") + kGradient + " wait_ms: 1",
         v1::ERROR_REASON_WAIT_TIMEOUT, {{"workers", "1"}, {"step", "1"}, {"tensor", "w"}});
}

TEST_F(ErrorReasonTest, PullsPausesAndSharedMemory) {
  Succeed("ParameterService/DeclareTensors", Declaration("reasons"));
  const std::string slice = "job: 'reasons' slices { tensor_id: 1 } ";
  Refuse("ParameterService/Pull", slice + "wait_ms: 600001", v1::ERROR_REASON_INVALID_REQUEST);
  Refuse("ParameterService/Pull", "job: 'other'", v1::ERROR_REASON_WRONG_JOB);
  Refuse("ParameterService/Pull", "job: 'reasons' slices { tensor_id: 9 }", v1::ERROR_REASON_UNKNOWN_TENSOR);
  Refuse("ParameterService/Pull", "job: 'reasons' map_epoch: 3 slices { tensor_id: 1 slice_index: 4 }",
         v1::ERROR_REASON_NOT_OWNER, {{"epoch", "3"}});
  Refuse("ParameterService/Pull", slice + "step: 1 wait_ms: 1", v1::ERROR_REASON_WAIT_TIMEOUT, {{"workers", "0,1"}});
  Refuse("ParameterService/Pull", "in_shared_memory { region: 1 }", v1::ERROR_REASON_SHARED_MEMORY_UNAVAILABLE, {},
         Code::kUnavailable);
  Refuse("ParameterService/ShareMemory", "job: 'reasons' machine: 'another'",
         v1::ERROR_REASON_SHARED_MEMORY_UNAVAILABLE);
  Refuse("ParameterService/ShareMemory", "job: 'other'", v1::ERROR_REASON_WRONG_JOB);
  Refuse("ParameterService/OpenDataStream", "job: 'other'", v1::ERROR_REASON_WRONG_JOB);
  Refuse("ParameterService/Pause", "job: 'other'", v1::ERROR_REASON_WRONG_JOB);
  Refuse("ParameterService/Pause", "job: 'reasons' worker: 9", v1::ERROR_REASON_INVALID_REQUEST);
  Succeed("ParameterService/Push", Header("") + kGradient);
  Refuse("ParameterService/Pause", "job: 'reasons' incarnation: 1", v1::ERROR_REASON_STALE_INCARNATION);
}

TEST_F(ErrorReasonTest, JoiningAndWhatMembersMayDo) {
  const std::string nobody = "member { role: ROLE_WORKER incarnation: 1 } ";
  for (const char* method : {"Heartbeat", "AcquireLease", "CompleteLease", "ReportProgress"}) {
    Refuse(absl::StrCat("CoordinatorService/", method), nobody, v1::ERROR_REASON_MEMBER_LOST,
           {{"role", "worker"}, {"rank", "0"}});
    Refuse(absl::StrCat("CoordinatorService/", method), "member {}", v1::ERROR_REASON_INVALID_REQUEST);
  }
  Refuse("CoordinatorService/Leave", nobody, v1::ERROR_REASON_MEMBER_LOST);
  const char* const join = "CoordinatorService/Join";
  Refuse(join, "protocol_version: 9 role: ROLE_WORKER", v1::ERROR_REASON_PROTOCOL_VERSION);
  Refuse(join, Join("rank: 2"), v1::ERROR_REASON_INVALID_REQUEST);
  Refuse(join, Join("job { durability { mode: STANDBY } }"), v1::ERROR_REASON_NO_STORAGE);
  Refuse(join, "protocol_version: 1 role: ROLE_SERVER rank: 0 with_standby: true", v1::ERROR_REASON_SERVERS_DIFFER);
  Succeed(join, Join("rank: 0 description: 'one' process: 11"));
  Refuse(join, Join("rank: 0 description: 'two'"), v1::ERROR_REASON_RANK_TAKEN, {{"role", "worker"}, {"rank", "0"}});
  Refuse(join, Join("rank: 1 job { seed: 9 }"), v1::ERROR_REASON_JOB_DIFFERS);
  Succeed(join, Join("rank: 1 description: 'two' process: 22"));
  Refuse(join, Join("description: 'three'"), v1::ERROR_REASON_RANKS_FULL);
  const std::string own = "member { role: ROLE_WORKER incarnation: 1 } ";
  Refuse("CoordinatorService/CompleteLease", own + "lease_id: 77", v1::ERROR_REASON_UNKNOWN_LEASE);
  Refuse("CoordinatorService/ReportProgress", own + "completed_lease { lease_id: 77 }", v1::ERROR_REASON_UNKNOWN_LEASE);
  Refuse("CoordinatorService/AcquireLease", own + "wait_ms: 600001", v1::ERROR_REASON_INVALID_REQUEST);
  Refuse("CoordinatorService/GetShardMap", "wait_ms: 600001", v1::ERROR_REASON_INVALID_REQUEST);
  // One worker fails; the others get an error that names it.
  Succeed("CoordinatorService/Leave", "member { role: ROLE_WORKER rank: 1 incarnation: 1 } failure: 'no data'");
  for (const char* method : {"AcquireLease", "CompleteLease", "ReportProgress"}) {
    Refuse(absl::StrCat("CoordinatorService/", method), own, v1::ERROR_REASON_JOB_FAILED,
           {{"role", "worker"}, {"rank", "1"}, {"process", "22"}}, Code::kAborted);
  }
  Refuse(join, Join("rank: 1 description: 'four'"), v1::ERROR_REASON_JOB_FAILED);
}

TEST_F(ErrorReasonTest, Placements) {
  const std::string tensor =
      "tensors { id: 1 name: 'w' shape: 4 initializer { constant {} } optimizer { sgd { learning_rate: 1 } } } ";
  const char* const place = "CoordinatorService/PlaceTensors";
  Succeed("CoordinatorService/Join", Join("rank: 0 description: 'one'"));
  Refuse(place, "job: 'other' " + tensor, v1::ERROR_REASON_WRONG_JOB);
  Succeed(place, "job: 'reasons' " + tensor);
  Refuse(place,
         "job: 'reasons' tensors { id: 1 name: 'w' shape: 5 initializer { constant {} } optimizer { sgd { "
         "learning_rate: 1 } } }",
         v1::ERROR_REASON_TENSOR_DIFFERS);
  Refuse(place, "job: 'reasons' tensors { id: 2 }", v1::ERROR_REASON_INVALID_REQUEST);
}

TEST_F(ErrorReasonTest, TensorsAreNotPlacedBeforeAllServersAreThere) {
  Start({.servers = 2});
  const absl::Status missing =
      Expect(Send("CoordinatorService/PlaceTensors", Encode("CoordinatorService/PlaceTensors", "job: 'reasons'")),
             v1::ERROR_REASON_SERVERS_MISSING);
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
    Refuse(absl::StrCat("ParameterService/", method), "", v1::ERROR_REASON_NOT_SERVING);
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
         v1::ERROR_REASON_BYTES_IN_FLIGHT);
}

}  // namespace
}  // namespace ballast
