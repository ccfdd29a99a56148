// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/channel.h"

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/wire/limits.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"
#include "grpcpp/support/client_interceptor.h"

namespace ballast {
namespace {

namespace experimental = grpc::experimental;

// Between two attempts to connect, and two look-ups of a name.
constexpr absl::Duration kReconnectPause = absl::Seconds(1);
// One attempt to connect, and one answer of a name server.
constexpr absl::Duration kReconnectTimeout = absl::Seconds(5);

// A call on a channel to nowhere, which fails at once.
struct AnchorCall {
  // gRPC makes a channel that cannot be used where there are no credentials.
  grpc::GenericStub stub{grpc::CreateCustomChannel("", nullptr, grpc::ChannelArguments())};
  grpc::ClientContext context;
  const grpc::Slice nothing;
  const grpc::ByteBuffer request{&nothing, 1};
  grpc::ByteBuffer response;
};

// gRPC 1.51 ends its callback threads with the last channel that made such a call, under a lock that the first call of
// another channel takes: where that is made in one of those threads they wait for each other, and where the last
// channel goes in one, it frees what it stands on. So one channel is kept for as long as the process lives.
void KeepCallbackThreads() {
  // Kept though nobody reads it, so that a look for leaks finds the call reachable.
  [[gnu::used]] static const auto* const kAnchor = [] {
    auto* anchor = new AnchorCall;
    anchor->stub.UnaryCall(&anchor->context, "/anchor", {}, &anchor->request, &anchor->response,
                           [](const grpc::Status&) {});
    return anchor;
  }();
}

// Puts the token on a call.
class TokenBearer : public experimental::Interceptor {
 public:
  explicit TokenBearer(const std::string& header) : header_(header) {}

  void Intercept(experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(experimental::InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      methods->GetSendInitialMetadata()->emplace("authorization", header_);
    }
    methods->Proceed();
  }

 private:
  const std::string& header_;
};

// gRPC's own AccessTokenCredentials need TLS; this is one way for both.
class TokenBearerFactory : public experimental::ClientInterceptorFactoryInterface {
 public:
  explicit TokenBearerFactory(const std::string& token) : header_(absl::StrCat("Bearer ", token)) {}

  experimental::Interceptor* CreateClientInterceptor(experimental::ClientRpcInfo*) override {
    return new TokenBearer(header_);
  }

 private:
  // Outlives the calls, as the channel does that has this factory.
  const std::string header_;
};

// Has a channel whose calls fail look up its server's name at once. gRPC bounds only the time between two answers of a
// name server: after one that knew no such name it waits up to two minutes, and no argument changes that.
class NameRetrier : public experimental::Interceptor {
 public:
  NameRetrier(std::atomic<int64_t>& next, grpc::Channel* channel) : next_(next), channel_(channel) {}

  void Intercept(experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(experimental::InterceptionHookPoints::POST_RECV_STATUS)) {
      const grpc::StatusCode code = methods->GetRecvStatus()->error_code();
      const bool unreachable = code == grpc::StatusCode::UNAVAILABLE || code == grpc::StatusCode::DEADLINE_EXCEEDED;
      if (unreachable && channel_ != nullptr && IsDue()) experimental::ChannelResetConnectionBackoff(channel_);
    }
    methods->Proceed();
  }

 private:
  // Whether the pause since the last time is over.
  bool IsDue() {
    const int64_t now = absl::GetCurrentTimeNanos();
    int64_t next = next_.load(std::memory_order_relaxed);
    return now >= next && next_.compare_exchange_strong(next, now + absl::ToInt64Nanoseconds(kReconnectPause),
                                                        std::memory_order_relaxed);
  }

  std::atomic<int64_t>& next_;
  grpc::Channel* const channel_;
};

class NameRetrierFactory : public experimental::ClientInterceptorFactoryInterface {
 public:
  experimental::Interceptor* CreateClientInterceptor(experimental::ClientRpcInfo* info) override {
    // Every channel of gRPC's own is one; the call keeps it.
    return new NameRetrier(next_, dynamic_cast<grpc::Channel*>(info->channel()));
  }

 private:
  // When the channel may be hurried next; it outlives the calls.
  std::atomic<int64_t> next_{0};
};

using Interceptors = std::vector<std::unique_ptr<experimental::ClientInterceptorFactoryInterface>>;

Interceptors MakeInterceptors(const Credentials& credentials) {
  Interceptors interceptors;
  if (!credentials.token().empty()) {
    interceptors.push_back(std::make_unique<TokenBearerFactory>(credentials.token()));
  }
  return interceptors;
}

int Milliseconds(absl::Duration duration) { return static_cast<int>(absl::ToInt64Milliseconds(duration)); }

grpc::ChannelArguments MakeArguments(absl::Duration silence) {
  grpc::ChannelArguments arguments;
  // What another channel learned of a process that is gone says nothing of the next one there.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // In spite of its name, how long one attempt to connect may take.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, Milliseconds(kReconnectTimeout));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, Milliseconds(kReconnectPause));
  arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, Milliseconds(kReconnectPause));
  arguments.SetInt(GRPC_ARG_DNS_ARES_QUERY_TIMEOUT_MS, Milliseconds(kReconnectTimeout));
  // Nothing is published beside the addresses; asking for it would double the queries.
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  // A peer that is silent for so long is taken for gone, and its connection closed.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20000);
  // Also what TCP waits for it to take what was sent.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Milliseconds(silence));
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Workers and servers of a job talk directly, whatever proxy the environment names.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // A shard map may be larger than a message of the data plane.
  arguments.SetMaxReceiveMessageSize(16 * kMaxMessageBytes);
  return arguments;
}

}  // namespace

std::shared_ptr<grpc::Channel> OpenChannel(const std::string& address, const Credentials& credentials,
                                           absl::Duration silence) {
  KeepCallbackThreads();
  Interceptors interceptors = MakeInterceptors(credentials);
  interceptors.push_back(std::make_unique<NameRetrierFactory>());
  return experimental::CreateCustomChannelWithInterceptors(address, credentials.ForChannel(), MakeArguments(silence),
                                                           std::move(interceptors));
}

std::shared_ptr<grpc::Channel> OpenInProcessChannel(grpc::Server& server, const Credentials& credentials) {
  return server.experimental().InProcessChannelWithInterceptors(grpc::ChannelArguments(),
                                                                MakeInterceptors(credentials));
}

}  // namespace ballast
