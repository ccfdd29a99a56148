// SPDX-License-Identifier: Apache-2.0
// Every call that a peer has no right to make is refused with the right code and changes nothing.
#include <array>
#include <map>

#include "common/rpc/grpc_status.h"
#include "common/status/error_reason.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "server/rpc/port/access_guard.h"
#include "tests/testing/cluster.h"
#include "tests/testing/raw_call.h"
#include "tests/testing/security_folder.h"

namespace ballast {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Ne;

template <typename T>
std::string Bytes(const std::string& text) {
  T message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message)) << text;
  return message.SerializeAsString();
}

std::string Bearer(const std::string& role, const std::string& job) {
  return "Bearer " + SecurityFolder::Token(role, job);
}

// Adds a gradient of ones.
template <typename T>
std::string PushBytes(const std::string& text) {
  T push;
  push.ParseFromString(Bytes<T>(text));
  const std::array<float, 3> ones = {1, 1, 1};
  auto* const gradient = push.add_gradients();
  gradient->set_tensor_id(1);
  gradient->set_encoding(v1::ENCODING_FP32);
  gradient->set_payload(ones.data(), sizeof(ones));
  return push.SerializeAsString();
}

// Values for the same tensor: twos.
std::string ValuesBytes(const std::string& job) {
  v1::SetValuesRequest request;
  request.set_job(job);
  const std::array<float, 3> twos = {2, 2, 2};
  v1::SliceValue* const value = request.add_values();
  value->set_tensor_id(1);
  value->set_encoding(v1::ENCODING_FP32);
  value->set_payload(twos.data(), sizeof(twos));
  return request.SerializeAsString();
}

constexpr char kTensor[] = R"pb(name: "w"
                                shape: 3
                                initializer { constant { value: 5 } }
                                optimizer { sgd { learning_rate: 1 } })pb";

constexpr char kTable[] = R"pb(tables {
                                 spec {
                                   id: 3
                                   name: "rows"
                                   dim: 1
                                   optimizer { sgd { learning_rate: 1 } }
                                 }
                                 spans { count: 4096 }
                               })pb";

// Requests of job `name`, by method, that would change or reveal something; if `name` is empty, they name no job.
std::map<std::string, std::string> RequestsOf(const std::string& name) {
  const std::string job = name.empty() ? "" : absl::StrCat("job: \"", name, "\" ");
  const std::string member = "member { role: ROLE_WORKER rank: 0 incarnation: 1 } " + job;
  const std::string push = absl::StrCat("header { ", job, "incarnation: 1 sequence: 1 examples: 1 }");
  return {
      {"ParameterService/DeclareTensors",
       Bytes<v1::DeclareTensorsRequest>(
           absl::StrCat(job, "workers: 1 policy { async {} } tensors { spec { id: 2 ", kTensor, "} }"))},
      {"ParameterService/Push", PushBytes<v1::PushRequest>(push)},
      {"ParameterService/PushPull", PushBytes<v1::PushPullRequest>(push)},
      {"ParameterService/Pull", Bytes<v1::PullRequest>(job + "slices { tensor_id: 1 }")},
      {"ParameterService/SetValues", ValuesBytes(name)},
      {"ParameterService/PullRows", Bytes<v1::PullRowsRequest>(job + "queries { table_id: 3 }")},
      {"ParameterService/PushRows",
       Bytes<v1::PushRowsRequest>(push + R"(gradients { table_id: 3 ids: "12345678" payload: "1234" })")},
      {"ParameterService/WatchRows", Bytes<v1::WatchRowsRequest>(job + "table_ids: 3 once: true")},
      {"ParameterService/InspectRows", Bytes<v1::InspectRowsRequest>(job + "table_id: 3 count: 1")},
      {"ParameterService/Pause", Bytes<v1::PauseRequest>(job + "incarnation: 9")},
      {"ParameterService/ReportVersions", Bytes<v1::ReportVersionsRequest>(job + "incarnation: 9")},
      {"ParameterService/ShareMemory", Bytes<v1::ShareMemoryRequest>(job + R"(machine: "elsewhere")")},
      {"ParameterService/OpenDataStream", Bytes<v1::OpenDataStreamRequest>(job)},
      {"ParameterService/GetStatus", Bytes<v1::GetStatusRequest>(job)},
      {"CoordinatorService/Join", Bytes<v1::JoinRequest>(R"(protocol_version: 1 role: ROLE_SERVER rank: 1
                                                            address: "evil:1")")},
      {"CoordinatorService/Heartbeat", Bytes<v1::HeartbeatRequest>(member)},
      {"CoordinatorService/Leave", Bytes<v1::LeaveRequest>(member + R"(failure: "made up")")},
      {"CoordinatorService/PlaceTensors",
       Bytes<v1::PlaceTensorsRequest>(absl::StrCat(job, "tensors { id: 1 ", kTensor, "}"))},
      {"CoordinatorService/GetShardMap", Bytes<v1::GetShardMapRequest>(job)},
      {"CoordinatorService/AcquireLease", Bytes<v1::AcquireLeaseRequest>(member + "wait_ms: 1")},
      {"CoordinatorService/CompleteLease", Bytes<v1::CompleteLeaseRequest>(member + "lease_id: 1")},
      {"CoordinatorService/ReportProgress",
       Bytes<v1::ReportProgressRequest>(member + "progress { step: 7 work { examples: 8 loss_sum: 3 seconds: 1 } }")},
      {"CoordinatorService/GetProgress", Bytes<v1::GetProgressRequest>(job)},
      {"CoordinatorService/SaveCheckpoint", Bytes<v1::SaveCheckpointRequest>(job)},
      {"StandbyService/Replicate", Bytes<internal::v1::ReplicateRequest>("hello { standby: 1 }")},
  };
}

const std::map<std::string, std::string>& Requests() {
  static const auto* const requests = new std::map<std::string, std::string>(RequestsOf("mine"));
  return *requests;
}

constexpr char kJob[] = R"pb(
  seed: 1
  data { train { csv { path: "a" } } }
  model {
    layers { dense { units: 3 } }
    loss { softmax_cross_entropy {} }
  }
  training { epochs: 1000 batch_size: 8 }
  optimizer { sgd { learning_rate: 1 } }
  policy { async {} })pb";

std::string WorkerJoin(const std::string& job) {
  return Bytes<v1::JoinRequest>(absl::StrCat(
      "protocol_version: 1 role: ROLE_WORKER rank: 0 train_examples: 1000 job { name: \"", job, "\" ", kJob, "}"));
}

// A request that names a job, for every method whose request can; a server's request names none.
std::map<std::string, std::string> NamingRequests(const std::string& job) {
  std::map<std::string, std::string> requests = RequestsOf(job);
  requests["CoordinatorService/Join"] = WorkerJoin(job);
  requests.erase("StandbyService/Replicate");
  return requests;
}

// A server that requires tokens (and client certificates if `tls`) and has a running job.
class AccessTest : public ::testing::Test {
 protected:
  void Start(bool tls) {
    StartWithoutJob(tls);
    Begin();
  }

  void StartWithoutJob(bool tls) {
    std::string tokens;
    for (const char* role : {"reader", "worker", "admin"}) {
      for (const char* job : {"mine", "other", "*"}) {
        absl::StrAppend(&tokens, role, " ", job, " ", SecurityFolder::Token(role, job), "\n");
      }
    }
    Server::Options options;
    options.security.token_file = folder_.Write("tokens", tokens);
    if (tls) options.security.tls = folder_.Issue("server", {"127.0.0.1"});
    options.workers = 1;
    options.max_state_bytes = 4 << 20;
    // A member that sends no heartbeat is not lost.
    options.member_ttl = absl::Hours(1);
    server_ = StartServer(std::move(options));
    ASSERT_NE(server_, nullptr);
    channel_ = tls ? Open(folder_.Issue("client", {})) : OpenConnection(server_->address());
  }

  // The worker joins and declares its tensor.
  void Begin() {
    const std::string worker = Bearer("worker", "mine");
    ASSERT_EQ(Call("CoordinatorService/Join", WorkerJoin("mine"), worker).error_message(), "");
    ASSERT_EQ(
        Call("ParameterService/DeclareTensors",
             Bytes<v1::DeclareTensorsRequest>(absl::StrCat(
                 R"(job: "mine" workers: 1 policy { async {} } tensors { spec { id: 1 )", kTensor, "} } ", kTable)),
             worker)
            .error_message(),
        "");
  }

  static grpc::SslCredentialsOptions Ssl(const TlsFiles& files) {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = Read(files.authorities);
    if (!files.certificate.empty()) {
      options.pem_cert_chain = Read(files.certificate);
      options.pem_private_key = Read(files.key);
    }
    return options;
  }
  static std::string Read(const std::string& path) { return ReadPrivateFile(path, "file").value(); }

  // Uses gRPC's own credentials, like a peer in another language.
  std::shared_ptr<grpc::Channel> Open(const TlsFiles& files) const {
    return OpenConnection(server_->address(), grpc::SslCredentials(Ssl(files)));
  }

  grpc::Status Call(const std::string& method, const std::string& request, const std::string& authorization) {
    return RawCall(channel_, method, request, authorization);
  }

  // Like State(), but before there is a job.
  std::string StateWithoutJob() {
    const ShardStatus status = server_->shard().status();
    v1::GetProgressResponse progress = AskProgress(channel_, Bearer("reader", "*"));
    for (auto& member : *progress.mutable_members()) member.clear_seconds_since_heartbeat();
    const auto map =
        Ask<v1::CoordinatorService>(channel_, &v1::CoordinatorService::Stub::GetShardMap, {}, Bearer("reader", "*"));
    return absl::StrCat(status.job.name, " tensors ", status.tensors, " pushes ", status.pushes, "\n",
                        progress.DebugString(), map.DebugString());
  }

  // Everything that a call may change, except clocks.
  std::string State() {
    const ShardStatus status = server_->shard().status();
    std::string text =
        absl::StrCat(status.job.name, " tensors ", status.tensors, " pushes ", status.pushes, " pulls ", status.pulls,
                     " updates ", status.updates, " waiting ", status.waiting, " rows ", status.tables.at(0).rows);
    v1::GetProgressResponse progress = AskProgress(channel_, Bearer("reader", "mine"));
    progress.mutable_progress()->clear_seconds();
    progress.mutable_progress()->clear_samples_per_second();
    for (auto& member : *progress.mutable_members()) member.clear_seconds_since_heartbeat();
    for (float value : server_->shard().Pull({1, 0}, std::nullopt)->values.values()) absl::StrAppend(&text, " ", value);
    return absl::StrCat(text, "\n", progress.DebugString());
  }

  // Expects each of these calls with this token to be refused with `code` and to change nothing.
  void ExpectRefused(grpc::StatusCode code, const std::string& authorization) {
    ExpectRefused(code, authorization, Requests(), channel_);
  }
  void ExpectRefused(grpc::StatusCode code, const std::string& authorization,
                     const std::map<std::string, std::string>& calls, const std::shared_ptr<grpc::Channel>& channel) {
    const std::string before = State();
    for (const auto& [method, request] : calls) {
      const grpc::Status status = RawCall(channel, method, request, authorization);
      EXPECT_EQ(status.error_code(), code) << method << ": " << status.error_message();
    }
    EXPECT_EQ(Values(State()), Values(before));
  }
  // Removes the pull count, because reading the values above increases it.
  static std::string Values(const std::string& state) {
    const size_t at = state.find(" pulls "), end = state.find(" updates ");
    return state.substr(0, at) + state.substr(end);
  }

  // Expects every call on a channel that cannot connect to fail.
  void ExpectUnreachable(const std::shared_ptr<grpc::Channel>& channel) {
    ExpectRefused(grpc::StatusCode::UNAVAILABLE, Bearer("admin", "mine"), Requests(), channel);
  }

  SecurityFolder folder_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

// Without TLS each call checks the token itself; with TLS gRPC also checks it before.
class TokenTest : public AccessTest, public ::testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    Start(GetParam());
    // The server's own Join changes the state that is compared.
    while (State().find("JOB_STATE_RUNNING") == std::string::npos) {
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Tls, TokenTest, ::testing::Bool());

// A server without a job.
class NoJobTest : public AccessTest {
 protected:
  void SetUp() override {
    StartWithoutJob(/*tls=*/false);
    // The server's own Join changes the state that is compared.
    while (StateWithoutJob().find("\"joined\"") == std::string::npos) {
    }
  }
};

class CertificateTest : public AccessTest {
 protected:
  void SetUp() override { Start(true); }
};

TEST(MethodsTest, EachCallHasARoleAndIsTriedHere) {
  for (const auto& [method, type] : AllMethods()) {
    EXPECT_TRUE(LeastRole(method).has_value()) << method << " needs a line in server/rpc/port/access_guard.cc";
    EXPECT_EQ(Requests().count(method), 1) << method << " needs a request in this test";
  }
  EXPECT_EQ(Requests().size(), AllMethods().size());
  EXPECT_FALSE(LeastRole("ParameterService/NoSuchCall").has_value());
}

TEST_P(TokenTest, NoTokenIsUnauthenticated) { ExpectRefused(grpc::StatusCode::UNAUTHENTICATED, ""); }

TEST_P(TokenTest, AWrongTokenIsUnauthenticated) {
  ExpectRefused(grpc::StatusCode::UNAUTHENTICATED, "Bearer " + std::string(64, 'x'));
  ExpectRefused(grpc::StatusCode::UNAUTHENTICATED, SecurityFolder::Token("admin", "mine"));
  ExpectRefused(grpc::StatusCode::UNAUTHENTICATED, "Basic " + SecurityFolder::Token("admin", "mine"));
  ExpectRefused(grpc::StatusCode::UNAUTHENTICATED, "Bearer ");
}

TEST_P(TokenTest, TheRightTokenOfAnotherJobIsDenied) {
  for (const char* role : {"reader", "worker", "admin"}) {
    ExpectRefused(grpc::StatusCode::PERMISSION_DENIED, Bearer(role, "other"));
  }
}

TEST_P(TokenTest, TooSmallARoleIsDenied) {
  std::map<std::string, std::string> calls = Requests();
  for (const auto& [method, type] : AllMethods()) {
    if (*LeastRole(method) == AccessRole::kReader) calls.erase(method);
  }
  EXPECT_EQ(calls.size(), 17);
  ExpectRefused(grpc::StatusCode::PERMISSION_DENIED, Bearer("reader", "mine"), calls, channel_);
}

// The Join request is that of a server.
TEST_P(TokenTest, AWorkerDoesNotSpeakAsAServer) {
  const std::string member = "member { role: ROLE_SERVER rank: 0 incarnation: 1 }";
  const std::map<std::string, std::string> calls = {
      {"CoordinatorService/Join", Requests().at("CoordinatorService/Join")},
      {"CoordinatorService/Heartbeat", Bytes<v1::HeartbeatRequest>(member)},
      {"CoordinatorService/Leave", Bytes<v1::LeaveRequest>(member)},
      {"CoordinatorService/SaveCheckpoint", Requests().at("CoordinatorService/SaveCheckpoint")},
      {"StandbyService/Replicate", Requests().at("StandbyService/Replicate")}};
  ExpectRefused(grpc::StatusCode::PERMISSION_DENIED, Bearer("worker", "mine"), calls, channel_);
  for (const auto& [method, request] : calls) {
    EXPECT_THAT(Call(method, request, Bearer("worker", "mine")).error_message(),
                HasSubstr("got a token of role worker, want admin"));
  }
}

TEST_P(TokenTest, NoTokenDeclaresOrPlacesForAnotherJob) {
  const std::map<std::string, std::string> calls = {
      {"ParameterService/DeclareTensors", Bytes<v1::DeclareTensorsRequest>(R"(job: "other")")},
      {"CoordinatorService/PlaceTensors", Bytes<v1::PlaceTensorsRequest>(R"(job: "other")")}};
  ExpectRefused(grpc::StatusCode::PERMISSION_DENIED, Bearer("admin", "mine"), calls, channel_);
}

TEST_P(TokenTest, TheRightTokenIsLetInEverywhere) {
  for (const auto& [method, request] : Requests()) {
    // Either of these would break the calls that follow; their own responses identify them.
    if (method == "ParameterService/ShareMemory" || method == "CoordinatorService/Leave") continue;
    EXPECT_THAT(Call(method, request, Bearer("admin", "mine")).error_code(),
                AllOf(Ne(grpc::StatusCode::UNAUTHENTICATED), Ne(grpc::StatusCode::PERMISSION_DENIED),
                      Ne(grpc::StatusCode::UNAVAILABLE)))
        << method;
  }
  EXPECT_EQ(
      Call("ParameterService/ShareMemory", Requests().at("ParameterService/ShareMemory"), Bearer("worker", "mine"))
          .error_code(),
      grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_NE(State().find("updates 1"), std::string::npos);
}

TEST_F(NoJobTest, ATokenOfAnotherJobThanTheRequestsIsDenied) {
  const std::string before = StateWithoutJob();
  for (const auto& [method, request] : NamingRequests("mine")) {
    const grpc::Status status = Call(method, request, Bearer("admin", "other"));
    EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED) << method << ": " << status.error_message();
  }
  EXPECT_EQ(StateWithoutJob(), before);
}

TEST_F(NoJobTest, ATokenOfTheRequestsJobOrOfEveryJobIsLetIn) {
  for (const char* job : {"mine", "*"}) {
    for (const auto& [method, request] : NamingRequests("mine")) {
      EXPECT_THAT(Call(method, request, Bearer("admin", job)).error_code(),
                  AllOf(Ne(grpc::StatusCode::PERMISSION_DENIED), Ne(grpc::StatusCode::UNAUTHENTICATED)))
          << method;
    }
  }
}

TEST_F(NoJobTest, NothingIsPlacedOrDeclaredForNoJob) {
  const std::string before = StateWithoutJob();
  for (const char* job : {"other", "*"}) {
    for (const auto& [method, request] : RequestsOf("")) {
      // The status of a server without a job is no secret, and a server joins before there is a job.
      const bool changes_nothing =
          method == "ParameterService/GetStatus" || method == "CoordinatorService/GetShardMap" ||
          method == "CoordinatorService/GetProgress" || method == "CoordinatorService/SaveCheckpoint";
      if (changes_nothing) continue;
      EXPECT_FALSE(Call(method, request, Bearer("admin", job)).ok()) << method;
    }
  }
  EXPECT_EQ(StateWithoutJob(), before);
}

TEST_F(NoJobTest, TensorsThatArePlacedNameTheJob) {
  const std::string place = "CoordinatorService/PlaceTensors";
  EXPECT_EQ(Call(place, RequestsOf("other").at(place), Bearer("worker", "other")).error_message(), "");
  const grpc::Status status = Call("CoordinatorService/Join", WorkerJoin("mine"), Bearer("worker", "*"));
  EXPECT_EQ(status.error_message(), "this server holds job \"other\", got \"mine\"");
  EXPECT_EQ(Call("CoordinatorService/Join", WorkerJoin("mine"), Bearer("worker", "mine")).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
}

// A call may be admitted before there is a job, and send its request afterwards.
TEST_F(NoJobTest, ARequestThatComesLateIsOfItsTokensJobAllTheSame) {
  grpc::ClientContext context;
  context.AddMetadata("authorization", Bearer("worker", "other"));
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(30)));
  grpc::CompletionQueue queue;
  const auto await = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  grpc::GenericStub stub(channel_);
  const auto stream = stub.PrepareCall(&context, "/ballast.v1.ParameterService/Push", &queue);
  stream->StartCall(nullptr);
  ASSERT_TRUE(await());
  Begin();
  const std::string before = State();
  stream->WriteLast(AsBuffer(Requests().at("ParameterService/Push")), grpc::WriteOptions(), nullptr);
  await();
  grpc::Status status;
  stream->Finish(&status, nullptr);
  ASSERT_TRUE(await());
  EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED) << status.error_message();
  EXPECT_EQ(Values(State()), Values(before));
  queue.Shutdown();
}

TEST_P(TokenTest, ARequestOfAnotherJobIsRefusedEverywhere) {
  for (const auto& [method, request] : NamingRequests("other")) {
    const grpc::Status every = Call(method, request, Bearer("admin", "*"));
    EXPECT_EQ(ReasonOf(FromGrpcStatus(every)), v1::ERROR_REASON_WRONG_JOB) << method;
  }
  ExpectRefused(grpc::StatusCode::FAILED_PRECONDITION, Bearer("admin", "*"), NamingRequests("other"), channel_);
  for (const char* job : {"mine", "other"}) {
    ExpectRefused(grpc::StatusCode::PERMISSION_DENIED, Bearer("admin", job), NamingRequests("other"), channel_);
  }
}

// The call is refused before its message is read or decoded.
TEST_F(CertificateTest, NothingOfAMessageIsLookedAtBeforeTheToken) {
  for (const auto& [method, request] : Requests()) {
    const grpc::Status status = Call(method, "\xff\xff\xff no message", "");
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << method << ": " << status.error_message();
  }
}

TEST_P(TokenTest, TwoTokensAreNone) {
  grpc::ClientContext context;
  for (const char* role : {"reader", "admin"}) {
    context.AddMetadata("authorization", Bearer(role, "mine"));
  }
  v1::GetStatusResponse response;
  EXPECT_EQ(v1::ParameterService::NewStub(channel_)->GetStatus(&context, {}, &response).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(CertificateTest, WithoutTlsThereIsNoConnection) { ExpectUnreachable(OpenConnection(server_->address())); }

TEST_F(CertificateTest, NoCertificateIsNotLetIn) { ExpectUnreachable(Open({"", "", folder_.path("ca.pem")})); }

TEST_F(CertificateTest, ACertificateOfAnotherAuthorityIsNotLetIn) {
  const auto other = CertificateAuthority::Create("test", SecurityFolder::Now());
  ExpectUnreachable(Open(folder_.Issue(*other, "stranger", {})));
}

TEST_F(CertificateTest, AnExpiredCertificateIsNotLetIn) {
  ExpectUnreachable(Open(folder_.Issue("late", {}, SecurityFolder::Past())));
}

TEST_F(CertificateTest, AClientTrustsNoServerOfAnotherAuthority) {
  const auto other = CertificateAuthority::Create("test", SecurityFolder::Now());
  TlsFiles files = folder_.Issue("client", {});
  files.authorities = folder_.Write("other.pem", other->certificate());
  ExpectUnreachable(Open(files));
}

}  // namespace
}  // namespace ballast
