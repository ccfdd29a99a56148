// SPDX-License-Identifier: Apache-2.0
#include "common/data_stream/message_stream.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/data_stream/stream_socket_fixture.h"
#include "common/wire/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

// Keeps what arrives.
class Inbox : public MessageReceiver {
 public:
  absl::StatusOr<char*> Room(const StreamFrame& frame) override {
    if (frame.number == refuses) return absl::InvalidArgumentError("refused");
    if (frame.number == skips) return nullptr;
    text_.assign(frame.bytes, '?');
    elsewhere_ = text_;
    arrived_ = 0;
    return text_.data();
  }
  absl::Span<char> Place(size_t received) override {
    EXPECT_EQ(received, arrived_);
    if (!scatters) return {};
    const size_t next = std::min(ScatteredBytes(received), text_.size() - received);
    return absl::MakeSpan(IsElsewhere(received) ? elsewhere_ : text_).subspan(received, next);
  }
  void Arrived(size_t bytes) override { arrived_ = bytes; }
  absl::Status Received(const StreamFrame& frame) override {
    for (size_t at = 0; scatters && at < text_.size(); ++at) {
      if (IsElsewhere(at)) text_[at] = elsewhere_[at];
    }
    absl::MutexLock lock(&mutex_);
    messages_.emplace_back(frame, frame.number == skips ? "skipped" : text_);
    by_thread_[std::this_thread::get_id()]++;
    return absl::OkStatus();
  }
  absl::StatusOr<absl::Time> Tick(absl::Time now) override {
    ++ticks;
    if (const auto action = TakeAction(); action != nullptr) {
      if (absl::Status status = action(); !status.ok()) return status;
    }
    return now + absl::Minutes(1);
  }

  // Has the next Tick in the calling thread, when that finds nothing to receive, call `action`, whose error it returns.
  void OnceInThisThread(std::function<absl::Status()> action) {
    absl::MutexLock lock(&mutex_);
    action_thread_ = std::this_thread::get_id();
    action_ = std::move(action);
  }

  std::vector<std::pair<StreamFrame, std::string>> Await(size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto there = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return messages_.size() >= count; };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&there), absl::Seconds(60)));
    return messages_;
  }

  size_t received() const {
    absl::MutexLock lock(&mutex_);
    return messages_.size();
  }
  // Number of messages that the calling thread received.
  int received_here() const {
    absl::MutexLock lock(&mutex_);
    const auto found = by_thread_.find(std::this_thread::get_id());
    return found == by_thread_.end() ? 0 : found->second;
  }

  uint32_t refuses = 0, skips = 0;
  // Has the second half of every 60,000 bytes go elsewhere, and byte by byte the first ten of them.
  bool scatters = false;
  std::atomic<int> ticks{0};

 private:
  static constexpr size_t kPeriod = 60'000;
  static bool IsElsewhere(size_t at) { return at % kPeriod >= kPeriod / 2; }
  static size_t ScatteredBytes(size_t at) {
    const size_t half = at % (kPeriod / 2);
    return half < 10 ? 1 : kPeriod / 2 - half;
  }

  // Returns null unless there is an action for the calling thread.
  std::function<absl::Status()> TakeAction() {
    absl::MutexLock lock(&mutex_);
    return std::this_thread::get_id() == action_thread_ ? std::exchange(action_, nullptr) : nullptr;
  }

  std::string text_, elsewhere_;
  size_t arrived_ = 0;
  mutable absl::Mutex mutex_;
  std::function<absl::Status()> action_ ABSL_GUARDED_BY(mutex_);
  std::thread::id action_thread_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<StreamFrame, std::string>> messages_ ABSL_GUARDED_BY(mutex_);
  std::map<std::thread::id, int> by_thread_ ABSL_GUARDED_BY(mutex_);
};

// Owns a stream and the thread in it.
class Peer {
 public:
  explicit Peer(std::unique_ptr<StreamSocket> socket, absl::Duration silence = absl::Seconds(60))
      : stream_(std::move(socket), silence) {}
  ~Peer() {
    stream_.End(absl::CancelledError("test over"));
    Join().IgnoreError();
  }
  void Start() {
    thread_ = std::thread([this] { end_ = stream_.Run(inbox_); });
  }
  // Waits for the end of the stream and returns why.
  absl::Status Join() {
    if (thread_.joinable()) thread_.join();
    return end_;
  }

  // Waits until the other thread has found nothing to receive and waits at the connection.
  void AwaitRun() {
    // The time for which it stays away after another thread has helped, and more.
    absl::SleepFor(absl::Milliseconds(10));
    while (inbox_.ticks == 0) absl::SleepFor(absl::Milliseconds(1));
  }

  // Receives in the calling thread until so many messages have come.
  std::optional<absl::Duration> HelpUntil(size_t count, absl::Duration timeout = absl::Seconds(60)) {
    return stream_.Help(
        inbox_, [&] { return inbox_.received() >= count; }, timeout);
  }

  Inbox& inbox() { return inbox_; }
  MessageStream& stream() { return stream_; }

 private:
  Inbox inbox_;
  MessageStream stream_;
  absl::Status end_;
  std::thread thread_;
};

grpc::ByteBuffer MessageOf(const std::string& text) {
  const grpc::Slice slice(text);
  return grpc::ByteBuffer(&slice, 1);
}

StreamFrame Call(uint32_t number, uint32_t subject = 0) {
  StreamFrame frame;
  frame.number = number;
  frame.subject = subject;
  return frame;
}

// Without TLS, and with either cipher.
class MessageStreamTest : public testing::TestWithParam<std::optional<StreamSocket::Cipher>> {
 protected:
  Sockets ConnectPair() {
    Sockets sockets = Connect();
    if (GetParam().has_value()) EXPECT_TRUE(Encrypt(sockets, Key('k'), Key('k'), *GetParam()).ok());
    return sockets;
  }
};

INSTANTIATE_TEST_SUITE_P(Streams, MessageStreamTest,
                         testing::Values(std::nullopt, StreamSocket::Cipher::kAes128Gcm,
                                         StreamSocket::Cipher::kChaCha20Poly1305),
                         [](const auto& info) {
                           if (!info.param.has_value()) return "Plain";
                           return *info.param == StreamSocket::Cipher::kAes128Gcm ? "Aes" : "ChaCha";
                         });

TEST_P(MessageStreamTest, MessagesOfAllSizesArriveInOrderBothWays) {
  auto [left_socket, right_socket] = ConnectPair();
  Peer left(std::move(left_socket)), right(std::move(right_socket));
  left.Start();
  right.Start();
  const std::vector<size_t> sizes = {0, 1, 100, 5000, 16 << 10, (16 << 10) + 1, 1 << 20, 3, kMaxMessageBytes, 0, 77};
  std::atomic<int> sent{0};
  uint32_t number = 0;
  for (const size_t size : sizes) {
    ++number;
    left.stream().Send(Call(number, 2), MessageOf(Text(size, number)), [&] { ++sent; });
    right.stream().Send(Call(number), MessageOf(Text(size, 100 + number)), [&] { ++sent; });
  }
  const auto at_right = right.inbox().Await(sizes.size()), at_left = left.inbox().Await(sizes.size());
  for (uint32_t i = 0; i < sizes.size(); ++i) {
    EXPECT_EQ(at_right[i].first.number, i + 1);
    EXPECT_EQ(at_right[i].first.subject, 2u);
    EXPECT_TRUE(at_right[i].second == Text(sizes[i], i + 1)) << sizes[i];
    EXPECT_TRUE(at_left[i].second == Text(sizes[i], 101 + i)) << sizes[i];
  }
  while (sent < 2 * static_cast<int>(sizes.size())) absl::SleepFor(absl::Milliseconds(1));
}

TEST_P(MessageStreamTest, PartsOfMessagesGoWhereTheReceiverWants) {
  auto [left_socket, right_socket] = ConnectPair();
  Peer left(std::move(left_socket)), right(std::move(right_socket));
  right.inbox().scatters = true;
  left.Start();
  right.Start();
  uint32_t number = 0;
  const std::vector<size_t> sizes = {0, 5, 30'000, 90'001, 1 << 20, kMaxMessageBytes, 29'999, 60'003};
  for (const size_t size : sizes) {
    ++number;
    left.stream().Send(Call(number), MessageOf(Text(size, number)));
  }
  const auto messages = right.inbox().Await(sizes.size());
  for (uint32_t i = 0; i < sizes.size(); ++i) EXPECT_TRUE(messages[i].second == Text(sizes[i], i + 1)) << sizes[i];
}

TEST_P(MessageStreamTest, ManyThreadsMaySend) {
  auto [left_socket, right_socket] = ConnectPair();
  Peer left(std::move(left_socket)), right(std::move(right_socket));
  left.Start();
  right.Start();
  constexpr uint32_t kThreads = 4, kEach = 200;
  std::vector<std::thread> threads;
  for (uint32_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (uint32_t i = 0; i < kEach; ++i) {
        const uint32_t number = thread * kEach + i + 1;
        left.stream().Send(Call(number), MessageOf(Text(number * 37 % 20000, number)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& [frame, text] : right.inbox().Await(kThreads * kEach)) {
    EXPECT_TRUE(text == Text(frame.number * 37 % 20000, frame.number)) << frame.number;
  }
}

TEST_P(MessageStreamTest, AThreadThatHelpsReceives) {
  auto [left_socket, right_socket] = ConnectPair();
  Peer left(std::move(left_socket)), right(std::move(right_socket));
  left.Start();
  right.Start();
  constexpr uint32_t kMessages = 100;
  for (uint32_t number = 1; number <= kMessages; ++number) {
    left.stream().Send(Call(number), MessageOf(Text(number * 997, number)));
    while (right.inbox().received() < number) ASSERT_TRUE(right.HelpUntil(number).has_value());
  }
  const auto messages = right.inbox().Await(kMessages);
  for (uint32_t i = 0; i < kMessages; ++i) EXPECT_TRUE(messages[i].second == Text((i + 1) * 997, i + 1)) << i;
  // A loaded machine may make it stay away for so long that the other thread comes back.
  EXPECT_GT(right.inbox().received_here(), static_cast<int>(kMessages) / 4);
  // Without it, the other thread receives again.
  left.stream().Send(Call(kMessages + 1), MessageOf("last"));
  EXPECT_EQ(right.inbox().Await(kMessages + 1).back().second, "last");
}

TEST_P(MessageStreamTest, MessagesArriveOnceWhoeverReceives) {
  auto [left_socket, right_socket] = ConnectPair();
  Peer left(std::move(left_socket)), right(std::move(right_socket));
  left.Start();
  right.Start();
  constexpr uint32_t kMessages = 2000;
  std::thread sender([&] {
    for (uint32_t number = 1; number <= kMessages; ++number) {
      left.stream().Send(Call(number), MessageOf(Text(number * 37 % 20000, number)));
      if (number % 100 == 0) absl::SleepFor(absl::Milliseconds(number % 7));
    }
  });
  std::vector<std::thread> helpers;
  for (int helper = 1; helper <= 2; ++helper) {
    helpers.emplace_back([&, helper] {
      for (size_t count = helper; right.inbox().received() < kMessages; count = right.inbox().received() + helper) {
        if (!right.HelpUntil(std::min<size_t>(count, kMessages), absl::Milliseconds(20)).has_value()) {
          absl::SleepFor(absl::Microseconds(100));
        }
      }
    });
  }
  sender.join();
  for (std::thread& helper : helpers) helper.join();
  const auto messages = right.inbox().Await(kMessages);
  ASSERT_EQ(messages.size(), kMessages);
  for (uint32_t number = 1; number <= kMessages; ++number) {
    EXPECT_EQ(messages[number - 1].first.number, number);
    EXPECT_TRUE(messages[number - 1].second == Text(number * 37 % 20000, number)) << number;
  }
}

TEST_P(MessageStreamTest, OneThreadHelpsUntilItsTimeIsOverOrAnotherSaysThatItIsReady) {
  auto [left_socket, right_socket] = ConnectPair();
  Peer left(std::move(left_socket)), right(std::move(right_socket));
  left.Start();
  right.Start();
  EXPECT_EQ(right.HelpUntil(1, absl::Milliseconds(20)), absl::ZeroDuration());
  std::atomic<bool> asked{false}, ready{false};
  std::thread other([&] {
    while (!asked) absl::SleepFor(absl::Milliseconds(1));
    // Another thread helps.
    EXPECT_FALSE(right.HelpUntil(1).has_value());
    ready = true;
    right.stream().Notify();
  });
  const absl::Time begin = absl::Now();
  const auto is_ready = [&] {
    asked = true;
    return ready.load();
  };
  EXPECT_TRUE(right.stream().Help(right.inbox(), is_ready, absl::Seconds(60)).has_value());
  EXPECT_LT(absl::Now() - begin, absl::Seconds(30));
  other.join();
}

TEST_P(MessageStreamTest, AThreadThatHelpsLeavesAStreamThatEnds) {
  auto [left_socket, right_socket] = ConnectPair();
  Peer left(std::move(left_socket)), right(std::move(right_socket));
  left.Start();
  right.Start();
  std::thread other([&] {
    absl::SleepFor(absl::Milliseconds(20));
    left.stream().End(absl::CancelledError("gone"));
  });
  const absl::Time begin = absl::Now();
  while (right.HelpUntil(1).has_value()) {
  }
  EXPECT_LT(absl::Now() - begin, absl::Seconds(30));
  EXPECT_EQ(right.Join().code(), absl::StatusCode::kUnavailable);
  other.join();
}

// An error counts even if what the thread waits for is ready.
TEST_P(MessageStreamTest, AThreadThatHelpsReportsWhatItRefuses) {
  auto [left_socket, right_socket] = ConnectPair();
  Peer left(std::move(left_socket)), right(std::move(right_socket));
  left.Start();
  right.Start();
  // Now the other thread stays away.
  left.stream().Send(Call(1), MessageOf("first"));
  while (right.inbox().received() < 1) ASSERT_TRUE(right.HelpUntil(1).has_value());
  right.inbox().refuses = 2;
  left.stream().Send(Call(2), MessageOf(Text(5000, 2)));
  const absl::Time give_up = absl::Now() + absl::Seconds(30);
  while (right.HelpUntil(0).has_value() && absl::Now() < give_up) {
  }
  EXPECT_THAT(right.Join().ToString(), HasSubstr("refused"));
}

// The next tests have the thread in Run wait at the connection, for a minute, while another one helps.

TEST_P(MessageStreamTest, AThreadThatHelpsEndsTheOneThatWaits) {
  auto [left_socket, right_socket] = ConnectPair();
  Peer right(std::move(right_socket));
  right.Start();
  right.AwaitRun();
  right.inbox().OnceInThisThread([] { return absl::InvalidArgumentError("refused"); });
  const absl::Time begin = absl::Now();
  EXPECT_TRUE(right.HelpUntil(1).has_value());
  EXPECT_THAT(right.Join().ToString(), HasSubstr("refused"));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(30));
}

// It has read both, and leaves after the first.
TEST_P(MessageStreamTest, AThreadThatHelpsLeavesNothingUnread) {
  auto [left_socket, right_socket] = ConnectPair();
  Peer left(std::move(left_socket)), right(std::move(right_socket));
  left.Start();
  right.Start();
  const absl::Time begin = absl::Now();
  for (uint32_t number = 1; number < 60 && absl::Now() - begin < absl::Seconds(30); number += 2) {
    right.AwaitRun();
    right.inbox().OnceInThisThread([&left = left, number] {
      left.stream().Send(Call(number), MessageOf("first"));
      left.stream().Send(Call(number + 1), MessageOf("second"));
      return absl::OkStatus();
    });
    EXPECT_TRUE(right.HelpUntil(number).has_value());
    right.inbox().Await(number + 1);
  }
  EXPECT_LT(absl::Now() - begin, absl::Seconds(30));
}

// It learns that the connection takes no more, and leaves.
TEST_P(MessageStreamTest, AThreadThatHelpsLeavesNothingUnsent) {
  const grpc::ByteBuffer large = MessageOf(Text(kMaxMessageBytes, 1));
  const absl::Time begin = absl::Now();
  for (int round = 0; round < 3 && absl::Now() - begin < absl::Seconds(30); ++round) {
    auto [left_socket, right_socket] = ConnectPair();
    Peer left(std::move(left_socket)), right(std::move(right_socket));
    left.Start();
    left.AwaitRun();
    left.inbox().OnceInThisThread([&left = left, &large] {
      for (uint32_t number = 1; number <= 4; ++number) left.stream().Send(Call(number), large);
      return absl::OkStatus();
    });
    EXPECT_TRUE(left.HelpUntil(1, absl::Milliseconds(1)).has_value());
    right.Start();
    right.inbox().Await(4);
  }
  EXPECT_LT(absl::Now() - begin, absl::Seconds(30));
}

// What one thread could not send is sent by another that helps, or by none that does.
TEST_P(MessageStreamTest, AThreadThatHelpsSendsTheRest) {
  auto [left_socket, right_socket] = ConnectPair();
  Peer left(std::move(left_socket)), right(std::move(right_socket));
  left.Start();
  right.Start();
  const std::string large = Text(kMaxMessageBytes, 1);
  for (uint32_t number = 1; number <= 4; ++number) {
    left.stream().Send(Call(number), MessageOf(large));
    if (number % 2 == 0) left.HelpUntil(1, absl::Milliseconds(10));
    EXPECT_TRUE(right.inbox().Await(number).back().second == large);
  }
}

TEST_P(MessageStreamTest, SkippedMessagesLeaveTheNextOneWhole) {
  auto [left_socket, right_socket] = ConnectPair();
  Peer left(std::move(left_socket)), right(std::move(right_socket));
  right.inbox().skips = 1;
  left.Start();
  right.Start();
  left.stream().Send(Call(1), MessageOf(Text(100'000, 1)));
  left.stream().Send(Call(2), MessageOf("next"));
  const auto messages = right.inbox().Await(2);
  EXPECT_EQ(messages[0].second, "skipped");
  EXPECT_EQ(messages[1].second, "next");
}

TEST_P(MessageStreamTest, AnErrorOfTheReceiverEndsTheStreamAndReleasesAllMemory) {
  auto [left_socket, right_socket] = ConnectPair();
  Peer left(std::move(left_socket)), right(std::move(right_socket));
  right.inbox().refuses = 1;
  std::atomic<int> released{0};
  for (uint32_t number = 1; number <= 5; ++number) {
    left.stream().Send(Call(number), MessageOf(Text(kMaxMessageBytes, 1)), [&] { ++released; });
  }
  left.Start();
  right.Start();
  EXPECT_THAT(right.Join().ToString(), HasSubstr("refused"));
  EXPECT_EQ(left.Join().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(released, 5);
  // A message that is sent now is released at once.
  left.stream().Send(Call(6), MessageOf("late"), [&] { ++released; });
  EXPECT_EQ(released, 6);
}

TEST_P(MessageStreamTest, TasksRunInTheStreamsThreadAndWakeIt) {
  auto [left_socket, right_socket] = ConnectPair();
  Peer left(std::move(left_socket)), right(std::move(right_socket));
  left.Start();
  absl::Notification done;
  std::thread::id ran;
  left.stream().RunLater([&] {
    ran = std::this_thread::get_id();
    done.Notify();
  });
  ASSERT_TRUE(done.WaitForNotificationWithTimeout(absl::Seconds(30)));
  EXPECT_NE(ran, std::this_thread::get_id());
  const int before = left.inbox().ticks;
  left.stream().Wake();
  while (left.inbox().ticks == before) absl::SleepFor(absl::Milliseconds(1));
}

TEST_P(MessageStreamTest, APeerThatReadsNothingIsLost) {
  auto [left_socket, right_socket] = ConnectPair();
  Peer left(std::move(left_socket), absl::Seconds(1));
  for (uint32_t number = 1; number <= 8; ++number) {
    left.stream().Send(Call(number), MessageOf(std::string(kMaxMessageBytes, 'x')));
  }
  EXPECT_GT(left.stream().unsent(), 0u);
  left.Start();
  EXPECT_THAT(left.Join().ToString(), HasSubstr("it has read nothing for 1s"));
  EXPECT_EQ(left.stream().unsent(), 0u);
}

TEST_P(MessageStreamTest, APeerThatSendsPartOfAMessageIsLost) {
  auto [left_socket, right_socket] = ConnectPair();
  Peer left(std::move(left_socket), absl::Seconds(1));
  left.Start();
  StreamFrame frame = Call(1);
  frame.bytes = 1000;
  const auto header = EncodeStreamFrame(frame);
  const iovec piece = {const_cast<char*>(header.data()), header.size()};
  ASSERT_EQ(*right_socket->Write({&piece, 1}), header.size());
  EXPECT_THAT(left.Join().ToString(), HasSubstr("rest of a message has not come within 1s"));
}

TEST_P(MessageStreamTest, DamagedFramesEndTheStream) {
  for (const size_t bytes : {48, 50, 4000}) {
    auto [left_socket, right_socket] = ConnectPair();
    Peer left(std::move(left_socket));
    left.Start();
    const std::string noise(bytes, '\xee');
    const iovec piece = {const_cast<char*>(noise.data()), noise.size()};
    ASSERT_EQ(*right_socket->Write({&piece, 1}), noise.size());
    EXPECT_THAT(left.Join().ToString(), HasSubstr("frame of a data stream: got kind"));
  }
}

TEST(EncryptedStreamTest, DamagedBytesEndIt) {
  Sockets sockets = Connect();
  // The raw connection stays at hand.
  const int raw = dup(sockets.first->descriptor());
  ASSERT_TRUE(Encrypt(sockets, Key('k'), Key('k')).ok());
  Peer right(std::move(sockets.second));
  right.Start();
  const std::string noise(100, '\x17');
  ASSERT_EQ(write(raw, noise.data(), noise.size()), static_cast<ssize_t>(noise.size()));
  EXPECT_EQ(right.Join().code(), absl::StatusCode::kUnavailable);
  close(raw);
}

}  // namespace
}  // namespace ballast
