// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "ballast/v1/parameter_service.grpc.pb.h"
#include "client/call_group.h"
#include "client/data_stream/stream_sender.h"
#include "client/error_feedback.h"
#include "client/future.h"
#include "client/shard_exchange.h"
#include "client/shared_memory/slot_sender.h"
#include "common/flight/flight_recorder.h"
#include "common/rpc/credentials.h"
#include "common/trace/call_timeline.h"

namespace ballast {

// The settings of ClientOptions that concern one shard, and how to reach it.
struct ShardChannelOptions : ExchangeOptions {
  uint32_t connections = 1;
  // Limit for messages that the server answers at once, and separately for those that may wait there, so that these
  // never block pushes.
  uint32_t messages_in_flight = 4;
  bool shared_memory = true;
  bool data_streams = true;
  PinMemory pin_memory;
  // The credentials and timeouts have the same meaning as in ClientOptions.
  Credentials credentials;
  absl::Duration rpc_timeout;
  absl::Duration retry_timeout;
  absl::Duration wait_timeout;
  // Keep-alive timeout, as in OpenChannel. It also bounds how long bytes stuck in a dead connection delay MoveTo.
  absl::Duration silence = kPeerSilence;
  // Called, maybe often, when the shard reports that it does not own a slice; must not block. May be empty.
  std::function<void()> on_not_owner;
  // Called before each retry of a message, from any thread, without locks held. May be empty.
  std::function<void(uint32_t rank)> on_retry;
  // Encodes the gradients; null for fp32, which is sent without a copy. Outlives the channel.
  ErrorFeedback* feedback = nullptr;
  // ClientOptions::tracer.
  CallTracer* tracer = nullptr;
};

// Owns the connections to one shard, the messages queued for it and the sequence numbers of pushes; follows the shard
// when it moves. Invariant: sequence numbers in flight lie within the 1024 that a shard remembers. Does not know other
// shards. Thread safety: all methods may be called from any thread. The destructor returns after every `done`.
class ShardChannel {
 public:
  ShardChannel(uint32_t rank, std::string address, ShardChannelOptions options);
  ~ShardChannel();

  // Queues messages and sends them within the limit; never blocks. Pushes keep their order, those of rows among those
  // of slices, and so do other messages.
  void Send(std::vector<ShardMessage> messages);

  // Ends the operation's messages with CANCELLED; those in flight may have been applied.
  void Cancel(uint64_t operation, const std::string& reason);

  Future<v1::DeclareTensorsResponse> Declare(v1::DeclareTensorsRequest request);
  Future<v1::PauseResponse> Pause();
  // Calls `done` with the final status.
  void ReportVersions(v1::ReportVersionsRequest request, std::function<void(absl::Status)> done);
  Future<v1::GetStatusResponse> GetStatus(absl::Duration timeout);
  // `request.job` is set here.
  Future<v1::InspectRowsResponse> InspectRows(v1::InspectRowsRequest request);

  // Switches to the shard's new address: later messages are sent there, and messages in flight are sent again there at
  // once, unchanged. Blocks until no attempt uses the old address, which requires no response from it, and closes the
  // old connections. Does nothing if the address is the same. Must not be called from a callback.
  void MoveTo(const std::string& address);

  // Sets the epoch of the shard map that later messages and retries carry.
  void UseEpoch(uint64_t map_epoch) { map_epoch_.store(map_epoch, std::memory_order_relaxed); }

  // Ends all messages in flight, and all later ones, with CANCELLED.
  void Shutdown(const std::string& reason);

  // Blocks until every `done` has returned; call it after Shutdown.
  void WaitUntilIdle();

  // Receives in the calling thread until `ready`, which what it receives may make true, or `timeout`. Returns the time
  // that it spent on what it received; nullopt, at once, if messages go neither through shared memory nor on a data
  // stream, or another thread helps already.
  std::optional<absl::Duration> Help(absl::FunctionRef<bool()> ready, absl::Duration timeout);

  // Returns whether large messages go through shared memory now.
  bool shares_memory() const;

  uint32_t rank() const { return rank_; }
  // Returns the number of messages with gradients that succeeded.
  uint64_t acknowledged_pushes() const { return acknowledged_pushes_; }

 private:
  // Messages of one kind: the queue, the number in flight, and how many of those the shard had no room for and wait for
  // their next attempt.
  struct Lane {
    std::deque<ShardMessage> queue;
    uint32_t in_flight = 0;
    uint32_t refused = 0;
  };
  struct Exchange;
  struct Route;
  struct ReleaseRoute {
    ShardChannel* channel = nullptr;
    void operator()(Route* route) const;
  };
  // An attempt's reference to its route, held until the next attempt begins or the call ends.
  using RouteUse = std::unique_ptr<Route, ReleaseRoute>;

  // Adds a message's begin or end to the flight recorder.
  void Record(const ShardMessage& message, FlightEdge edge, absl::StatusCode code) const;
  // Returns "shard 1 at host:port".
  std::string name() const;
  RouteUse UseRoute();
  template <typename Request, typename Response>
  using StubMethod = void (v1::ParameterService::StubInterface::async_interface::*)(grpc::ClientContext*,
                                                                                    const Request*, Response*,
                                                                                    std::function<void(grpc::Status)>);
  template <typename Response, typename Request>
  Future<Response> Ask(CallOptions options, Request request, StubMethod<Request, Response> method);
  // Begins the queued messages that may begin. `owned`: the thread is one of senders_. A thread that receives leaves
  // them to those: to encode a message may take long, and there may be more to receive.
  void SendQueued(bool owned);
  // Returns null if no message of the lane may begin now.
  std::shared_ptr<Exchange> TakeLocked(Lane* lane) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Lane& LaneOf(const ShardMessage& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return message.may_wait() ? waits_ : pushes_;
  }
  void Begin(std::shared_ptr<Exchange> exchange);
  // Follows how an attempt has ended: successes widen the window, refusals for want of room narrow it.
  void OnAttemptEnd(Exchange* exchange, const grpc::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  // Forgets that the shard had no room for the message, because it is sent again or has ended.
  void EndRefusalLocked(Exchange* exchange) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns what a first attempt may use besides gRPC.
  DirectRoutes RoutesFor(const Exchange& exchange) const;
  void BeginAttempt(Exchange* exchange, CallAttempt* attempt, absl::Duration time,
                    std::function<void(grpc::Status)> end);
  // Begins the span of an attempt to send the message, for the tracer.
  CallSpan BeginSpan(const ShardMessage& message) const;
  // Returns a function that records the attempt's span, then calls `end`.
  std::function<void(grpc::Status)> Trace(const Exchange* exchange, CallSpan span,
                                          std::function<void(grpc::Status)> end);
  void Finish(std::shared_ptr<Exchange> exchange, absl::Status status);
  // Receives what was left to a thread that has helped.
  void Receive();
  // Tells a message's owner that it has ended, and a thread in Help.
  void Complete(ShardMessage& message, ShardReply reply);
  CallOptions Options(const char* operation, absl::Duration wait) const;

  const uint32_t rank_;
  const ShardChannelOptions options_;
  std::atomic<uint64_t> map_epoch_{0};

  mutable absl::Mutex mutex_;
  // Never null.
  std::unique_ptr<Route> route_ ABSL_GUARDED_BY(mutex_);
  // Most messages in flight in each lane. While the shard has no room, a client that may have many takes fewer places
  // by itself: halved with each refusal, one more after as many successes (the additive increase and multiplicative
  // decrease of TCP, RFC 5681). A lane begins no new message while a refused one waits for its next attempt. Otherwise
  // the new messages of some would always come before the retries of others, and before their own.
  double window_ ABSL_GUARDED_BY(mutex_);
  bool shutdown_ ABSL_GUARDED_BY(mutex_) = false;
  std::string shutdown_reason_ ABSL_GUARDED_BY(mutex_);
  // Pushes, set values and pulls of rows.
  Lane pushes_ ABSL_GUARDED_BY(mutex_);
  Lane waits_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_sequence_ ABSL_GUARDED_BY(mutex_) = 1;
  std::set<uint64_t> sequences_in_flight_ ABSL_GUARDED_BY(mutex_);
  size_t next_connection_ ABSL_GUARDED_BY(mutex_) = 0;
  // Threads in Send that have messages to begin.
  int senders_ ABSL_GUARDED_BY(mutex_) = 0;
  std::atomic<uint64_t> acknowledged_pushes_{0};
  // Messages that have ended while gRPC still uses their memory.
  int lent_ ABSL_GUARDED_BY(mutex_) = 0;

  // Declared last, because its destructor waits for calls that use the other fields.
  CallGroup calls_;
};

}  // namespace ballast
