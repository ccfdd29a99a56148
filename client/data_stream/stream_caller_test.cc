// SPDX-License-Identifier: Apache-2.0
#include "client/data_stream/stream_caller.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "ballast/v1/parameter_service.pb.h"
#include "client/data_stream/stream_sender.h"
#include "common/wire/direct_call.h"
#include "common/wire/payload_message.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

// Status and response with which a call has ended.
class Outcome {
 public:
  void Set(const grpc::Status& status, const grpc::ByteBuffer& response) {
    status_ = status;
    text_ = absl::StrJoin(BytesOf(response).pieces, "");
    // Fails the second time.
    ended_.Notify();
  }

  bool ended() const { return ended_.HasBeenNotified(); }
  const grpc::Status& status() const {
    ended_.WaitForNotification();
    return status_;
  }
  const std::string& text() const {
    ended_.WaitForNotification();
    return text_;
  }

 private:
  absl::Notification ended_;
  grpc::Status status_;
  std::string text_;
};

// The server's end, which a test plays.
class StreamCallerTest : public testing::Test, public MessageReceiver {
 protected:
  StreamCallerTest() {
    int files[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, files), 0);
    raw_ = dup(files[1]);
    caller_ = std::make_shared<StreamCaller>(std::make_unique<StreamSocket>(files[0]), absl::Seconds(60), 3);
    server_ = std::make_unique<MessageStream>(std::make_unique<StreamSocket>(files[1]), absl::Seconds(60));
    receiver_ = std::thread([this] { caller_->Run(); });
    serving_ = std::thread([this] { server_->Run(*this).IgnoreError(); });
  }
  ~StreamCallerTest() override {
    caller_->End(absl::CancelledError("test over"));
    server_->End(absl::CancelledError("test over"));
    receiver_.join();
    serving_.join();
    close(raw_);
  }

  absl::StatusOr<char*> Room(const StreamFrame& frame) override {
    text_.assign(frame.bytes, '?');
    return text_.data();
  }
  absl::Status Received(const StreamFrame& frame) override {
    absl::MutexLock lock(&mutex_);
    received_.emplace_back(frame, text_);
    return absl::OkStatus();
  }
  absl::StatusOr<absl::Time> Tick(absl::Time now) override { return now + absl::Minutes(1); }

  std::pair<StreamFrame, std::string> AwaitFrame(size_t index) {
    absl::MutexLock lock(&mutex_);
    const auto there = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return received_.size() > index; };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&there), absl::Seconds(60)));
    return received_[index];
  }

  static grpc::ByteBuffer MessageOf(const std::string& text) {
    const grpc::Slice slice(text);
    return grpc::ByteBuffer(&slice, 1);
  }

  void Respond(uint32_t number, const std::string& text, uint32_t code = 0) {
    StreamFrame frame;
    frame.kind = StreamFrame::Kind::kResponse;
    frame.number = number;
    frame.subject = code;
    server_->Send(frame, MessageOf(text));
  }

  // Sends bytes of the server's that need not be a whole message.
  void SendRaw(absl::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = send(raw_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent > 0) bytes.remove_prefix(sent);
      if (sent < 0) absl::SleepFor(absl::Milliseconds(1));
    }
  }

  using Call = std::shared_ptr<Outcome>;
  Call Begin(const std::string& request, absl::Duration timeout = absl::Minutes(10), PayloadPlaces places = {}) {
    const auto call = std::make_shared<Outcome>();
    number_ = caller_->Begin(
        2, MessageOf(request), {1, 2, 3, true}, absl::Now() + timeout,
        [call](const grpc::Status& status, const grpc::ByteBuffer& response, absl::Time) {
          call->Set(status, response);
        },
        std::move(places));
    return call;
  }

  std::shared_ptr<StreamCaller> caller_;
  std::unique_ptr<MessageStream> server_;
  // The server's end, too.
  int raw_ = -1;
  // Number of the last call.
  uint32_t number_ = 0;
  std::string text_;
  absl::Mutex mutex_;
  std::vector<std::pair<StreamFrame, std::string>> received_ ABSL_GUARDED_BY(mutex_);
  std::thread receiver_, serving_;
};

TEST_F(StreamCallerTest, CallsEndWithTheirResponsesInAnyOrder) {
  const Call first = Begin("one"), second = Begin("two");
  const auto [frame, text] = AwaitFrame(1);
  EXPECT_EQ(frame.kind, StreamFrame::Kind::kCall);
  EXPECT_EQ(frame.subject, 2u);
  EXPECT_EQ(frame.caller, (TraceContext{1, 2, 3, true}));
  EXPECT_EQ(text, "two");
  const std::string large(1 << 20, 'x');
  Respond(frame.number, large);
  EXPECT_TRUE(second->status().ok());
  EXPECT_TRUE(second->text() == large);
  EXPECT_FALSE(first->ended());
  Respond(AwaitFrame(0).first.number, "");
  EXPECT_TRUE(first->status().ok());
  EXPECT_EQ(first->text(), "");
}

TEST_F(StreamCallerTest, AnErrorHasItsCodeMessageAndDetails) {
  const Call call = Begin("one");
  Respond(number_, EncodeDirectError(grpc::Status(grpc::ABORTED, "too late", "details")), grpc::ABORTED);
  EXPECT_EQ(call->status().error_code(), grpc::ABORTED);
  EXPECT_EQ(call->status().error_message(), "too late");
  EXPECT_EQ(call->status().error_details(), "details");
  const Call damaged = Begin("two");
  Respond(number_, "no", 99);
  EXPECT_EQ(damaged->status().error_code(), grpc::INTERNAL);
}

TEST_F(StreamCallerTest, ACallWithoutCreditIsNotBegun) {
  const Call first = Begin("1"), second = Begin("2"), third = Begin("3");
  const uint32_t last = number_;
  const Call fourth = Begin("4");
  EXPECT_EQ(number_, 0u);
  EXPECT_FALSE(fourth->ended());
  Respond(last, "");
  EXPECT_TRUE(third->status().ok());
  Begin("5");
  EXPECT_NE(number_, 0u);
}

TEST_F(StreamCallerTest, ACallEndsAtItsDeadlineAndItsResponseIsDropped) {
  const absl::Time begin = absl::Now();
  const Call call = Begin("one", absl::Milliseconds(20));
  EXPECT_EQ(call->status().error_code(), grpc::DEADLINE_EXCEEDED);
  // The stream was waiting for something else when the call began.
  EXPECT_LT(absl::Now() - begin, absl::Seconds(30));
  const StreamFrame begun = AwaitFrame(0).first, cancel = AwaitFrame(1).first;
  EXPECT_EQ(cancel.kind, StreamFrame::Kind::kCancel);
  EXPECT_EQ(cancel.number, begun.number);
  Respond(begun.number, "late");
  const Call next = Begin("two");
  Respond(number_, "in time");
  EXPECT_EQ(next->text(), "in time");
}

// A response with a small payload between two large ones.
std::string PullResponse() {
  v1::PullResponse response;
  for (const size_t bytes : {300'000u, 100u, 200'000u}) {
    v1::SliceValue* const value = response.add_values();
    value->set_tensor_id(bytes);
    std::string& payload = *value->mutable_payload();
    for (size_t i = 0; i < bytes; ++i) payload.push_back(static_cast<char>(i * 7 + i / 1000));
  }
  return response.SerializeAsString();
}

TEST_F(StreamCallerTest, LargePayloadsGoToTheirPlaces) {
  const std::string response = PullResponse();
  v1::PullResponse parsed;
  ASSERT_TRUE(parsed.ParseFromString(response));
  // Both, one, none.
  for (const size_t least : {0u, 250'000u, 1'000'000u}) {
    std::vector<std::string> memory(3);
    const auto find = [&](size_t index, absl::string_view item, uint64_t bytes) -> char* {
      v1::SliceValue value;
      EXPECT_TRUE(value.ParseFromString(std::string(item)));
      EXPECT_EQ(value.tensor_id(), bytes);
      if (bytes < least) return nullptr;
      memory[index].assign(bytes, '?');
      return memory[index].data();
    };
    const Call call = Begin("pull", absl::Minutes(10), {v1::PullResponse::kValuesFieldNumber, find});
    Respond(number_, response);
    ASSERT_TRUE(call->status().ok());
    EXPECT_TRUE(call->text() == response);
    // The small payload is not worth a place.
    EXPECT_EQ(memory[1], "");
    EXPECT_TRUE(memory[0] == (least <= 300'000 ? parsed.values(0).payload() : ""));
    EXPECT_TRUE(memory[2] == (least <= 200'000 ? parsed.values(2).payload() : ""));
  }
}

TEST_F(StreamCallerTest, NothingIsWrittenToThePlacesOfACallThatHasEnded) {
  const std::string response = PullResponse();
  std::string memory(300'000, '?');
  absl::Notification found;
  const auto find = [&](size_t index, absl::string_view, uint64_t) -> char* {
    if (index > 0) return nullptr;
    found.Notify();
    return memory.data();
  };
  const Call call = Begin("pull", absl::Minutes(10), {v1::PullResponse::kValuesFieldNumber, find});
  StreamFrame frame;
  frame.kind = StreamFrame::Kind::kResponse;
  frame.number = number_;
  frame.bytes = static_cast<uint32_t>(response.size());
  const auto header = EncodeStreamFrame(frame);
  constexpr size_t kBefore = 100'000;
  SendRaw({header.data(), header.size()});
  SendRaw(absl::string_view(response).substr(0, kBefore));
  ASSERT_TRUE(found.WaitForNotificationWithTimeout(absl::Seconds(60)));
  caller_->Cancel(number_);
  EXPECT_EQ(call->status().error_code(), grpc::CANCELLED);
  const std::string then = memory;
  SendRaw(absl::string_view(response).substr(kBefore));
  const Call next = Begin("two");
  Respond(number_, "in time");
  EXPECT_EQ(next->text(), "in time");
  EXPECT_TRUE(memory == then);
}

TEST_F(StreamCallerTest, ACancelledCallEndsAtOnce) {
  const Call call = Begin("one");
  caller_->Cancel(number_);
  EXPECT_EQ(call->status().error_code(), grpc::CANCELLED);
  EXPECT_EQ(AwaitFrame(1).first.kind, StreamFrame::Kind::kCancel);
}

TEST_F(StreamCallerTest, AllCallsEndWithTheConnection) {
  const Call call = Begin("one");
  AwaitFrame(0);
  server_->End(absl::CancelledError("gone"));
  EXPECT_EQ(call->status().error_code(), grpc::UNAVAILABLE);
  EXPECT_THAT(call->status().error_message(), HasSubstr("the data stream has ended"));
  Begin("two");
  EXPECT_EQ(number_, 0u);
}

TEST_F(StreamCallerTest, AServerThatSendsRequestsIsLeft) {
  const Call call = Begin("one");
  server_->Send(StreamFrame(), MessageOf("a call"));
  EXPECT_EQ(call->status().error_code(), grpc::UNAVAILABLE);
  EXPECT_THAT(call->status().error_message(), HasSubstr("something other than a response"));
}

TEST(ConnectToPeerTest, RefusesWhatIsNotReachedOverTcp) {
  for (const char* peer :
       {"unix:/tmp/socket", "inproc", "ipv4:127.0.0.1", "ipv4:127.0.0.1:70000", "ipv4:host:80", ""}) {
    const auto connected = ConnectToPeer(peer, absl::Seconds(1), [] { return false; });
    EXPECT_EQ(connected.status().code(), absl::StatusCode::kInvalidArgument) << peer;
  }
  // Nothing listens at port 1.
  for (const char* peer : {"ipv4:127.0.0.1:1", "ipv6:%5B::1%5D:1"}) {
    const auto connected = ConnectToPeer(peer, absl::Seconds(1), [] { return false; });
    EXPECT_EQ(connected.status().code(), absl::StatusCode::kUnavailable) << peer;
  }
}

}  // namespace
}  // namespace ballast
