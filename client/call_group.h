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

// The calls in flight to one peer, so that they can be ended together. Knows no service.
// Thread safety: all methods may be called from any thread. Destroy it before what its calls use: its destructor ends
// them and returns when the last `done` has returned.
class CallGroup {
 public:
  CallGroup() = default;
  ~CallGroup();

  // `tag` names the calls that CancelTagged ends. After Shutdown, `done` gets CANCELLED before Start returns.
  void Start(uint64_t tag, CallOptions options, RetryingCall::Attempt attempt, RetryingCall::Done done);

  // The same for a call whose answer alone matters. `begin(context, &request, &response, callback)` calls the stub, and
  // is gone with what it holds before the future is ready.
  template <typename Response, typename Request, typename Begin>
  Future<Response> Ask(CallOptions options, Request request, Begin begin);

  void CancelTagged(uint64_t tag, const std::string& reason);

  // Has every call begin its next attempt at once, where it is not on its way there already.
  void RetryNow();

  // Ends all calls with CANCELLED and the reason, now and from now on. The first reason stands.
  void Shutdown(const std::string& reason);

  // Blocks until every `done` has returned; to be called after Shutdown.
  void WaitUntilIdle();

  // Blocks until Shutdown or for `timeout`; whether it was shut down.
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
  // Shared by the two functions below; lives until the later of them is gone.
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
