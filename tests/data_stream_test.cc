// SPDX-License-Identifier: Apache-2.0
// Messages on data streams have the same effect as gRPC calls, and a client that misuses its stream harms only itself.
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "ballast/v1/parameter_service.grpc.pb.h"
#include "client/data_stream/stream_sender.h"
#include "common/data_stream/stream_frame.h"
#include "common/data_stream/stream_socket.h"
#include "common/status/error_reason.h"
#include "common/wire/payload_message.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "tests/fault/proxy/fault_proxy.h"
#include "tests/testing/cluster.h"
#include "tests/testing/security_folder.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

constexpr size_t kElements = (3 << 20) + 5;
constexpr absl::Duration kPatience = absl::Seconds(60);

std::unique_ptr<Server> Serve(uint64_t max_bytes_in_flight = 256 << 20) {
  Server::Options options;
  options.workers = 2;
  options.max_bytes_in_flight = max_bytes_in_flight;
  return StartServer(std::move(options));
}

ClientOptions OptionsFor(const std::string& address, uint32_t worker, bool streams = true) {
  ClientOptions options;
  options.shards = {address};
  options.job = "streams";
  options.policy.mutable_async();
  options.workers = 2;
  options.worker = worker;
  options.shared_memory = false;
  options.data_streams = streams;
  return options;
}

std::unique_ptr<Client> JoinAs(const ClientOptions& options) {
  auto client = Join(options, {Spec(1, "w", kElements), Spec(2, "small", 3)});
  EXPECT_TRUE(client.ok()) << client.status();
  return client.ok() ? *std::move(client) : nullptr;
}

v1::GetStatusResponse StatusOf(Client& client) {
  const auto status = client.GetStatus();
  EXPECT_TRUE(status.ok()) << status.status();
  return status.ok() ? (*status)[0] : v1::GetStatusResponse();
}

// Pulls until messages go over the client's stream.
void AwaitStream(Client& client) {
  std::vector<float> values(3);
  const uint64_t before = StatusOf(client).stream_calls();
  const absl::Time give_up = absl::Now() + kPatience;
  while (StatusOf(client).stream_calls() == before && absl::Now() < give_up) {
    const auto pulled = client.Pull(0, {{2, absl::MakeSpan(values)}}).Get();
    ASSERT_TRUE(pulled.ok()) << pulled.status();
  }
  ASSERT_GT(StatusOf(client).stream_calls(), before);
}

// Waits until nothing is left of other clients.
void AwaitNothingHeld(Client& watcher, uint32_t streams) {
  const absl::Time give_up = absl::Now() + kPatience;
  v1::GetStatusResponse status;
  do {
    status = StatusOf(watcher);
  } while ((status.data_streams() != streams || status.bytes_in_flight() > streams * (64 << 10)) &&
           absl::Now() < give_up);
  EXPECT_EQ(status.data_streams(), streams);
  EXPECT_LE(status.bytes_in_flight(), streams * (64 << 10));
}

std::vector<float> Gradient() {
  std::vector<float> gradient(kElements);
  for (size_t i = 0; i < kElements; ++i) gradient[i] = static_cast<float>(i % 1001) / 500 - 1;
  return gradient;
}

// Returns the weights after a few push-pulls.
std::vector<float> Train(const ClientOptions& options) {
  const std::unique_ptr<Client> client = JoinAs(options);
  if (options.data_streams) AwaitStream(*client);
  const uint64_t calls = StatusOf(*client).stream_calls();
  const std::vector<float> gradient = Gradient();
  std::vector<float> values(kElements);
  for (int step = 0; step < 3; ++step) {
    const auto pushed = client->PushPull(step, 1, {{1, gradient}}, {{1, absl::MakeSpan(values)}}).Get();
    EXPECT_TRUE(pushed.ok()) << pushed.status();
  }
  EXPECT_EQ(StatusOf(*client).stream_calls() > calls, options.data_streams);
  EXPECT_EQ(StatusOf(*client).duplicates(), 0u);
  return values;
}

TEST(DataStreamTest, TrainsToTheSameBitsInEveryEncoding) {
  for (const auto& [gradients, values] :
       {std::pair(v1::ENCODING_FP32, v1::ENCODING_FP32), std::pair(v1::ENCODING_BF16, v1::ENCODING_FP16),
        std::pair(v1::ENCODING_INT8, v1::ENCODING_INT8), std::pair(v1::ENCODING_TOP_K, v1::ENCODING_FP32)}) {
    std::vector<float> weights[2];
    for (const bool streams : {false, true}) {
      const std::unique_ptr<Server> server = Serve();
      ClientOptions options = OptionsFor(server->address(), 0, streams);
      // Random rounding depends on the incarnation.
      options.incarnation = 1;
      options.codec.set_gradients(gradients);
      options.codec.set_values(values);
      weights[streams] = Train(options);
    }
    EXPECT_TRUE(weights[0] == weights[1]) << v1::Encoding_Name(gradients);
  }
}

// Who waits may receive by itself, also if others wait for the same client, in this way or not.
TEST(DataStreamTest, AwaitGivesWhatTheFutureGives) {
  const std::unique_ptr<Server> other = Serve();
  const std::vector<float> weights = Train(OptionsFor(other->address(), 0));
  const std::unique_ptr<Server> server = Serve();
  const std::unique_ptr<Client> client = JoinAs(OptionsFor(server->address(), 0));
  AwaitStream(*client);
  std::vector<std::thread> readers;
  for (int reader = 0; reader < 3; ++reader) {
    readers.emplace_back([&, reader] {
      std::vector<float> values(kElements);
      for (int i = 0; i < 20; ++i) {
        const auto pulled = client->Pull(0, {{1, absl::MakeSpan(values)}});
        const auto result = reader == 0 ? pulled.Get() : client->Await(pulled);
        EXPECT_TRUE(result.ok()) << result.status();
      }
    });
  }
  std::vector<float> values(kElements);
  const std::vector<float> gradient = Gradient();
  for (int step = 0; step < 3; ++step) {
    const auto result = client->Await(client->PushPull(step, 1, {{1, gradient}}, {{1, absl::MakeSpan(values)}}));
    ASSERT_TRUE(result.ok()) << result.status();
  }
  for (std::thread& reader : readers) reader.join();
  EXPECT_TRUE(values == weights);
  EXPECT_EQ(client->Await(client->Pull(0, {{7, absl::MakeSpan(values)}})).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// A thread that receives by itself does not wait for a server that is lost.
TEST(DataStreamTest, AwaitEndsWhenTheServerIsLost) {
  std::unique_ptr<Server> server = Serve();
  ClientOptions options = OptionsFor(server->address(), 0);
  options.rpc_timeout = options.retry_timeout = absl::Seconds(1);
  const std::unique_ptr<Client> client = JoinAs(options);
  AwaitStream(*client);
  std::vector<float> values(kElements);
  std::thread other([&] {
    absl::SleepFor(absl::Milliseconds(50));
    server.reset();
  });
  absl::Status status;
  while (status.ok()) status = client->Await(client->Pull(0, {{1, absl::MakeSpan(values)}})).status();
  other.join();
  EXPECT_FALSE(client->Await(client->Pull(0, {{1, absl::MakeSpan(values)}})).ok());
}

TEST(DataStreamTest, IsEncryptedWhereThePortIs) {
  const SecurityFolder folder;
  const std::string token = SecurityFolder::Token("worker", "streams");
  Server::Options options;
  options.workers = 2;
  options.security = {folder.Issue("server", {"localhost", "127.0.0.1"}),
                      folder.Write("tokens", absl::StrCat("admin * ", SecurityFolder::Token("admin", "*"),
                                                          "\nworker streams ", token, "\n"))};
  const std::unique_ptr<Server> server = StartServer(std::move(options));
  ClientOptions client = OptionsFor(server->address(), 0);
  client.credentials = *Credentials::Make({folder.Issue("client", {}), ""}, token, absl::Minutes(1));
  client.incarnation = 1;
  const std::vector<float> weights = Train(client);
  const std::unique_ptr<Server> other = Serve();
  client = OptionsFor(other->address(), 0, false);
  client.incarnation = 1;
  EXPECT_TRUE(weights == Train(client));
}

// Its calls wait for worker 1 when the connection ends, and are made again over gRPC.
TEST(DataStreamTest, CallsOnAStreamThatEndsAreMadeAgainOnce) {
  const std::unique_ptr<Server> server = Serve();
  const std::unique_ptr<FaultProxy> proxy = *FaultProxy::Start(server->address(), {}, 1);
  ClientOptions options = OptionsFor(server->address(), 1);
  options.policy.mutable_sync();
  const std::unique_ptr<Client> other = JoinAs(options);
  options.worker = 0;
  options.shards = {proxy->address()};
  const std::unique_ptr<Client> client = JoinAs(options);
  AwaitStream(*client);
  AwaitStream(*other);
  const std::vector<float> gradient = Gradient();
  std::vector<float> values(kElements), other_values(kElements);
  for (int step = 0; step < 3; ++step) {
    const auto pushed = client->PushPull(step, 1, {{1, gradient}}, {{1, absl::MakeSpan(values)}});
    if (step == 1) {
      while (StatusOf(*other).waiting() < 4) std::this_thread::yield();
      proxy->CutAll();
      while (StatusOf(*other).duplicates() < 4) std::this_thread::yield();
    }
    ASSERT_TRUE(other->PushPull(step, 1, {{1, gradient}}, {{1, absl::MakeSpan(other_values)}}).Get().ok());
    ASSERT_TRUE(pushed.Get().ok()) << pushed.Get().status();
  }
  EXPECT_TRUE(values == other_values);
  // A new stream takes its place.
  AwaitStream(*client);
}

TEST(DataStreamTest, ARefusalHasTheMessageThatItHasOverGrpc) {
  std::string messages[2];
  for (const bool streams : {false, true}) {
    const std::unique_ptr<Server> server = Serve();
    const std::unique_ptr<Client> client = JoinAs(OptionsFor(server->address(), 0, streams));
    if (streams) AwaitStream(*client);
    std::vector<float> gradient(kElements);
    gradient[7] = std::numeric_limits<float>::infinity();
    const absl::Status refused = client->Push(0, 1, {{1, gradient}}).Get().status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
    // The ports differ.
    messages[streams] = absl::StrCat(v1::ErrorReason_Name(ReasonOf(refused)), " ",
                                     refused.message().substr(refused.message().find("push")));
  }
  EXPECT_EQ(messages[0], messages[1]);
}

TEST(DataStreamTest, AServerThatEndsAnswersOrEndsTheCallsThatWait) {
  std::unique_ptr<Server> server = Serve();
  ClientOptions options = OptionsFor(server->address(), 0);
  options.policy.mutable_sync();
  options.retry_timeout = absl::Seconds(1);
  const std::unique_ptr<Client> client = JoinAs(options);
  AwaitStream(*client);
  const std::vector<float> gradient(3, 1);
  std::vector<float> values(3);
  // Worker 1 never comes.
  const auto pushed = client->PushPull(0, 1, {{2, gradient}}, {{2, absl::MakeSpan(values)}});
  while (StatusOf(*client).waiting() == 0) std::this_thread::yield();
  const absl::Time begin = absl::Now();
  server->Drain(absl::Seconds(30));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(20));
  server.reset();
  EXPECT_EQ(pushed.Get().status().code(), absl::StatusCode::kUnavailable) << pushed.Get().status();
}

// A client that opens a stream by itself.
class Stranger {
 public:
  explicit Stranger(const Server& server)
      : stub_(
            v1::ParameterService::NewStub(grpc::CreateChannel(server.address(), grpc::InsecureChannelCredentials()))) {}

  // Returns the ticket, and connects nothing.
  std::string Ask(const std::string& token = "") {
    grpc::ClientContext context;
    if (!token.empty()) context.AddMetadata("authorization", absl::StrCat("Bearer ", token));
    v1::OpenDataStreamRequest request;
    request.set_job("streams");
    v1::OpenDataStreamResponse response;
    const grpc::Status status = stub_->OpenDataStream(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.ticket().size(), kStreamTicketBytes);
    EXPECT_EQ(response.key(), "");
    peer_ = context.peer();
    return response.ticket();
  }

  // Connects with a ticket of that text.
  void Connect(const std::string& ticket) {
    socket_ = *ConnectToPeer(peer_, kPatience, [] { return false; });
    Write(absl::StrCat(kStreamOpening, ticket));
  }
  void Open(const std::string& token = "") {
    Connect(Ask(token));
    EXPECT_EQ(Read(kStreamOpening.size()), kStreamOpening);
  }

  // Writes as much as the server takes within `patience`; returns whether that is all.
  bool Write(absl::string_view bytes, absl::Duration patience = kPatience) {
    const absl::Time deadline = absl::Now() + patience;
    while (!bytes.empty()) {
      const iovec piece = {const_cast<char*>(bytes.data()), bytes.size()};
      const absl::StatusOr<size_t> sent = socket_->Write({&piece, 1});
      if (!sent.ok()) return false;
      bytes.remove_prefix(*sent);
      if (*sent == 0 && !socket_->Wait(POLLOUT, deadline).ok()) return false;
    }
    return true;
  }
  bool WriteFrame(const StreamFrame& frame, absl::Duration patience = kPatience) {
    const auto header = EncodeStreamFrame(frame);
    return Write({header.data(), header.size()}, patience);
  }
  // Reads so many bytes, or less if the server ends the connection.
  std::string Read(size_t bytes) {
    std::string text(bytes, '\0');
    size_t got = 0;
    while (got < bytes) {
      const absl::StatusOr<size_t> more = socket_->Read(absl::MakeSpan(text).subspan(got));
      if (!more.ok()) break;
      got += *more;
      if (*more == 0 && !socket_->Wait(POLLIN, absl::Now() + kPatience).ok()) break;
    }
    text.resize(got);
    return text;
  }
  // Returns whether the server ends the connection.
  bool IsEnded() {
    while (true) {
      char bytes[4096];
      const absl::StatusOr<size_t> got = socket_->Read(absl::MakeSpan(bytes));
      if (!got.ok()) return true;
      if (*got == 0 && !socket_->Wait(POLLIN, absl::Now() + kPatience).ok()) return false;
    }
  }
  void Close() { socket_.reset(); }

 private:
  std::unique_ptr<v1::ParameterService::Stub> stub_;
  std::string peer_;
  std::unique_ptr<StreamSocket> socket_;
};

StreamFrame CallOf(uint32_t number, uint32_t method, uint32_t bytes) {
  StreamFrame frame;
  frame.number = number;
  frame.subject = method;
  frame.bytes = bytes;
  return frame;
}

std::string PullOf(uint32_t tensor, uint32_t slice, uint64_t step = 0) {
  v1::PullRequest pull;
  pull.set_job("streams");
  pull.set_step(step);
  auto* ref = pull.add_slices();
  ref->set_tensor_id(tensor);
  ref->set_slice_index(slice);
  return pull.SerializeAsString();
}

class HostileStreamTest : public testing::Test {
 protected:
  ~HostileStreamTest() override {
    // Whatever the stranger did.
    stranger_.Close();
    AwaitNothingHeld(*watcher_, 0);
    std::vector<float> values(3);
    EXPECT_TRUE(watcher_->Pull(0, {{2, absl::MakeSpan(values)}}).Get().ok());
  }

  std::unique_ptr<Server> server_ = Serve(64 << 20);
  std::unique_ptr<Client> watcher_ = [this] {
    ClientOptions options = OptionsFor(server_->address(), 0, false);
    // A pull of a later step waits.
    options.policy.mutable_sync();
    return JoinAs(options);
  }();
  Stranger stranger_{*server_};
};

TEST_F(HostileStreamTest, ATicketIsGoodForOneConnection) {
  const std::string ticket = stranger_.Ask();
  stranger_.Connect(ticket);
  EXPECT_EQ(stranger_.Read(kStreamOpening.size()), kStreamOpening);
  stranger_.Connect(ticket);
  EXPECT_TRUE(stranger_.IsEnded());
  stranger_.Connect(std::string(kStreamTicketBytes, 'x'));
  EXPECT_TRUE(stranger_.IsEnded());
}

TEST_F(HostileStreamTest, AnOpeningInPiecesIsOneToo) {
  const std::string ticket = stranger_.Ask();
  stranger_.Connect(ticket.substr(0, 3));
  absl::SleepFor(absl::Milliseconds(100));
  stranger_.Write(ticket.substr(3));
  EXPECT_EQ(stranger_.Read(kStreamOpening.size()), kStreamOpening);
}

TEST_F(HostileStreamTest, AnOpeningWithoutATicketIsEnded) {
  stranger_.Ask();
  stranger_.Connect("half");
  EXPECT_TRUE(stranger_.IsEnded());
}

TEST_F(HostileStreamTest, FramesThatAreNoneEndTheStream) {
  StreamFrame response = CallOf(1, 0, 0), cancel = CallOf(1, 0, 5), oversized = CallOf(1, 1, (64 << 20) + 1);
  response.kind = StreamFrame::Kind::kResponse;
  cancel.kind = StreamFrame::Kind::kCancel;
  for (const StreamFrame& frame : {response, cancel, oversized}) {
    stranger_.Open();
    EXPECT_TRUE(stranger_.WriteFrame(frame));
    EXPECT_TRUE(stranger_.IsEnded());
  }
  stranger_.Open();
  EXPECT_TRUE(stranger_.Write(std::string(100, '\xff')));
  EXPECT_TRUE(stranger_.IsEnded());
}

TEST_F(HostileStreamTest, AnUnknownMethodAndAMessageThatIsNoneAreRefused) {
  stranger_.Open();
  for (const uint32_t method : {0, 1, 2, 3, 4, 5, 6, 77}) {
    const std::string text(1000, '\xee');
    ASSERT_TRUE(stranger_.WriteFrame(CallOf(9, method, text.size())));
    ASSERT_TRUE(stranger_.Write(text));
    const absl::StatusOr<StreamFrame> answer = DecodeStreamFrame(stranger_.Read(kStreamFrameBytes));
    ASSERT_TRUE(answer.ok());
    EXPECT_EQ(answer->kind, StreamFrame::Kind::kResponse);
    EXPECT_EQ(answer->number, 9u);
    EXPECT_EQ(answer->subject, method < 6 ? grpc::INVALID_ARGUMENT : grpc::UNIMPLEMENTED);
    EXPECT_THAT(stranger_.Read(answer->bytes), HasSubstr(method < 6 ? "bytes that are not a" : "got method"));
  }
}

TEST_F(HostileStreamTest, AMessageThatIsTooLargeIsSkippedAndRefused) {
  stranger_.Open();
  const std::string pull = PullOf(2, 0);
  ASSERT_TRUE(stranger_.WriteFrame(CallOf(1, 0, 20 << 20)));
  ASSERT_TRUE(stranger_.Write(std::string(20 << 20, 'x')));
  ASSERT_TRUE(stranger_.WriteFrame(CallOf(2, 1, pull.size())));
  ASSERT_TRUE(stranger_.Write(pull));
  const absl::StatusOr<StreamFrame> refused = DecodeStreamFrame(stranger_.Read(kStreamFrameBytes));
  ASSERT_TRUE(refused.ok());
  EXPECT_EQ(refused->subject, grpc::INVALID_ARGUMENT);
  EXPECT_THAT(stranger_.Read(refused->bytes), HasSubstr("got 20971520 bytes, want at most 4194304"));
  const absl::StatusOr<StreamFrame> answer = DecodeStreamFrame(stranger_.Read(kStreamFrameBytes));
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->number, 2u);
  EXPECT_EQ(answer->subject, grpc::OK);
}

TEST_F(HostileStreamTest, PartOfAMessageHoldsOnlyItsOwnPlace) {
  stranger_.Open();
  ASSERT_TRUE(stranger_.WriteFrame(CallOf(1, 0, 3 << 20)));
  ASSERT_TRUE(stranger_.Write(std::string(1 << 20, 'x')));
  const absl::Time give_up = absl::Now() + kPatience;
  while (StatusOf(*watcher_).bytes_in_flight() < (4 << 20) && absl::Now() < give_up) std::this_thread::yield();
  EXPECT_LT(StatusOf(*watcher_).bytes_in_flight(), 5 << 20);
  std::vector<float> values(kElements);
  EXPECT_TRUE(watcher_->Pull(0, {{1, absl::MakeSpan(values)}}).Get().ok());
}

TEST_F(HostileStreamTest, ASmallMessageOnItsWayHoldsLittle) {
  stranger_.Open();
  const std::string pull = PullOf(2, 0);
  const uint64_t before = StatusOf(*watcher_).bytes_in_flight();
  ASSERT_TRUE(stranger_.WriteFrame(CallOf(1, 1, pull.size())));
  const absl::Time give_up = absl::Now() + kPatience;
  while (StatusOf(*watcher_).bytes_in_flight() <= before && absl::Now() < give_up) std::this_thread::yield();
  EXPECT_GT(StatusOf(*watcher_).bytes_in_flight(), before);
  EXPECT_LE(StatusOf(*watcher_).bytes_in_flight(), before + (64 << 10));
}

TEST(DataStreamTest, ManyStreamsLeaveRoomForCalls) {
  const std::unique_ptr<Server> server = Serve(8 << 20);
  const std::unique_ptr<Client> watcher = JoinAs(OptionsFor(server->address(), 0, false));
  // An eighth of the budget has room for 12.
  std::vector<std::unique_ptr<Stranger>> strangers;
  int opened = 0;
  for (int i = 0; i < 20; ++i) {
    Stranger& stranger = *strangers.emplace_back(std::make_unique<Stranger>(*server));
    stranger.Connect(stranger.Ask());
    opened += stranger.Read(kStreamOpening.size()) == kStreamOpening;
  }
  EXPECT_EQ(opened, 12);
  EXPECT_LE(StatusOf(*watcher).bytes_in_flight(), 1 << 20);
  std::vector<float> values(3);
  EXPECT_TRUE(watcher->Pull(0, {{2, absl::MakeSpan(values)}}).Get().ok());
}

TEST_F(HostileStreamTest, AMessageOfManyItemsIsReadWhole) {
  stranger_.Open();
  v1::PullRequest pull;
  pull.set_job("streams");
  // Far more than what is reserved at first covers.
  for (int i = 0; i < 2000; ++i) pull.add_slices()->set_tensor_id(2);
  const std::string bytes = pull.SerializeAsString();
  ASSERT_TRUE(stranger_.WriteFrame(CallOf(1, 1, bytes.size())));
  ASSERT_TRUE(stranger_.Write(bytes));
  const absl::StatusOr<StreamFrame> answer = DecodeStreamFrame(stranger_.Read(kStreamFrameBytes));
  ASSERT_TRUE(answer.ok());
  EXPECT_THAT(stranger_.Read(answer->bytes), HasSubstr("got slice 0 of tensor 2 twice"));
}

TEST_F(HostileStreamTest, AClientThatReadsNothingIsEndedAndCostsItsCreditsOnly) {
  stranger_.Open();
  const std::string pull = PullOf(1, 0);
  // Far more responses than the connection holds. The server stops reading them, or ends the stream.
  for (uint32_t number = 1; number < 2000; ++number) {
    if (!stranger_.WriteFrame(CallOf(number, 1, pull.size()), absl::Seconds(1)) || !stranger_.Write(pull)) break;
  }
  const v1::GetStatusResponse status = StatusOf(*watcher_);
  EXPECT_LE(status.bytes_in_flight(), status.bytes_in_flight_limit());
  std::vector<float> values(3);
  EXPECT_TRUE(watcher_->Pull(0, {{2, absl::MakeSpan(values)}}).Get().ok());
}

TEST_F(HostileStreamTest, CallsWithOneNumberEndTheStream) {
  stranger_.Open();
  // Values that never come.
  const std::string pull = PullOf(2, 0, 1000);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(stranger_.WriteFrame(CallOf(5, 1, pull.size())));
    ASSERT_TRUE(stranger_.Write(pull));
  }
  EXPECT_TRUE(stranger_.IsEnded());
}

TEST_F(HostileStreamTest, ACallThatIsCancelledEndsSoon) {
  stranger_.Open();
  const std::string pull = PullOf(2, 0, 1000);
  ASSERT_TRUE(stranger_.WriteFrame(CallOf(5, 1, pull.size())));
  ASSERT_TRUE(stranger_.Write(pull));
  StreamFrame cancel = CallOf(5, 0, 0);
  cancel.kind = StreamFrame::Kind::kCancel;
  ASSERT_TRUE(stranger_.WriteFrame(cancel));
  // One of a call that does not exist changes nothing.
  cancel.number = 6;
  ASSERT_TRUE(stranger_.WriteFrame(cancel));
  const absl::StatusOr<StreamFrame> answer = DecodeStreamFrame(stranger_.Read(kStreamFrameBytes));
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->subject, grpc::CANCELLED);
}

TEST_F(HostileStreamTest, ManyStreamsComeAndGo) {
  for (int i = 0; i < 100; ++i) {
    stranger_.Open();
    if (i % 2 == 0) EXPECT_TRUE(stranger_.WriteFrame(CallOf(1, 0, 1000)));
  }
}

TEST(DataStreamTest, ACallMayDoWhatTheStreamsTokenAllows) {
  const SecurityFolder folder;
  const std::string reader = SecurityFolder::Token("reader", "streams"),
                    worker = SecurityFolder::Token("worker", "streams");
  Server::Options options;
  options.workers = 2;
  options.security.token_file =
      folder.Write("tokens", absl::StrCat("admin * ", SecurityFolder::Token("admin", "*"), "\nworker streams ", worker,
                                          "\nreader streams ", reader, "\n"));
  const std::unique_ptr<Server> server = StartServer(std::move(options));
  ClientOptions client = OptionsFor(server->address(), 0, false);
  client.credentials = *Credentials::Make({}, worker, absl::Minutes(1));
  const std::unique_ptr<Client> job = JoinAs(client);
  Stranger stranger(*server);
  stranger.Open(reader);
  const auto call = [&](uint32_t method, const std::string& request) {
    EXPECT_TRUE(stranger.WriteFrame(CallOf(1, method, request.size())));
    EXPECT_TRUE(stranger.Write(request));
    const absl::StatusOr<StreamFrame> answer = DecodeStreamFrame(stranger.Read(kStreamFrameBytes));
    EXPECT_TRUE(answer.ok());
    EXPECT_EQ(stranger.Read(answer->bytes).size(), answer->bytes);
    return answer->subject;
  };
  EXPECT_EQ(call(1, PullOf(2, 0)), grpc::OK);
  // Push, push-pull, set values, push rows.
  for (const uint32_t method : {0, 2, 3, 5}) EXPECT_EQ(call(method, "anything"), grpc::PERMISSION_DENIED) << method;
  EXPECT_EQ(call(1, PullOf(2, 0)), grpc::OK);
}

// Servers of earlier versions have no data streams.
TEST(StreamSenderTest, AServerWithoutThemIsAskedOnce) {
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  std::atomic<int> asked{0};
  StreamSender sender(
      [&] {
        ++asked;
        return grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials());
      },
      "streams", absl::Seconds(20));
  const absl::Time end = absl::Now() + absl::Seconds(3);
  while (absl::Now() < end) {
    EXPECT_EQ(sender.caller(), nullptr);
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_EQ(asked, 1);
  server->Shutdown();
}

}  // namespace
}  // namespace ballast
