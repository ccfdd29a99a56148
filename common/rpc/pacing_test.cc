// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/pacing.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <string>

#include "gtest/gtest.h"

namespace ballast {
namespace {

constexpr char kOther[] = "reno";

// A socket without CUBIC.
class PacingTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!SetControl("cubic") || !SetControl(kOther)) GTEST_SKIP() << "this system does not permit reno and cubic";
  }
  void TearDown() override { close(socket_); }

  std::string ControlOf(int socket) {
    char name[16] = {};
    socklen_t bytes = sizeof(name);
    getsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name, &bytes);
    return name;
  }

  std::string AfterStop(const std::string& address) {
    sockaddr_in four = {};
    sockaddr_in6 six = {};
    four.sin_family = AF_INET;
    six.sin6_family = AF_INET6;
    const bool has_four = inet_pton(AF_INET, address.c_str(), &four.sin_addr) == 1;
    if (!has_four) EXPECT_EQ(inet_pton(AF_INET6, address.c_str(), &six.sin6_addr), 1);
    StopPacingOnLoopback(socket_,
                         has_four ? reinterpret_cast<const sockaddr*>(&four) : reinterpret_cast<const sockaddr*>(&six));
    const std::string control = ControlOf(socket_);
    SetControl(kOther);
    return control;
  }

  const int socket_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

 private:
  bool SetControl(const std::string& name) {
    return setsockopt(socket_, IPPROTO_TCP, TCP_CONGESTION, name.data(), name.size()) == 0;
  }
};

TEST_F(PacingTest, IsOffOnTheLoopbackOnly) {
  for (const char* address : {"127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1"})
    EXPECT_EQ(AfterStop(address), "cubic") << address;
  for (const char* address : {"0.0.0.0", "192.0.2.1", "128.0.0.1", "::", "2001:db8::1", "::ffff:10.0.0.1"}) {
    EXPECT_EQ(AfterStop(address), kOther) << address;
  }
}

TEST_F(PacingTest, IsOffForWhatAListenerAccepts) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  StopPacingOnLoopback(socket_, any);
  ASSERT_EQ(bind(socket_, any, bytes), 0);
  ASSERT_EQ(listen(socket_, 1), 0);
  ASSERT_EQ(getsockname(socket_, any, &bytes), 0);
  const int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_EQ(connect(client, any, bytes), 0);
  const int accepted = accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC);
  EXPECT_EQ(ControlOf(accepted), "cubic");
  close(accepted);
  close(client);
}

}  // namespace
}  // namespace ballast
