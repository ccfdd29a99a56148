// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/connection_gate.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/status/testing/status_matcher.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

// Owns the sockets that the gate has passed on.
class Taken {
 public:
  ~Taken() {
    for (int socket : sockets_) close(socket);
  }
  void Take(int socket) {
    absl::MutexLock lock(&mutex_);
    sockets_.push_back(socket);
  }
  bool Await(size_t count, absl::Duration timeout = absl::Seconds(30)) {
    absl::MutexLock lock(&mutex_);
    const auto enough = [&] {
      mutex_.AssertHeld();
      return sockets_.size() >= count;
    };
    return mutex_.AwaitWithTimeout(absl::Condition(&enough), timeout);
  }
  size_t count() {
    absl::MutexLock lock(&mutex_);
    return sockets_.size();
  }
  // Ends a connection the way gRPC does.
  void End(size_t index) {
    ShutDown(index);
    absl::MutexLock lock(&mutex_);
    close(std::exchange(sockets_[index], -1));
  }
  void ShutDown(size_t index) {
    absl::MutexLock lock(&mutex_);
    shutdown(sockets_[index], SHUT_RDWR);
  }

 private:
  absl::Mutex mutex_;
  std::vector<int> sockets_ ABSL_GUARDED_BY(mutex_);
};

class Peer {
 public:
  Peer() : socket_(socket(AF_INET, SOCK_STREAM, 0)) {}
  explicit Peer(int port) : Peer() { Connect(port); }
  ~Peer() { close(socket_); }
  Peer(const Peer&) = delete;

  bool Connect(int port) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  }
  // Returns whether the other side ends the connection within 30 s.
  bool IsEnded() {
    pollfd file = {socket_, POLLIN, 0};
    char byte = 0;
    return poll(&file, 1, 30'000) == 1 && recv(socket_, &byte, 1, 0) <= 0;
  }

 private:
  const int socket_;
};

class ConnectionGateTest : public ::testing::Test {
 protected:
  void Open(uint32_t most, const std::string& host = "127.0.0.1") {
    auto gate = ConnectionGate::Listen(host, 0, most);
    ASSERT_TRUE(gate.ok()) << gate.status();
    gate_ = *std::move(gate);
    gate_->Open([this](int socket) { taken_.Take(socket); }, {}, [this] { ++told_full_; });
  }

  // Opens a gate and waits until it has passed on a first peer.
  std::unique_ptr<Peer> OpenWithPeer(uint32_t most) {
    Open(most);
    auto peer = std::make_unique<Peer>(gate_->port());
    EXPECT_TRUE(taken_.Await(1));
    return peer;
  }

  // Reconnects while it is refused: a peer may see the end of a connection before the gate does.
  std::unique_ptr<Peer> ConnectAsTaken(size_t count) {
    std::unique_ptr<Peer> peer;
    for (int attempt = 0; attempt < 300; ++attempt) {
      peer = std::make_unique<Peer>(gate_->port());
      if (taken_.Await(count, absl::Milliseconds(100))) return peer;
    }
    ADD_FAILURE() << "the gate never accepts it";
    return peer;
  }

  Taken taken_;
  std::atomic<int> told_full_{0};
  std::unique_ptr<ConnectionGate> gate_;
};

TEST_F(ConnectionGateTest, HandsOnThoseWhoConnect) {
  Open(10);
  const Peer one(gate_->port()), other(gate_->port());
  EXPECT_TRUE(taken_.Await(2));
  EXPECT_EQ(gate_->open(), 2u);
}

TEST_F(ConnectionGateTest, ListensOnEveryAddressOfAName) {
  Open(10, "localhost");
  const Peer one(gate_->port());
  EXPECT_TRUE(taken_.Await(1));
}

TEST_F(ConnectionGateTest, ClosesWhatIsBeyondTheLimitUnread) {
  Open(2);
  const Peer one(gate_->port()), other(gate_->port());
  ASSERT_TRUE(taken_.Await(2));
  Peer third(gate_->port());
  EXPECT_TRUE(third.IsEnded());
  EXPECT_EQ(taken_.count(), 2u);
  EXPECT_EQ(gate_->refused(), 1u);
  Peer fourth(gate_->port());
  EXPECT_TRUE(fourth.IsEnded());
  gate_->Close();
  EXPECT_EQ(gate_->refused(), 2u);
  EXPECT_EQ(told_full_, 1);
}

TEST_F(ConnectionGateTest, LetsTheNextInWhenOneHasEnded) {
  const auto one = OpenWithPeer(1);
  taken_.End(0);
  EXPECT_TRUE(one->IsEnded());
  const auto next = ConnectAsTaken(2);
  EXPECT_EQ(gate_->open(), 1u);
}

TEST_F(ConnectionGateTest, OneThatItsPeerHasLeftCountsUntilItsOwnerKnows) {
  Open(1);
  { const Peer gone(gate_->port()); }
  ASSERT_TRUE(taken_.Await(1));
  Peer refused(gate_->port());
  EXPECT_TRUE(refused.IsEnded());
  EXPECT_EQ(gate_->open(), 1u);
}

TEST_F(ConnectionGateTest, OneThatIsClosedLongAfterItWasShutDownCountsOnce) {
  auto one = OpenWithPeer(1);
  taken_.ShutDown(0);
  const auto next = ConnectAsTaken(2);
  // Its socket is still open and hangs up once more.
  one.reset();
  Peer third(gate_->port());
  EXPECT_TRUE(third.IsEnded());
  EXPECT_EQ(taken_.count(), 2u);
  EXPECT_EQ(gate_->open(), 1u);
}

TEST_F(ConnectionGateTest, ListensAgainWhenThereAreFilesAgain) {
  Open(100);
  Peer early, late;
  rlimit usual = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &usual), 0);
  const rlimit none = {3, usual.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_TRUE(early.Connect(gate_->port()));
  // The kernel has connected it, but the gate has not accepted it.
  EXPECT_EQ(taken_.count(), 0u);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &usual), 0);
  EXPECT_TRUE(late.Connect(gate_->port()));
  EXPECT_TRUE(taken_.Await(2));
}

TEST_F(ConnectionGateTest, ThoseWhoAreInStayWhenItCloses) {
  const auto one = OpenWithPeer(10);
  const int port = gate_->port();
  gate_->Close();
  Peer late;
  EXPECT_FALSE(late.Connect(port));
  taken_.End(0);
  EXPECT_TRUE(one->IsEnded());
}

TEST_F(ConnectionGateTest, RefusesAPortThatIsInUse) {
  Open(1);
  EXPECT_THAT(ConnectionGate::Listen("127.0.0.1", gate_->port(), 1),
              Fails(absl::StatusCode::kUnavailable, "the port is in use"));
}

TEST_F(ConnectionGateTest, RefusesAHostThatIsNotThisMachine) {
  EXPECT_THAT(ConnectionGate::Listen("192.0.2.1", 0, 1),
              Fails(absl::StatusCode::kUnavailable, "the host is not this machine;"));
}

TEST_F(ConnectionGateTest, AFreePortIsNoneThatLinuxGivesToConnections) {
  int first_of_connections = 0;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> first_of_connections;
  if (first_of_connections <= 20'000) GTEST_SKIP() << "connections begin at port " << first_of_connections;
  Open(1);
  EXPECT_GE(gate_->port(), 20'000);
  EXPECT_LT(gate_->port(), first_of_connections);
  const int port = gate_->port();
  const std::unique_ptr<ConnectionGate> first = std::move(gate_);
  Open(1);
  EXPECT_NE(gate_->port(), port);
}

TEST(MakeRoomForConnectionsTest, RaisesTheLimitOfOpenFilesAsFarAsItIsNeeded) {
  rlimit usual = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &usual), 0);
  ASSERT_GE(usual.rlim_max, 1100u);
  const rlimit few = {100, usual.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  EXPECT_EQ(MakeRoomForConnections(200).value(), 200u);
  rlimit now = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &now), 0);
  EXPECT_EQ(now.rlim_cur, 1056u);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &usual), 0);
}

TEST(MakeRoomForConnectionsTest, RefusesWhatTheProcessMayNotHaveOpen) {
  EXPECT_THAT(MakeRoomForConnections(2'000'000'000),
              Fails(absl::StatusCode::kFailedPrecondition, "connections: got 2000000000, want at most "));
}

TEST(MakeRoomForConnectionsTest, TakesTheUsualNumberUnasked) {
  const absl::StatusOr<uint32_t> room = MakeRoomForConnections(0);
  ASSERT_TRUE(room.ok()) << room.status();
  EXPECT_GE(*room, 100u);
  EXPECT_LE(*room, 1024u);
}

TEST(MakeRoomForConnectionsTest, TakesWhatManyWorkersNeed) {
  EXPECT_EQ(MakeRoomForConnections(0, 10).value(), MakeRoomForConnections(0).value());
  EXPECT_EQ(MakeRoomForConnections(100, 250).value(), 100u);
  const uint32_t room = MakeRoomForConnections(0, 4096).value();
  rlimit files = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  const uint64_t most = (files.rlim_max - 256) / 4;
  EXPECT_EQ(room, std::min<uint64_t>(most, 6 * 4096 + 64));
}

}  // namespace
}  // namespace ballast
