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

// Minimum time between two connection attempts, and between two name lookups.
constexpr absl::Duration kReconnectPause = absl::Seconds(1);
// Timeout of one connection attempt, and of one DNS query. A server that has moved leaves an address where nothing
// answers, and its name is looked up again only once the attempt there has failed; DNS servers lose queries, too.
constexpr absl::Duration kReconnectTimeout = absl::Seconds(2);

// A call on a channel without a target, which fails immediately.
struct AnchorCall {
  // Without credentials gRPC creates a "lame" channel, on which every call fails.
  grpc::GenericStub stub{grpc::CreateCustomChannel("", nullptr, grpc::ChannelArguments())};
  grpc::ClientContext context;
  const grpc::Slice nothing;
  const grpc::ByteBuffer request{&nothing, 1};
  grpc::ByteBuffer response;
};

// gRPC 1.51 stops its callback threads together with the last channel that made a callback call, under a lock that
// the first call of another channel also takes. If that first call is made in a callback thread, the two deadlock; if
// the last channel is destroyed in one, it frees the thread's own state. Therefore one channel is kept for the
// lifetime of the process.
void KeepCallbackThreads() {
  // Kept though nothing reads it, so that leak checkers find the call reachable.
  [[gnu::used]] static const auto* const kAnchor = [] {
    auto* anchor = new AnchorCall;
    anchor->stub.UnaryCall(&anchor->context, "/anchor", {}, &anchor->request, &anchor->response,
                           [](const grpc::Status&) {});
    return anchor;
  }();
}

// Adds the token to a call.
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

// gRPC's own AccessTokenCredentials require TLS; this works with and without it.
class TokenBearerFactory : public experimental::ClientInterceptorFactoryInterface {
 public:
  explicit TokenBearerFactory(const std::string& token) : header_(absl::StrCat("Bearer ", token)) {}

  experimental::Interceptor* CreateClientInterceptor(experimental::ClientRpcInfo*) override {
    return new TokenBearer(header_);
  }

 private:
  // Outlives the calls, because the channel owns this factory.
  const std::string header_;
};

// Makes a channel whose call failed connect again immediately. If nothing answers at the old address, gRPC looks the
// server's name up again. After an unknown name it waits up to two minutes, which only RenewedChannel avoids.
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
  // Returns true if the minimum pause since the last lookup is over.
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
    // All of gRPC's own channels are of this class; the call keeps the channel alive.
    return new NameRetrier(next_, dynamic_cast<grpc::Channel*>(info->channel()));
  }

 private:
  // Time of the next allowed lookup; outlives the calls.
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
  // Backoff state learned from a lost process must not apply to its replacement at the same address.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // Despite its name, this is the timeout of one connection attempt.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, Milliseconds(kReconnectTimeout));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, Milliseconds(kReconnectPause));
  arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, Milliseconds(kReconnectPause));
  arguments.SetInt(GRPC_ARG_DNS_ARES_QUERY_TIMEOUT_MS, Milliseconds(kReconnectTimeout));
  // DNS holds only addresses; asking for service configs would double the queries.
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  // A peer that does not respond for this long is considered lost, and its connection is closed.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20000);
  // Also limits how long TCP waits for acknowledgment of sent data.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Milliseconds(silence));
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Workers and servers of a job connect directly, whatever proxy the environment names.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // A shard map may be larger than a data plane message.
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
