// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "ballast/v1/parameter_service.grpc.pb.h"
#include "client/call_group.h"
#include "client/error_feedback.h"
#include "client/future.h"
#include "client/message_packer.h"
#include "client/shared_memory/slot_sender.h"
#include "common/rpc/credentials.h"
#include "grpcpp/generic/generic_stub.h"

namespace ballast {

struct ShardChannelOptions {
  std::string job;
  uint32_t worker = 0;
  uint64_t incarnation = 1;
  uint32_t connections = 1;
  // Of pushes, and again of messages that may wait on the server: these never keep those from being sent.
  uint32_t messages_in_flight = 4;
  bool shared_memory = true;
  // As ClientOptions has them.
  Credentials credentials;
  absl::Duration rpc_timeout;
  absl::Duration retry_timeout;
  absl::Duration wait_timeout;
  // As OpenChannel has it. A message whose bytes are stuck with a peer that stopped has moved when they are let go,
  // too.
  absl::Duration silence = kPeerSilence;
  // Of the values that are pulled.
  v1::Encoding values = v1::ENCODING_FP32;
  // Whether the server is to remember what the worker pulled.
  bool names_worker_in_pulls = false;
  // As ClientOptions has it.
  bool watch_answers = false;
  // Called, maybe often, when the shard says that a slice is another's; must not block. May be empty.
  std::function<void()> on_not_owner;
  // Called before a message is sent again, for who keeps account of what the shard has answered; may be empty. From any
  // thread, and never under a lock.
  std::function<void(uint32_t rank)> on_retry;
  // Encodes the gradients; null for fp32, which travels as it lies. Outlives the channel.
  ErrorFeedback* feedback = nullptr;
};

// What came of one message.
struct ShardReply {
  absl::Status status;
  v1::PushOutcome outcome;
  v1::SetValuesResponse set;
  // Of the slices' values, where there was a pull.
  std::vector<uint64_t> versions;
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
  uint32_t retries = 0;
  // When the answer began to come, where answers are watched; when it was taken apart.
  absl::Time answer_begun;
  absl::Time answered;
};

// One message's worth of slices.
struct ShardMessage {
  enum class Kind { kPush, kPull, kPushPull, kSetValues };
  Kind kind = Kind::kPush;
  // Which call of the client's it is part of, from 1.
  uint64_t operation = 0;
  uint64_t step = 0;
  uint32_t examples = 0;
  std::optional<double> schedule_position;
  std::vector<SliceTransfer> slices;
  // Called once, with the message itself; then the slices' memory is the caller's again.
  absl::AnyInvocable<void(const ShardMessage&, ShardReply)> done;
};

// The way to one shard, wherever that is now: its connections, the messages queued for it and the sequence numbers
// given to pushes. Invariant: sequence numbers in flight lie within the 1024 that a shard remembers. Knows nothing of
// other shards. Thread safety: all methods may be called from any thread. The destructor returns when every `done` has.
class ShardChannel {
 public:
  ShardChannel(uint32_t rank, std::string address, ShardChannelOptions options);
  ~ShardChannel();

  // Sends messages as room comes; never blocks. Pushes go in order, and so do the others.
  void Send(std::vector<ShardMessage> messages);

  // Ends the operation's messages with CANCELLED; those in flight may have been applied.
  void Cancel(uint64_t operation, const std::string& reason);

  Future<v1::DeclareTensorsResponse> Declare(v1::DeclareTensorsRequest request);
  Future<v1::PauseResponse> Pause();
  // Calls `done` with the end of the call, unless the channel is shut down first.
  void ReportVersions(v1::ReportVersionsRequest request, std::function<void(absl::Status)> done);
  Future<v1::GetStatusResponse> GetStatus(absl::Duration timeout);

  // The shard is there from now on: what is sent later goes there, and what is on its way is sent again there at once,
  // the same. Blocks until nothing is on its way to the old address, which takes no answer from it, and closes the
  // connections. Nothing happens where the shard is there already. Not to be called from a callback.
  void MoveTo(const std::string& address);

  // Messages that are sent from now on, or again, are routed by a shard map of that epoch.
  void UseEpoch(uint64_t map_epoch) { map_epoch_.store(map_epoch, std::memory_order_relaxed); }

  // Ends everything in flight, and all that comes later, with CANCELLED.
  void Shutdown(const std::string& reason);

  // Blocks until every `done` has returned; to be called after Shutdown.
  void WaitUntilIdle();

  uint32_t rank() const { return rank_; }
  // Messages with gradients that the shard has answered with success.
  uint64_t acknowledged_pushes() const { return acknowledged_pushes_; }

 private:
  // Messages of one sort: those that wait to be sent and the number on their way.
  struct Lane {
    std::deque<ShardMessage> queue;
    uint32_t in_flight = 0;
  };
  struct Exchange;
  struct Route;
  // An attempt's part in the route that it takes, from its beginning to the next one's or to the call's end.
  class RouteUse;

  // "shard 1 at host:port".
  std::string name() const;
  RouteUse UseRoute();
  template <typename Request, typename Response>
  using StubMethod = void (v1::ParameterService::StubInterface::async_interface::*)(grpc::ClientContext*,
                                                                                    const Request*, Response*,
                                                                                    std::function<void(grpc::Status)>);
  template <typename Response, typename Request>
  Future<Response> Ask(CallOptions options, Request request, StubMethod<Request, Response> method);
  void SendQueued();
  std::shared_ptr<Exchange> TakeNextLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<Exchange> TakeLocked(Lane* lane) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Begin(std::shared_ptr<Exchange> exchange);
  void BeginAttempt(Exchange* exchange, grpc::ClientContext* context, absl::Duration time,
                    std::function<void(grpc::Status)> end);
  void Finish(std::shared_ptr<Exchange> exchange, absl::Status status, uint32_t attempts);
  CallOptions Options(const char* operation, absl::Duration wait) const;

  const uint32_t rank_;
  const ShardChannelOptions options_;
  std::atomic<uint64_t> map_epoch_{0};

  mutable absl::Mutex mutex_;
  // Never null.
  std::unique_ptr<Route> route_ ABSL_GUARDED_BY(mutex_);
  bool shutdown_ ABSL_GUARDED_BY(mutex_) = false;
  std::string shutdown_reason_ ABSL_GUARDED_BY(mutex_);
  Lane pushes_ ABSL_GUARDED_BY(mutex_);
  Lane waits_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_sequence_ ABSL_GUARDED_BY(mutex_) = 1;
  std::set<uint64_t> sequences_in_flight_ ABSL_GUARDED_BY(mutex_);
  size_t next_connection_ ABSL_GUARDED_BY(mutex_) = 0;
  std::atomic<uint64_t> acknowledged_pushes_{0};
  // Messages that have ended while gRPC still has memory of theirs.
  int lent_ ABSL_GUARDED_BY(mutex_) = 0;

  // Last: its destructor waits for calls that use the rest.
  CallGroup calls_;
};

}  // namespace ballast
