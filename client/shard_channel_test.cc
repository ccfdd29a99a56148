// SPDX-License-Identifier: Apache-2.0
#include "client/shard_channel.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "client/testing/fake_parameter_service.h"
#include "client/testing/fake_server.h"
#include "client/testing/send_slice.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using Kind = ShardMessage::Kind;

// A shard with one slice of one element, and its server.
struct Shard : FakeParameterService {
  Shard() {
    v1::DeclareTensorsRequest declare;
    declare.add_tensors()->add_slices()->set_elements(1);
    v1::DeclareTensorsResponse response;
    DeclareTensors(nullptr, &declare, &response);
  }
  ~Shard() override { Release(); }
  const std::string& address() const { return server.address(); }

  FakeServer server{this};
};

// A server that closes the first connection and never says anything on later ones.
class SilentServer {
 public:
  SilentServer() {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const name = reinterpret_cast<sockaddr*>(&address);
    if (bind(listener_, name, size) == 0 && listen(listener_, 8) == 0) getsockname(listener_, name, &size);
    port_ = ntohs(address.sin_port);
  }
  ~SilentServer() {
    for (int connection : open_) close(connection);
    close(listener_);
  }
  SilentServer(const SilentServer&) = delete;

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  // Returns true once that many connections are open at the same time, false after `timeout`.
  bool AwaitOpen(size_t count, absl::Duration timeout) {
    const absl::Time deadline = absl::Now() + timeout;
    while (absl::Now() < deadline) {
      pollfd waiting = {listener_, POLLIN, 0};
      if (poll(&waiting, 1, 50) == 1) {
        const int connection = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
        if (std::exchange(first_, false)) {
          close(connection);
        } else {
          open_.push_back(connection);
        }
      }
      // The client closes one whose attempt took too long.
      const auto ended = std::stable_partition(open_.begin(), open_.end(), [](int connection) {
        pollfd end = {connection, POLLRDHUP, 0};
        return poll(&end, 1, 0) == 0;
      });
      std::for_each(ended, open_.end(), close);
      open_.erase(ended, open_.end());
      if (open_.size() >= count) return true;
    }
    return false;
  }

 private:
  const int listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int port_ = 0;
  bool first_ = true;
  std::vector<int> open_;
};

class ShardChannelTest : public testing::Test {
 protected:
  ShardChannelTest() {
    options_.job = "test";
    options_.messages_in_flight = 2;
    options_.rpc_timeout = options_.retry_timeout = options_.wait_timeout = absl::Seconds(60);
  }

  // Connects at the first call.
  ShardChannel& channel() {
    if (!channel_.has_value()) channel_.emplace(rank_, address_, options_);
    return *channel_;
  }

  // Sends a message with one slice; returns the future of its reply.
  Future<ShardReply> Send(Kind kind, absl::Span<const float> gradient) {
    return SendSlice(channel(), kind, gradient, &value_);
  }
  Future<ShardReply> Send(Kind kind) { return Send(kind, {&gradient_, 1}); }
  std::vector<Future<ShardReply>> Send(int count, Kind kind) {
    std::vector<Future<ShardReply>> replies;
    while (count-- > 0) replies.push_back(Send(kind));
    return replies;
  }
  static void ExpectSuccess(const std::vector<Future<ShardReply>>& replies) {
    for (const auto& reply : replies) EXPECT_TRUE(reply.Get()->status.ok()) << reply.Get()->status;
  }

  float gradient_ = 1, value_ = 0;
  // The shard, and another server to which it moves.
  Shard shard_, next_;
  ShardChannelOptions options_;
  uint32_t rank_ = 0;
  std::string address_ = shard_.address();
  std::optional<ShardChannel> channel_;
};
using ShardChannelMoveTest = ShardChannelTest;

TEST_F(ShardChannelTest, NumbersPushesFromOne) {
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Send(Kind::kPush).Get()->status.ok());
  EXPECT_EQ(shard_.sequences(), std::vector<uint64_t>({1, 2, 3}));
}

TEST_F(ShardChannelTest, SendsNoMoreAtOnceThanAllowed) {
  shard_.Block();
  const auto replies = Send(5, Kind::kPull);
  ASSERT_TRUE(shard_.AwaitBlocked(2));
  // During this round trip, a third pull would have arrived.
  ASSERT_TRUE(channel().GetStatus(absl::Seconds(60)).Get().ok());
  shard_.Release();
  ExpectSuccess(replies);
  EXPECT_EQ(shard_.most_blocked(), 2);
}

// Has a gradient whose Fetch runs a function.
class FetchHook : public ElementCopier {
 public:
  explicit FetchHook(std::function<void()> hook) : hook_(std::move(hook)) {}
  absl::Status Fetch(size_t, absl::Span<float>) override {
    hook_();
    return absl::OkStatus();
  }
  absl::Status Store(size_t, absl::Span<const float>) override { return absl::OkStatus(); }

 private:
  const std::function<void()> hook_;
};

TEST_F(ShardChannelTest, AThreadThatReceivesLeavesMessagesToTheOneThatSendsThem) {
  options_.messages_in_flight = 8;
  shard_.Block({1});
  const Future<ShardReply> first = Send(Kind::kPush);
  ASSERT_TRUE(shard_.AwaitBlocked(1));
  // The first response comes while this thread is about to send one message, and has another one to send.
  FetchHook release([&] {
    shard_.Release();
    EXPECT_TRUE(first.WaitFor(absl::Minutes(1)));
  });
  std::thread::id sender;
  FetchHook record([&] { sender = std::this_thread::get_id(); });
  std::vector<ShardMessage> messages(2);
  for (ShardMessage& message : messages) {
    message.kind = Kind::kPush;
    message.operation = 2;
    message.slices = {{.elements = 1, .gradient = {&gradient_, 1}}};
    message.done = [](const ShardMessage&, const ShardReply&) {};
  }
  messages[0].slices[0].gradient_copier = &release;
  messages[1].slices[0].gradient_copier = &record;
  channel().Send(std::move(messages));
  EXPECT_EQ(sender, std::this_thread::get_id());
  ASSERT_TRUE(shard_.AwaitPushes(3));
  channel().Shutdown("");
  channel().WaitUntilIdle();
}

TEST_F(ShardChannelTest, SendsLessAtOnceToAShardWithoutRoom) {
  options_.messages_in_flight = 64;
  shard_.FailNext(20, {grpc::RESOURCE_EXHAUSTED, "busy"});
  ExpectSuccess(Send(20, Kind::kPull));
  shard_.Block();
  const auto replies = Send(40, Kind::kPull);
  ASSERT_TRUE(shard_.AwaitBlocked(8));
  ASSERT_TRUE(channel().GetStatus(absl::Seconds(60)).Get().ok());
  // The successes above have let it grow a little.
  EXPECT_LE(shard_.most_blocked(), 12);
  shard_.Release();
  ExpectSuccess(replies);
}

TEST_F(ShardChannelTest, BeginsNoNewMessageWhileARefusedOneWaits) {
  shard_.FailNext(1, {grpc::RESOURCE_EXHAUSTED, "busy"});
  ExpectSuccess(Send(8, Kind::kPush));
  // At most the second was on its way when one of them was refused, and then the refused one came again.
  const std::vector<uint64_t> sequences = shard_.sequences();
  EXPECT_THAT(absl::MakeConstSpan(sequences).first(3), testing::Each(testing::Le(2)));
}

TEST_F(ShardChannelTest, PullsThatWaitDoNotHoldUpPushes) {
  shard_.Block();
  const auto pulls = Send(3, Kind::kPull);
  ASSERT_TRUE(shard_.AwaitBlocked(2));
  EXPECT_TRUE(Send(Kind::kPush).Get()->status.ok());
  shard_.Release();
  ExpectSuccess(pulls);
}

TEST_F(ShardChannelTest, KeepsSequenceNumbersWithinTheShardsWindow) {
  shard_.Block({1});
  const auto replies = Send(1030, Kind::kPush);
  ASSERT_TRUE(shard_.AwaitPushes(1024));
  ASSERT_TRUE(channel().GetStatus(absl::Seconds(60)).Get().ok());
  EXPECT_EQ(shard_.sequences().size(), 1024);
  shard_.Release();
  ExpectSuccess(replies);
  EXPECT_EQ(shard_.sequences().size(), 1030);
}

TEST_F(ShardChannelTest, ServersWaitEndsBeforeTheCallDoes) {
  options_.wait_timeout = absl::Seconds(20);
  ASSERT_TRUE(Send(Kind::kPull).Get()->status.ok());
  EXPECT_LE(shard_.last_wait_ms(), 20000);
  EXPECT_GE(shard_.last_wait_ms(), 19000);
}

TEST_F(ShardChannelTest, AServerHasTimeToMakeWhatIsDeclared) {
  v1::DeclareTensorsRequest request;
  request.add_tensors()->add_slices()->set_elements(16 << 20);
  ASSERT_TRUE(channel().Declare(request).Get().ok());
  EXPECT_GT(shard_.declaration_time(), options_.rpc_timeout + absl::Seconds(4));
  EXPECT_LT(shard_.declaration_time(), options_.rpc_timeout + absl::Seconds(9));
}

TEST_F(ShardChannelTest, ARetryReopensAllConnections) {
  SilentServer server;
  address_ = server.address();
  options_.connections = 3;
  const Future<ShardReply> reply = Send(Kind::kPush);
  // Its message uses one of them only.
  EXPECT_TRUE(server.AwaitOpen(3, absl::Seconds(20)));
  channel().Shutdown("the test ends");
  EXPECT_FALSE(reply.Get()->status.ok());
}

TEST_F(ShardChannelTest, SilentServerIsTriedAgainThenGivenUp) {
  options_.rpc_timeout = absl::Milliseconds(100);
  options_.retry_timeout = absl::Seconds(1);
  rank_ = 2;
  shard_.Block({1});
  const absl::Status status = Send(Kind::kPush).Get()->status;
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()),
              testing::MatchesRegex(
                  "shard 2 at 127.0.0.1:[0-9]+: push: gave up after [0-9.]+m?s and [0-9]+ attempts: no response"));
  shard_.Release();
  const std::vector<uint64_t> sequences = shard_.sequences();
  EXPECT_GE(sequences.size(), 2);
  EXPECT_EQ(std::count(sequences.begin(), sequences.end(), 1), sequences.size());
}

TEST_F(ShardChannelMoveTest, PushOnItsWayIsSentThereAsItWasAndAcknowledgedOnce) {
  ASSERT_TRUE(Send(Kind::kPush).Get()->status.ok());
  shard_.Block({2});
  const Future<ShardReply> reply = Send(Kind::kPush);
  ASSERT_TRUE(shard_.AwaitPushes(2));
  channel().MoveTo(next_.address());
  ASSERT_TRUE(reply.Get()->status.ok()) << reply.Get()->status;
  EXPECT_EQ(reply.Get()->retries, 1);
  EXPECT_EQ(next_.sequences(), std::vector<uint64_t>({2}));
  EXPECT_EQ(next_.payload_bytes(), 4);
  EXPECT_EQ(channel().acknowledged_pushes(), 2);
  shard_.Release();
  EXPECT_TRUE(Send(Kind::kPush).Get()->status.ok());
  EXPECT_EQ(next_.sequences(), std::vector<uint64_t>({2, 3}));
  EXPECT_EQ(shard_.sequences(), std::vector<uint64_t>({1, 2}));
}

TEST_F(ShardChannelMoveTest, PullThatWaitsWaitsThere) {
  shard_.Block();
  next_.Block();
  const Future<ShardReply> reply = Send(Kind::kPull);
  ASSERT_TRUE(shard_.AwaitBlocked(1));
  channel().MoveTo(next_.address());
  ASSERT_TRUE(next_.AwaitBlocked(1));
  EXPECT_FALSE(reply.Ready());
  next_.Release();
  EXPECT_TRUE(reply.Get()->status.ok()) << reply.Get()->status;
}

TEST_F(ShardChannelMoveTest, WhatFailsAtADeadServerGoesOnThereAtOnce) {
  // Shorter than the other timeouts.
  options_.retry_timeout = absl::Seconds(50);
  channel();
  shard_.server.Stop();
  const auto replies = Send(5, Kind::kPush);
  const Future<v1::DeclareTensorsResponse> declared = channel().Declare({});
  channel().MoveTo(next_.address());
  ExpectSuccess(replies);
  EXPECT_TRUE(declared.Get().ok()) << declared.Get().status();
  EXPECT_EQ(next_.sequences().size(), 5);
  EXPECT_EQ(next_.declarations().size(), 2);
}

TEST_F(ShardChannelMoveTest, MessagesStuckInAConnectionThatNobodyReadsMoveToo) {
  FrozenServer frozen;
  options_.silence = absl::Seconds(1);
  const std::vector<float> gradient(1000000, 1.0f);
  address_ = frozen.address();
  std::vector<Future<ShardReply>> replies;
  for (int i = 0; i < 2; ++i) replies.push_back(Send(Kind::kPush, gradient));
  ASSERT_TRUE(frozen.AwaitMessage());
  const absl::Time moved = absl::Now();
  channel().MoveTo(next_.address());
  ExpectSuccess(replies);
  // Far less than a call's timeout.
  EXPECT_LT(absl::Now() - moved, absl::Seconds(20));
  EXPECT_EQ(next_.payload_bytes(), 2 * 4 * gradient.size());
}

TEST_F(ShardChannelMoveTest, ErrorsNameTheAddressNowInUse) {
  rank_ = 3;
  shard_.Block({1});
  const Future<ShardReply> reply = Send(Kind::kPush);
  ASSERT_TRUE(shard_.AwaitPushes(1));
  next_.FailNext(1, grpc::Status(grpc::StatusCode::NOT_FOUND, "no such tensor"));
  channel().MoveTo(next_.address());
  EXPECT_EQ(reply.Get()->status,
            absl::NotFoundError(absl::StrCat("shard 3 at ", next_.address(), ": push: no such tensor")));
}

TEST_F(ShardChannelMoveTest, WhereItIsAlreadyNothingIsSentAgain) {
  shard_.Block({1});
  const Future<ShardReply> reply = Send(Kind::kPush);
  ASSERT_TRUE(shard_.AwaitPushes(1));
  channel().MoveTo(shard_.address());
  shard_.Release();
  EXPECT_TRUE(reply.Get()->status.ok());
  EXPECT_EQ(reply.Get()->retries, 0);
}

TEST_F(ShardChannelMoveTest, ShutdownEndsWhatHasMovedAndNothingMovesAfterIt) {
  shard_.Block();
  next_.Block();
  const Future<ShardReply> reply = Send(Kind::kPull);
  ASSERT_TRUE(shard_.AwaitBlocked(1));
  channel().MoveTo(next_.address());
  channel().Shutdown("job failed");
  EXPECT_EQ(reply.Get()->status,
            absl::CancelledError(absl::StrCat("shard 0 at ", next_.address(), ": pull: cancelled: job failed")));
  channel().MoveTo(shard_.address());
}

TEST_F(ShardChannelMoveTest, EveryPushIsAnsweredOnceHoweverOftenTheShardMoves) {
  options_.connections = 2;
  options_.messages_in_flight = 8;
  for (const bool watched : {false, true}) {
    options_.watch_answers = watched;
    channel_.reset();
    std::vector<Future<ShardReply>> replies;
    for (int round = 0; round < 20; ++round) {
      for (int i = 0; i < 20; ++i) replies.push_back(Send(i % 2 == 0 ? Kind::kPush : Kind::kPushPull));
      channel().MoveTo(round % 2 == 0 ? next_.address() : shard_.address());
    }
    ExpectSuccess(replies);
    EXPECT_EQ(channel().acknowledged_pushes(), 400);
  }
  std::vector<uint64_t> sequences = shard_.sequences();
  const std::vector<uint64_t> there = next_.sequences();
  sequences.insert(sequences.end(), there.begin(), there.end());
  for (uint64_t sequence = 1; sequence <= 400; ++sequence) {
    EXPECT_GE(std::count(sequences.begin(), sequences.end(), sequence), 2) << sequence;
  }
}

TEST_F(ShardChannelTest, ShutdownEndsWhatWaitsAndWhatIsQueued) {
  shard_.Block();
  const auto replies = Send(4, Kind::kPull);
  ASSERT_TRUE(shard_.AwaitBlocked(2));
  channel().Shutdown("job failed");
  for (const auto& reply : replies) EXPECT_EQ(reply.Get()->status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(Send(Kind::kPush).Get()->status.code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace ballast
