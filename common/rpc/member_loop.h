// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "ballast/v1/coordinator_service.pb.h"
#include "common/concurrency/clock.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/status.h"

namespace ballast {

// Returns true if the error means that no response came, not that the coordinator refused the call: it may be busy, or
// its disk full for a while.
bool IsUnresponsive(const absl::Status& status);

// Converts the result of an attempt, like FromGrpcStatus. CANCELLED becomes UNAVAILABLE, because only a server that
// stops cancels a call that MemberLoop has not cancelled.
absl::Status FromAttempt(const grpc::Status& status, absl::string_view context = "");

// Returns the pause until the next heartbeat; `last` is the response to the previous one, or empty.
absl::Duration HeartbeatInterval(const v1::JoinResponse& joined, const v1::HeartbeatResponse& last);

// Owns the thread on which a member joins and sends heartbeats, the call under way to the coordinator, and its retries.
// Invariant: at most one call is under way. Knows neither the requests nor what a response means: the member's step and
// attempts do. Thread safety: all methods may be called from any thread, except Start and Stop, which one thread calls.
class MemberLoop {
 public:
  // Joins or sends a heartbeat, with Call. Returns the pause until the next step; nullopt ends the loop.
  using Step = std::function<std::optional<absl::Duration>()>;
  // Makes one attempt of a call, which ends soon after the context is cancelled.
  using Attempt = absl::FunctionRef<absl::Status(grpc::ClientContext*)>;
  // Returns the time until which a call that failed with this error is tried again; InfinitePast: the error is final.
  using RetryUntil = absl::FunctionRef<absl::Time(const absl::Status&)>;

  // The clock decides only when to stop retrying.
  explicit MemberLoop(const Clock* clock = Clock::Real()) : clock_(clock) {}
  ~MemberLoop() { Stop(); }
  MemberLoop(const MemberLoop&) = delete;

  // Runs the step at once and then after each pause, until Stop. Does nothing if the loop has been started.
  void Start(Step step);

  // Ends the pause before the next step; during a step, there is no pause after it.
  void HeartbeatNow();

  // Cancels the call under way, and ends all later ones with CANCELLED. Blocks until the step under way has returned;
  // must not be called from a step.
  void Stop();
  bool stopping() const;

  // Blocks until the attempt succeeds or its error is final, and returns the last status. Pauses between attempts.
  absl::Status Call(Attempt attempt, absl::Duration pause, RetryUntil retry_until);

 private:
  // Returns false once Stop was called.
  bool AwaitNextStep(absl::Duration pause);

  const Clock* const clock_;
  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool hastened_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* calling_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::thread thread_;
};

}  // namespace ballast
