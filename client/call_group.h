// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/future.h"
#include "client/retrying_call.h"
#include "common/rpc/channel.h"

namespace ballast {

// Owns the calls in flight to one peer, so that they can be cancelled together. Does not know any service.
// Thread safety: all methods may be called from any thread. The destructor cancels the calls and returns after the last
// `done` has returned, so destroy the group before the objects that its calls use.
class CallGroup {
 public:
  CallGroup() = default;
  ~CallGroup();

  // `tag` names the calls that CancelTagged ends. After Shutdown, `done` gets CANCELLED before Start returns.
  void Start(uint64_t tag, CallOptions options, RetryingCall::Attempt attempt, RetryingCall::Done done);

  // Like Start, but returns the response. `begin(context, &request, &response, callback)` calls the stub; it is
  // destroyed before the future is ready.
  template <typename Response, typename Request, typename Begin>
  Future<Response> Ask(CallOptions options, Request request, Begin begin);

  void CancelTagged(uint64_t tag, const std::string& reason);

  // Ends the current attempt or pause of every call, so that its next attempt begins at once.
  void RetryNow();

  // Ends all calls, and all later ones, with CANCELLED and the first reason given.
  void Shutdown(const std::string& reason);

  // Blocks until every `done` has returned; call it after Shutdown.
  void WaitUntilIdle();

  // Blocks until Shutdown, but at most for `timeout`. Returns whether the group was shut down.
  bool WaitForShutdown(absl::Duration timeout);

 private:
  struct Entry {
    uint64_t tag;
    std::shared_ptr<RetryingCall> call;
  };

  absl::Mutex mutex_;
  bool shutdown_ ABSL_GUARDED_BY(mutex_) = false;
  std::string reason_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 0;
  // Calls whose `done` has not returned.
  absl::flat_hash_map<uint64_t, Entry> calls_ ABSL_GUARDED_BY(mutex_);
};

template <typename Response, typename Request, typename Begin>
Future<Response> CallGroup::Ask(CallOptions options, Request request, Begin begin) {
  struct Exchange {
    std::optional<Begin> begin;
    Request request;
    Response response;
    Promise<Response> promise;
  };
  // Shared by the two functions below, whichever is destroyed last.
  auto exchange = std::make_shared<Exchange>();
  exchange->begin.emplace(std::move(begin));
  exchange->request = std::move(request);
  Future<Response> future = exchange->promise.GetFuture();
  Start(
      /*tag=*/0, std::move(options),
      [exchange](grpc::ClientContext* context, absl::Duration, std::function<void(grpc::Status)> end) {
        (*exchange->begin)(context, &exchange->request, &exchange->response, std::move(end));
      },
      [exchange](absl::Status status, uint32_t) {
        exchange->begin.reset();
        if (status.ok()) return exchange->promise.Set(std::move(exchange->response));
        exchange->promise.Set(std::move(status));
      });
  return future;
}

}  // namespace ballast
