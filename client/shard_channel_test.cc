// SPDX-License-Identifier: Apache-2.0
#include "client/shard_channel.h"

#include <algorithm>

#include "client/testing/fake_parameter_service.h"
#include "client/testing/fake_server.h"
#include "client/testing/frozen_server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

class ShardChannelTest : public testing::Test {
 protected:
  ShardChannelTest() : server_(&shard_) {
    options_.job = "test";
    options_.messages_in_flight = 2;
    options_.rpc_timeout = options_.retry_timeout = options_.wait_timeout = absl::Seconds(60);
    v1::DeclareTensorsRequest declare;
    declare.add_tensors()->add_slices()->set_elements(1);
    v1::DeclareTensorsResponse response;
    shard_.DeclareTensors(nullptr, &declare, &response);
  }

  // Returns a message with one slice, and the future of its reply.
  std::pair<ShardMessage, Future<ShardReply>> Message(ShardMessage::Kind kind) {
    Promise<ShardReply> promise;
    Future<ShardReply> future = promise.GetFuture();
    ShardMessage message;
    message.kind = kind;
    message.operation = 1;
    message.slices = {{0, 0, 1, 0, absl::MakeConstSpan(&gradient_, 1), absl::MakeSpan(&value_, 1)}};
    message.done = [promise = std::move(promise)](const ShardMessage&, ShardReply reply) mutable {
      promise.Set(std::move(reply));
    };
    return {std::move(message), future};
  }

  Future<ShardReply> Send(ShardChannel* channel, ShardMessage::Kind kind) {
    auto [message, future] = Message(kind);
    std::vector<ShardMessage> messages;
    messages.push_back(std::move(message));
    channel->Send(std::move(messages));
    return future;
  }

  float gradient_ = 1, value_ = 0;
  FakeParameterService shard_;
  FakeServer server_;
  ShardChannelOptions options_;
};

TEST_F(ShardChannelTest, NumbersPushesFromOne) {
  ShardChannel channel(0, server_.address(), options_);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Send(&channel, ShardMessage::Kind::kPush).Get()->status.ok());
  EXPECT_EQ(shard_.sequences(), std::vector<uint64_t>({1, 2, 3}));
}

TEST_F(ShardChannelTest, SendsNoMoreAtOnceThanAllowed) {
  ShardChannel channel(0, server_.address(), options_);
  shard_.Block();
  std::vector<Future<ShardReply>> replies;
  for (int i = 0; i < 5; ++i) replies.push_back(Send(&channel, ShardMessage::Kind::kPull));
  ASSERT_TRUE(shard_.AwaitBlocked(2));
  // During this round trip, a third pull would have arrived.
  ASSERT_TRUE(channel.GetStatus(absl::Seconds(60)).Get().ok());
  shard_.Release();
  for (const auto& reply : replies) EXPECT_TRUE(reply.Get()->status.ok());
  EXPECT_EQ(shard_.most_blocked(), 2);
}

TEST_F(ShardChannelTest, PullsThatWaitDoNotHoldUpPushes) {
  ShardChannel channel(0, server_.address(), options_);
  shard_.Block();
  std::vector<Future<ShardReply>> pulls;
  for (int i = 0; i < 3; ++i) pulls.push_back(Send(&channel, ShardMessage::Kind::kPull));
  ASSERT_TRUE(shard_.AwaitBlocked(2));
  EXPECT_TRUE(Send(&channel, ShardMessage::Kind::kPush).Get()->status.ok());
  shard_.Release();
  for (const auto& pull : pulls) EXPECT_TRUE(pull.Get()->status.ok());
}

TEST_F(ShardChannelTest, KeepsSequenceNumbersWithinTheShardsWindow) {
  ShardChannel channel(0, server_.address(), options_);
  shard_.Block({1});
  std::vector<Future<ShardReply>> replies;
  for (int i = 0; i < 1030; ++i) replies.push_back(Send(&channel, ShardMessage::Kind::kPush));
  ASSERT_TRUE(shard_.AwaitPushes(1024));
  ASSERT_TRUE(channel.GetStatus(absl::Seconds(60)).Get().ok());
  EXPECT_EQ(shard_.sequences().size(), 1024);
  shard_.Release();
  for (const auto& reply : replies) ASSERT_TRUE(reply.Get()->status.ok());
  EXPECT_EQ(shard_.sequences().size(), 1030);
}

TEST_F(ShardChannelTest, ServersWaitEndsBeforeTheCallDoes) {
  options_.wait_timeout = absl::Seconds(20);
  ShardChannel channel(0, server_.address(), options_);
  ASSERT_TRUE(Send(&channel, ShardMessage::Kind::kPull).Get()->status.ok());
  EXPECT_LE(shard_.last_wait_ms(), 20000);
  EXPECT_GE(shard_.last_wait_ms(), 19000);
}

TEST_F(ShardChannelTest, AServerHasTimeToMakeWhatIsDeclared) {
  ShardChannel channel(0, server_.address(), options_);
  v1::DeclareTensorsRequest request;
  v1::SliceRange* slice = request.add_tensors()->add_slices();
  slice->set_elements(16 << 20);
  ASSERT_TRUE(channel.Declare(request).Get().ok());
  EXPECT_GT(shard_.declaration_time(), options_.rpc_timeout + absl::Seconds(4));
  EXPECT_LT(shard_.declaration_time(), options_.rpc_timeout + absl::Seconds(9));
}

TEST_F(ShardChannelTest, SilentServerIsTriedAgainThenGivenUp) {
  options_.rpc_timeout = absl::Milliseconds(100);
  options_.retry_timeout = absl::Seconds(1);
  ShardChannel channel(2, server_.address(), options_);
  shard_.Block({1});
  const absl::Status status = Send(&channel, ShardMessage::Kind::kPush).Get()->status;
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()),
              testing::MatchesRegex(
                  "shard 2 at 127.0.0.1:[0-9]+: push: gave up after [0-9.]+m?s and [0-9]+ attempts: no response"));
  shard_.Release();
  const std::vector<uint64_t> sequences = shard_.sequences();
  EXPECT_GE(sequences.size(), 2);
  EXPECT_EQ(std::count(sequences.begin(), sequences.end(), 1), sequences.size());
}

// A shard, and another server to which it moves.
class ShardChannelMoveTest : public ShardChannelTest {
 protected:
  ShardChannelMoveTest() : next_server_(&next_) {
    v1::DeclareTensorsRequest declare;
    declare.add_tensors()->add_slices()->set_elements(1);
    v1::DeclareTensorsResponse response;
    next_.DeclareTensors(nullptr, &declare, &response);
  }

  FakeParameterService next_;
  FakeServer next_server_;
};

TEST_F(ShardChannelMoveTest, PushOnItsWayIsSentThereAsItWasAndAcknowledgedOnce) {
  ShardChannel channel(0, server_.address(), options_);
  ASSERT_TRUE(Send(&channel, ShardMessage::Kind::kPush).Get()->status.ok());
  shard_.Block({2});
  const Future<ShardReply> reply = Send(&channel, ShardMessage::Kind::kPush);
  ASSERT_TRUE(shard_.AwaitPushes(2));
  channel.MoveTo(next_server_.address());
  ASSERT_TRUE(reply.Get()->status.ok()) << reply.Get()->status;
  EXPECT_EQ(reply.Get()->retries, 1);
  EXPECT_EQ(next_.sequences(), std::vector<uint64_t>({2}));
  EXPECT_EQ(next_.payload_bytes(), 4);
  EXPECT_EQ(channel.acknowledged_pushes(), 2);
  shard_.Release();
  EXPECT_TRUE(Send(&channel, ShardMessage::Kind::kPush).Get()->status.ok());
  EXPECT_EQ(next_.sequences(), std::vector<uint64_t>({2, 3}));
  EXPECT_EQ(shard_.sequences(), std::vector<uint64_t>({1, 2}));
}

TEST_F(ShardChannelMoveTest, PullThatWaitsWaitsThere) {
  ShardChannel channel(0, server_.address(), options_);
  shard_.Block();
  next_.Block();
  const Future<ShardReply> reply = Send(&channel, ShardMessage::Kind::kPull);
  ASSERT_TRUE(shard_.AwaitBlocked(1));
  channel.MoveTo(next_server_.address());
  ASSERT_TRUE(next_.AwaitBlocked(1));
  EXPECT_FALSE(reply.Ready());
  next_.Release();
  EXPECT_TRUE(reply.Get()->status.ok()) << reply.Get()->status;
  shard_.Release();
}

TEST_F(ShardChannelMoveTest, WhatFailsAtADeadServerGoesOnThereAtOnce) {
  // Shorter than the other timeouts.
  options_.retry_timeout = absl::Seconds(50);
  ShardChannel channel(0, server_.address(), options_);
  server_.Stop();
  std::vector<Future<ShardReply>> replies;
  for (int i = 0; i < 5; ++i) replies.push_back(Send(&channel, ShardMessage::Kind::kPush));
  const Future<v1::DeclareTensorsResponse> declared = channel.Declare({});
  channel.MoveTo(next_server_.address());
  for (const auto& reply : replies) EXPECT_TRUE(reply.Get()->status.ok()) << reply.Get()->status;
  EXPECT_TRUE(declared.Get().ok()) << declared.Get().status();
  EXPECT_EQ(next_.sequences().size(), 5);
  EXPECT_EQ(next_.declarations().size(), 2);
}

TEST_F(ShardChannelMoveTest, MessagesStuckInAConnectionThatNobodyReadsMoveToo) {
  FrozenServer frozen;
  options_.silence = absl::Seconds(1);
  const std::vector<float> gradient(1000000, 1.0f);
  ShardChannel channel(0, frozen.address(), options_);
  std::vector<Future<ShardReply>> replies;
  for (int i = 0; i < 2; ++i) {
    auto [message, reply] = Message(ShardMessage::Kind::kPush);
    message.slices[0].gradient = gradient;
    std::vector<ShardMessage> messages;
    messages.push_back(std::move(message));
    channel.Send(std::move(messages));
    replies.push_back(reply);
  }
  ASSERT_TRUE(frozen.AwaitMessage());
  const absl::Time moved = absl::Now();
  channel.MoveTo(next_server_.address());
  for (const auto& reply : replies) EXPECT_TRUE(reply.Get()->status.ok()) << reply.Get()->status;
  // Far less than a call's timeout.
  EXPECT_LT(absl::Now() - moved, absl::Seconds(20));
  EXPECT_EQ(next_.payload_bytes(), 2 * 4 * gradient.size());
}

TEST_F(ShardChannelMoveTest, ErrorsNameTheAddressNowInUse) {
  ShardChannel channel(3, server_.address(), options_);
  shard_.Block({1});
  const Future<ShardReply> reply = Send(&channel, ShardMessage::Kind::kPush);
  ASSERT_TRUE(shard_.AwaitPushes(1));
  next_.FailNext(1, grpc::Status(grpc::StatusCode::NOT_FOUND, "no such tensor"));
  channel.MoveTo(next_server_.address());
  EXPECT_EQ(reply.Get()->status,
            absl::NotFoundError(absl::StrCat("shard 3 at ", next_server_.address(), ": push: no such tensor")));
  shard_.Release();
}

TEST_F(ShardChannelMoveTest, WhereItIsAlreadyNothingIsSentAgain) {
  ShardChannel channel(0, server_.address(), options_);
  shard_.Block({1});
  const Future<ShardReply> reply = Send(&channel, ShardMessage::Kind::kPush);
  ASSERT_TRUE(shard_.AwaitPushes(1));
  channel.MoveTo(server_.address());
  shard_.Release();
  EXPECT_TRUE(reply.Get()->status.ok());
  EXPECT_EQ(reply.Get()->retries, 0);
}

TEST_F(ShardChannelMoveTest, ShutdownEndsWhatHasMovedAndNothingMovesAfterIt) {
  ShardChannel channel(0, server_.address(), options_);
  shard_.Block();
  next_.Block();
  const Future<ShardReply> reply = Send(&channel, ShardMessage::Kind::kPull);
  ASSERT_TRUE(shard_.AwaitBlocked(1));
  channel.MoveTo(next_server_.address());
  channel.Shutdown("job failed");
  EXPECT_EQ(reply.Get()->status,
            absl::CancelledError(absl::StrCat("shard 0 at ", next_server_.address(), ": pull: cancelled: job failed")));
  channel.MoveTo(server_.address());
  shard_.Release();
  next_.Release();
}

TEST_F(ShardChannelMoveTest, EveryPushIsAnsweredOnceHoweverOftenTheShardMoves) {
  options_.connections = 2;
  options_.messages_in_flight = 8;
  for (const bool watched : {false, true}) {
    options_.watch_answers = watched;
    ShardChannel channel(0, server_.address(), options_);
    std::vector<Future<ShardReply>> replies;
    for (int round = 0; round < 20; ++round) {
      for (int i = 0; i < 20; ++i) {
        replies.push_back(Send(&channel, i % 2 == 0 ? ShardMessage::Kind::kPush : ShardMessage::Kind::kPushPull));
      }
      channel.MoveTo(round % 2 == 0 ? next_server_.address() : server_.address());
    }
    for (const auto& reply : replies) ASSERT_TRUE(reply.Get()->status.ok()) << reply.Get()->status;
    EXPECT_EQ(channel.acknowledged_pushes(), 400);
  }
  std::vector<uint64_t> sequences = shard_.sequences();
  const std::vector<uint64_t> there = next_.sequences();
  sequences.insert(sequences.end(), there.begin(), there.end());
  for (uint64_t sequence = 1; sequence <= 400; ++sequence) {
    EXPECT_GE(std::count(sequences.begin(), sequences.end(), sequence), 2) << sequence;
  }
}

TEST_F(ShardChannelTest, ShutdownEndsWhatWaitsAndWhatIsQueued) {
  ShardChannel channel(0, server_.address(), options_);
  shard_.Block();
  std::vector<Future<ShardReply>> replies;
  for (int i = 0; i < 4; ++i) replies.push_back(Send(&channel, ShardMessage::Kind::kPull));
  ASSERT_TRUE(shard_.AwaitBlocked(2));
  channel.Shutdown("job failed");
  for (const auto& reply : replies) EXPECT_EQ(reply.Get()->status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(Send(&channel, ShardMessage::Kind::kPush).Get()->status.code(), absl::StatusCode::kCancelled);
  shard_.Release();
}

}  // namespace
}  // namespace ballast
