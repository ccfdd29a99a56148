// SPDX-License-Identifier: Apache-2.0
#include "client/call_group.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "client/message_packer.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/channel_arguments.h"

namespace ballast {
namespace {

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
  static const auto* const kAnchor = [] {
    auto* anchor = new AnchorCall;
    anchor->stub.UnaryCall(&anchor->context, "/anchor", {}, &anchor->request, &anchor->response,
                           [](const grpc::Status&) {});
    return anchor;
  }();
  static_cast<void>(kAnchor);
}

}  // namespace

std::shared_ptr<grpc::Channel> OpenChannel(const std::string& address, const Credentials& credentials,
                                           absl::Duration silence) {
  KeepCallbackThreads();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // In spite of its name, how long one attempt to connect may take.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  // A peer that is silent for so long is taken for gone, and its connection closed.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20000);
  // Also what TCP waits for it to take what was sent.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, static_cast<int>(absl::ToInt64Milliseconds(silence)));
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Workers and servers of a job talk directly, whatever proxy the environment names.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // A shard map may be larger than a message of the data plane.
  arguments.SetMaxReceiveMessageSize(16 * kMaxMessageBytes);
  return credentials.Open(address, arguments);
}

CallGroup::~CallGroup() {
  Shutdown("client destroyed");
  WaitUntilIdle();
}

void CallGroup::Start(uint64_t tag, CallOptions options, RetryingCall::Attempt attempt, RetryingCall::Done done) {
  std::shared_ptr<RetryingCall> call;
  std::string reason;
  {
    absl::MutexLock lock(&mutex_);
    if (shutdown_) {
      reason = reason_;
    } else {
      const uint64_t id = next_id_++;
      call = std::make_shared<RetryingCall>(
          std::move(options), std::move(attempt),
          [this, id, done = std::move(done)](absl::Status status, uint32_t attempts) mutable {
            done(std::move(status), attempts);
            // What it captured goes before the group may.
            done = nullptr;
            absl::MutexLock lock(&mutex_);
            calls_.erase(id);
          });
      calls_[id] = {tag, call};
    }
  }
  if (call == nullptr) {
    return done(absl::CancelledError(absl::StrCat(options.what(), ": cancelled: ", reason)), 0);
  }
  call->Start();
}

void CallGroup::CancelTagged(uint64_t tag, const std::string& reason) {
  std::vector<std::shared_ptr<RetryingCall>> calls;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [id, entry] : calls_) {
      if (entry.tag == tag) calls.push_back(entry.call);
    }
  }
  for (const auto& call : calls) call->Cancel(reason);
}

void CallGroup::RetryNow() {
  std::vector<std::shared_ptr<RetryingCall>> calls;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [id, entry] : calls_) calls.push_back(entry.call);
  }
  for (const auto& call : calls) call->RetryNow();
}

void CallGroup::Shutdown(const std::string& reason) {
  std::vector<std::shared_ptr<RetryingCall>> calls;
  {
    absl::MutexLock lock(&mutex_);
    if (shutdown_) return;
    shutdown_ = true;
    reason_ = reason;
    for (const auto& [id, entry] : calls_) calls.push_back(entry.call);
  }
  for (const auto& call : calls) call->Cancel(reason);
}

void CallGroup::WaitUntilIdle() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&calls_, &absl::flat_hash_map<uint64_t, Entry>::empty));
}

bool CallGroup::WaitForShutdown(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(&shutdown_), timeout);
}

}  // namespace ballast
