// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/proxy/fault_proxy.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::std::string_literals::operator""s;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// One end of a connection; reads time out after 10 s. Thread safety: none.
class Peer {
 public:
  explicit Peer(int socket) : socket_(socket) { Wait(10, 0); }
  Peer(Peer&& other) noexcept : socket_(std::exchange(other.socket_, -1)) {}
  ~Peer() {
    if (socket_ >= 0) close(socket_);
  }

  void Wait(int seconds, int milliseconds) const {
    const timeval time = {seconds, milliseconds * 1000};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time));
  }
  void Send(const std::string& text) const {
    EXPECT_EQ(send(socket_, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  }
  void EndSending() const { shutdown(socket_, SHUT_WR); }
  // Receives `bytes` bytes; fewer if the connection ends first.
  std::string Receive(size_t bytes) const {
    std::string text(bytes, '\0');
    size_t got = 0;
    while (got < bytes) {
      const ssize_t more = recv(socket_, text.data() + got, bytes - got, 0);
      if (more <= 0) break;
      got += more;
    }
    text.resize(got);
    return text;
  }
  // Waits for the peer; returns "a byte", "silence" (after the timeout), "end" or "reset".
  std::string Await() const {
    char byte;
    const ssize_t got = recv(socket_, &byte, 1, 0);
    if (got > 0) return "a byte";
    if (got == 0) return "end";
    return errno == ECONNRESET ? "reset" : "silence";
  }

 private:
  int socket_;
};

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

class FaultProxyTest : public ::testing::Test {
 protected:
  FaultProxyTest() : listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = Loopback(0);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listener_, 16), 0);
    EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    target_ = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  }
  ~FaultProxyTest() override { close(listener_); }

  std::unique_ptr<FaultProxy> Start(FaultPlan plan, uint64_t seed = 1) {
    auto proxy = FaultProxy::Start(target_, plan, seed);
    EXPECT_TRUE(proxy.ok()) << proxy.status();
    return *std::move(proxy);
  }

  Peer Connect(const FaultProxy& proxy) const {
    uint32_t port = 0;
    EXPECT_TRUE(absl::SimpleAtoi(absl::string_view(proxy.address()).substr(10), &port));
    const sockaddr_in address = Loopback(static_cast<uint16_t>(port));
    const int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(connect(client, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    return Peer(client);
  }
  // Accepts the server's end of the next connection; blocks until the client connects.
  Peer Accept() const { return Peer(accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC)); }

  // The last frame of a gRPC response: headers that end the stream, with a payload of 3 bytes.
  static std::string Reply() { return std::string("\0\0\3\1\5\0\0\0\1abc", 12); }

  const int listener_;
  std::string target_;
};

TEST_F(FaultProxyTest, PassesEverythingOnUnchanged) {
  const auto proxy = Start({.delay = absl::Milliseconds(5)});
  const Peer client = Connect(*proxy), server = Accept();
  std::string text;
  for (int i = 0; i < 50000; ++i) absl::StrAppend(&text, i, " ");
  client.Send(text);
  EXPECT_TRUE(server.Receive(text.size()) == text);
  server.Send(Reply() + Reply());
  server.EndSending();
  EXPECT_EQ(client.Receive(100), Reply() + Reply());
  EXPECT_EQ(client.Await(), "end");
  client.Send("still up");
  EXPECT_EQ(server.Receive(8), "still up");
  EXPECT_EQ(proxy->counts().replies, 2u);
  EXPECT_EQ(proxy->counts().dropped_replies, 0u);
  EXPECT_EQ(proxy->counts().connections, 1u);
}

TEST_F(FaultProxyTest, CarriesNoMoreThanItsRateToTheServer) {
  const auto proxy = Start({.bytes_per_second = 4 << 20});
  const Peer client = Connect(*proxy), server = Accept();
  const std::string text(1 << 20, 'x');
  const absl::Time begun = absl::Now();
  client.Send(text);
  EXPECT_TRUE(server.Receive(text.size()) == text);
  EXPECT_GE(absl::Now() - begun, absl::Milliseconds(240));
}

TEST_F(FaultProxyTest, LosesARepliesEndAndTheConnectionWithIt) {
  const auto proxy = Start({.drop_replies = 1, .silence = absl::Milliseconds(20)});
  for (int i = 0; i < 8; ++i) {
    const Peer client = Connect(*proxy), server = Accept();
    client.Send("request");
    EXPECT_EQ(server.Receive(7), "request");
    server.Send("\0\0\1\0\0\0\0\0\1x"s + Reply());
    EXPECT_LT(client.Receive(22).size(), 10u + 9u);
    EXPECT_THAT(client.Await(), AnyOf("end", "reset"));
    EXPECT_THAT(server.Await(), AnyOf("end", "reset"));
  }
  EXPECT_EQ(proxy->counts().dropped_replies, 8u);
}

TEST_F(FaultProxyTest, LosesTheSameRepliesForTheSameSeed) {
  std::string replies;
  for (int reply = 0; reply < 50; ++reply) replies += Reply();
  std::vector<std::string> lost;
  for (uint64_t seed : {5, 5, 6}) {
    const auto proxy = Start({.drop_replies = 0.1, .silence = absl::Milliseconds(1)}, seed);
    std::string counts;
    for (int i = 0; i < 10; ++i) {
      const Peer client = Connect(*proxy), server = Accept();
      server.Send(replies);
      absl::StrAppend(&counts, client.Receive(600).size() / 12, " ");
    }
    lost.push_back(counts);
  }
  EXPECT_EQ(lost[0], lost[1]);
  EXPECT_NE(lost[0], lost[2]);
}

TEST_F(FaultProxyTest, CutsAPieceInItsMiddle) {
  const auto proxy = Start({.cut = 1});
  const Peer client = Connect(*proxy), server = Accept();
  client.Send("0123456789");
  EXPECT_EQ(server.Receive(10), "01234");
  EXPECT_THAT(client.Await(), AnyOf("end", "reset"));
  EXPECT_EQ(proxy->counts().cuts, 1u);
}

TEST_F(FaultProxyTest, APartitionTellsNobodyAndHeals) {
  const auto proxy = Start({});
  const Peer client = Connect(*proxy), server = Accept();
  client.Send("before");
  EXPECT_EQ(server.Receive(6), "before");
  proxy->Partition();
  client.Send("in between");
  server.Wait(0, 200);
  EXPECT_EQ(server.Await(), "silence");
  proxy->Heal();
  server.Wait(10, 0);
  EXPECT_EQ(server.Receive(10), "in between");
  server.Send("after");
  EXPECT_EQ(client.Receive(5), "after");
}

TEST_F(FaultProxyTest, CutsAllConnectionsWhenAsked) {
  const auto proxy = Start({});
  const Peer client = Connect(*proxy), server = Accept();
  proxy->CutAll();
  EXPECT_EQ(client.Await(), "reset");
  EXPECT_EQ(server.Await(), "reset");
  const Peer next = Connect(*proxy), accepted = Accept();
  next.Send("again");
  EXPECT_EQ(accepted.Receive(5), "again");
}

TEST_F(FaultProxyTest, ResetsConnectionsThatNobodyTakes) {
  close(listener_);
  const auto proxy = Start({});
  EXPECT_EQ(Connect(*proxy).Await(), "reset");
}

TEST_F(FaultProxyTest, RefusesATargetThatIsNoAddress) {
  for (const char* target : {"", "localhost:1", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:x"}) {
    EXPECT_EQ(FaultProxy::Start(target, {}, 1).status(),
              absl::InvalidArgumentError(absl::StrCat("target is \"", target, "\", want an IPv4 address and a port")));
  }
}

std::string Frame(char type, char flags, size_t payload) {
  std::string frame = {0, static_cast<char>(payload >> 8), static_cast<char>(payload), type, flags, 0, 0, 0, 1};
  frame[0] = static_cast<char>(payload >> 16);
  return frame + std::string(payload, '\x01');
}

// Returns the header ends of the replies' frames, when the stream is fed in pieces of `piece_bytes` bytes.
std::vector<size_t> Ends(const std::string& stream, size_t piece_bytes) {
  ReplyScanner scanner;
  std::vector<size_t> ends;
  for (size_t begin = 0; begin < stream.size(); begin += piece_bytes) {
    absl::string_view piece = absl::string_view(stream).substr(begin, piece_bytes);
    size_t at = begin;
    while (const auto end = scanner.Next(piece)) {
      ends.push_back(at += *end);
      piece.remove_prefix(*end);
    }
  }
  return ends;
}

TEST(ReplyScannerTest, FindsTrailersWhereverTheStreamIsCut) {
  // Settings, headers, data of more than 64 KiB, trailers; then an error's headers, which are its trailers too.
  const std::string stream =
      Frame(4, 0, 6) + Frame(1, 4, 30) + Frame(0, 0, 70000) + Frame(1, 5, 12) + Frame(8, 0, 4) + Frame(1, 5, 0);
  const size_t first = 15 + 39 + 70009 + 9, second = first + 12 + 13 + 9;
  for (size_t piece : {1, 2, 9, 10, 4096, 1000000}) EXPECT_THAT(Ends(stream, piece), ElementsAre(first, second));
}

TEST(ReplyScannerTest, FindsTheResponsesOfADataStreamWhereverItIsCut) {
  std::string stream(kStreamOpening);
  std::vector<size_t> ends;
  for (const uint32_t bytes : {0, 5, 100'000, 0}) {
    StreamFrame frame;
    frame.kind = StreamFrame::Kind::kResponse;
    frame.bytes = bytes;
    const auto header = EncodeStreamFrame(frame);
    stream.append(header.data(), header.size());
    ends.push_back(stream.size());
    stream.append(bytes, '\x01');
  }
  for (size_t piece : {1, 2, 48, 49, 4096, 1000000}) EXPECT_EQ(Ends(stream, piece), ends);
}

TEST(ReplyScannerTest, TakesNothingElseForAReply) {
  // Data that ends a stream, headers that do not, a ping's acknowledgement, a reset.
  EXPECT_THAT(Ends(Frame(0, 1, 10) + Frame(1, 4, 10) + Frame(6, 1, 8) + Frame(3, 1, 4), 7), IsEmpty());
}

}  // namespace
}  // namespace ballast
