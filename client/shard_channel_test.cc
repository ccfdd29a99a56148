// SPDX-License-Identifier: Apache-2.0
#include "client/shard_channel.h"

#include <algorithm>

#include "client/testing/fake_parameter_service.h"
#include "client/testing/fake_server.h"
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

  // A message of one slice, and the future of its reply.
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
  // A round trip in which a third pull would have come.
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

TEST_F(ShardChannelTest, SilentServerIsTriedAgainThenGivenUp) {
  options_.rpc_timeout = absl::Milliseconds(50);
  options_.retry_timeout = absl::Milliseconds(200);
  ShardChannel channel(2, server_.address(), options_);
  shard_.Block({1});
  const absl::Status status = Send(&channel, ShardMessage::Kind::kPush).Get()->status;
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()),
              testing::MatchesRegex(
                  "shard 2 at 127.0.0.1:[0-9]+: push: gave up after [0-9.]+m?s and [0-9]+ attempts: no answer"));
  shard_.Release();
  const std::vector<uint64_t> sequences = shard_.sequences();
  EXPECT_GE(sequences.size(), 2);
  EXPECT_EQ(std::count(sequences.begin(), sequences.end(), 1), sequences.size());
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
