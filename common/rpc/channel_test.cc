// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/channel.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/renewed_channel.h"
#include "common/rpc/testing/host_name.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/server_builder.h"
#include "grpcpp/server_context.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

// Fails every call with UNIMPLEMENTED.
class Server {
 public:
  // Port 0 picks a free port.
  Server(const std::string& host, int port) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(absl::StrCat(host, ":", port), grpc::InsecureServerCredentials(), &port_);
    builder.RegisterCallbackGenericService(&service_);
    server_ = builder.BuildAndStart();
  }
  ~Server() {
    if (server_ != nullptr) server_->Shutdown(absl::ToChronoTime(absl::Now()));
  }

  bool serves() const { return server_ != nullptr && port_ > 0; }
  int port() const { return port_; }

 private:
  grpc::CallbackGenericService service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// An address that nobody has any more: connection attempts get no response, not even a refusal. It is a listening
// socket whose queue is full, so that the kernel drops what arrives.
class DeadAddress {
 public:
  DeadAddress(const char* host, int port) : listener_(Open()) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    inet_pton(AF_INET, host, &address.sin_addr);
    const auto* name = reinterpret_cast<const sockaddr*>(&address);
    bound_ = bind(listener_, name, sizeof(address)) == 0 && listen(listener_, /*backlog=*/0) == 0;
    // More than fit.
    for (int i = 0; bound_ && i < 4; ++i) {
      fillers_.push_back(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
      connect(fillers_.back(), name, sizeof(address));
    }
  }
  ~DeadAddress() {
    for (int filler : fillers_) close(filler);
    close(listener_);
  }
  DeadAddress(const DeadAddress&) = delete;

  bool bound() const { return bound_; }

 private:
  static int Open() {
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int on = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    return listener;
  }

  const int listener_;
  bool bound_ = false;
  std::vector<int> fillers_;
};

grpc::StatusCode Ask(const std::shared_ptr<grpc::Channel>& channel) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(2)));
  grpc::CompletionQueue queue;
  const grpc::Slice nothing;
  const grpc::ByteBuffer request(&nothing, 1);
  grpc::ByteBuffer response;
  grpc::Status status;
  const auto call = stub.PrepareUnaryCall(&context, "/nothing", request, &queue);
  call->StartCall();
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  return status.error_code();
}

// Returns the time until a call succeeds, at most a minute.
absl::Duration TimeToReach(const std::shared_ptr<grpc::Channel>& channel) {
  const absl::Time begin = absl::Now();
  while (Ask(channel) != grpc::StatusCode::UNIMPLEMENTED && absl::Now() - begin < absl::Minutes(1)) {
    channel->WaitForConnected(absl::ToChronoTime(absl::Now() + absl::Milliseconds(200)));
  }
  return absl::Now() - begin;
}

// One test only, because a process must open its namespace before it has threads.
TEST(ChannelTest, FollowsANameToItsNewAddressWithinSeconds) {
  HostName name("moving.ballast.test");
  if (const std::string refused = name.Open(); !refused.empty()) {
    GTEST_SKIP() << "the kernel allows no mount namespaces: " << refused;
  }
  auto first = std::make_unique<Server>("127.0.0.2", 0);
  ASSERT_TRUE(first->serves());
  const int port = first->port();
  name.MoveTo("127.0.0.2");
  const auto channel = OpenChannel(name.Target(port), {});
  EXPECT_EQ(Ask(channel), grpc::StatusCode::UNIMPLEMENTED);
  first.reset();
  name.MoveTo("127.0.0.3");
  std::optional<Server> second(std::in_place, "127.0.0.3", port);
  ASSERT_TRUE(second->serves());
  EXPECT_LT(TimeToReach(channel), absl::Seconds(5)) << "a name that moved";

  // A name that is known, then unknown for a while: a channel alone would look again only after twenty seconds.
  RenewedChannel renewed([&] { return OpenChannel(name.Target(port), {}); });
  ASSERT_EQ(Ask(renewed.channel()), grpc::StatusCode::UNIMPLEMENTED);
  first = std::make_unique<Server>("127.0.0.5", port);
  ASSERT_TRUE(first->serves());
  second.reset();
  name.Forget();
  const auto ask = [&] {
    const bool reached = Ask(renewed.channel()) == grpc::StatusCode::UNIMPLEMENTED;
    if (!reached) renewed.Renew();
    absl::SleepFor(absl::Milliseconds(100));
    return reached;
  };
  for (const absl::Time until = absl::Now() + absl::Seconds(12); absl::Now() < until;) EXPECT_FALSE(ask());
  name.MoveTo("127.0.0.5");
  const absl::Time known = absl::Now();
  while (!ask() && absl::Now() - known < absl::Minutes(1)) {
  }
  EXPECT_LT(absl::Now() - known, absl::Seconds(4)) << "a name that was forgotten for a while";
  second.emplace("127.0.0.3", port);
  ASSERT_TRUE(second->serves());

  // The same, if the client finds nobody at the old address before the name moves.
  const DeadAddress dead("127.0.0.4", port);
  ASSERT_TRUE(dead.bound());
  name.MoveTo("127.0.0.4");
  const auto early = OpenChannel(name.Target(port), {});
  EXPECT_FALSE(early->WaitForConnected(absl::ToChronoTime(absl::Now() + absl::Milliseconds(500))));
  name.MoveTo("127.0.0.3");
  EXPECT_LT(TimeToReach(early), absl::Seconds(4)) << "a name that moved during an attempt to connect";
}

}  // namespace
}  // namespace ballast
