// SPDX-License-Identifier: Apache-2.0
// No peer makes a server hold more than its limits: readers that try everything, calls that never end, and messages
// that would grow.
#include <unistd.h>

#include <atomic>
#include <random>

#include "absl/functional/function_ref.h"
#include "absl/synchronization/blocking_counter.h"
#include "gmock/gmock.h"
#include "tests/fault/programs/program.h"
#include "tests/testing/hostile_test.h"
#include "tests/testing/message_mutator.h"

namespace ballast {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr uint64_t kMiB = uint64_t{1} << 20;

// Measures how much this process's peak memory grows after construction.
class PeakWatch {
 public:
  PeakWatch() {
    std::ofstream("/proc/self/clear_refs") << "5" << std::flush;
    before_ = ProcessUse::Of(getpid()).peak_resident_bytes;
    EXPECT_GT(before_, 0) << "/proc/self/status has no VmHWM";
  }

  void ExpectLess([[maybe_unused]] uint64_t bytes, [[maybe_unused]] absl::string_view what) const {
#ifndef ABSL_HAVE_ADDRESS_SANITIZER
    // A sanitizer keeps freed memory.
    EXPECT_LT(ProcessUse::Of(getpid()).peak_resident_bytes, before_ + bytes) << what;
#endif
  }

 private:
  uint64_t before_ = 0;
};

// Owns calls that have begun; Cancel ends them all.
class OpenCalls {
 public:
  ~OpenCalls() { queue_.Shutdown(); }

  // Returns false if the call has already failed.
  bool Start(grpc::GenericStub& stub, const std::string& method, const std::string& authorization) {
    grpc::ClientContext& context = *contexts_.emplace_back(std::make_unique<grpc::ClientContext>());
    if (!authorization.empty()) context.AddMetadata("authorization", authorization);
    calls_.push_back(stub.PrepareCall(&context, "/ballast.v1.ParameterService/" + method, &queue_));
    calls_.back()->StartCall(nullptr);
    return Next();
  }
  // Sends the only message of the call that was started last.
  void Send(const std::string& bytes) {
    calls_.back()->WriteLast(AsBuffer(bytes), grpc::WriteOptions(), nullptr);
    EXPECT_TRUE(Next());
  }
  void Cancel() {
    for (const auto& context : contexts_) context->TryCancel();
    // A prepared call must be finished before it is destroyed.
    std::vector<grpc::Status> ends(calls_.size());
    for (size_t i = 0; i < calls_.size(); ++i) calls_[i]->Finish(&ends[i], nullptr);
    for (size_t i = 0; i < calls_.size(); ++i) Next();
  }

 private:
  bool Next() {
    void* tag = nullptr;
    bool ok = false;
    EXPECT_TRUE(queue_.Next(&tag, &ok));
    return ok;
  }

  grpc::CompletionQueue queue_;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts_;
  std::vector<std::unique_ptr<grpc::GenericClientAsyncReaderWriter>> calls_;
};

class HostileInputTest : public HostileTest {
 protected:
  // Asks until `holds`, for at most a minute; returns the last answer.
  v1::GetStatusResponse AwaitStatus(absl::FunctionRef<bool(const v1::GetStatusResponse&)> holds) const {
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    v1::GetStatusResponse status = GetStatus();
    while (!holds(status) && absl::Now() < deadline) status = GetStatus();
    return status;
  }

  // Four mebibytes of a field.
  static std::string Repeated(absl::string_view field) {
    std::string bytes;
    while (bytes.size() < 4 * kMiB) absl::StrAppend(&bytes, field);
    return bytes;
  }
};

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
    HostileTest::SetUp();
    token_ = SecurityFolder::Token("reader", "hostile");
  }

  // All state that a reader could have changed.
  std::string State() const {
    const v1::GetStatusResponse status = GetStatus();
    const v1::GetProgressResponse progress = GetProgress();
    return absl::StrCat(status.pushes(), " pushes, ", status.updates(), " updates, ", status.tensors(), " tensors, ",
                        status.shared_regions(), " regions, draining ", status.draining(), "; ",
                        v1::JobState_Name(progress.progress().state()), ", ", progress.members_size(), " members");
  }

  SecurityFolder folder_;
};

TEST_F(ReaderHostileInputTest, TriesEveryMethodAndFieldAndChangesNothing) {
  const std::string before = State();
  std::mt19937_64 random(7);
  int calls = 0, denied = 0;
  for (const auto& [method, type] : AllMethods()) {
    const std::unique_ptr<google::protobuf::Message> valid = NewRequest(*type);
    if (method == "ParameterService/Pull") valid->CopyFrom(pull_);
    if (method == "ParameterService/Push") valid->CopyFrom(push_);
    if (method == "ParameterService/DeclareTensors") valid->CopyFrom(declare_);
    for (int i = 0; i < 300; ++i, ++calls) {
      const grpc::Status status = Call(method, HostileBytes(*valid, random), absl::Milliseconds(50));
      denied += status.error_code() == grpc::StatusCode::PERMISSION_DENIED ? 1 : 0;
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
  EXPECT_EQ(Call("ParameterService/Pull", pull).error_message(), "");
  pull.set_worker(3);
  const grpc::Status status = Call("ParameterService/Pull", pull);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr("a pull that names a worker"));
}

TEST_F(ReaderHostileInputTest, CallsThatNeverSendTheirMessageLeaveRoomForWorkers) {
  // The server reserves memory for a whole message per call; together the calls ask for far more than the limit.
  OpenCalls open;
  for (int i = 0; i < 6; ++i) {
    grpc::GenericStub stub(OpenConnection(server_->address()));
    for (int call = 0; call < 60; ++call) open.Start(stub, "Pull", authorization());
  }
  // All have arrived once the readers' share, a quarter of the memory that is not for waiting calls, is full.
  const uint64_t limit = GetStatus().bytes_in_flight_limit();
  EXPECT_GE(AwaitStatus([&](const auto& status) { return status.bytes_in_flight() >= limit / 8; }).bytes_in_flight(),
            limit / 8);
  token_ = SecurityFolder::Token("worker", "hostile");
  EXPECT_EQ(PushHonestly().error_message(), "");
  // In sync mode an update needs every worker's gradient.
  EXPECT_THAT(Values(kHonest), Each(5));
  EXPECT_LE(GetStatus().bytes_in_flight(), limit / 4);
  open.Cancel();
}

TEST_F(ReaderHostileInputTest, PullsThatWaitTakeNoMoreThanTheirMemoryAndGiveItBack) {
  // Many more pulls than there is memory for, on the maximum number of streams.
  std::vector<std::unique_ptr<v1::ParameterService::Stub>> stubs;
  for (int i = 0; i < 32; ++i) stubs.push_back(v1::ParameterService::NewStub(OpenConnection(server_->address())));
  struct Waiting {
    grpc::ClientContext context;
    v1::PullRequest request;
    v1::PullResponse response;
  };
  std::vector<std::unique_ptr<Waiting>> calls;
  std::atomic<uint64_t> refused = 0;
  absl::BlockingCounter running(2000);
  for (int i = 0; i < 2000; ++i) {
    Waiting& call = *calls.emplace_back(std::make_unique<Waiting>());
    call.context.AddMetadata("authorization", authorization());
    call.request = pull_;
    call.request.set_step(1000);
    call.request.set_wait_ms(600000);
    stubs[i % stubs.size()]->async()->Pull(&call.context, &call.request, &call.response, [&](grpc::Status status) {
      refused += status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED ? 1 : 0;
      running.DecrementCount();
    });
  }
  // Waiting pulls fill the readers' share of the memory, a quarter of a quarter; all others are refused.
  const v1::GetStatusResponse settled =
      AwaitStatus([&](const auto& status) { return status.waiting() + refused == calls.size(); });
  EXPECT_EQ(settled.waiting() + refused, calls.size());
  EXPECT_GT(settled.waiting(), 0);
  EXPECT_LT(settled.waiting(), calls.size());
  EXPECT_LE(GetStatus().bytes_in_flight(), settled.bytes_in_flight_limit() / 16);
  for (auto& call : calls) call->context.TryCancel();
  running.Wait();
  EXPECT_EQ(AwaitStatus([](const auto& status) { return status.waiting() == 0; }).waiting(), 0);
}

TEST_F(HostileInputTest, RefusesACompressedMessageWithoutInflatingIt) {
  // The client holds this mebibyte once and sends its compressed form, a thousandth of the size, 64 times.
  const std::string zeros(kMiB, '\0');
  const std::vector<grpc::Slice> slices(64, grpc::Slice(zeros.data(), zeros.size(), grpc::Slice::STATIC_SLICE));
  for (const std::string& address : {server_->address(), server_->control_address()}) {
    grpc::GenericStub stub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
    for (const char* method : {"Push", "DeclareTensors", "GetStatus", "NoSuch"}) {
      for (const grpc_compression_algorithm algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
        grpc::ClientContext context;
        context.set_compression_algorithm(algorithm);
        context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(60)));
        const grpc::ByteBuffer request(slices.data(), slices.size());
        const PeakWatch watch;
        const grpc::Status status = RawCall(stub, context, absl::StrCat("ParameterService/", method), request);
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
    const std::string bytes = Repeated(empty);
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
  const auto await_bytes = [&](uint64_t bytes) {
    return AwaitStatus([&](const auto& status) { return status.bytes_in_flight() == bytes; }).bytes_in_flight();
  };
  for (const bool push : {false, true}) {
    OpenCalls open;
    for (int i = 0; i < kCalls; ++i) {
      v1::PushRequest request = push_;
      request.mutable_header()->set_sequence(i + 1);
      ASSERT_TRUE(open.Start(stub, push ? "Push" : "Pull", ""));
      open.Send(push ? request.SerializeAsString() : pull_.SerializeAsString());
    }
    EXPECT_EQ(await_bytes(kCalls * ByteBudget::kCallBytes), kCalls * ByteBudget::kCallBytes) << push;
    open.Cancel();
    EXPECT_EQ(await_bytes(0), 0u) << push;
  }
}

TEST_F(HostileInputTest, TheControlPortParsesNoMessageOfAMethodThatItDoesNotHave) {
  const auto channel = grpc::CreateChannel(server_->control_address(), grpc::InsecureChannelCredentials());
  const std::string bytes = Repeated(absl::string_view("\x12\x00", 2));
  for (const auto& [method, type] : AllMethods()) {
    if (!absl::StartsWith(method, "ParameterService/") || method == "ParameterService/GetStatus") continue;
    const PeakWatch watch;
    const grpc::Status status = RawCall(channel, method, bytes, "");
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
  EXPECT_EQ(Call("ParameterService/DeclareTensors", declare).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
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
  const grpc::Status status = Call("CoordinatorService/PlaceTensors", place);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
  place.clear_tensors();
  *place.add_tensors() = declare_.tensors(0).spec();
  EXPECT_EQ(Call("CoordinatorService/PlaceTensors", place).error_message(), "");
}

// --- limits of connections, of calls per connection, and of a job's tensors ---

class BudgetTest : public ::testing::Test {
 protected:
  void Start(Server::Options options) {
    options.workers = 2;
    server_ = StartServer(std::move(options));
    ASSERT_NE(server_, nullptr);
  }

  // Opens a new connection.
  std::unique_ptr<v1::ParameterService::Stub> Open() const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 100);
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
    return v1::ParameterService::NewStub(
        grpc::CreateCustomChannel(server_->address(), grpc::InsecureChannelCredentials(), arguments));
  }
  static grpc::StatusCode Ask(v1::ParameterService::Stub& stub, absl::Duration timeout = absl::Seconds(30),
                              bool wait_for_connection = false) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    context.set_wait_for_ready(wait_for_connection);
    v1::GetStatusResponse response;
    return stub.GetStatus(&context, {}, &response).error_code();
  }
  static grpc::Status Declare(v1::ParameterService::Stub& stub, int tensors) {
    v1::DeclareTensorsRequest request;
    request.set_job("cluster");
    request.set_workers(2);
    request.mutable_policy()->mutable_sync();
    for (int i = 0; i < tensors; ++i) *request.add_tensors()->mutable_spec() = Spec(i, absl::StrCat("w", i), 1);
    grpc::ClientContext context;
    v1::DeclareTensorsResponse response;
    return stub.DeclareTensors(&context, request, &response);
  }

  std::unique_ptr<Server> server_;
};

TEST_F(BudgetTest, OneConnectionTooManyIsRefusedAndTheOthersGoOn) {
  Server::Options options;
  options.max_connections = 2;
  Start(options);
  const auto first = Open(), third = Open();
  auto second = Open();
  ASSERT_EQ(Ask(*first), grpc::StatusCode::OK);
  ASSERT_EQ(Ask(*second), grpc::StatusCode::OK);
  EXPECT_EQ(Ask(*third), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Ask(*first), grpc::StatusCode::OK);
  EXPECT_EQ(Ask(*second), grpc::StatusCode::OK);
  second.reset();
  EXPECT_EQ(Ask(*third, absl::Seconds(30), /*wait_for_connection=*/true), grpc::StatusCode::OK);
}

TEST_F(BudgetTest, ACallMoreThanAConnectionMayHaveWaitsAndHoldsUpNoOther) {
  Server::Options options;
  options.max_streams = 1;
  Start(options);
  const auto busy = Open(), other = Open();
  ASSERT_TRUE(Declare(*busy, 1).ok());
  v1::PullRequest request;
  request.set_job("cluster");
  request.set_step(1);
  request.set_wait_ms(60'000);
  request.add_slices();
  grpc::ClientContext context;
  v1::PullResponse response;
  absl::Notification ended;
  busy->async()->Pull(&context, &request, &response, [&](const grpc::Status&) { ended.Notify(); });
  EXPECT_EQ(Ask(*busy, absl::Milliseconds(500)), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(Ask(*other), grpc::StatusCode::OK);
  context.TryCancel();
  EXPECT_TRUE(ended.WaitForNotificationWithTimeout(absl::Seconds(30)));
  EXPECT_EQ(Ask(*busy), grpc::StatusCode::OK);
}

// A thousand floats in a thousand tensors.
TEST_F(BudgetTest, ManySmallTensorsCountWithWhatIsKeptAboutThem) {
  Server::Options options;
  options.max_state_bytes = 1 << 20;
  Start(options);
  const auto stub = Open();
  const grpc::Status status = Declare(*stub, 1000);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("this shard would hold 1050624 bytes, at most 1048576 are allowed"));
  EXPECT_EQ(server_->shard().status().tensors, 0u);
  EXPECT_TRUE(Declare(*stub, 100).ok());
  EXPECT_EQ(server_->shard().status().state_bytes, 400u);
}

}  // namespace
}  // namespace ballast
