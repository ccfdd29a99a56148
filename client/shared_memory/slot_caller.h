// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/concurrency/eager_wait.h"
#include "common/shared_memory/doorbell.h"
#include "common/shared_memory/shared_region.h"
#include "grpcpp/support/status.h"

namespace ballast {

// Owns the calls that a client makes in the slots of its region, until their responses. Invariant: each call ends once:
// with its response, when it is cancelled, at its deadline, or with End. A call that ends in another way than the first
// may still have its slot in use by the server, but what its message lent of the client's heap is the caller's again.
// Thread safety: all methods may be called from any thread.
class SlotCaller {
 public:
  // `response`: where in the slot the message is; only if the call succeeded.
  using Done = absl::AnyInvocable<void(const grpc::Status&, const SlotResponse& response) &&>;

  struct Options {
    // Returns whether another thread could run without taking turns with those that run.
    bool (*processor_is_free)() = &EagerWait::ProcessorIsFree;
    // Limits how long a ring that the server's memory lost delays a response.
    absl::Duration longest_wait = absl::Seconds(1);
    // Limits how long a response is left to a thread that has helped, and does not come back.
    absl::Duration longest_absence = absl::Milliseconds(10);
  };

  explicit SlotCaller(std::shared_ptr<SharedRegion> region) : SlotCaller(std::move(region), Options()) {}
  SlotCaller(std::shared_ptr<SharedRegion> region, const Options& options)
      : region_(std::move(region)),
        options_(options),
        calls_(region_->slots()),
        helpers_bell_(region_->client_bell()),
        parked_(region_->client_bell()) {}

  // Receives responses and calls `done` for each, until End and the last `done`. Call it once, on a thread of its own.
  // Stays away, for a moment at most, while another thread helps or has just helped and no processor is free.
  void Run();

  // Receives responses in the calling thread instead, until `ready`, which they may make true, or `timeout`; the thread
  // that would pass them on need not be woken. Calls `ready` after every response, and whenever Notify is called.
  // Returns the time that it spent on responses; nullopt, at once, if another thread helps already or after End.
  std::optional<absl::Duration> Help(absl::FunctionRef<bool()> ready, absl::Duration timeout);
  // Receives, in the calling thread, the responses that Run leaves to the thread that has just helped. A thread that
  // helps and computes in turn calls it in between, so that no response waits for long.
  void Receive();
  // Says whether messages wait for a response before they can be sent. Run then leaves it to no one.
  void SetAwaited(bool awaited);
  // Has a thread in Help call its `ready`. Call it whenever another thread may have made that true.
  void Notify();

  // Begins a call with the message in the slot, which has no other call. Returns its number, from 1; 0 after End:
  // `done` is not called. Otherwise the thread that receives the response calls it.
  uint64_t Begin(uint32_t slot, const SlotRequest& request, absl::Time deadline, Done done);

  // Ends that call with CANCELLED, unless it has ended, and asks the server to.
  void Cancel(uint32_t slot, uint64_t number);

  // Ends all calls with `why`, begins no more, and lets Run return.
  void End(const grpc::Status& why);

 private:
  struct Call {
    // 0: none.
    uint64_t number = 0;
    absl::Time deadline;
    bool cancelled = false;
    Done done;
  };
  // A call that has ended, and how.
  struct Ended {
    Done done;
    grpc::Status status;
    SlotResponse response;
  };

  bool is_over() const {
    absl::MutexLock lock(&mutex_);
    return over_;
  }
  // Returns whether Run's thread should stay away, because another thread helps, or has just done so and no processor
  // is free. Sets `away_` to it.
  bool StaysAway(absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  // Runs what has ended, if anything has; otherwise sets `next` as TakeEndedLocked does. Returns whether anything had.
  bool RunEnded(absl::Time now, absl::Time& next) ABSL_LOCKS_EXCLUDED(mutex_);
  // Takes the calls that have ended by now out of the list, and sets `next` to the time of the next deadline.
  std::vector<Ended> TakeEndedLocked(absl::Time now, absl::Time& next) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns how the call has ended; nullopt: not yet.
  std::optional<Ended> EndOfLocked(uint32_t slot, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<SharedRegion> region_;
  const Options options_;
  mutable absl::Mutex mutex_;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Status why_ ABSL_GUARDED_BY(mutex_);
  uint64_t begun_ ABSL_GUARDED_BY(mutex_) = 0;
  // By slot.
  std::vector<Call> calls_ ABSL_GUARDED_BY(mutex_);
  // The thread in Help; no thread's: none.
  std::thread::id helper_ ABSL_GUARDED_BY(mutex_);
  // When a thread helped last, or received what was left to it.
  absl::Time helped_at_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  // Number of rings before it looked for responses then.
  uint32_t looked_ ABSL_GUARDED_BY(mutex_) = 0;
  bool awaited_ ABSL_GUARDED_BY(mutex_) = false;
  // Run's thread waits for a moment at most, whatever rings.
  bool away_ ABSL_GUARDED_BY(mutex_) = false;
  // Used by the helper.
  DoorbellListener helpers_bell_;
  // Run's thread, while it stays away.
  ParkedSleepers parked_;
};

}  // namespace ballast
